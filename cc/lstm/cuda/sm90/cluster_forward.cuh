// The forward recurrence in one launch: R in registers, h through distributed shared memory.
//
// Step s: every warp multiplies its 16 gate rows with h of the step before, its lanes apply the
// cell, the block's part of the new h goes to its own shared memory and from there to each other
// block of the cluster, by asynchronous stores or a bulk copy that count on the receiver's
// barriers.
//
// Why two buffers of h suffice: a block sends h of step s (into buffer (s + 1) % 2) after it has
// received all of step s - 1, and every block sent its part of step s - 1 after a block barrier
// behind its products with step s - 2, the last content of that buffer. A block's own part is
// overwritten two steps later, when every receiver has answered with its next part, so the copies
// have left. The last step sends nothing, and a cluster barrier at the end keeps every block's
// shared memory alive until its last messages have been received.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CLUSTER_FORWARD_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CLUSTER_FORWARD_CUH_

#include <type_traits>

#include "cc/lstm/cuda/early_launch.cuh"
#include "cc/lstm/cuda/sm90/cluster_common.cuh"
#include "cc/lstm/cuda/sm90/stack_feed.cuh"

namespace tfl::cuda::sm90 {

// The rows of R in the order in which the products take K: part i of a block is that of block
// rank - i.
template <class C, int kGroup = 0>
__device__ __forceinline__ void StageForwardWeights(unsigned char* stage, const CommonParams& p,
                                                    const void* recurrent_kernel,
                                                    const Place<C>& place) {
  if constexpr (kGroup < C::kStageGroups) {
    StageWeights<C, true, kGroup * C::kStageRows, C::kStageRows>(
        stage, p, recurrent_kernel, place.first_unit, [&](int staged) {
          const int block = (place.rank + C::kClusterSize - staged / C::kUnits) % C::kClusterSize;
          return block * C::kUnits + staged % C::kUnits;
        });
    CpAsyncCommit();
    StageForwardWeights<C, kGroup + 1>(stage, p, recurrent_kernel, place);
  }
}

// The same of the input weights of a layer on another, whose output lies in order.
template <class C, int kGroup = 0>
__device__ __forceinline__ void StageInputWeights(unsigned char* stage, const CommonParams& p,
                                                  const void* kernel, const Place<C>& place) {
  if constexpr (kGroup < C::kStageGroups) {
    StageWeights<C, true, kGroup * C::kStageRows, C::kStageRows>(stage, p, kernel, place.first_unit,
                                                                 [](int staged) { return staged; });
    CpAsyncCommit();
    StageInputWeights<C, kGroup + 1>(stage, p, kernel, place);
  }
}

// The fragment of the transpose of staged weights for step k: rows are the warp's gates.
template <class C>
__device__ __forceinline__ void LoadForwardFragment(uint32_t (&d)[4], const unsigned char* stage,
                                                    int k, const Place<C>& place) {
  const int lane = place.lane;
  const unsigned char* const warp_stage = stage + place.warp * 16 * C::kBytes;
  const int first = k * (C::kStepBytes / C::kBytes);
  if constexpr (C::kBytes == 2) {
    const int row = first + (lane & 7) + ((lane >> 4) << 3);
    LdMatrixX4Trans(d, SharedAddress(warp_stage + row * C::kStagePitch + (lane & 8) * 2));
  } else {
    const uint32_t at =
        SharedAddress(warp_stage + (first + (lane & 3)) * C::kStagePitch + (lane >> 2) * 4);
    d[0] = LdShared(at);
    d[1] = LdShared(at + 32);
    d[2] = LdShared(at + 4 * C::kStagePitch);
    d[3] = LdShared(at + 4 * C::kStagePitch + 32);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      d[i] = __float_as_uint(Factor<typename C::Element>(__uint_as_float(d[i])));
    }
  }
}

// The transpose of R as the A operand: K is the units of the whole cluster.
template <class C, bool kStack, int kGroup = 0>
__device__ __forceinline__ void LoadForwardWeights(uint32_t (&a)[1][C::kForwardSteps][4],
                                                   const unsigned char* stage,
                                                   const Place<C>& place) {
  if constexpr (kGroup < C::kStageGroups) {
    CpAsyncWait<C::kStageGroups - 1 - kGroup>();
    BlockBarrier<C, kStack>();
    constexpr int kSteps = C::kForwardSteps / C::kStageGroups;
#pragma unroll
    for (int k = kGroup * kSteps; k < (kGroup + 1) * kSteps; ++k) {
      LoadForwardFragment<C>(a[0][k], stage, k, place);
    }
    LoadForwardWeights<C, kStack, kGroup + 1>(a, stage, place);
  }
}

// Where the warp's first core matrix of the input weights in shared memory is.
template <class C>
__device__ __forceinline__ uint32_t WarpCores(const unsigned char* stage, int warp) {
  return SharedAddress(stage) + warp * 256;
}

// The input weights: the first steps to registers, the others back to shared memory as the products
// read them, where groups were staged that all warps have read.
template <class C, int kGroup = 0>
__device__ __forceinline__ void LoadInputWeights(uint32_t (&w)[1][C::kInputRegisterSteps][4],
                                                 unsigned char* stage, const Place<C>& place) {
  if constexpr (kGroup < C::kStageGroups) {
    CpAsyncWait<C::kStageGroups - 1 - kGroup>();
    BlockBarrier<C, true>();
    constexpr int kSteps = C::kForwardSteps / C::kStageGroups;
    [[maybe_unused]] uint32_t d[kSteps][4];
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
      const int step = kGroup * kSteps + k;
      LoadForwardFragment<C>(step < C::kInputRegisterSteps ? w[0][step] : d[k], stage, step, place);
    }
    if constexpr (C::kInputSharedSteps > 0) {
      // Where the first group makes room for the second, all warps have read what is overwritten.
      if constexpr (C::kInputRegisterSteps < kSteps) BlockBarrier<C, true>();
#pragma unroll
      for (int k = 0; k < kSteps; ++k) {
        const int step = kGroup * kSteps + k - C::kInputRegisterSteps;
        if (step < 0) continue;
        const uint32_t to =
            WarpCores<C>(stage, place.warp) + step * C::kInputStepBytes + place.lane * 4;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          StShared(to + (i >> 1) * (C::kInputStepBytes / 2) + (i & 1) * 128, d[k][i]);
        }
      }
    }
    LoadInputWeights<C, kGroup + 1>(w, stage, place);
  } else if constexpr (C::kInputSharedSteps > 0) {
    if constexpr (C::kWarpgroup) {
      FenceProxyAsync();
      BlockBarrier<C, true>();
    } else {
      __syncwarp();  // a lane reads what others of its warp have stored
    }
  }
}

// The product of the warp's 16 rows, or the warpgroup's 64, by K (in registers) with h of all
// tiles.
template <class C>
using ForwardProduct =
    std::conditional_t<C::kWarpgroup, WarpgroupProduct<C>, Product<C, 1, C::kForwardSteps>>;

// Adds the product with the row of the layer below.
template <class C>
__device__ __forceinline__ void AddInput(ForwardProduct<C>& product,
                                         const uint32_t (&w)[1][C::kInputRegisterSteps][4],
                                         const unsigned char* stage, uint32_t row,
                                         uint32_t group_bytes, const Place<C>& place) {
  product.template Add<0, C::kInputRegisterSteps>(w, row, group_bytes, place.lane);
  if constexpr (C::kInputSharedSteps > 0) {
    const uint32_t rest = row + C::kInputRegisterSteps * 2 * group_bytes;
    if constexpr (C::kWarpgroup) {
      product.template AddShared<C::kInputSharedSteps>(WarpCores<C>(stage, place.warp & ~3),
                                                       C::kInputStepBytes, rest, group_bytes);
    } else {
      const int matrix = place.lane >> 3;
      const uint32_t at = WarpCores<C>(stage, place.warp) +
                          (matrix >> 1) * (C::kInputStepBytes / 2) + (matrix & 1) * 128 +
                          (place.lane & 7) * 16;
      product.template AddLoaded<C::kInputSharedSteps>(
          [&](uint32_t(&d)[4], int k, int) { LdMatrixX4(d, at + k * C::kInputStepBytes); }, rest,
          group_bytes, place.lane);
    }
  }
}

// Adds parts kPart and on to the product with h, waiting for each group of them; message -1 was
// there from the start.
template <class C, int kPart>
__device__ __forceinline__ void AddParts(ForwardProduct<C>& product,
                                         const uint32_t (&a)[1][C::kForwardSteps][4], uint32_t h,
                                         uint32_t group_bytes, const Place<C>& place,
                                         const Mailbox<1, C::kArrivals>& mailbox, int message) {
  if constexpr (kPart < C::kClusterSize) {
    // One's own part, the first, needs no message.
    constexpr bool kWaits = kPart == 1 || (kPart > 0 && kPart % C::kArrivalParts == 0);
    if (kWaits && message >= 0) mailbox.Wait(message, 0, kPart / C::kArrivalParts);
    const int block = (place.rank + C::kClusterSize - kPart) % C::kClusterSize;
    product.template Add<kPart * C::kPartSteps, C::kPartSteps>(
        a, h + block * C::kUnitGroups * group_bytes, group_bytes, place.lane);
    AddParts<C, kPart + 1>(product, a, h, group_bytes, place, mailbox, message);
  }
}

// Where the reserve's records of the thread's cell in the first row tile are.
template <class C>
struct Record {
  uint4* gates;  // and with 16-bit types all else
  float2* state;

  __device__ Record(const CommonParams& p, void* reserve, int64_t cell) {
    gates = static_cast<uint4*>(reserve) + cell;
    state = reinterpret_cast<float2*>(static_cast<uint4*>(reserve) +
                                      (p.steps + int64_t{1}) * p.batch * C::kHidden) +
            cell;
  }
  __device__ __forceinline__ void Store(int tile, const float (&z)[4], float c, float h) const {
    using E = typename C::Element;
    if constexpr (C::kBytes == 2) {
      gates[32 * tile] = make_uint4(E::Pack(z[0], z[1]), E::Pack(z[2], z[3]), __float_as_uint(c),
                                    E::Pack(h, 0.0f));
    } else {
      gates[32 * tile] = make_uint4(__float_as_uint(z[0]), __float_as_uint(z[1]),
                                    __float_as_uint(z[2]), __float_as_uint(z[3]));
      state[32 * tile] = make_float2(c, h);
    }
  }
  __device__ __forceinline__ void Advance(int64_t cells) {
    gates += cells;
    state += cells;
  }
};

template <class C, class Params>
__device__ __forceinline__ void ForwardRecurrence(const Params& p) {
  constexpr bool kStack = std::is_same_v<Params, StackForwardParams>;
  using E = typename C::Element;
  using S = typename C::Storage;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(8) uint64_t barrier_words[2 * C::kArrivals];
  // After h, twice: R on its way into registers, then the input weights that stay there, if any,
  // and the output where it is not what is sent.
  unsigned char* const stage = shared + 2 * C::kHiddenBytes;
  unsigned char* const output_stage = stage + (kStack ? C::kInputBytes : 0);
  const Place<C> place;
  const auto& job = p.jobs[place.job];
  const JobFlags<C, std::decay_t<decltype(job)>> flags(job);
  const int lane = place.lane, warp = place.warp, rank = place.rank;
  const int hidden = p.hidden;
  const int unit = place.first_unit + place.LocalUnit();
  const bool unit_exists = unit < hidden;

  [[maybe_unused]] Feed<C, ForwardFeed<C>> feed;
  if constexpr (kStack) {
    __shared__ __align__(8) uint64_t feed_words[decltype(feed)::kBarriers];
    feed = {KeptSharedAddress(shared + C::kStackForwardRing), KeptSharedAddress(feed_words)};
    if (place.thread == 0) feed.Init();
    if (place.warp >= C::kWarps) {
      BeginCourier<C>();
      ClusterBarrier();
      RunCouriers<C>(feed, p, job, place);
      ClusterBarrier();
      return;
    }
    BeginComputing<C>();
  }

  // R first, since it takes longest; all else that comes from memory meanwhile.
  StageForwardWeights<C>(stage, p, job.recurrent_kernel, place);

  // h lies as [block][group of K][rows][16 bytes], a single tile with room for 8 rows.
  const uint32_t group_bytes = C::kWarpgroup ? 16 * p.rows : 128;
  const uint32_t own_bytes = C::kUnitGroups * group_bytes;  // a block's part
  const uint32_t base = KeptSharedAddress(shared);
  const Mailbox<1, C::kArrivals> mailbox{KeptSharedAddress(barrier_words), Kept<C>(p.rows),
                                         16 * C::kUnitGroups * (C::kArrivalParts - 1),
                                         16 * C::kUnitGroups * C::kArrivalParts, place.thread == 0};
  if (mailbox.leader) mailbox.Init();
  ClusterArrive();
  // The hidden state before the first step, all of it in every block.
  if (job.initial_h == nullptr) {
    for (int i = threadIdx.x; i < C::kHiddenBytes / 16; i += C::kThreads) {
      reinterpret_cast<uint4*>(shared)[i] = make_uint4(0, 0, 0, 0);
    }
  } else {
#pragma unroll 4
    for (int i = threadIdx.x; i < C::kHidden * p.rows; i += C::kThreads) {
      const int u = i % C::kHidden, row = i / C::kHidden, b = place.slice * p.rows + row;
      float h = 0.0f;
      if (u < hidden && b < p.batch) {
        const int64_t at = int64_t{b} * hidden + u;
        h = E::To(static_cast<const S*>(job.initial_h)[at]);
        if (job.recurrent_dropout != nullptr) {
          h *= E::To(static_cast<const S*>(job.recurrent_dropout)[at]);
        }
      }
      *reinterpret_cast<S*>(shared + u / C::kGroup * group_bytes + row * 16 +
                            u % C::kGroup * C::kBytes) = Factor<E>(h);
    }
  }
  if constexpr (C::kWarpgroup) FenceProxyAsync();

  // The thread's cells: one unit, one row of each tile. Units beyond `hidden` repeat the last one's
  // projection: their h meets only zeros of R and is stored nowhere.
  float bias[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  if (job.bias != nullptr && unit_exists) {
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      const int at = g * hidden + unit;
      bias[g] = p.weights_are_float ? static_cast<const float*>(job.bias)[at]
                                    : E::To(static_cast<const S*>(job.bias)[at]);
    }
  }
  const Dropout<C> dropout(p, job, place, unit);
  float c[C::kTiles], h[C::kTiles];
  bool has_row[C::kTiles];
#pragma unroll
  for (int n = 0; n < C::kTiles; ++n) {
    has_row[n] = place.HasRow(p, n);
    c[n] = h[n] = 0.0f;
    const int64_t at = int64_t{place.Batch(p, n)} * hidden + unit;
    if (has_row[n] && unit_exists) {
      if (job.initial_c != nullptr) c[n] = E::To(static_cast<const S*>(job.initial_c)[at]);
      if (job.initial_h != nullptr) h[n] = E::To(static_cast<const S*>(job.initial_h)[at]);
    }
  }
  // Those of the first row tile; the others follow at fixed strides.
  const int64_t first_row = place.Batch(p, 0) * job.input_rows.batch_stride + job.input_rows.first;
  const int x_bytes = p.projection_is_float ? 4 : C::kBytes;
  const int64_t gate_stride = int64_t{hidden} * x_bytes;
  const int64_t row_step = Kept<C>(job.input_rows.step_stride);
  const int64_t x_step = Kept<C>(row_step * 4 * gate_stride);
  const int64_t x_tile = 8 * job.input_rows.batch_stride * 4 * gate_stride;
  const char* x = static_cast<const char*>(job.projection) + first_row * 4 * gate_stride +
                  min(unit, hidden - 1) * x_bytes;
  const uint8_t* mask = p.mask == nullptr ? nullptr : p.mask + first_row;
  const bool keeps = job.reserve != nullptr;
  Record<C> record(p, job.reserve, place.ReserveCell(p, 0, place.Batch(p, 0)));
  const int64_t cell_step = int64_t{p.batch} * C::kHidden;
  // The projection comes one step ahead, unconverted, so that nothing waits for it too early, and
  // to the L2 cache some steps ahead.
  constexpr int kAhead = 4;
  uint32_t raw[C::kTiles][4];
  uint8_t valid[C::kTiles];
  // That of step s, to which x points.
  auto fetch = [&](int s) {
    const bool prefetch = place.unit == 0 && s + kAhead < p.steps && !flags.IsFed();
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) {
      valid[n] = 1;
#pragma unroll
      for (int g = 0; g < 4; ++g) raw[n][g] = 0;
      if (!has_row[n]) continue;
      const char* at = x + n * x_tile;
      if (flags.IsFed()) {
        // The product with the output of the layer below takes its place.
      } else if (p.projection_is_float) {
#pragma unroll
        for (int g = 0; g < 4; ++g) {
          raw[n][g] = *reinterpret_cast<const uint32_t*>(at + g * gate_stride);
        }
      } else {
#pragma unroll
        for (int g = 0; g < 4; ++g) {
          raw[n][g] = *reinterpret_cast<const uint16_t*>(at + g * gate_stride);
        }
      }
      if (prefetch) {
#pragma unroll
        for (int g = 0; g < 4; ++g) PrefetchL2(at + g * gate_stride + kAhead * x_step);
      }
      if (p.mask != nullptr) valid[n] = __ldg(mask + n * 8 * job.input_rows.batch_stride);
    }
    x += x_step;
    mask += row_step;
  };
  auto input = [&](uint32_t bits) {
    if constexpr (C::kBytes == 2) {
      if (!p.projection_is_float) {
        const uint16_t low = static_cast<uint16_t>(bits);
        S value;
        memcpy(&value, &low, 2);
        return E::To(value);
      }
    }
    return __uint_as_float(bits);
  };
  WaitForPrecedingKernel();
  fetch(0);

  // Some threads also write one 16-byte piece of the output a step.
  static_assert(C::kUnitGroups * C::kRows <= C::kThreads, "one piece of the output a thread");
  const int piece = place.thread - (C::kThreads - C::kUnitGroups * p.rows);
  const int piece_row = piece < 0 ? 0 : piece / C::kUnitGroups;
  const int piece_group = piece < 0 ? 0 : piece % C::kUnitGroups;
  const int piece_batch = place.slice * p.rows + piece_row;
  const int piece_unit = place.first_unit + piece_group * C::kGroup;
  const bool writes = piece >= 0 && piece_batch < p.batch && piece_unit < hidden;
  const uint8_t* piece_mask =
      p.mask == nullptr || !writes
          ? nullptr
          : p.mask + piece_batch * job.input_rows.batch_stride + job.input_rows.first;
  uint8_t piece_valid = piece_mask == nullptr ? 1 : __ldg(piece_mask);
  bool seen = false;
  S* output = static_cast<S*>(job.output) + piece_batch * job.output_rows.batch_stride +
              job.output_rows.first + piece_unit;
  const int64_t output_step = Kept<C>(job.output_rows.step_stride);
  const uint32_t own = rank * own_bytes;
  const uint32_t piece_at = piece_group * group_bytes + piece_row * 16;
  const int u = place.LocalUnit();
  const uint32_t cell_at =
      u / C::kGroup * group_bytes + place.column * 16 + u % C::kGroup * C::kBytes;

  uint32_t a[1][C::kForwardSteps][4];
  LoadForwardWeights<C, kStack>(a, stage, place);
  [[maybe_unused]] uint32_t w[1][C::kInputRegisterSteps][4];
  if constexpr (kStack) {
    if (flags.IsFed()) {
      BlockBarrier<C, kStack>();
      StageInputWeights<C>(stage, p, job.kernel, place);
      LoadInputWeights<C>(w, stage, place);
    }
  }
  if (dropout.first != nullptr) BlockBarrier<C, kStack>();  // the stage is free for the output
  ClusterWait();

  for (int s = 0; s < p.steps; ++s) {
    const uint32_t before = (s & 1) * C::kHiddenBytes, after = C::kHiddenBytes - before;
    // Everything up to the sends is on the step's critical path; all else comes after them.
    float z[C::kTiles][4], c_before[C::kTiles], h_before[C::kTiles];
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) {
#pragma unroll
      for (int g = 0; g < 4; ++g) z[n][g] = input(raw[n][g]) + bias[g];
    }
    ForwardProduct<C> product;
    product.Begin();
    if constexpr (kStack) {
      if (flags.IsFed()) {
        feed.Wait(s);
        if constexpr (C::kWarpgroup) FenceProxyAsync();
        AddInput<C>(product, w, stage, feed.Slot(s), group_bytes, place);
      }
    }
    // Message s - 1 is h after step s - 1.
    AddParts<C, 0>(product, a, base + before, group_bytes, place, mailbox, s - 1);
    product.End();
    if constexpr (kStack) {
      if (flags.IsFed()) feed.Release(s);
    }

#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) {
      const float* v = product.Sums() + 4 * n;  // gates i and g of two columns, or f and o
      const float low = __shfl_xor_sync(~0u, place.upper ? v[0] : v[1], 16);
      const float high = __shfl_xor_sync(~0u, place.upper ? v[2] : v[3], 16);
      z[n][0] += place.upper ? low : v[0];
      z[n][1] += place.upper ? v[1] : low;
      z[n][2] += place.upper ? high : v[2];
      z[n][3] += place.upper ? v[3] : high;
    }
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) {
      z[n][0] = E::Sigmoid(z[n][0]);
      z[n][1] = E::Sigmoid(z[n][1]);
      z[n][2] = E::Tanh(z[n][2]);
      z[n][3] = E::Sigmoid(z[n][3]);
      c_before[n] = c[n];
      h_before[n] = h[n];
      const float c_new = fmaf(z[n][1], c[n], z[n][0] * z[n][2]);
      const S h_new = Factor<E>(z[n][3] * E::Tanh(c_new));
      const bool is_valid = valid[n] != 0;
      c[n] = is_valid ? c_new : c[n];
      h[n] = is_valid ? E::To(h_new) : h[n];
      if (has_row[n]) {
        const uint32_t at = cell_at + n * 128;
        *reinterpret_cast<S*>(shared + after + own + at) = Factor<E>(h[n] * dropout(n));
        if (dropout.first != nullptr) {
          *reinterpret_cast<S*>(output_stage + (s & 1) * C::kOwnBytes + at) = E::From(h[n]);
        }
      }
    }
    if constexpr (C::kWarpgroup) FenceProxyAsync();
    BlockBarrier<C, kStack>();
    if (s + 1 < p.steps) {
      // To the next block first, whose second part of K this is, then to the one after it.
      const uint32_t source = after + own;
#pragma unroll
      for (int i = 0; i < C::kClusterSize / C::kWarps + 1; ++i) {
        const int d = warp + 1 + i * C::kWarps;
        if (d >= C::kClusterSize) break;
        const uint32_t other = (rank + d) % C::kClusterSize;
        const uint32_t remote = Mapa(base + source, other);
        const uint32_t barrier = Mapa(mailbox.Barrier(s, 0, d / C::kArrivalParts), other);
        if constexpr (C::kWarpgroup) {
          if (lane == 0) CpAsyncBulk(remote, base + source, own_bytes, barrier);
        } else {
          // The rows that there are.
#pragma unroll
          for (int j = 0; j < 128 * C::kUnitGroups; j += 16 * 32) {
            const int at = j + 16 * lane;
            if (at < 128 * C::kUnitGroups && (lane & 7) < p.rows) {
              StAsync16(remote + at, *reinterpret_cast<const uint4*>(shared + source + at),
                        barrier);
            }
          }
        }
      }
      fetch(s + 1);
    }
    if (keeps) {
#pragma unroll
      for (int n = 0; n < C::kTiles; ++n) {
        if (has_row[n]) record.Store(n, z[n], c_before[n], h_before[n]);
      }
    }
    if (writes) {
      const bool is_valid = piece_valid != 0;
      seen |= is_valid;
      if (flags.ReturnsSequences(p) || s + 1 == p.steps) {
        const unsigned char* const from =
            (dropout.first == nullptr ? shared + after + own
                                      : output_stage + (s & 1) * C::kOwnBytes) +
            piece_at;
        uint4 group = *reinterpret_cast<const uint4*>(from);
        if (!is_valid && (p.zero_output_for_mask || !seen)) group = make_uint4(0, 0, 0, 0);
        StoreGroup<E>(output, group, hidden - piece_unit, p.vector_rows);
      }
      output += output_step;
      if (piece_mask != nullptr && s + 1 < p.steps) {
        piece_mask += row_step;
        piece_valid = __ldg(piece_mask);
      }
    }
    record.Advance(cell_step);
    if constexpr (kStack) feed.Store(s, lane);
  }

#pragma unroll
  for (int n = 0; n < C::kTiles; ++n) {
    if (!has_row[n]) continue;
    const int b = place.Batch(p, n);
    if (unit_exists) {
      const int64_t at = int64_t{b} * hidden + unit;
      static_cast<S*>(job.final_h)[at] = E::From(h[n]);
      static_cast<S*>(job.final_c)[at] = E::From(c[n]);
    }
    if (keeps) {
      const float nothing[4] = {0.0f, 0.0f, 0.0f, 0.0f};
      record.Store(n, nothing, c[n], h[n]);
    }
  }
  ClusterBarrier();
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    ClusterForwardKernel(const __grid_constant__ ForwardParams p) {
  ForwardRecurrence<C>(p);
}

// All layers of a stack, a job each.
template <class C>
__global__ void __launch_bounds__(C::kThreads + kCourierThreads, 1)
    StackForwardKernel(const __grid_constant__ StackForwardParams p) {
  ForwardRecurrence<C>(p);
}

}  // namespace tfl::cuda::sm90

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CLUSTER_FORWARD_CUH_
