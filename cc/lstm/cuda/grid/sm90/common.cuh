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

// Named barriers: 1 is the consumers' own; flight f is published through kPublished + f.
constexpr int kPublished = 2;

// T is the type of the call's tensors, F that of the products' factors.
template <typename T, typename F, int kHidden, int kRows>
struct Config {
  static constexpr int kElement = sizeof(F);
  static constexpr int kResult = sizeof(T);
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
  // Offsets of, and bytes a row in, the staging of results behind the buffers and half sums.
  static constexpr int kHalfSums = kFlights * kFlightBytes;
  static constexpr int kStage = kHalfSums + kRows * 256;
  static constexpr int kGatesPitch = 64 * kResult + 16;
  static constexpr int kCellPitch = 80;
  static constexpr int kHiddenPitch = 16 * kResult + 16;
  static constexpr int kConsumers = 256;
  static constexpr int kThreads = kConsumers + 128;
  static_assert(kChunks % 2 == 0);
  static_assert(kRows % kGridFlightRows == 0);
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

template <typename T>
__device__ __forceinline__ Bits<T> ToBits(float value);
template <>
__device__ __forceinline__ uint32_t ToBits<float>(float value) {
  return __float_as_uint(value);
}
template <>
__device__ __forceinline__ uint16_t ToBits<__nv_bfloat16>(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}
template <>
__device__ __forceinline__ uint16_t ToBits<__half>(float value) {
  return __half_as_ushort(__float2half_rn(value));
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
__device__ __forceinline__ float FastSigmoid(float x) { return __fdividef(1.f, 1.f + __expf(-x)); }
__device__ __forceinline__ float FastTanh(float x) {
  return 1.f - __fdividef(2.f, 1.f + __expf(2.f * x));
}

// The lanes that differ in bits 2 and 3 hold one value each of 4 neighbouring units: all get all.
__device__ __forceinline__ uint64_t GatherUnits(uint32_t bits, int lane) {
  const uint32_t odd = __shfl_xor_sync(~0u, bits, 4);
  const uint32_t pair = lane & 4 ? (odd | bits << 16) : (bits | odd << 16);
  const uint32_t other = __shfl_xor_sync(~0u, pair, 8);
  const uint32_t low = lane & 8 ? other : pair, high = lane & 8 ? pair : other;
  return static_cast<uint64_t>(high) << 32 | low;
}

// h of 4 neighbouring units, as the lanes that hold them write it: 16-bit types gather it, and one
// lane writes 8 bytes; of float32 every lane keeps and writes its own.
template <typename T>
struct Quad {
  uint64_t bits;
  __device__ __forceinline__ Quad() {}
  __device__ __forceinline__ Quad(Bits<T> mine, int lane) : bits(GatherUnits(mine, lane)) {}
  __device__ __forceinline__ void Store(void* first, int lane_unit) const {
    if (lane_unit == 0) *static_cast<uint64_t*>(first) = bits;
  }
};
template <>
struct Quad<float> {
  uint32_t bits;
  __device__ __forceinline__ Quad() {}
  __device__ __forceinline__ Quad(uint32_t mine, int) : bits(mine) {}
  __device__ __forceinline__ void Store(void* first, int lane_unit) const {
    static_cast<uint32_t*>(first)[lane_unit] = bits;
  }
};
// They hold four gates each: each gets one gate, number 2 (bit 2) + (bit 3), of all 4 units.
__device__ __forceinline__ uint64_t TransposeGates(uint32_t i_f, uint32_t g_o, int lane) {
  const bool bit2 = lane & 4, bit3 = lane & 8;
  const uint32_t mine = bit2 ? g_o : i_f;
  const uint32_t theirs = __shfl_xor_sync(~0u, bit2 ? i_f : g_o, 4);
  const uint32_t even = bit2 ? theirs : mine, odd = bit2 ? mine : theirs;
  const uint32_t first = __byte_perm(even, odd, 0x5410), second = __byte_perm(even, odd, 0x7632);
  const uint32_t kept = bit3 ? second : first;
  const uint32_t came = __shfl_xor_sync(~0u, bit3 ? first : second, 8);
  const uint32_t low = bit3 ? came : kept, high = bit3 ? kept : came;
  return static_cast<uint64_t>(high) << 32 | low;
}

// Puts this lane's four gates of a unit, or of its 4 neighbours together, into a row of
// gates_stage; row_units points at the first of the 4 units of gate 0.
template <typename T>
__device__ __forceinline__ void StageGates(unsigned char* row_units, const float (&gates)[4],
                                           int lane) {
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int g = 0; g < 4; ++g) {
      reinterpret_cast<float*>(row_units)[g * kGridUnits + lane / 4 % 4] = gates[g];
    }
  } else {
    const uint64_t four =
        TransposeGates(uint32_t(ToBits<T>(gates[0])) | uint32_t(ToBits<T>(gates[1])) << 16,
                       uint32_t(ToBits<T>(gates[2])) | uint32_t(ToBits<T>(gates[3])) << 16, lane);
    const int number = (lane >> 2 & 1) * 2 + (lane >> 3 & 1);
    *reinterpret_cast<uint64_t*>(row_units + number * kGridUnits * 2) = four;
  }
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

// What the third warpgroup needs to know of the exchange of a group; a flight's parts lie one after
// the other.
struct Exchange {
  uint32_t count;          // publications of each flight
  uint32_t publishers;     // blocks a chunk
  int first_chunk;         // of those that this block takes
  int own_chunk;           // that this block publishes in
  int own_offset;          // there
  unsigned char* buffers;  // two of `bytes` a flight
  int bytes;
  uint32_t* counters;  // `flight_counters` a flight
  int flight_counters;
};

// A warp waits for the chunks of flights first_flight, first_flight + 2, ... and copies those of
// this block's share into both blocks of the cluster, one lane a chunk of a flight.
template <typename C>
__device__ __forceinline__ void Fetch(const Exchange& e, int first_flight, uint32_t buffers,
                                      uint32_t barriers) {
  static_assert(C::kFlights <= 4 && C::kChunks <= 16 * kGridClusterBlocks);
  const int lane = threadIdx.x % 32, flight = first_flight + lane / 16 * 2;
  const int chunk = lane % 16 * kGridClusterBlocks + ptx::ClusterRank();
  const uint32_t* counter =
      e.counters + flight * e.flight_counters + (e.first_chunk + chunk) * kGridCounterPitch;
  const unsigned char* from =
      e.buffers + size_t(flight) * 2 * e.bytes + (e.first_chunk + chunk) * C::kChunkBytes;
  buffers += flight * C::kFlightBytes + chunk * C::kChunkBytes;
  barriers += flight * C::kFlightBarriers + 8 * chunk;
  uint32_t number = flight < C::kFlights && chunk < C::kChunks ? 0 : e.count;
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

// A warp stores what the consumers publish of flights first_flight, first_flight + 2, ..., once
// they left it in `outgoing`, and adds one to its chunk's counter. The consumers need not wait
// until it has reached L2.
template <typename C, int kVectors>
__device__ __forceinline__ void Announce(const Exchange& e, int first_flight,
                                         const uint4 (&outgoing)[C::kFlights][kVectors]) {
  const int lane = threadIdx.x % 32;
  for (uint32_t number = 0; number < e.count; ++number) {
    for (int flight = first_flight; flight < C::kFlights; flight += 2) {
      uint4* to = reinterpret_cast<uint4*>(e.buffers + (flight * 2 + (number & 1)) * e.bytes +
                                           e.own_chunk * C::kChunkBytes + e.own_offset);
      ptx::NamedBarrier(kPublished + flight, C::kConsumers + 32);
#pragma unroll
      for (int i = 0; i < kVectors / 32; ++i) to[i * 32 + lane] = outgoing[flight][i * 32 + lane];
      __syncwarp();
      if (lane == 0) {
        ptx::AddRelease(e.counters + flight * e.flight_counters + e.own_chunk * kGridCounterPitch,
                        1);
      }
    }
  }
}

// The third warpgroup.
template <typename C, int kVectors>
__device__ __forceinline__ void Serve(const Exchange& e, int warp,
                                      const uint4 (&outgoing)[C::kFlights][kVectors],
                                      uint32_t buffers, uint32_t barriers) {
  if (warp < 2) {
    Fetch<C>(e, warp, buffers, barriers);
  } else {
    Announce<C>(e, warp - 2, outgoing);
  }
  __syncwarp();
}

// d += the block's weights times the buffer that the flight's publication number `number` fills,
// over this warpgroup's half of the chunks, each as soon as it is there.
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
// of the rows in d[0 .. 4), and makes the buffer's barriers ready for its next filling.
template <typename C>
__device__ __forceinline__ void AddHalves(float* d, float* half_sums, int flight, uint32_t number,
                                          int warpgroup, uint32_t barriers) {
  const int thread = threadIdx.x % 128;
  half_sums += flight * (kGridFlightRows * 64);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    half_sums[(warpgroup * 4 + i) * 128 + thread] = warpgroup == 1 ? d[i] : d[4 + i];
  }
  ptx::NamedBarrier(1, C::kConsumers);
  if (threadIdx.x < C::kChunks) {
    ptx::BarrierExpect(
        barriers + flight * C::kFlightBarriers + 8 * ((number & 1) * C::kChunks + threadIdx.x),
        C::kChunkBytes);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    d[i] = (warpgroup == 1 ? d[4 + i] : d[i]) + half_sums[((1 - warpgroup) * 4 + i) * 128 + thread];
  }
}

// Stores the 4 gates of 16 units of a flight's rows from `stage` (rows of kGatesPitch) to a tensor
// [rows, 4 hidden] of type T whose row r lies at row row_at(r); rows from `rows` on are left out.
template <typename T, typename RowAt>
__device__ __forceinline__ void StoreGates(const unsigned char* stage, void* to, int first_unit,
                                           int hidden, int64_t rows, RowAt&& row_at) {
  constexpr int kElement = sizeof(T), kPitch = 64 * kElement + 16;  // as C::kGatesPitch
  constexpr int kVectors = kElement;                                // of 16 bytes, a gate
#pragma unroll
  for (int task = threadIdx.x; task < kGridFlightRows * 4 * kVectors; task += 256) {
    const int row = task / (4 * kVectors), gate = task / kVectors % 4, part = task % kVectors;
    const int unit = first_unit + part * (16 / kElement);
    if (row >= rows || unit >= hidden) continue;
    *reinterpret_cast<uint4*>(static_cast<T*>(to) + row_at(row) * 4 * hidden + gate * hidden +
                              unit) =
        *reinterpret_cast<const uint4*>(stage + row * kPitch + gate * 16 * kElement + part * 16);
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
#define TFL_GRID_CHOOSE(KERNEL, TYPE, PLAN)                                             \
  ((PLAN).padded_hidden == 512                                                          \
       ? ((PLAN).rows == 64 ? TFL_GRID_KERNEL(KERNEL, TYPE, 512, 64)                    \
                            : TFL_GRID_CHOOSE_ROWS(KERNEL, TYPE, 512, (PLAN).rows))     \
   : (PLAN).padded_hidden == 768 ? TFL_GRID_CHOOSE_ROWS(KERNEL, TYPE, 768, (PLAN).rows) \
                                 : TFL_GRID_CHOOSE_ROWS(KERNEL, TYPE, 1024, (PLAN).rows))
#define TFL_GRID_CHOOSE_ROWS(KERNEL, TYPE, HIDDEN, ROWS)    \
  ((ROWS) == 16 ? TFL_GRID_KERNEL(KERNEL, TYPE, HIDDEN, 16) \
                : TFL_GRID_KERNEL(KERNEL, TYPE, HIDDEN, 32))
#define TFL_GRID_KERNEL(KERNEL, TYPE, HIDDEN, ROWS) \
  reinterpret_cast<const void*>(&grid::KERNEL<TYPE, HIDDEN, ROWS>)

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_COMMON_CUH_
