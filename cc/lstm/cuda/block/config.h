// The sizes of one block kernel, forward and backward.
//
// A block holds a recurrent kernel of kHidden units for at most kRows batch rows. A warp owns 16
// units and all four gates of them: four 16-row tiles of the matrix instruction, R in registers.
// The instruction's N side is 8 columns whatever there is to multiply, so that with fewer rows a
// column repeats a row's, and lanes that hold the same sums share the cells.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_CONFIG_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_CONFIG_H_

namespace tfl::cuda::block {

// R on its way into registers: [32 rows][gate][unit], in as many slots as there is memory for.
constexpr int kGroupRows = 32;
constexpr int kLeastSlots = 2;
constexpr int StagePitch(int hidden) { return 8 * hidden + 16; }
constexpr int SlotBytes(int hidden) { return kGroupRows * StagePitch(hidden); }

// Forward: h, twice: [32 units][row][unit].
constexpr int HiddenBytes(int hidden, int rows) { return 2 * hidden * rows; }

// Backward: the gradients of the gates: [warp][row][gate][16 units]. What every warp makes of its
// own for the cells of every other, twice: [from][to][lane][cell].
constexpr int kGatesPitch = 4 * 16 * 2 + 16;
constexpr int GatesBytes(int hidden, int rows) { return hidden / 16 * rows * kGatesPitch; }
constexpr int PartsBytes(int hidden, int rows) {
  return hidden / 16 * (hidden / 16) * 32 * (rows / 2) * 4;
}

constexpr int SharedBytes(int hidden, int rows, int slots, bool forward) {
  const int stage = slots * SlotBytes(hidden), parts = 2 * PartsBytes(hidden, rows);
  return forward ? 2 * HiddenBytes(hidden, rows) + stage
                 : GatesBytes(hidden, rows) + (stage > parts ? stage : parts);
}

// E: an arithmetic type of sm90/element.cuh, of 16 bits. ROWS: 2, 4 or 8.
template <class E, int HIDDEN, int ROWS>
struct BlockConfig {
  using Element = E;
  using Storage = typename E::Storage;

  static constexpr int kHidden = HIDDEN;
  static constexpr int kRows = ROWS;
  static constexpr int kCells = ROWS / 2;              // of a lane
  static constexpr int kLaneRows = ROWS == 8 ? 2 : 1;  // batch rows that these are of
  static constexpr int kWarps = HIDDEN / 16;
  static constexpr int kThreads = 32 * kWarps;
  static_assert(HIDDEN == 64 || HIDDEN == 128, "R fits in the registers, and warps are full");
  static_assert(ROWS == 2 || ROWS == 4 || ROWS == 8, "whole cells a lane");

  // Many cells leave no registers for inputs that come more than a step early.
  static constexpr bool kComesEarly = kCells <= 2;
  // Forward: two warps share a quarter of the multiprocessor. They are of two halves of the block
  // that wait for each other only where they use what the other left: while the tensor cores work
  // for one, the other applies its cells.
  static constexpr bool kSplits = kWarps == 8;

  static constexpr int kGroups = HIDDEN / kGroupRows;
  static constexpr int kStagePitch = StagePitch(HIDDEN);
  static constexpr int kSlotBytes = SlotBytes(HIDDEN);
  static constexpr int kHiddenBytes = HiddenBytes(HIDDEN, ROWS);
  static constexpr int kGatesBytes = GatesBytes(HIDDEN, ROWS);
  static constexpr int kPartsBytes = PartsBytes(HIDDEN, ROWS);
  static constexpr int kForwardSteps = HIDDEN / 16;  // of K, which is the units
};

}  // namespace tfl::cuda::block

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_CONFIG_H_
