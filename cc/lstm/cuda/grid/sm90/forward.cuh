// The whole recurrence in one kernel, for 16-bit factors on Hopper.
//
// float32 tensors, where TF32's precision is allowed, meet in float16, whose 11 significant bits
// are TF32's: weights times a power of two that brings a block's largest below 2^15, h times one
// that does so for its row. The sums are float32 and divided by both. What is lost below float16's
// range is less than 2^-39 of the largest factor.
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

#include "cc/lstm/cuda/grid/sm90/common.cuh"

namespace tfl::cuda::grid {

template <typename T>
struct Factor {
  using type = T;
};
template <>
struct Factor<float> {
  using type = __half;
};

// h as the call's tensors take it; where nothing lies between the two, that is the factor.
template <typename T, typename F>
__device__ __forceinline__ Quad<T> Kept(Bits<T> h, const Quad<F>& factor, bool drops, int lane) {
  if constexpr (std::is_same_v<T, F>) {
    if (!drops) return factor;
  }
  return Quad<T>(h, lane);
}

// The power of two that brings a finite positive number to [2^14, 2^15), or zero to itself.
__device__ __forceinline__ float ScaleFor(float most) {
  const int exponent = static_cast<int>(__float_as_uint(most) >> 23) - 127;
  return most == 0 ? 1.f : __uint_as_float(uint32_t(127 + min(14 - exponent, 100)) << 23);
}
__device__ __forceinline__ float LargerFinite(float most, float value) {
  const float size = fabsf(value);
  return size <= 3.402823466e38f && size > most ? size : most;
}
__device__ __forceinline__ float WarpMost(float most) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    most = fmaxf(most, __shfl_xor_sync(~0u, most, distance));
  }
  return most;
}

// The scale of the block's weights; `shared` is scratch.
template <typename C>
__device__ __forceinline__ float WeightScale(const GridForwardParams& p,
                                             const GridForwardDirection& q, float* shared,
                                             int first_unit) {
  constexpr int kVectors = 16;  // of 4 weights, a row of k
  const int at = threadIdx.x % kVectors * 4, unit = first_unit + at % kGridUnits;
  float most = 0;
  if (unit < p.hidden_size) {
#pragma unroll 8
    for (int k = threadIdx.x / kVectors; k < p.hidden_size; k += C::kConsumers / kVectors) {
      const float4 four = __ldg(reinterpret_cast<const float4*>(
          static_cast<const float*>(q.recurrent_kernel) +
          (size_t(k) * 4 + at / kGridUnits) * p.hidden_size + unit));
      most = LargerFinite(LargerFinite(most, four.x), four.y);
      most = LargerFinite(LargerFinite(most, four.z), four.w);
    }
  }
  most = WarpMost(most);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = most;
  ptx::NamedBarrier(1, C::kConsumers);
#pragma unroll
  for (int i = 0; i < C::kConsumers / 32; ++i) most = fmaxf(most, shared[i]);
  ptx::NamedBarrier(1, C::kConsumers);
  return ScaleFor(most);
}

// scales[row] for `h` (null: 1 everywhere) times the dropout of the slice's rows; those beyond the
// batch are computed like row 0.
template <int kRows>
__device__ __forceinline__ void RowScales(const GridForwardParams& p, const GridForwardDirection& q,
                                          const float* h, int64_t first_row, float* scales) {
  const float* dropout = static_cast<const float*>(q.recurrent_dropout);
  for (int at = threadIdx.x / 32; at < kRows; at += 8) {
    const int64_t row = first_row + at < p.batch ? first_row + at : 0;
    float most = 1;
    for (int i = threadIdx.x % 32; i < p.hidden_size; i += 32) {
      const int64_t state = row * p.hidden_size + i;
      most = LargerFinite(
          most, (h == nullptr ? 1.f : h[state]) * (dropout == nullptr ? 1.f : dropout[state]));
    }
    most = WarpMost(most);
    if (threadIdx.x % 32 == 0) scales[at] = ScaleFor(most);
  }
}

// Fills weights[step][4], the A fragments of m64k16: this warp's 16 gate rows are 4 gates (rows
// 4 gate + unit) of 4 units. Goes through shared memory for reads of 16 bytes.
template <typename F, typename C>
__device__ __forceinline__ void LoadFragments(const GridForwardParams& p,
                                              const GridForwardDirection& q, unsigned char* shared,
                                              int first_unit, float scale, uint32_t (*weights)[4]) {
  constexpr int kHidden = C::kHalfSteps * C::kStepK * 2;
  constexpr int kVectors = 64 * 2 / 16;  // of 16 bytes, a row of k
  static_assert(C::kElement == 2);
#pragma unroll 8
  for (int task = threadIdx.x; task < kHidden * kVectors; task += C::kConsumers) {
    const int k = task / kVectors, at = task % kVectors * 8;
    const int gate = at / kGridUnits, unit = first_unit + at % kGridUnits;
    uint4 vector = make_uint4(0, 0, 0, 0);
    if (k < p.hidden_size && unit < p.hidden_size) {
      vector = LoadWeights<F>(q.recurrent_kernel, p.wide_weights,
                              (size_t(k) * 4 + gate) * p.hidden_size + unit, scale);
    }
    *reinterpret_cast<uint4*>(shared + k * C::kStagingPitch + at * 2) = vector;
  }
  ptx::NamedBarrier(1, C::kConsumers);
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 0; step < C::kHalfSteps; ++step) {
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int row = lane / 4 + (part & 1) * 8;
      const int k = (group * C::kHalfSteps + step) * C::kStepK + lane % 4 * 2 + (part & 2) * 4;
      const unsigned char* at =
          shared + k * C::kStagingPitch + (row / 4 * kGridUnits + warp * 4 + row % 4) * 2;
      weights[step][part] = uint32_t(*reinterpret_cast<const uint16_t*>(at)) |
                            uint32_t(*reinterpret_cast<const uint16_t*>(at + C::kStagingPitch))
                                << 16;
    }
  }
}

template <typename T, int kHidden, int kRows>
__global__ void __launch_bounds__(Config<T, typename Factor<T>::type, kHidden, kRows>::kThreads, 1)
    __cluster_dims__(kGridClusterBlocks, 1, 1)
        ForwardKernel(const __grid_constant__ GridForwardParams p) {
  using F = typename Factor<T>::type;
  using C = Config<T, F, kHidden, kRows>;
  constexpr bool kScaled = !std::is_same_v<T, F>;
  constexpr int kTiles = C::kTiles;
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ __align__(8) uint64_t full[2 * C::kChunks];
  __shared__ float row_scales[2][kRows];  // with kScaled: for initial_h, and for what steps give
  __shared__ float dropout[kTiles][C::kConsumers];  // each thread's own
  const int any_group = blockIdx.x / C::kBlocks, block = blockIdx.x % C::kBlocks;
  const int group = any_group % p.groups;
  const GridForwardDirection& q = p.directions[any_group / p.groups];
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  const uint32_t buffers = ptx::SharedAddress(shared), barriers = ptx::SharedAddress(full);
  if (threadIdx.x == 0) InitBarriers<C>(barriers);
  unsigned char* exchange =
      static_cast<unsigned char*>(p.exchange) + size_t(any_group) * 2 * C::kBufferBytes;
  uint32_t* counters = p.counters + any_group * kGridCounters * kGridCounterPitch;
  const bool starts_with_h = q.initial_h != nullptr;
  const unsigned cleared = ClearCounters(counters, block);

  if (warpgroup == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    CountersAreClear(cleared);
    ptx::ClusterSync();  // both blocks have emptied their shared memory of weights
    const uint32_t a_slice = starts_with_h ? p.steps : p.steps - 1;
    Produce<C>(a_slice * SlicesOf(group, p.slices, p.groups), kGridChunkBlocks, 0, exchange,
               C::kBufferBytes, counters, buffers, barriers);
    __syncwarp();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32 % 4, 0);
    const int lane = threadIdx.x % 32;
    uint32_t weights[C::kHalfSteps][4];
    float weight_scale = 1;
    if constexpr (kScaled) {
      weight_scale = WeightScale<C>(p, q, reinterpret_cast<float*>(shared), block * kGridUnits);
    }
    LoadFragments<F, C>(p, q, shared, block * kGridUnits, weight_scale, weights);
    const float weight_unscale = 1.f / weight_scale;
    CountersAreClear(cleared);
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
    if (q.bias != nullptr && unit_lives) {
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        bias[g] = p.wide_weights ? static_cast<const float*>(q.bias)[g * hidden + unit]
                                 : ToAccumulator(static_cast<const T*>(q.bias)[g * hidden + unit]);
      }
    }
    float* half_sums = reinterpret_cast<float*>(shared + C::kHalfSums);
    unsigned char* gates_stage = shared + C::kStage;
    unsigned char* cell_stage = gates_stage + kRows * C::kGatesPitch;
    unsigned char* output_stage = cell_stage + kRows * C::kCellPitch;
    unsigned char* hidden_stage = output_stage + kRows * C::kHiddenPitch;
    // Core matrices are 8 rows by 16 bytes of units.
    constexpr int kWarpBytes = 4 * C::kElement, kResultBytes = 4 * C::kResult;
    constexpr float kUnitScale = 16384;  // of h that steps gave, at most 1
    unsigned char* my_exchange = exchange + block * (kGridUnits * kRows * C::kElement) +
                                 warp * kWarpBytes / 16 * (kRows * 16) + warp * kWarpBytes % 16;
    uint32_t consumed = 0, published = 0;

    const auto publish = [&](const Quad<F>(&units)[kTiles]) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        units[n].Store(my_exchange + (published & 1) * C::kBufferBytes + (lane_row + n * 8) * 16,
                       lane_unit);
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
      Bits<T> h[kTiles];
      uint8_t valid[kTiles];
      float scale[kTiles], step_scale[kTiles];  // of h, as published; of what steps give
      const bool drops = q.recurrent_dropout != nullptr;
      const auto factor = [lane, drops](Bits<T> bits, int n, float by) {
        if constexpr (kScaled) {
          if (drops) by *= dropout[n][threadIdx.x];
          return Quad<F>(ToBits<F>(__uint_as_float(bits) * by), lane);
        } else {
          if (drops) bits = ToBits<T>(FromBits<T>(bits) * dropout[n][threadIdx.x]);
          return Quad<F>(bits, lane);
        }
      };
      const auto load_step = [&](int step, float(&values)[kTiles][4], uint8_t(&mask)[kTiles]) {
        const int64_t time = q.go_backwards ? p.steps - 1 - step : step;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const int64_t at = row[n] * p.batch_stride + time * p.step_stride;
          mask[n] = p.mask == nullptr ? 1 : __ldg(p.mask + at);
          const float* from = q.projection + at * 4 * hidden + unit;
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
        if (q.recurrent_dropout != nullptr) {
          dropout[n][threadIdx.x] =
              unit_lives ? ToAccumulator(static_cast<const T*>(q.recurrent_dropout)[state]) : 1.f;
        }
        h[n] = starts_with_h && unit_lives ? static_cast<const Bits<T>*>(q.initial_h)[state] : 0;
        c[n] = q.initial_c != nullptr && unit_lives
                   ? ToAccumulator(static_cast<const T*>(q.initial_c)[state])
                   : 0.f;
      }
      load_step(0, x, valid);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) scale[n] = step_scale[n] = kUnitScale;
      if (kScaled && (starts_with_h || drops)) {
        const int64_t first_row = int64_t(slice) * kRows;
        RowScales<kRows>(p, q, static_cast<const float*>(q.initial_h), first_row, row_scales[0]);
        RowScales<kRows>(p, q, nullptr, first_row, row_scales[1]);
        ptx::NamedBarrier(1, C::kConsumers);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          scale[n] = row_scales[0][lane_row + n * 8];
          step_scale[n] = row_scales[1][lane_row + n * 8];
        }
      }
      if (starts_with_h) {
        Quad<F> units[kTiles];
#pragma unroll
        for (int n = 0; n < kTiles; ++n) units[n] = factor(h[n], n, scale[n]);
        publish(units);
      } else {
        ptx::NamedBarrier(1, C::kConsumers);  // the last slice's results have left their stage
      }

      for (int step = 0; step < p.steps; ++step) {
        const bool last = step + 1 == p.steps;
        float next_x[kTiles][4];
        uint8_t next_valid[kTiles];
        load_step(last ? step : step + 1, next_x, next_valid);
        float d[8 * kTiles];
#pragma unroll
        for (int i = 0; i < 8 * kTiles; ++i) d[i] = 0;
        if (step > 0 || starts_with_h) {
          Multiply<F, kRows, C>(d, weights, consumed, warpgroup, buffers, barriers);
          AddHalves<C>(d, half_sums, consumed, warpgroup, barriers);
          ++consumed;
        }

        Quad<F> factors[kTiles];
        Quad<T> out[kTiles];
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          // A lane of the lower half has gates i and g of two rows, of the upper half f and o.
          const float* sums = d + n * 4;
          const float ra = __shfl_xor_sync(~0u, upper ? sums[0] : sums[1], 16);
          const float rb = __shfl_xor_sync(~0u, upper ? sums[2] : sums[3], 16);
          float z[4] = {upper ? ra : sums[0], upper ? sums[1] : ra, upper ? rb : sums[2],
                        upper ? sums[3] : rb};
          if constexpr (kScaled) {
            const float unscale = __fdividef(weight_unscale, scale[n]);
#pragma unroll
            for (int g = 0; g < 4; ++g) z[g] *= unscale;
          }
          const float i = FastSigmoid(z[0] + x[n][0] + bias[0]);
          const float f = FastSigmoid(z[1] + x[n][1] + bias[1]);
          const float g = FastTanh(z[2] + x[n][2] + bias[2]);
          const float o = FastSigmoid(z[3] + x[n][3] + bias[3]);
          if (valid[n]) {
            c[n] = fmaf(f, c[n], i * g);
            h[n] = ToBits<T>(o * FastTanh(c[n]));
            seen[n] = true;
            scale[n] = step_scale[n];
          }
          factors[n] = factor(h[n], n, scale[n]);
          const int at = lane_row + n * 8;
          const Quad<T> kept = Kept<T>(h[n], factors[n], drops, lane);
          out[n] = kept;
          if (p.mask != nullptr) {
            const bool repeats = valid[n] || (seen[n] && !p.zero_output_for_mask);
            out[n] = Quad<T>(repeats ? h[n] : 0, lane);
          }
          if (q.gates != nullptr) {
            out[n].Store(output_stage + at * C::kHiddenPitch + warp * kResultBytes, lane_unit);
            kept.Store(hidden_stage + at * C::kHiddenPitch + warp * kResultBytes, lane_unit);
            StageGates<T>(gates_stage + at * C::kGatesPitch + warp * kResultBytes, {i, f, g, o},
                          lane);
            *reinterpret_cast<float*>(cell_stage + at * C::kCellPitch +
                                      (warp * 4 + lane_unit) * 4) = c[n];
          }
        }
        if (last) {
          ptx::NamedBarrier(1, C::kConsumers);
        } else {
          publish(factors);
        }

        // Nobody waits for what follows. Stages are written again behind the next step's barrier.
        const int64_t first_row = int64_t(slice) * kRows;
        // `row_at(row)` is where the row begins in `to`, in elements.
        const auto store_hidden = [&](const unsigned char* stage, int task, void* to,
                                      const auto& row_at) {
          constexpr int kVectors = C::kResult;  // of 16 bytes, a row
          const int at = task / kVectors, part = task % kVectors;
          const int from_unit = block * kGridUnits + part * (16 / C::kResult);
          if (task < 0 || at >= kRows || first_row + at >= p.batch || from_unit >= hidden) return;
          *reinterpret_cast<uint4*>(static_cast<T*>(to) + row_at(first_row + at) + from_unit) =
              *reinterpret_cast<const uint4*>(stage + at * C::kHiddenPitch + part * 16);
        };
        const int thread = threadIdx.x;
        // The output alone is not worth the stage.
        if (q.gates == nullptr && (p.return_sequences || last)) {
#pragma unroll
          for (int n = 0; n < kTiles; ++n) {
            if (!lives[n]) continue;
            out[n].Store(static_cast<T*>(q.output) + OutputAt(p, q, row[n], step) + first_unit,
                         lane_unit);
          }
        }
        if (q.gates != nullptr) {
          if (p.return_sequences || last) {
            store_hidden(output_stage, thread - 128, q.output,
                         [&](int64_t b) { return OutputAt(p, q, b, step); });
          }
          StoreGates<T, kRows>(gates_stage, q.gates, block * kGridUnits, hidden,
                               p.batch - first_row,
                               [&](int at) { return step * p.batch + first_row + at; });
          const int at = thread / 4, from_unit = block * kGridUnits + thread % 4 * 4;
          if (at < kRows && first_row + at < p.batch && from_unit < hidden) {
            *reinterpret_cast<uint4*>(q.cell + (step * p.batch + first_row + at) * hidden +
                                      from_unit) =
                *reinterpret_cast<const uint4*>(cell_stage + at * C::kCellPitch + thread % 4 * 16);
          }
          if (q.hidden != nullptr) {
            store_hidden(hidden_stage, C::kResult == 4 ? thread : thread - 192, q.hidden,
                         [&](int64_t b) { return (step * p.batch + b) * hidden; });
          }
        }
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          if (last && lives[n]) {
            static_cast<Bits<T>*>(q.final_h)[row[n] * hidden + unit] = h[n];
            static_cast<T*>(q.final_c)[row[n] * hidden + unit] = FromAccumulator<T>(c[n]);
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

}  // namespace tfl::cuda::grid

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_FORWARD_CUH_
