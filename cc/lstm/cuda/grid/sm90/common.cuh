// What the grid's forward and backward kernels share.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_COMMON_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_COMMON_CUH_

#include <cooperative_groups.h>

#include <utility>

#include "cc/lstm/cuda/grid/plan.h"
#include "cc/lstm/cuda/grid/sm90/kernels.h"
#include "cc/lstm/cuda/grid/sm90/ptx.cuh"
#include "cc/lstm/cuda/scalar.cuh"

namespace tfl::cuda::grid {

// Named barriers: the multiplying warpgroups' own, the cells' own, and of each flight what was
// published and what was summed.
enum : int { kMultipliers = 1, kCells = 2, kPublished = 3, kSummed = 5 };

// F is the type of the products' factors.
template <typename F, int kHidden, int kRows>
struct Config {
  static constexpr int kElement = sizeof(F);
  static constexpr int kStepK = 32 / kElement;  // k of one product instruction
  static constexpr int kBlocks = kHidden / kGridUnits;
  static constexpr int kChunks = kHidden / kGridChunkUnits;
  // Rows go through a step in flights of 16, each with its own buffers, counters and barriers.
  static constexpr int kFlights = kRows / kGridFlightRows;
  static constexpr int kChunkBytes = kGridChunkUnits * kGridFlightRows * kElement;
  static constexpr int kBufferBytes = kHidden * kGridFlightRows * kElement;
  static constexpr int kFlightBytes = 2 * kBufferBytes;
  static constexpr int kFlightBarriers = 2 * kChunks * 8;  // bytes
  static constexpr int kHalfSteps = kHidden / kStepK / 2;  // products, for each warpgroup
  static constexpr int kStagingPitch =
      64 * kElement + 16;  // bytes of staged weights a row, forward
  static constexpr int kBackwardPitch = kHidden * kElement + 16;  // and backward
  static constexpr int kSums = kFlights * kFlightBytes;  // where sums lie, behind the buffers
  static constexpr int kMultiplierThreads = 256;         // warpgroups 0 and 1
  static_assert(kRows % kGridFlightRows == 0 && kFlights <= 2 && kChunks % 2 == 0);
};

template <typename T>
struct BitsOf {
  using type = uint16_t;
};
template <>
struct BitsOf<float> {
  using type = uint32_t;
};
template <typename T>
using Bits = typename BitsOf<T>::type;

// Rounded to the nearest, by the instruction that converts two numbers, the faster one.
template <typename T>
__device__ __forceinline__ Bits<T> ToBits(float value);
template <>
__device__ __forceinline__ uint32_t ToBits<float>(float value) {
  return __float_as_uint(value);
}
template <>
__device__ __forceinline__ uint16_t ToBits<__nv_bfloat16>(float value) {
  return __bfloat16_as_ushort(__low2bfloat16(__floats2bfloat162_rn(value, 0)));
}
template <>
__device__ __forceinline__ uint16_t ToBits<__half>(float value) {
  return __half_as_ushort(__low2half(__floats2half2_rn(value, 0)));
}

template <typename T>
__device__ __forceinline__ float FromBits(Bits<T> bits);
template <>
__device__ __forceinline__ float FromBits<float>(uint32_t bits) {
  return __uint_as_float(bits);
}
template <>
__device__ __forceinline__ float FromBits<__nv_bfloat16>(uint16_t bits) {
  return __bfloat162float(__ushort_as_bfloat16(bits));
}
template <>
__device__ __forceinline__ float FromBits<__half>(uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}

// Within 2e-7, far below the 16-bit types' rounding. The products of infinity are as they should
// be.
constexpr float kSigmoidFactor = -1.44269504f, kTanhFactor = 2 * 1.44269504f;
// Of the argument of sigmoid or tanh times its factor above: sigmoid, or (1 - tanh) / 2.
__device__ __forceinline__ float FastLogistic(float exponent) {
  return ptx::Reciprocal(1.f + ptx::Exp2(exponent));
}
__device__ __forceinline__ float FastTanh(float x) {
  return fmaf(-2.f, FastLogistic(kTanhFactor * x), 1.f);
}

// 16 bytes of weights in a row, from element `at`, times scale, as a factor of type T.
template <typename T>
__device__ __forceinline__ uint4 LoadWeights(const void* weights, bool wide, size_t at,
                                             float scale = 1.f) {
  if constexpr (sizeof(T) == 4) {
    const float4 a =
        __ldg(reinterpret_cast<const float4*>(static_cast<const float*>(weights) + at));
    return make_uint4(ptx::RoundToTf32(a.x), ptx::RoundToTf32(a.y), ptx::RoundToTf32(a.z),
                      ptx::RoundToTf32(a.w));
  } else {
    if (!wide) return __ldg(reinterpret_cast<const uint4*>(static_cast<const T*>(weights) + at));
    const float4* from = reinterpret_cast<const float4*>(static_cast<const float*>(weights) + at);
    const float4 a = __ldg(from), b = __ldg(from + 1);
    const auto pack = [scale](float low, float high) {
      return uint32_t(ToBits<T>(low * scale)) | uint32_t(ToBits<T>(high * scale)) << 16;
    };
    return make_uint4(pack(a.x, a.y), pack(a.z, a.w), pack(b.x, b.y), pack(b.z, b.w));
  }
}

// What the exchanging warpgroup needs to know of a group; a flight's parts lie one after the other.
struct Exchange {
  uint32_t count;          // publications of each flight
  uint32_t publishers;     // blocks a chunk
  int first_chunk;         // of those that this block takes
  int own_chunk;           // that this block publishes in
  int own_offset;          // of what it publishes, in bytes of a buffer
  unsigned char* buffers;  // two of `bytes` a flight
  int bytes;
  uint32_t* counters;  // `flight_counters` a flight
  int flight_counters;
};

// A warp waits for the flight's chunks and copies those of this block's share into both blocks of
// the cluster, one lane a chunk.
template <typename C>
__device__ __forceinline__ void Fetch(const Exchange& e, int flight, uint32_t buffers,
                                      uint32_t barriers) {
  static_assert(C::kChunks <= 32 * kGridClusterBlocks);
  const int chunk = threadIdx.x % 32 * kGridClusterBlocks + ptx::ClusterRank();
  const uint32_t* counter =
      e.counters + flight * e.flight_counters + (e.first_chunk + chunk) * kGridCounterPitch;
  const unsigned char* from =
      e.buffers + size_t(flight) * 2 * e.bytes + (e.first_chunk + chunk) * C::kChunkBytes;
  buffers += flight * C::kFlightBytes + chunk * C::kChunkBytes;
  barriers += flight * C::kFlightBarriers + 8 * chunk;
  uint32_t number = chunk < C::kChunks ? 0 : e.count;
  do {
    if (number < e.count && ptx::LoadAcquire(counter) >= e.publishers * (number + 1)) {
      const uint32_t buffer = number & 1;
      ptx::FenceAsyncGlobal();
      ptx::BulkCopyMulticast(buffers + buffer * C::kBufferBytes, from + buffer * e.bytes,
                             C::kChunkBytes, barriers + buffer * (8 * C::kChunks), 3);
      ++number;
    }
  } while (__any_sync(~0u, number < e.count));
}

// A warp stores what the kPublishingThreads publish of the flight, once they left it in `outgoing`,
// and adds one to its chunk's counter. They need not wait until it has reached L2.
template <int kPublishingThreads, int kVectors>
__device__ __forceinline__ void Announce(const Exchange& e, int flight,
                                         const uint4 (&outgoing)[kVectors]) {
  const int lane = threadIdx.x % 32;
  uint32_t* counter = e.counters + flight * e.flight_counters + e.own_chunk * kGridCounterPitch;
  for (uint32_t number = 0; number < e.count; ++number) {
    uint4* to =
        reinterpret_cast<uint4*>(e.buffers + (flight * 2 + (number & 1)) * e.bytes + e.own_offset);
    ptx::NamedBarrier(kPublished + flight, kPublishingThreads + 32);
#pragma unroll
    for (int i = 0; i < kVectors / 32; ++i) to[i * 32 + lane] = outgoing[i * 32 + lane];
    __syncwarp();
    if (lane == 0) ptx::AddRelease(counter, 1);
  }
}

// The warpgroup that exchanges, a fetching and an announcing warp a flight.
template <typename C, int kPublishingThreads, int kVectors>
__device__ __forceinline__ void Serve(const Exchange& e, int warp,
                                      const uint4 (&outgoing)[C::kFlights][kVectors],
                                      uint32_t buffers, uint32_t barriers) {
  const int flight = warp % 2;
  if (flight < C::kFlights) {
    if (warp < 2) {
      Fetch<C>(e, flight, buffers, barriers);
    } else {
      Announce<kPublishingThreads>(e, flight, outgoing[flight]);
    }
  }
  __syncwarp();
}

// d += the block's weights times the buffer that the flight's publication number `number` fills,
// over this warpgroup's half of the chunks, each as soon as it is there. Makes their barriers ready
// for the buffer's next filling, which needs what comes of this one.
template <typename F, typename C>
__device__ __forceinline__ void Multiply(float* d, const uint32_t (*weights)[4], int flight,
                                         uint32_t number, int warpgroup, uint32_t buffers,
                                         uint32_t barriers) {
  const uint32_t buffer = number & 1, parity = number >> 1 & 1;
  buffers += flight * C::kFlightBytes + buffer * C::kBufferBytes;
  barriers += flight * C::kFlightBarriers + buffer * (8 * C::kChunks);
#pragma unroll
  for (int i = 0; i < C::kChunks / 2; ++i) {
    const int chunk = warpgroup * (C::kChunks / 2) + i;
    ptx::BarrierWait(barriers + 8 * chunk, parity);
    if (threadIdx.x % 128 == 0) ptx::BarrierExpect(barriers + 8 * chunk, C::kChunkBytes);
    ptx::MmaFence();
#pragma unroll
    for (int k = 0; k < kGridChunkUnits / C::kStepK; ++k) {
      const uint32_t at = buffers + chunk * C::kChunkBytes + k * (kGridFlightRows * 32);
      ptx::Mma<F>::Run(d, weights[i * (kGridChunkUnits / C::kStepK) + k],
                       ptx::MmaDescriptor(at, kGridFlightRows * 16, 128));
    }
    ptx::MmaCommit();
  }
  ptx::MmaWaitAll();
}

// Each warpgroup summed over half of k for the flight's 16 rows. Leaves the whole sums of its half
// of the rows in d[0 .. 4).
template <typename C>
__device__ __forceinline__ void AddHalves(float* d, float* half_sums, int flight, int warpgroup) {
  const int thread = threadIdx.x % 128;
  half_sums += flight * (kGridFlightRows * 64);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    half_sums[(warpgroup * 4 + i) * 128 + thread] = warpgroup == 1 ? d[i] : d[4 + i];
  }
  ptx::NamedBarrier(kMultipliers, C::kMultiplierThreads);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    d[i] = (warpgroup == 1 ? d[4 + i] : d[i]) + half_sums[((1 - warpgroup) * 4 + i) * 128 + thread];
  }
}

// Zeroes the group's counters, the work of its first block, and says so to the grid. No block may
// count or wait before CountersAreClear. All threads of all blocks.
__device__ __forceinline__ unsigned ClearCounters(uint32_t* counters, int block) {
  if (block == 0 && threadIdx.x < kGridCounters) counters[threadIdx.x * kGridCounterPitch] = 0;
  return cooperative_groups::this_grid().barrier_arrive();
}
__device__ __forceinline__ void CountersAreClear(unsigned token) {
  cooperative_groups::this_grid().barrier_wait(std::move(token));
}

// Thread 0 of every block, before its first ClusterSync.
template <typename C>
__device__ __forceinline__ void InitBarriers(uint32_t barriers) {
  constexpr int kBarriers = C::kFlights * 2 * C::kChunks;
  for (int i = 0; i < kBarriers; ++i) ptx::BarrierInit(barriers + 8 * i, 1);
  ptx::FenceBarrierInit();
  for (int i = 0; i < kBarriers; ++i) ptx::BarrierExpect(barriers + 8 * i, C::kChunkBytes);
}

// The row of the output, or of its gradient, of step `step` and batch element b, in elements.
__device__ __forceinline__ int64_t OutputAt(const GridCommon& p, const GridDirectionParams& d,
                                            int64_t b, int step) {
  const int64_t row = d.output_reversed ? p.steps - 1 - step : step;
  return (p.return_sequences ? b * p.batch_stride + row * p.step_stride : b) * p.output_stride;
}

// The number of slices that a group computes.
__device__ __forceinline__ uint32_t SlicesOf(int group, int slices, int groups) {
  return (slices - group + groups - 1) / groups;
}

}  // namespace tfl::cuda::grid

// Finds the instantiation of KERNEL<TYPE, padded hidden size, rows> that the plan names.
#define TFL_GRID_CHOOSE(KERNEL, TYPE, PLAN)                                           \
  ((PLAN).padded_hidden == 512                                                        \
       ? TFL_GRID_CHOOSE_ROWS(KERNEL, TYPE, 512, PLAN)                                \
       : ((PLAN).padded_hidden == 768 ? TFL_GRID_CHOOSE_ROWS(KERNEL, TYPE, 768, PLAN) \
                                      : TFL_GRID_CHOOSE_ROWS(KERNEL, TYPE, 1024, PLAN)))
#define TFL_GRID_CHOOSE_ROWS(KERNEL, TYPE, HIDDEN, PLAN)                              \
  ((PLAN).rows == 16 ? reinterpret_cast<const void*>(&grid::KERNEL<TYPE, HIDDEN, 16>) \
                     : reinterpret_cast<const void*>(&grid::KERNEL<TYPE, HIDDEN, 32>))

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_COMMON_CUH_
