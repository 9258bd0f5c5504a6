// How a layer of a stack gets the rows of its neighbour while both run: two warps beside those that
// compute, the couriers. One tells other clusters how many of the block's steps are in memory, the
// other waits until the neighbour's blocks have told so of a step and brings its rows into a ring
// in shared memory. Nobody waits for the receiver, and jobs that others wait for come first in the
// grid, so that no order of the blocks' beginnings can make them wait for ever.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_STACK_FEED_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_STACK_FEED_CUH_

#include <cstdint>

#include "cc/lstm/cuda/sm90/cluster_common.cuh"

namespace tfl::cuda::sm90 {

// An item of the ring, a factor of a product: forward the output of the layer below of a step, all
// rows of the slice; backward the gradients of the gates of the layer above, a row tile.
template <class C>
struct ForwardFeed {
  static constexpr int kSlots = C::kStackForwardSlots;
  static constexpr int kSlotBytes = C::kHiddenBytes;
};
template <class C>
struct BackwardFeed {
  static constexpr int kSlots = C::kStackBackwardSlots;
  static constexpr int kSlotBytes = C::kSourceTileBytes;
};

// The threads that compute take registers from the couriers, where a block is three warpgroups.
template <class C>
__device__ __forceinline__ void BeginCourier() {
  if constexpr (C::kThreads == 256) SetMaxRegistersDown<kCourierRegisters>();
}
template <class C>
__device__ __forceinline__ void BeginComputing() {
  static_assert(C::kThreads <= 256, "registers");
  if constexpr (C::kThreads == 256) SetMaxRegistersUp<kComputeRegisters>();
}

template <class C, class F>
struct Feed {
  // The publisher may learn late of the end of a step, but not two rounds of them: every kTell
  // steps it tells that it is up to date, and half of that later nobody goes on before it has.
  static constexpr int kRound = 32, kTell = 16;
  static constexpr int kBarriers = 2 * F::kSlots + kRound + 1;
  uint32_t ring, barriers;  // in shared memory

  __device__ uint32_t Slot(int item) const { return ring + item % F::kSlots * F::kSlotBytes; }
  __device__ uint32_t Full(int item) const { return barriers + 8 * (item % F::kSlots); }
  __device__ uint32_t Free(int item) const { return Full(item) + 8 * F::kSlots; }
  __device__ uint32_t Stored(int step) const {
    return barriers + 8 * (2 * F::kSlots + step % kRound);
  }
  __device__ uint32_t Told() const { return barriers + 8 * (kBarriers - 1); }
  // By one thread, before the cluster's first barrier.
  __device__ void Init() const {
    for (int i = 0; i < F::kSlots; ++i) {
      MbarrierInit(Full(i), 32);
      MbarrierInit(Free(i), 32 * C::kWarps);
    }
    for (int i = 0; i < kRound; ++i) MbarrierInit(Stored(i), C::kWarps);
    MbarrierInit(Told(), 1);
    FenceMbarrierInit();
  }
  // Threads that compute: until an item is there, and that the thread has read it.
  __device__ __forceinline__ void Wait(int item) const {
    MbarrierWaitParity(Full(item), item / F::kSlots & 1);
  }
  __device__ __forceinline__ void Release(int item) const { MbarrierArrive(Free(item)); }
  // That all that the warp writes in a step has been stored: by a barrier, whose release is cheap,
  // while that of a plain store waits for the stores.
  __device__ __forceinline__ void Store(int step, int lane) const {
    __syncwarp();
    if (lane == 0) MbarrierArrive(Stored(step));
    if (step % kTell == kTell / 2 && step > kTell) {
      MbarrierWaitParity(Told(), (step / kTell - 1) & 1);
    }
  }
  // The loader: until an item's place is free.
  __device__ void WaitFree(int item) const {
    if (item >= F::kSlots) MbarrierWaitParity(Free(item), (item / F::kSlots & 1) ^ 1);
  }
};

// Tells how many steps of the block are in memory, until all are, where anybody waits for it.
template <class C, class F>
__device__ void Publish(const Feed<C, F>& feed, int steps, uint32_t* count, int lane) {
  for (int stored = 0; stored < steps;) {
    const int before = stored;
    const auto parity = [&] { return stored / feed.kRound & 1; };
    MbarrierWaitParity(feed.Stored(stored), parity());
    ++stored;
    while (stored < steps && MbarrierTestParity(feed.Stored(stored), parity())) ++stored;
    stored = __shfl_sync(~0u, stored, 0);
    if (lane != 0) continue;
    if (stored / feed.kTell > before / feed.kTell) MbarrierArrive(feed.Told());
    if (count != nullptr) StReleaseGpu(count, stored);
  }
  __syncwarp();  // what comes next is an aligned barrier
}

// Waits until all blocks of the neighbour's cluster have published more than `step` steps, `known`
// of which are known of.
template <class C>
__device__ __forceinline__ void AwaitStep(const uint32_t* counts, int step, int lane, int* known) {
  if (*known > step) return;
  do {
    const uint32_t of_block = lane < C::kClusterSize ? LdAcquireGpu(counts + lane) : ~0u;
    *known = static_cast<int>(__reduce_min_sync(~0u, of_block));
  } while (*known <= step);
  __syncwarp();
}

// Brings the output of the layer below, step by step.
template <class C, class Job>
__device__ void LoadItems(const Feed<C, ForwardFeed<C>>& feed, const CommonParams& p,
                          const Job& job, const Place<C>& place) {
  using S = typename C::Storage;
  const int lane = place.lane;
  const uint32_t* const counts = job.source_counts + place.slice * kCountStride;
  const uint32_t group_bytes = C::kWarpgroup ? 16 * p.rows : 128;
  int known = 0;
  // A lane takes one row of a tile and every fourth group of it.
  const int first_group = lane >> 3;
  const int64_t tile_stride = 8 * job.input_rows.batch_stride * p.hidden;
  const S* const source =
      static_cast<const S*>(job.source) +
      ((place.slice * p.rows + (lane & 7)) * job.input_rows.batch_stride + job.input_rows.first) *
          p.hidden +
      first_group * C::kGroup;
  const int64_t step_stride = job.input_rows.step_stride * p.hidden;
  for (int s = 0; s < p.steps; ++s) {
    feed.WaitFree(s);
    AwaitStep<C>(counts, s, lane, &known);
#pragma unroll
    for (int n = 0; n < C::kTiles; ++n) {
      const int row = n * 8 + (lane & 7);
      if (row >= p.rows || place.slice * p.rows + row >= p.batch) continue;
      const S* const from = source + n * tile_stride + s * step_stride;
      const uint32_t to = feed.Slot(s) + first_group * group_bytes + row * 16;
#pragma unroll 8
      for (int g = 0; g < C::kHidden / C::kGroup; g += 4) {
        const bool valid = (first_group + g) * C::kGroup < p.hidden;
        CpAsyncL2(to + g * group_bytes, valid ? from + g * C::kGroup : job.source, valid);
      }
    }
    CpAsyncMbarrierArrive(feed.Full(s));
  }
}

// Brings the gradients of the gates of the layer above, from the last step to the first, row tile
// by row tile.
template <class C, class Job>
__device__ void LoadItems(const Feed<C, BackwardFeed<C>>& feed, const CommonParams& p,
                          const Job& job, const Place<C>& place) {
  using S = typename C::Storage;
  const int lane = place.lane;
  const uint32_t* const counts = job.source_counts + place.slice * kCountStride;
  int known = 0;
  const int first_group = lane >> 3, width = 4 * p.hidden;
  const int64_t tile_stride = 8 * job.input_rows.batch_stride * width;
  const S* source = static_cast<const S*>(job.source) +
                    ((place.slice * p.rows + (lane & 7)) * job.input_rows.batch_stride +
                     job.input_rows.first + (p.steps - 1) * job.input_rows.step_stride) *
                        width +
                    first_group * C::kGroup;
  int item = 0;
  for (int message = 0; message < p.steps; ++message) {
    for (int n = 0; 8 * n < p.rows; ++n, ++item) {
      feed.WaitFree(item);
      AwaitStep<C>(counts, message, lane, &known);
      const int row = n * 8 + (lane & 7);
      if (row < p.rows && place.slice * p.rows + row < p.batch) {
        const S* const from = source + n * tile_stride;
        const uint32_t to = feed.Slot(item) + first_group * 128 + (lane & 7) * 16;
#pragma unroll 8
        for (int g = 0; g < 4 * C::kHidden / C::kGroup; g += 4) {
          const bool valid = (first_group + g) * C::kGroup < width;
          CpAsyncL2(to + g * 128, valid ? from + g * C::kGroup : job.source, valid);
        }
      }
      CpAsyncMbarrierArrive(feed.Full(item));
    }
    source -= job.input_rows.step_stride * width;
  }
}

// Two warps' work until the block is done. Shared memory stays until their copies have come, since
// the threads that compute wait for all of them.
template <class C, class F, class Job>
__device__ __forceinline__ void RunCouriers(const Feed<C, F>& feed, const CommonParams& p,
                                            const Job& job, const Place<C>& place) {
  if (place.warp == C::kWarps) {
    if (job.source != nullptr) LoadItems<C>(feed, p, job, place);
  } else if (place.warp == C::kWarps + 1) {
    uint32_t* const counts = job.counts;
    Publish<C>(feed, p.steps,
               counts == nullptr ? nullptr : counts + place.slice * kCountStride + place.rank,
               place.lane);
  }
}

}  // namespace tfl::cuda::sm90

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_STACK_FEED_CUH_
