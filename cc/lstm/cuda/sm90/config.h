// The sizes of one cluster kernel, forward and backward, with their register and shared-memory
// budget.
//
// A cluster of kClusterSize blocks holds a recurrent kernel of kHidden units for a slice of at most
// kRows batch rows (an even number). A block owns kUnits units and all four gates of them; a warp 4
// units, which make one 16-row tile of the matrix instruction (4 gates x 4 units) with the batch as
// its N side. Registers a thread, of R alone: kHidden * sizeof(Storage) / 8, so 64 at 256 units and
// 128 at 512 units of a 16-bit type; beside them 4 accumulators, 5 inputs and some 4 pointers for
// each of the kTiles row tiles, and about 40 others. kThreads * registers must stay below 65536.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CONFIG_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CONFIG_H_

#include <cstdint>

namespace tfl::cuda::sm90 {

constexpr int Gcd(int a, int b) { return b == 0 ? a : Gcd(b, a % b); }
constexpr int Max(int a, int b) { return a > b ? a : b; }
constexpr int Min(int a, int b) { return a < b ? a : b; }

// Of a block on Hopper, but for what kernels declare by name.
constexpr int kMostSharedBytes = 227 * 1024 - 640;

// Of a thread's in a stack's kernel, those that hold weights: R, and of the input weights what
// fits.
constexpr int kStackWeightRegisters = 144;

// E: an arithmetic type of element.cuh. TILES: 8-row tiles of a slice.
template <class E, int HIDDEN, int CLUSTER_SIZE, int TILES>
struct ClusterConfig {
  using Element = E;
  using Storage = typename E::Storage;
  using Partial = typename E::Partial;

  static constexpr int kHidden = HIDDEN;
  static constexpr int kClusterSize = CLUSTER_SIZE;
  static constexpr int kTiles = TILES;
  static constexpr bool kWarpgroup = TILES > 1;  // products of forward by wgmma
  static constexpr int kRows = 8 * TILES;
  static constexpr int kUnits = HIDDEN / CLUSTER_SIZE;
  static constexpr int kWarps = kUnits / 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBytes = sizeof(Storage);

  static_assert(HIDDEN % CLUSTER_SIZE == 0 && kUnits % 16 == 0, "a block owns whole 16-unit tiles");
  static_assert(!kWarpgroup || kWarps % 4 == 0, "a warpgroup is four warps");
  static_assert(CLUSTER_SIZE % 4 == 0 && CLUSTER_SIZE <= 16, "backward spreads tiles over warps");

  // Matrix factors in shared memory are K-major core matrices, [K / kGroup][rows][16 bytes], which
  // is what both wgmma and ldmatrix read without bank conflicts. A slice may have fewer rows than
  // kRows: wgmma's reads beyond them meet the next group; those columns of a product are used
  // nowhere.
  static constexpr int kGroup = 16 / kBytes;  // consecutive k in one row of a core matrix
  static constexpr int kUnitGroups = kUnits / kGroup;
  static constexpr int kStepBytes = 32;  // of K that one matrix instruction takes

  // The block's columns of R on their way into registers.
  static constexpr int kStagePitch = 4 * kUnits * kBytes + 16;
  static constexpr int kStageBytes = HIDDEN * kStagePitch;
  static constexpr int kStageGroups = 4;  // of rows, read as they come
  static constexpr int kStageRows = HIDDEN / kStageGroups;
  static_assert(kStageRows % kUnits == 0, "a group is whole parts");

  // Forward: h of the whole cluster, twice. K is taken block by block, one's own first, then as
  // they come: part i is that of block rank - i. kArrivals barriers a buffer, each for as many
  // parts, let products begin with the first.
  static constexpr int kPartSteps = kUnits * kBytes / kStepBytes;
  static constexpr int kForwardSteps = CLUSTER_SIZE * kPartSteps;
  static constexpr int kArrivals = CLUSTER_SIZE / 4;
  static constexpr int kArrivalParts = CLUSTER_SIZE / kArrivals;
  static constexpr int kHiddenBytes = HIDDEN * kBytes * kRows + 128;
  static constexpr int kOwnBytes = kUnits * kBytes * kRows;
  static constexpr int kForwardShared = 2 * kHiddenBytes + Max(2 * kOwnBytes, kStageBytes);

  // In a stack also the input weights of a layer on another: as many steps of K as there are
  // registers for beside R, the others in shared memory, where R was staged; and a ring of rows of
  // the layer below. What is in shared memory lies as the A operand of wgmma, [step][2 groups of
  // K][kGateGroups core matrices of 8 gate rows], which is also what ldmatrix reads.
  static constexpr int kInputRegisterSteps =
      Min(kForwardSteps, kStackWeightRegisters / 4 - kForwardSteps);
  static constexpr int kInputSharedSteps = kForwardSteps - kInputRegisterSteps;
  static constexpr int kGateGroups = 4 * kUnits / 8;
  static constexpr int kInputStepBytes = 2 * kGateGroups * 128;
  static constexpr int kInputBytes = kInputSharedSteps * kInputStepBytes;
  static constexpr int kStackForwardRing =
      2 * kHiddenBytes + Max(kInputBytes + 2 * kOwnBytes, kStageBytes);
  static constexpr int kStackForwardSlots =
      Min(4, (kMostSharedBytes - kStackForwardRing) / kHiddenBytes);
  static constexpr int kStackForwardShared = kStackForwardRing + kStackForwardSlots * kHiddenBytes;

  // Backward: the gradients of the block's gates and, as a fifth plane on its way to memory, h
  // before the step, twice; the partial sums of dh from every block, twice; those on their way out.
  static constexpr int kBackwardSteps = 4 * kUnits * kBytes / kStepBytes;
  static constexpr int kGateTiles = CLUSTER_SIZE / 4;  // 16-unit tiles of dh that a warp computes
  static constexpr int kMessageTiles = Gcd(kGateTiles, kUnits / 16);  // of them, with one receiver
  static constexpr int kMessages = kGateTiles / kMessageTiles;
  static constexpr int kMessageUnits = 16 * kMessageTiles;
  static constexpr int kMessageRowBytes = kMessageUnits * int{sizeof(Partial)};
  static constexpr int kSourceRowBytes = kUnits * int{sizeof(Partial)};
  static constexpr int kPlanes = 5;
  static constexpr int kGatesBytes = kPlanes * kUnits * kBytes * kRows;
  // The two halves of the sources are read at once by the two halves of a warp: 64 bytes apart in
  // banks.
  static constexpr int kHalfSkew = 64;
  static constexpr int kReceiveTileBytes = 8 * CLUSTER_SIZE * kSourceRowBytes + 2 * kHalfSkew;
  static constexpr int kReceiveBytes = TILES * kReceiveTileBytes;
  static constexpr int kSendBytes = kWarps * kMessages * kMessageRowBytes * 8;
  static constexpr int kBackwardShared =
      Max(2 * kGatesBytes + 2 * kReceiveBytes + kSendBytes, kStageBytes);

  // In a stack also the product of the gate gradients of the layer above with the rows of its input
  // weights that are the block's units: K is 4 * HIDDEN, kSourceSteps steps of it a warp, whose
  // weights are in registers as far as there is room, the others' in shared memory as fragments,
  // [warp][step][16-unit tile][lane]; every warp's part of it, twice; a ring of row tiles of the
  // factor.
  static constexpr int kSourceSteps = 4 * HIDDEN * kBytes / kStepBytes / kWarps;
  static constexpr int kSourceRegisterSteps =
      Min(kSourceSteps,
          (kStackWeightRegisters - 4 * kGateTiles * kBackwardSteps) / (kUnits / 4) / 2 * 2);
  static constexpr int kSourceSharedSteps = kSourceSteps - kSourceRegisterSteps;
  static constexpr int kSourceStepBytes = kUnits / 16 * 512;
  static constexpr int kSourceBytes = kWarps * kSourceSharedSteps * kSourceStepBytes;
  static constexpr int kSourcePitch = 4 * HIDDEN * kBytes + 16;
  static_assert(kUnits * kSourcePitch <= kBackwardShared, "those weights are staged where R is");
  static constexpr int kSourceTileBytes = 4 * HIDDEN * kBytes * 8;
  static constexpr int kPartsBytes = TILES * kWarps * kUnits * 8 * int{sizeof(float)};
  static constexpr int kExchangeBytes = 2 * kGatesBytes + 2 * kReceiveBytes + kSendBytes;
  static constexpr int kStackBackwardParts = Max(kBackwardShared, kExchangeBytes + kSourceBytes);
  static constexpr int kStackBackwardRing = kStackBackwardParts + 2 * kPartsBytes;
  static constexpr int kStackBackwardSlots =
      Min(8, (kMostSharedBytes - kStackBackwardRing) / kSourceTileBytes);
  static constexpr int kStackBackwardShared =
      kStackBackwardRing + kStackBackwardSlots * kSourceTileBytes;
};

// The warps of a stack's block that do not compute (stack_feed.cuh): a warpgroup, so that the
// others can have its registers. kCourierRegisters and twice kComputeRegisters are what three
// warpgroups begin with.
constexpr int kCourierThreads = 128;
constexpr int kCourierRegisters = 40;
constexpr int kComputeRegisters = 232;

// The reserve: one record a cell and step, [steps + 1][kHidden / 4][batch][4 units], so that a warp
// writes and reads one contiguous piece whatever the slices are. A record holds the step's gates
// and c and h before the step; the last step's records hold only the latter.
inline int64_t ReserveCells(int64_t batch, int64_t steps, int64_t padded_hidden) {
  return (steps + 1) * batch * padded_hidden;
}
inline int64_t ReserveRecordBytes(int64_t element_bytes) { return element_bytes == 2 ? 16 : 24; }

}  // namespace tfl::cuda::sm90

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CONFIG_H_
