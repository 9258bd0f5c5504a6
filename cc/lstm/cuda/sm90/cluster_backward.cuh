// The backward recurrence in one launch: R in registers, partial sums of dh through distributed
// shared memory.
//
// Step s, from the last to the first, and in it row tile after row tile, so that a tile's messages
// travel while the warps work at the next: the lanes sum the partial dh of their cells over all
// blocks and go back through the cell; the gradients of the block's gates go to its shared memory;
// every warp multiplies 16-unit tiles of R (rows: units of the whole cluster, K: the block's gates)
// with them and sends the products, rounded to the element type, to the blocks that own the units.
// So h's number of bytes travels a step; the gradients of the gates would be four times that.
//
// Why two buffers of partial sums suffice: a block sends those of step s after it has received all
// of step s + 1, which every block sent after a block barrier behind its reading of step s + 2, the
// last content of that buffer; each tile has its own barriers and buffers. The gate gradients have
// two buffers because a warp may run ahead of the block by less than one barrier. A cluster barrier
// at the end keeps every block's shared memory alive until its last messages have been received.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CLUSTER_BACKWARD_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CLUSTER_BACKWARD_CUH_

#include <type_traits>

#include "cc/lstm/cuda/sm90/cluster_common.cuh"
#include "cc/lstm/cuda/sm90/stack_feed.cuh"

namespace tfl::cuda::sm90 {

// As a factor of a product.
template <class C>
__device__ __forceinline__ void RoundFragment(uint32_t (&d)[4]) {
  if constexpr (C::kBytes == 4) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      d[i] = __float_as_uint(Factor<typename C::Element>(__uint_as_float(d[i])));
    }
  }
}

// R as the A operand: a warp's rows are kGateTiles tiles of 16 units, K the block's gates.
template <class C>
__device__ __forceinline__ void LoadBackwardWeights(
    uint32_t (&a)[C::kGateTiles][C::kBackwardSteps][4], const unsigned char* stage,
    const Place<C>& place) {
  const int lane = place.lane;
  const uint32_t address = SharedAddress(stage) +
                           (place.warp * C::kGateTiles * 16 + (lane & 15)) * C::kStagePitch +
                           (lane >> 4) * 16;
#pragma unroll
  for (int m = 0; m < C::kGateTiles; ++m) {
#pragma unroll
    for (int k = 0; k < C::kBackwardSteps; ++k) {
      LdMatrixX4(a[m][k], address + m * 16 * C::kStagePitch + k * C::kStepBytes);
      RoundFragment<C>(a[m][k]);
    }
  }
}

// The sum over the cluster's blocks of the partial dh of the thread's cell of a row tile with
// tile_rows rows, from what was received: [source][message][unit][tile_rows].
template <class C>
__device__ __forceinline__ float SumPartials(const unsigned char* received, const Place<C>& place,
                                             int tile_rows) {
  using E = typename C::Element;
  const int u = place.LocalUnit(), pair = (place.lane & 3) * 2;
  const int source_bytes = tile_rows * C::kSourceRowBytes;
  constexpr int kBytes = sizeof(typename C::Partial);
  const unsigned char* at = received + u / C::kMessageUnits * (tile_rows * C::kMessageRowBytes) +
                            (u % C::kMessageUnits * tile_rows + pair) * kBytes +
                            (place.upper ? C::kClusterSize / 2 * source_bytes + C::kHalfSkew : 0);
  float2 sum = make_float2(0.0f, 0.0f);
  if (pair < tile_rows) {
#pragma unroll
    for (int i = 0; i < C::kClusterSize / 2; ++i) {
      float2 v;
      if constexpr (kBytes == 2) {
        v = E::Unpack(*reinterpret_cast<const uint32_t*>(at + i * source_bytes));
      } else {
        v = *reinterpret_cast<const float2*>(at + i * source_bytes);
      }
      sum.x += v.x;
      sum.y += v.y;
    }
  }
  const float other = __shfl_xor_sync(~0u, place.upper ? sum.x : sum.y, 16);
  return place.upper ? other + sum.y : sum.x + other;
}

// In a stack the gradient of a layer's output is the gradients of the gates of the layer above
// times its input weights: of the block's units, a part of K a warp. The rows of those weights that
// are the block's units, as [unit][4 hidden]; zeros beyond.
template <class C>
__device__ __forceinline__ void StageSourceWeights(unsigned char* stage, const CommonParams& p,
                                                   const StackPart& part, const Place<C>& place) {
  using E = typename C::Element;
  using S = typename C::Storage;
  constexpr int kGroups = 4 * C::kHidden / C::kGroup;
  const int width = 4 * p.hidden;
#pragma unroll 4
  for (int i = place.thread; i < C::kUnits * kGroups; i += C::kThreads) {
    const int unit = i / kGroups, column = i % kGroups * C::kGroup;
    unsigned char* const to = stage + unit * C::kSourcePitch + column * C::kBytes;
    const int row = place.first_unit + unit;
    const bool valid = row < p.hidden && column < width;
    const int64_t at = valid ? int64_t{row} * width + column : 0;
    if (p.weight_load == WeightLoad::kNativeWide) {
      CpAsyncL2(SharedAddress(to), static_cast<const S*>(part.kernel) + at, valid);
      continue;
    }
    S values[C::kGroup];
#pragma unroll
    for (int j = 0; j < C::kGroup; ++j) {
      values[j] = !valid                   ? E::From(0.0f)
                  : part.weights_are_float ? E::From(static_cast<const float*>(part.kernel)[at + j])
                                           : static_cast<const S*>(part.kernel)[at + j];
    }
    uint4 group;
    memcpy(&group, values, 16);
    *reinterpret_cast<uint4*>(to) = group;
  }
}

template <class C>
__device__ __forceinline__ void LoadSourceWeights(
    uint32_t (&w)[C::kUnits / 16][C::kSourceRegisterSteps][4], const unsigned char* stage,
    const Place<C>& place) {
  const uint32_t address = SharedAddress(stage) + (place.lane & 15) * C::kSourcePitch +
                           (place.lane >> 4) * 16 + place.warp * C::kSourceSteps * C::kStepBytes;
#pragma unroll
  for (int m = 0; m < C::kUnits / 16; ++m) {
#pragma unroll
    for (int k = 0; k < C::kSourceRegisterSteps; ++k) {
      LdMatrixX4(w[m][k], address + m * 16 * C::kSourcePitch + k * C::kStepBytes);
      RoundFragment<C>(w[m][k]);
    }
  }
}

// Where the lane's fragments of the source weights in shared memory are.
template <class C>
__device__ __forceinline__ uint32_t SourceFragments(const unsigned char* shared,
                                                    const Place<C>& place) {
  return SharedAddress(shared) + C::kExchangeBytes +
         place.warp * C::kSourceSharedSteps * C::kSourceStepBytes + place.lane * 16;
}

// The fragment of a step of the warp's part of K and a 16-unit tile, straight from memory.
template <class C>
__device__ __forceinline__ void FetchSourceFragment(uint32_t (&d)[4], const CommonParams& p,
                                                    const StackPart& part, const Place<C>& place,
                                                    int step, int tile) {
  using E = typename C::Element;
  using S = typename C::Storage;
  constexpr int kWord = 4 / C::kBytes;  // elements
  const int64_t width = 4 * int64_t{p.hidden};
  const bool wide = p.weight_load == WeightLoad::kNativeWide;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = place.first_unit + tile * 16 + (i & 1) * 8 + (place.lane >> 2);
    const int column =
        ((place.warp * C::kSourceSteps + step) * 8 + (i >> 1) * 4 + (place.lane & 3)) * kWord;
    d[i] = 0;
    if (row >= p.hidden || column >= width) continue;
    const int64_t at = row * width + column;
    const S* const native = static_cast<const S*>(part.kernel) + at;
    if (wide) {
      d[i] = __ldg(reinterpret_cast<const uint32_t*>(native));
      continue;
    }
    S values[kWord];
#pragma unroll
    for (int j = 0; j < kWord; ++j) {
      values[j] = part.weights_are_float ? E::From(static_cast<const float*>(part.kernel)[at + j])
                                         : native[j];
    }
    memcpy(&d[i], values, 4);
  }
  RoundFragment<C>(d);
}

// Where not all of the source weights have room in registers: those that have, and the others to
// shared memory, for the lane that will need them.
template <class C>
__device__ __forceinline__ void FetchSourceWeights(
    uint32_t (&w)[C::kUnits / 16][C::kSourceRegisterSteps][4], const unsigned char* shared,
    const CommonParams& p, const StackPart& part, const Place<C>& place) {
  const uint32_t to = SourceFragments<C>(shared, place);
#pragma unroll 4
  for (int k = 0; k < C::kSourceSharedSteps; ++k) {
#pragma unroll
    for (int m = 0; m < C::kUnits / 16; ++m) {
      uint32_t d[4];
      FetchSourceFragment<C>(d, p, part, place, C::kSourceRegisterSteps + k, m);
      StSharedX4(to + k * C::kSourceStepBytes + m * 512, d);
    }
  }
#pragma unroll
  for (int m = 0; m < C::kUnits / 16; ++m) {
#pragma unroll
    for (int k = 0; k < C::kSourceRegisterSteps; ++k) {
      FetchSourceFragment<C>(w[m][k], p, part, place, k, m);
    }
  }
}

// The warp's part of the sum for a row tile at a message's step, from the ring's item, to memory:
// [warp][unit][8 rows]. Read behind a block barrier, before that of the next step.
template <class C>
__device__ __forceinline__ void StorePart(
    const Feed<C, BackwardFeed<C>>& feed, int item,
    const uint32_t (&w)[C::kUnits / 16][C::kSourceRegisterSteps][4], const unsigned char* shared,
    unsigned char* parts, int message, int tile, const Place<C>& place) {
  feed.Wait(item);
  Product<C, C::kUnits / 16, C::kSourceSteps> product;
  product.Begin();
  const uint32_t factor = feed.Slot(item) + place.warp * C::kSourceSteps * 2 * 128;
  product.template Add<0, C::kSourceRegisterSteps>(w, factor, 128, place.lane);
  if constexpr (C::kSourceSharedSteps > 0) {
    const uint32_t fragments = SourceFragments<C>(shared, place);
    product.template AddLoaded<C::kSourceSharedSteps>(
        [&](uint32_t(&d)[4], int k, int m) {
          LdSharedX4(d, fragments + k * C::kSourceStepBytes + m * 512);
        },
        factor + C::kSourceRegisterSteps * 2 * 128, 128, place.lane);
  }
  product.End();
  feed.Release(item);
  float* const part = reinterpret_cast<float*>(parts + (message & 1) * C::kPartsBytes) +
                      (tile * C::kWarps + place.warp) * C::kUnits * 8 + (place.lane >> 2) * 8 +
                      (place.lane & 3) * 2;
#pragma unroll
  for (int m = 0; m < C::kUnits / 16; ++m) {
    const float* v = product.v[0][m];
    *reinterpret_cast<float2*>(part + m * 128) = make_float2(v[0], v[1]);
    *reinterpret_cast<float2*>(part + m * 128 + 64) = make_float2(v[2], v[3]);
  }
}

// Of the thread's cell of a row tile.
template <class C>
__device__ __forceinline__ float SumParts(const unsigned char* parts, int message, int tile,
                                          const Place<C>& place) {
  const float* const part = reinterpret_cast<const float*>(parts + (message & 1) * C::kPartsBytes) +
                            tile * C::kWarps * C::kUnits * 8 + place.LocalUnit() * 8 + place.column;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < C::kWarps; ++i) sum += part[i * C::kUnits * 8];
  return sum;
}

template <class C, class Params>
__device__ __forceinline__ void BackwardRecurrence(const Params& p) {
  constexpr bool kStack = std::is_same_v<Params, StackBackwardParams>;
  using E = typename C::Element;
  using S = typename C::Storage;
  using P = typename C::Partial;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(8) uint64_t barrier_words[2 * C::kTiles];
  __shared__ int first_valid[C::kRows];
  unsigned char* const received = shared + 2 * C::kGatesBytes;
  unsigned char* const outgoing = received + 2 * C::kReceiveBytes;
  const Place<C> place;
  const auto& job = p.jobs[place.job];
  const JobFlags<C, std::decay_t<decltype(job)>> flags(job);
  const int lane = place.lane, warp = place.warp, rank = place.rank;
  const int hidden = p.hidden;
  const int unit = place.first_unit + place.LocalUnit();
  const bool unit_exists = unit < hidden;

  [[maybe_unused]] Feed<C, BackwardFeed<C>> feed;
  [[maybe_unused]] unsigned char* parts = nullptr;
  if constexpr (kStack) {
    __shared__ __align__(8) uint64_t feed_words[decltype(feed)::kBarriers];
    parts = shared + C::kStackBackwardParts;
    feed = {KeptSharedAddress(parts + 2 * C::kPartsBytes), KeptSharedAddress(feed_words)};
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

  // R first, since it takes longest; it is staged where the messages come later.
  StageWeights<C, false, 0, C::kHidden>(shared, p, job.recurrent_kernel, place.first_unit,
                                        [](int staged) { return staged; });
  CpAsyncCommit();

  const Mailbox<C::kTiles, 1> mailbox{KeptSharedAddress(barrier_words), Kept<C>(p.rows),
                                      C::kClusterSize * C::kSourceRowBytes, 0, place.thread == 0};
  if (mailbox.leader) mailbox.Init();
  if (p.mask != nullptr) {
    for (int row = warp; row < p.rows; row += C::kWarps) {
      const int b = min(place.slice * p.rows + row, p.batch - 1);
      const uint8_t* mask = p.mask + b * job.input_rows.batch_stride + job.input_rows.first;
      int first = p.steps;
      for (int s = lane; s < p.steps; s += 32) {
        if (mask[s * job.input_rows.step_stride] != 0) {
          first = s;
          break;
        }
      }
      first = __reduce_min_sync(~0u, first);
      if (lane == 0) first_valid[row] = first;
    }
    BlockBarrier<C, kStack>();
  }

  float dh[C::kTiles], dc[C::kTiles], c[C::kTiles];
  const Dropout<C> dropout(p, job, place, unit);
  uint4 record[C::kTiles];
  float2 state[C::kTiles];  // c and h before the step, where they do not fit in `record`
  uint32_t grad[C::kTiles];
  uint8_t valid[C::kTiles];
  int first[C::kTiles];
  bool has_row[C::kTiles];
#pragma unroll
  for (int n = 0; n < C::kTiles; ++n) has_row[n] = place.HasRow(p, n);
  constexpr int kAhead = 4;  // steps that the reserve comes to the L2 cache before it is read
  // Those of the first row tile at the last step; other tiles and steps follow at fixed strides.
  const int64_t cell_step = int64_t{p.batch} * C::kHidden;
  const int64_t cell = place.ReserveCell(p, p.steps, place.Batch(p, 0));
  const uint4* const records = static_cast<const uint4*>(job.reserve);
  const float2* const states =
      reinterpret_cast<const float2*>(records + (p.steps + int64_t{1}) * cell_step);
  const int last = p.steps - 1;
  const S* grad_output = static_cast<const S*>(job.grad_output) +
                         place.Batch(p, 0) * job.output_rows.batch_stride + job.output_rows.first +
                         last * job.output_rows.step_stride + unit;
  const int64_t grad_step = Kept<C>(job.output_rows.step_stride);
  const int64_t row_step = Kept<C>(job.input_rows.step_stride);
  const bool has_grad_output = job.grad_output != nullptr && unit_exists;
  const uint8_t* mask = p.mask + place.Batch(p, 0) * job.input_rows.batch_stride +
                        job.input_rows.first + last * job.input_rows.step_stride;
  const uint4* record_at = records + cell;
  const float2* state_at = states + cell;
  // What tile n reads for step s, the one before that to which the pointers point.
  const auto fetch = [&](int s, int n) {
    const bool reads_grad = has_grad_output && (flags.ReturnsSequences(p) || s == last);
    record[n] = make_uint4(0, 0, 0, 0);
    state[n] = make_float2(0.0f, 0.0f);
    grad[n] = 0;
    valid[n] = 1;
    if (has_row[n]) {
      record[n] = __ldg(record_at + 32 * n);
      if constexpr (C::kBytes == 4) state[n] = __ldg(state_at + 32 * n);
      if (s >= kAhead && (place.unit & 1) == 0) {
        PrefetchL2(record_at + 32 * n - kAhead * cell_step);
      }
      if (reads_grad) {
        const S* at = grad_output + n * 8 * job.output_rows.batch_stride;
        if constexpr (C::kBytes == 2) {
          grad[n] = __ldg(reinterpret_cast<const uint16_t*>(at));
        } else {
          grad[n] = __ldg(reinterpret_cast<const uint32_t*>(at));
        }
        if (s >= kAhead && place.unit == 0) PrefetchL2(at - kAhead * grad_step);
      }
      if (p.mask != nullptr) valid[n] = __ldg(mask + n * 8 * job.input_rows.batch_stride);
      if constexpr (kStack) {
        if (flags.IsFed()) grad[n] = __float_as_uint(SumParts<C>(parts, last - s, n, place));
      }
    }
  };
  // Before the tiles fetch, and after.
  const auto to_records_before = [&] {
    record_at -= cell_step;
    state_at -= cell_step;
  };
  const auto to_rows_before = [&] {
    grad_output -= grad_step;
    mask -= row_step;
  };
  auto state_before = [&](int n) {
    if constexpr (C::kBytes == 2) {
      return make_float2(__uint_as_float(record[n].z), E::Unpack(record[n].w).x);
    } else {
      return state[n];
    }
  };

  // The last step's c: in the records after the last step.
#pragma unroll
  for (int n = 0; n < C::kTiles; ++n) {
    first[n] = p.mask == nullptr || !has_row[n] ? 0 : first_valid[n * 8 + place.column];
    dh[n] = dc[n] = c[n] = 0.0f;
    if (!has_row[n]) continue;
    if constexpr (C::kBytes == 2) {
      c[n] = __uint_as_float(records[cell + 32 * n].z);
    } else {
      c[n] = states[cell + 32 * n].x;
    }
    if (!unit_exists) continue;
    const int64_t at = int64_t{place.Batch(p, n)} * hidden + unit;
    if (job.grad_final_h != nullptr) dh[n] = E::To(static_cast<const S*>(job.grad_final_h)[at]);
    if (job.grad_final_c != nullptr) dc[n] = E::To(static_cast<const S*>(job.grad_final_c)[at]);
  }
  to_records_before();
  if (!flags.IsFed()) {
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) fetch(last, n);
    to_rows_before();
  }

  uint32_t a[C::kGateTiles][C::kBackwardSteps][4];
  CpAsyncWait<0>();
  BlockBarrier<C, kStack>();
  LoadBackwardWeights<C>(a, shared, place);
  [[maybe_unused]] uint32_t w[C::kUnits / 16][C::kSourceRegisterSteps][4];
  if constexpr (kStack) {
    if (flags.IsFed()) {
      BlockBarrier<C, kStack>();
      if constexpr (C::kSourceSharedSteps == 0) {
        StageSourceWeights<C>(shared, p, job, place);
        CpAsyncCommit();
        CpAsyncWait<0>();
        BlockBarrier<C, kStack>();
        LoadSourceWeights<C>(w, shared, place);
      } else {
        FetchSourceWeights<C>(w, shared, p, job, place);
      }
    }
  }
  // Behind it no block reads its stage, where messages may now come.
  ClusterBarrier();

  // Of a tile: [plane][group of units][8 rows][16 bytes].
  constexpr int kGroupBytes = 128, kPlaneBytes = C::kUnitGroups * kGroupBytes;
  const int u = place.LocalUnit();
  const int gate_offset =
      u / C::kGroup * kGroupBytes + place.column * 16 + u % C::kGroup * C::kBytes;
  const bool wants_grad_h = job.grad_initial_h != nullptr;

  // Each thread writes one 16-byte piece of some rows to memory: of a gate's gradients, or of h.
  constexpr int kPassRows = C::kThreads / (C::kPlanes * C::kUnitGroups);
  static_assert(kPassRows > 0, "a row's pieces have a thread each");
  const int piece_group = place.thread % C::kUnitGroups;
  const int piece_plane = place.thread / C::kUnitGroups % C::kPlanes;
  const int piece_row = place.thread / (C::kUnitGroups * C::kPlanes);
  const int piece_unit = place.first_unit + piece_group * C::kGroup;
  const bool writes = piece_row < kPassRows && piece_unit < hidden &&
                      (piece_plane < 4 || job.previous_h != nullptr);
  // Where the thread's piece of the slice's first rows goes, at the last step.
  const bool piece_is_float = C::kBytes == 2 && p.grad_gates_are_float && piece_plane < 4;
  const int piece_bytes = piece_is_float ? 4 : C::kBytes;
  const int64_t piece_width = (piece_plane == 4 ? 1 : 4) * int64_t{hidden} * piece_bytes;
  char* pieces = static_cast<char*>(piece_plane == 4 ? job.previous_h : job.grad_gates) +
                 ((place.slice * p.rows + piece_row) * job.input_rows.batch_stride +
                  job.input_rows.first + last * row_step) *
                     piece_width +
                 ((piece_plane == 4 ? 0 : piece_plane * hidden) + piece_unit) * piece_bytes;
  const int64_t piece_step = Kept<C>(row_step * piece_width);
  const int64_t piece_pass = Kept<C>(kPassRows * job.input_rows.batch_stride * piece_width);

  const auto add_partials = [&](int message, int n) {
    mailbox.Wait(message, n, 0);
    const float sum =
        SumPartials<C>(received + (message & 1) * C::kReceiveBytes + n * C::kReceiveTileBytes,
                       place, TileRows(p, n));
    if (has_row[n]) dh[n] = fmaf(sum, dropout(n), dh[n]);
  };

  // The gradient of the output of two messages' steps, ahead of the first that is needed.
  const auto add_source = [&](int message) {
    if constexpr (kStack) {
      if (!flags.IsFed() || message >= p.steps) return;
#pragma unroll
      for (int n = 0; n < C::kTiles; ++n) {
        if (8 * n >= p.rows) break;
        StorePart<C>(feed, message * ((p.rows + 7) / 8) + n, w, shared, parts, message, n, place);
      }
    }
  };
  if (flags.IsFed()) {
    add_source(0);
    add_source(1);
    BlockBarrier<C, kStack>();
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) fetch(last, n);
    to_rows_before();
  }

  for (int message = 0; message < p.steps; ++message) {
    const int s = p.steps - 1 - message;
    unsigned char* const all_gates = shared + (message & 1) * C::kGatesBytes;
    to_records_before();
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) {
      if (n > 0 && 8 * n >= p.rows) break;
      unsigned char* const gates = all_gates + n * C::kPlanes * kPlaneBytes;
      const int tile_rows = TileRows(p, n);
      // Everything up to the sends is on the step's critical path; what does not need dh comes
      // before the wait, all else after the sends.
      float i, f, g, o, d_output;
      if constexpr (C::kBytes == 2) {
        const float2 low = E::Unpack(record[n].x), high = E::Unpack(record[n].y);
        i = low.x, f = low.y, g = high.x, o = high.y;
        d_output = flags.IsFed() ? __uint_as_float(grad[n]) : E::Unpack(grad[n]).x;
      } else {
        i = __uint_as_float(record[n].x), f = __uint_as_float(record[n].y);
        g = __uint_as_float(record[n].z), o = __uint_as_float(record[n].w);
        d_output = __uint_as_float(grad[n]);
      }
      const float2 before = state_before(n);
      const bool is_valid = valid[n] != 0;
      const float tanh_c = E::Tanh(c[n]);
      // A masked step's gates may hold anything.
      const float slope_c = is_valid ? o * (1.0f - tanh_c * tanh_c) : 0.0f;
      const float slope[4] = {
          is_valid ? g * i * (1.0f - i) : 0.0f, is_valid ? before.x * f * (1.0f - f) : 0.0f,
          is_valid ? i * (1.0f - g * g) : 0.0f, is_valid ? tanh_c * o * (1.0f - o) : 0.0f};
      c[n] = before.x;
      // A masked step's output is h of the last valid step, or a constant zero.
      if (is_valid || (!p.zero_output_for_mask && s > first[n])) dh[n] += d_output;
      if (message > 0) add_partials(message - 1, n);
      const float dc_all = fmaf(dh[n], slope_c, dc[n]);
      const float d[4] = {dc_all * slope[0], dc_all * slope[1], dc_all * slope[2],
                          dh[n] * slope[3]};
      dc[n] = is_valid ? dc_all * f : dc[n];
      dh[n] = is_valid ? 0.0f : dh[n];
      if (has_row[n]) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          *reinterpret_cast<S*>(gates + k * kPlaneBytes + gate_offset) = Factor<E>(d[k]);
        }
        *reinterpret_cast<S*>(gates + 4 * kPlaneBytes + gate_offset) = E::From(before.y);
      }
      BlockBarrier<C, kStack>();

      if (s > 0 || wants_grad_h) {
        Product<C, C::kGateTiles, C::kBackwardSteps> product;
        product.Begin();
        product.template Add<0, C::kBackwardSteps>(a, SharedAddress(gates), kGroupBytes, lane);
        product.End();
        unsigned char* const send = outgoing + warp * C::kMessages * 8 * C::kMessageRowBytes;
        const uint32_t message_bytes = tile_rows * C::kMessageRowBytes;
        if ((lane & 3) * 2 < tile_rows) {
#pragma unroll
          for (int m = 0; m < C::kGateTiles; ++m) {
            const int tile_unit = m % C::kMessageTiles * 16 + (lane >> 2);
            P* at = reinterpret_cast<P*>(send + m / C::kMessageTiles * message_bytes) +
                    tile_unit * tile_rows + (lane & 3) * 2;
            const float* v = product.v[0][m];
            if constexpr (sizeof(P) == 2) {
              *reinterpret_cast<uint32_t*>(at) = E::Pack(v[0], v[1]);
              *reinterpret_cast<uint32_t*>(at + 8 * tile_rows) = E::Pack(v[2], v[3]);
            } else {
              *reinterpret_cast<float2*>(at) = make_float2(v[0], v[1]);
              *reinterpret_cast<float2*>(at + 8 * tile_rows) = make_float2(v[2], v[3]);
            }
          }
        }
        __syncwarp();
        const uint32_t to = SharedAddress(received) + (message & 1) * C::kReceiveBytes +
                            n * C::kReceiveTileBytes + rank * (tile_rows * C::kSourceRowBytes) +
                            (rank >= C::kClusterSize / 2 ? C::kHalfSkew : 0);
        const uint32_t barrier = mailbox.Barrier(message, n, 0);
#pragma unroll
        for (int i = 0; i < C::kMessages; ++i) {
          const int target = (warp * C::kGateTiles + i * C::kMessageTiles) * 16;
          const uint32_t owner = target / C::kUnits;
          const uint32_t there = target % C::kUnits / C::kMessageUnits * message_bytes;
          const uint32_t remote = Mapa(to + there, owner), remote_barrier = Mapa(barrier, owner);
          const unsigned char* const from = send + i * message_bytes;
#pragma unroll
          for (int j = 0; j < C::kMessageRowBytes * 8; j += 16 * 32) {
            const int at = j + 16 * lane;
            if (at < static_cast<int>(message_bytes)) {
              StAsync16(remote + at, *reinterpret_cast<const uint4*>(from + at), remote_barrier);
            }
          }
        }
      }
      if (s > 0) fetch(s - 1, n);
    }
    to_rows_before();

    // The gradients of the gates, and h before the step, to memory.
    if (writes) {
      char* to = pieces;
      for (int i = 0; i < C::kRows; i += kPassRows) {
        const int row = piece_row + i;
        if (row >= p.rows || place.slice * p.rows + row >= p.batch) break;
        const uint4 v = *reinterpret_cast<const uint4*>(
            all_gates + row / 8 * (C::kPlanes * kPlaneBytes) + piece_plane * kPlaneBytes +
            piece_group * kGroupBytes + row % 8 * 16);
        if (!piece_is_float) {
          StoreGroup<E>(reinterpret_cast<S*>(to), v, hidden - piece_unit, p.vector_rows);
        } else {
          S values[C::kGroup];
          memcpy(values, &v, 16);
#pragma unroll
          for (int j = 0; j < C::kGroup; ++j) {
            if (j < hidden - piece_unit) reinterpret_cast<float*>(to)[j] = E::To(values[j]);
          }
        }
        to += piece_pass;
      }
      pieces -= piece_step;
    }
    if constexpr (kStack) {
      feed.Store(message, lane);
      add_source(message + 2);
    }
  }

  if (wants_grad_h) {
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) {
      if (8 * n < p.rows) add_partials(p.steps - 1, n);
    }
  }
#pragma unroll
  for (int n = 0; n < C::kTiles; ++n) {
    if (!has_row[n] || !unit_exists) continue;
    const int64_t at = int64_t{place.Batch(p, n)} * hidden + unit;
    if (wants_grad_h) static_cast<S*>(job.grad_initial_h)[at] = E::From(dh[n]);
    if (job.grad_initial_c != nullptr) static_cast<S*>(job.grad_initial_c)[at] = E::From(dc[n]);
  }
  ClusterBarrier();
}

template <class C>
__global__ void __launch_bounds__(C::kThreads, 1)
    ClusterBackwardKernel(const __grid_constant__ BackwardParams p) {
  BackwardRecurrence<C>(p);
}

// All layers of a stack, a job each, the top first.
template <class C>
__global__ void __launch_bounds__(C::kThreads + kCourierThreads, 1)
    StackBackwardKernel(const __grid_constant__ StackBackwardParams p) {
  BackwardRecurrence<C>(p);
}

}  // namespace tfl::cuda::sm90

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CLUSTER_BACKWARD_CUH_
