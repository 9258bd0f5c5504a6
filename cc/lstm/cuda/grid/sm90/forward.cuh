// The whole recurrence in one kernel, for 16-bit types on Hopper.
//
// A group of blocks_per_group blocks holds the recurrent kernel once; each block computes 16 units
// for the group's `kRows` batch rows. Its part of the recurrent kernel, 64 gate rows by kHidden,
// lies in the registers of two warpgroups that split k: wgmma with the weights as the M side, from
// registers, and h as the N side, from shared memory. After a step the block stores its units of h
// in a global buffer and adds one to the counter of its chunk (8 blocks). A third warpgroup waits
// for the counters, one warp a chunk, and brings each chunk into both blocks of the cluster by one
// bulk copy, so products start chunk by chunk. There is no barrier of the grid.
//
// Two buffers suffice, in global and in shared memory: a block publishes h number j after it has
// consumed number j - 1, all of which was published by blocks that had consumed number j - 2.
//
// Registers of a consumer thread: 128 (kHidden 1024) of weights, 16 of sums, about 60 others.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_FORWARD_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_FORWARD_CUH_

#include "cc/lstm/cuda/grid/plan.h"
#include "cc/lstm/cuda/grid/sm90/forward.h"
#include "cc/lstm/cuda/grid/sm90/ptx.cuh"
#include "cc/lstm/cuda/scalar.cuh"

namespace tfl::cuda::grid {

template <int kHidden, int kRows>
struct Config {
  static constexpr int kBlocks = kHidden / kGridUnits;
  static constexpr int kChunks = kHidden / kGridChunkUnits;
  static constexpr int kChunkBytes = kGridChunkUnits * kRows * 2;
  static constexpr int kBufferBytes = kHidden * kRows * 2;
  static constexpr int kHalfSteps = kHidden / 16 / 2;  // products of 16 in k, for each warpgroup
  static constexpr int kTiles = kRows / 16;            // of 8 rows, that a warpgroup finishes
  static constexpr int kStagingPitch = 144;            // bytes a row of staged weights
  static constexpr int kConsumers = 256;
  static constexpr int kThreads = kConsumers + 128;
  static_assert(kChunks % 2 == 0 && kChunks <= kGridMaxChunks);
  static_assert(kRows == 16 || kRows == 32);
};

template <typename T>
__device__ __forceinline__ uint16_t ToBits(float value);
template <>
__device__ __forceinline__ uint16_t ToBits<__nv_bfloat16>(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}
template <>
__device__ __forceinline__ uint16_t ToBits<__half>(float value) {
  return __half_as_ushort(__float2half_rn(value));
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

// 8 weights of one row and gate as bits of T; zeros outside the hidden size.
template <typename T>
__device__ __forceinline__ uint4 LoadWeights(const GridForwardParams& p, int k, int gate,
                                             int unit) {
  uint4 packed = make_uint4(0, 0, 0, 0);
  if (k >= p.hidden_size || unit >= p.hidden_size) return packed;
  const size_t at = size_t(k) * 4 * p.hidden_size + gate * p.hidden_size + unit;
  if (!p.wide_weights) {
    return __ldg(reinterpret_cast<const uint4*>(static_cast<const T*>(p.recurrent_kernel) + at));
  }
  const float4* wide =
      reinterpret_cast<const float4*>(static_cast<const float*>(p.recurrent_kernel) + at);
  const float4 a = __ldg(wide), b = __ldg(wide + 1);
  const auto pack = [](float low, float high) {
    return uint32_t(ToBits<T>(low)) | uint32_t(ToBits<T>(high)) << 16;
  };
  return make_uint4(pack(a.x, a.y), pack(a.z, a.w), pack(b.x, b.y), pack(b.z, b.w));
}

// Fills weights[step][4], the A fragments of m64k16: this warp's 16 gate rows are 4 gates (rows
// 4 gate + unit) of 4 units. Goes through shared memory for reads of 16 bytes.
template <typename T, typename C>
__device__ __forceinline__ void LoadFragments(const GridForwardParams& p, unsigned char* shared,
                                              int first_unit, uint32_t (*weights)[4]) {
  constexpr int kHidden = C::kHalfSteps * 32;
#pragma unroll 8
  for (int task = threadIdx.x; task < kHidden * 8; task += C::kConsumers) {
    const int k = task / 8, gate = task / 2 % 4, half = task % 2;
    *reinterpret_cast<uint4*>(shared + k * C::kStagingPitch + gate * 32 + half * 16) =
        LoadWeights<T>(p, k, gate, first_unit + half * 8);
  }
  ptx::NamedBarrier(1, C::kConsumers);
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 0; step < C::kHalfSteps; ++step) {
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int row = lane / 4 + (part & 1) * 8;
      const int k = (group * C::kHalfSteps + step) * 16 + lane % 4 * 2 + (part & 2) * 4;
      const unsigned char* at =
          shared + k * C::kStagingPitch + row / 4 * 32 + (warp * 4 + row % 4) * 2;
      weights[step][part] = uint32_t(*reinterpret_cast<const uint16_t*>(at)) |
                            uint32_t(*reinterpret_cast<const uint16_t*>(at + C::kStagingPitch))
                                << 16;
    }
  }
}

template <typename C>
__device__ __forceinline__ void Produce(const GridForwardParams& p, uint32_t buffers,
                                        uint32_t barriers, const unsigned char* exchange,
                                        const uint32_t* counters, int group, int consumed_a_slice) {
  const int chunk = (threadIdx.x - C::kConsumers) / 32 * kGridClusterBlocks + ptx::ClusterRank();
  if (threadIdx.x % 32 != 0 || chunk >= C::kChunks) return;
  uint32_t number = 0;
  for (int slice = group; slice < p.slices; slice += p.groups) {
    for (int i = 0; i < consumed_a_slice; ++i, ++number) {
      while (ptx::LoadAcquire(counters + chunk * kGridCounterPitch) <
             kGridChunkBlocks * (number + 1)) {
      }
      ptx::FenceAsyncGlobal();
      const uint32_t buffer = number & 1,
                     offset = buffer * C::kBufferBytes + chunk * C::kChunkBytes;
      ptx::BulkCopyMulticast(buffers + offset, exchange + offset, C::kChunkBytes,
                             barriers + 8 * (buffer * C::kChunks + chunk), 3);
    }
  }
}

template <typename T, int kHidden, int kRows>
__global__ void __launch_bounds__(Config<kHidden, kRows>::kThreads, 1)
    __cluster_dims__(kGridClusterBlocks, 1, 1)
        ForwardKernel(const __grid_constant__ GridForwardParams p) {
  using C = Config<kHidden, kRows>;
  constexpr int kTiles = C::kTiles;
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ __align__(8) uint64_t full[2 * C::kChunks];
  const int group = blockIdx.x / C::kBlocks, block = blockIdx.x % C::kBlocks;
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  const uint32_t buffers = ptx::SharedAddress(shared), barriers = ptx::SharedAddress(full);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2 * C::kChunks; ++i) ptx::BarrierInit(barriers + 8 * i, 1);
    ptx::FenceBarrierInit();
    for (int i = 0; i < 2 * C::kChunks; ++i) ptx::BarrierExpect(barriers + 8 * i, C::kChunkBytes);
  }
  unsigned char* exchange =
      static_cast<unsigned char*>(p.exchange) + size_t(group) * 2 * C::kBufferBytes;
  uint32_t* counters = p.counters + group * kGridMaxChunks * kGridCounterPitch;
  const bool starts_with_h = p.initial_h != nullptr;

  if (warpgroup == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    ptx::ClusterSync();  // both blocks have emptied their shared memory of weights
    Produce<C>(p, buffers, barriers, exchange, counters, group,
               starts_with_h ? p.steps : p.steps - 1);
    __syncwarp();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32 % 4, 0);
    const int lane = threadIdx.x % 32, thread = threadIdx.x % 128;
    uint32_t weights[C::kHalfSteps][4];
    LoadFragments<T, C>(p, shared, block * kGridUnits, weights);
    ptx::FenceAsyncShared();
    ptx::ClusterSync();

    // This thread's cells: one unit, one row in each of its warpgroup's tiles of 8 rows.
    const int first_unit = block * kGridUnits + warp * 4;  // of the warp's 4
    const int lane_unit = lane / 4 % 4, unit = first_unit + lane_unit;
    const int lane_row = warpgroup * 8 * kTiles + lane % 4 * 2 + lane / 16;
    const bool upper = lane >= 16;
    const int hidden = p.hidden_size;
    const bool unit_lives = unit < hidden;
    float bias[4] = {};
    if (p.bias != nullptr && unit_lives) {
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        bias[g] = p.wide_weights ? static_cast<const float*>(p.bias)[g * hidden + unit]
                                 : ToAccumulator(static_cast<const T*>(p.bias)[g * hidden + unit]);
      }
    }
    float* half_sums = reinterpret_cast<float*>(shared + 2 * C::kBufferBytes);
    unsigned char* my_exchange =
        exchange + block * (kGridUnits * kRows * 2) + warp / 2 * (kRows * 16) + warp % 2 * 8;
    uint32_t consumed = 0, published = 0;

    const auto publish = [&](const uint16_t(&h)[kTiles]) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        const uint64_t units = GatherUnits(h[n], lane);
        if (lane_unit == 0) {
          *reinterpret_cast<uint64_t*>(my_exchange + (published & 1) * C::kBufferBytes +
                                       (lane_row + n * 8) * 16) = units;
        }
      }
      ++published;
      ptx::FenceAsyncGlobal();
      ptx::NamedBarrier(1, C::kConsumers);
      if (threadIdx.x == 0) {
        ptx::AddRelease(counters + block / kGridChunkBlocks * kGridCounterPitch, 1);
      }
    };

    for (int slice = group; slice < p.slices; slice += p.groups) {
      int64_t row[kTiles];
      bool lives[kTiles], seen[kTiles];
      float c[kTiles], x[kTiles][4];
      uint16_t h[kTiles];
      uint8_t valid[kTiles];
      const auto load_step = [&](int step, float(&values)[kTiles][4], uint8_t(&mask)[kTiles]) {
        const int64_t time = p.go_backwards ? p.steps - 1 - step : step;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const int64_t at = row[n] * p.batch_stride + time * p.step_stride;
          mask[n] = p.mask == nullptr ? 1 : __ldg(p.mask + at);
          const float* from = p.projection + at * 4 * hidden + unit;
#pragma unroll
          for (int g = 0; g < 4; ++g) values[n][g] = unit_lives ? __ldg(from + g * hidden) : 0.f;
        }
      };
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        row[n] = int64_t(slice) * kRows + lane_row + n * 8;
        lives[n] = row[n] < p.batch && unit_lives;
        if (row[n] >= p.batch) row[n] = 0;  // computed like row 0, and stored nowhere
        seen[n] = false;
        const int64_t state = row[n] * hidden + unit;
        h[n] = starts_with_h && unit_lives ? p.initial_h[state] : 0;
        c[n] = p.initial_c != nullptr && unit_lives
                   ? ToAccumulator(static_cast<const T*>(p.initial_c)[state])
                   : 0.f;
      }
      load_step(0, x, valid);
      if (starts_with_h) publish(h);

      for (int step = 0; step < p.steps; ++step) {
        const bool last = step + 1 == p.steps;
        float next_x[kTiles][4];
        uint8_t next_valid[kTiles];
        load_step(last ? step : step + 1, next_x, next_valid);
        float d[8 * kTiles];
#pragma unroll
        for (int i = 0; i < 8 * kTiles; ++i) d[i] = 0;
        if (step > 0 || starts_with_h) {
          const uint32_t buffer = consumed & 1, parity = consumed >> 1 & 1;
          ++consumed;
#pragma unroll
          for (int i = 0; i < C::kChunks / 2; ++i) {
            const int chunk = warpgroup * (C::kChunks / 2) + i;
            ptx::BarrierWait(barriers + 8 * (buffer * C::kChunks + chunk), parity);
            ptx::MmaFence();
#pragma unroll
            for (int k = 0; k < kGridChunkUnits / 16; ++k) {
              const uint32_t at =
                  buffers + buffer * C::kBufferBytes + chunk * C::kChunkBytes + k * (kRows * 32);
              ptx::Mma<T, kRows>::Run(d, weights[i * (kGridChunkUnits / 16) + k],
                                      ptx::MmaDescriptor(at, kRows * 16, 128));
            }
            ptx::MmaCommit();
          }
          ptx::MmaWaitAll();
          // Each warpgroup summed over half of k for all rows; it finishes half of the rows.
#pragma unroll
          for (int i = 0; i < 4 * kTiles; ++i) {
            half_sums[(warpgroup * 4 * kTiles + i) * 128 + thread] =
                warpgroup == 1 ? d[i] : d[4 * kTiles + i];
          }
          ptx::NamedBarrier(1, C::kConsumers);
          if (threadIdx.x < C::kChunks) {
            ptx::BarrierExpect(barriers + 8 * (buffer * C::kChunks + threadIdx.x), C::kChunkBytes);
          }
#pragma unroll
          for (int i = 0; i < 4 * kTiles; ++i) {
            d[i] = (warpgroup == 1 ? d[4 * kTiles + i] : d[i]) +
                   half_sums[((1 - warpgroup) * 4 * kTiles + i) * 128 + thread];
          }
        }

        uint32_t i_f[kTiles], g_o[kTiles];
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          // A lane of the lower half has gates i and g of two rows, of the upper half f and o.
          const float* sums = d + n * 4;
          const float ra = __shfl_xor_sync(~0u, upper ? sums[0] : sums[1], 16);
          const float rb = __shfl_xor_sync(~0u, upper ? sums[2] : sums[3], 16);
          const float i = FastSigmoid((upper ? ra : sums[0]) + x[n][0] + bias[0]);
          const float f = FastSigmoid((upper ? sums[1] : ra) + x[n][1] + bias[1]);
          const float g = FastTanh((upper ? rb : sums[2]) + x[n][2] + bias[2]);
          const float o = FastSigmoid((upper ? sums[3] : rb) + x[n][3] + bias[3]);
          if (valid[n]) {
            c[n] = fmaf(f, c[n], i * g);
            h[n] = ToBits<T>(o * FastTanh(c[n]));
            seen[n] = true;
          }
          i_f[n] = uint32_t(ToBits<T>(i)) | uint32_t(ToBits<T>(f)) << 16;
          g_o[n] = uint32_t(ToBits<T>(g)) | uint32_t(ToBits<T>(o)) << 16;
        }
        if (!last) publish(h);

          // Nobody waits for what follows.
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const bool repeats = valid[n] || (seen[n] && !p.zero_output_for_mask);
          const uint64_t units = GatherUnits(repeats ? h[n] : 0, lane);
          if (lane_unit == 0 && lives[n] && (p.return_sequences || last)) {
            const int64_t at =
                p.return_sequences ? row[n] * p.batch_stride + step * p.step_stride : row[n];
            *reinterpret_cast<uint64_t*>(p.output + at * hidden + first_unit) = units;
          }
          if (p.gates != nullptr) {
            const uint64_t gate = TransposeGates(i_f[n], g_o[n], lane);
            const int64_t at = step * p.batch + row[n];
            if (lives[n]) {
              const int number = (lane >> 2 & 1) * 2 + (lane >> 3 & 1);
              *reinterpret_cast<uint64_t*>(p.gates + at * 4 * hidden + number * hidden +
                                           first_unit) = gate;
              p.cell[at * hidden + unit] = c[n];
              if (p.hidden != nullptr) p.hidden[at * hidden + unit] = h[n];
            }
          }
          if (last && lives[n]) {
            p.final_h[row[n] * hidden + unit] = h[n];
            static_cast<T*>(p.final_c)[row[n] * hidden + unit] = FromAccumulator<T>(c[n]);
          }
          valid[n] = next_valid[n];
#pragma unroll
          for (int g = 0; g < 4; ++g) x[n][g] = next_x[n][g];
        }
      }
    }
  }
  ptx::ClusterSync();  // no block ends while copies of the other may come in
}

template <typename T>
const void* KernelFor(const GridPlan& plan) {
  const auto choose = [&](auto sixteen, auto thirty_two) {
    return reinterpret_cast<const void*>(plan.rows == 16 ? sixteen : thirty_two);
  };
  switch (plan.padded_hidden) {
    case 512:
      return choose(ForwardKernel<T, 512, 16>, ForwardKernel<T, 512, 32>);
    case 768:
      return choose(ForwardKernel<T, 768, 16>, ForwardKernel<T, 768, 32>);
    default:
      return choose(ForwardKernel<T, 1024, 16>, ForwardKernel<T, 1024, 32>);
  }
}

}  // namespace tfl::cuda::grid

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_FORWARD_CUH_
