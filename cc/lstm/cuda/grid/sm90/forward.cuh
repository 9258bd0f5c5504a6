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
  constexpr int kFlights = C::kFlights;
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ __align__(8) uint64_t full[kFlights][2][C::kChunks];
  __shared__ float row_scales[2][kRows];    // with kScaled: for initial_h, and for what steps give
  __shared__ uint4 outgoing[kFlights][32];  // h of the block's units, core matrices like those read
  __shared__ float dropout[kFlights][C::kConsumers];  // each thread's own
  const int any_group = blockIdx.x / C::kBlocks, block = blockIdx.x % C::kBlocks;
  const int group = any_group % p.groups;
  const GridForwardDirection& q = p.directions[any_group / p.groups];
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32 % 4, 0);
  if (threadIdx.x == 0) InitBarriers<C>(ptx::SharedAddress(full));
  const uint32_t buffers = ptx::SharedAddress(shared), barriers = ptx::SharedAddress(full);
  constexpr int kBlockBytes = kGridUnits * kGridFlightRows * C::kElement;  // of h, a flight
  static_assert(kBlockBytes == sizeof(outgoing[0]));
  static_assert(kFlights * C::kChunks <= kGridCounters);
  uint32_t* counters = p.counters + any_group * kGridCounters * kGridCounterPitch;
  const bool starts_with_h = q.initial_h != nullptr;
  const unsigned cleared = ClearCounters(counters, block);

  if (warpgroup == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    CountersAreClear(cleared);
    ptx::ClusterSync();  // both blocks have emptied their shared memory of weights
    const uint32_t a_slice = starts_with_h ? p.steps : p.steps - 1;
    Exchange e;
    e.count = a_slice * SlicesOf(group, p.slices, p.groups);
    e.publishers = kGridChunkBlocks;
    e.first_chunk = 0;
    e.own_chunk = block / kGridChunkBlocks;
    e.own_offset = block % kGridChunkBlocks * kBlockBytes;
    e.buffers =
        static_cast<unsigned char*>(p.exchange) + size_t(any_group) * kFlights * C::kFlightBytes;
    e.bytes = C::kBufferBytes;
    e.counters = counters;
    e.flight_counters = C::kChunks * kGridCounterPitch;
    Serve<C>(e, warp, outgoing, buffers, barriers);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
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

    // This thread's cells: one unit, one row of each flight's 16.
    const int first_unit = block * kGridUnits + warp * 4;  // of the warp's 4
    const int lane_unit = lane / 4 % 4, unit = first_unit + lane_unit;
    const int lane_row = warpgroup * 8 + lane % 4 * 2 + lane / 16;
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
    unsigned char* my_outgoing = reinterpret_cast<unsigned char*>(outgoing) +
                                 warp * kWarpBytes / 16 * (kGridFlightRows * 16) +
                                 warp * kWarpBytes % 16 + lane_row * 16;
    uint32_t consumed = 0;  // publications of each flight before the present step's

    const auto publish = [&](int flight, const Quad<F>& units) {
      units.Store(my_outgoing + flight * kBlockBytes, lane_unit);
      ptx::NamedBarrierArrive(kPublished + flight, C::kConsumers + 32);
    };

    for (int slice = group; slice < p.slices; slice += p.groups) {
      int64_t row[kFlights] = {};
      bool lives[kFlights], seen[kFlights];
      float c[kFlights], x[kFlights][4];
      Bits<T> h[kFlights];
      bool valid[kFlights];
      float scale[kFlights], step_scale[kFlights];  // of h, as published; of what steps give
      const bool drops = q.recurrent_dropout != nullptr;
      const auto factor = [lane, drops](Bits<T> bits, int f, float by) {
        if constexpr (kScaled) {
          if (drops) by *= dropout[f][threadIdx.x];
          return Quad<F>(ToBits<F>(__uint_as_float(bits) * by), lane);
        } else {
          if (drops) bits = ToBits<T>(FromBits<T>(bits) * dropout[f][threadIdx.x]);
          return Quad<F>(bits, lane);
        }
      };
      const auto load_step = [&](int step, int f, float(&values)[4], bool& is_valid) {
        const int64_t time = q.go_backwards ? p.steps - 1 - step : step;
        const int64_t at = row[f] * p.batch_stride + time * p.step_stride;
        is_valid = p.mask == nullptr || __ldg(p.mask + at) != 0;
        const float* from = q.projection + at * 4 * hidden + unit;
#pragma unroll
        for (int g = 0; g < 4; ++g) values[g] = unit_lives ? __ldg(from + g * hidden) : 0.f;
      };
#pragma unroll
      for (int f = 0; f < kFlights; ++f) {
        row[f] = int64_t(slice) * kRows + f * kGridFlightRows + lane_row;
        lives[f] = row[f] < p.batch && unit_lives;
        if (row[f] >= p.batch) row[f] = 0;  // computed like row 0, and stored nowhere
        seen[f] = false;
        const int64_t state = row[f] * hidden + unit;
        if (q.recurrent_dropout != nullptr) {
          dropout[f][threadIdx.x] =
              unit_lives ? ToAccumulator(static_cast<const T*>(q.recurrent_dropout)[state]) : 1.f;
        }
        h[f] = starts_with_h && unit_lives ? static_cast<const Bits<T>*>(q.initial_h)[state] : 0;
        c[f] = q.initial_c != nullptr && unit_lives
                   ? ToAccumulator(static_cast<const T*>(q.initial_c)[state])
                   : 0.f;
        load_step(0, f, x[f], valid[f]);
        scale[f] = step_scale[f] = kUnitScale;
      }
      if (kScaled && (starts_with_h || drops)) {
        const int64_t first_row = int64_t(slice) * kRows;
        RowScales<kRows>(p, q, static_cast<const float*>(q.initial_h), first_row, row_scales[0]);
        RowScales<kRows>(p, q, nullptr, first_row, row_scales[1]);
        ptx::NamedBarrier(1, C::kConsumers);
#pragma unroll
        for (int f = 0; f < kFlights; ++f) {
          scale[f] = row_scales[0][f * kGridFlightRows + lane_row];
          step_scale[f] = row_scales[1][f * kGridFlightRows + lane_row];
        }
      }
      if (starts_with_h) {
#pragma unroll
        for (int f = 0; f < kFlights; ++f) publish(f, factor(h[f], f, scale[f]));
      }
      ptx::NamedBarrier(1, C::kConsumers);  // the last slice's results have left their stage

      for (int step = 0; step < p.steps; ++step) {
        const bool last = step + 1 == p.steps, multiplies = step > 0 || starts_with_h;
#pragma unroll
        for (int f = 0; f < kFlights; ++f) {
          float next_x[4];
          bool next_valid;
          load_step(last ? step : step + 1, f, next_x, next_valid);
          float d[8] = {};
          if (multiplies) {
            Multiply<F, C>(d, weights, f, consumed, warpgroup, buffers, barriers);
            AddHalves<C>(d, half_sums, f, consumed, warpgroup, barriers);
          }
          // A lane of the lower half has gates i and g of two rows, of the upper half f and o.
          const float ra = __shfl_xor_sync(~0u, upper ? d[0] : d[1], 16);
          const float rb = __shfl_xor_sync(~0u, upper ? d[2] : d[3], 16);
          float z[4] = {upper ? ra : d[0], upper ? d[1] : ra, upper ? rb : d[2], upper ? d[3] : rb};
          if constexpr (kScaled) {
            const float unscale = __fdividef(weight_unscale, scale[f]);
#pragma unroll
            for (int g = 0; g < 4; ++g) z[g] *= unscale;
          }
          float gates[4];
#pragma unroll
          for (int g = 0; g < 4; ++g) {
            const float sum = z[g] + x[f][g] + bias[g];
            gates[g] = g == 2 ? FastTanh(sum) : FastSigmoid(sum);
          }
          if (valid[f]) {
            c[f] = fmaf(gates[1], c[f], gates[0] * gates[2]);
            h[f] = ToBits<T>(gates[3] * FastTanh(c[f]));
            seen[f] = true;
            scale[f] = step_scale[f];
          }
          const Quad<F> units = factor(h[f], f, scale[f]);
          if (!last) publish(f, units);

          // No other block waits for what follows.
          const Quad<T> kept = Kept<T>(h[f], units, drops, lane);
          Quad<T> out = kept;
          if (p.mask != nullptr) {
            const bool repeats = valid[f] || (seen[f] && !p.zero_output_for_mask);
            out = Quad<T>(repeats ? h[f] : 0, lane);
          }
          const int64_t flight_row = int64_t(slice) * kRows + f * kGridFlightRows;
          if (q.gates == nullptr) {  // the output alone is not worth the stage
            if (lives[f] && (p.return_sequences || last)) {
              out.Store(static_cast<T*>(q.output) + OutputAt(p, q, row[f], step) + first_unit,
                        lane_unit);
            }
          } else {
            // A stage of the flight's own, written again behind the next step's barriers.
            const int stage_row = f * kGridFlightRows;
            unsigned char* output_rows = output_stage + stage_row * C::kHiddenPitch;
            unsigned char* hidden_rows = hidden_stage + stage_row * C::kHiddenPitch;
            unsigned char* gates_rows = gates_stage + stage_row * C::kGatesPitch;
            unsigned char* cell_rows = cell_stage + stage_row * C::kCellPitch;
            out.Store(output_rows + lane_row * C::kHiddenPitch + warp * kResultBytes, lane_unit);
            kept.Store(hidden_rows + lane_row * C::kHiddenPitch + warp * kResultBytes, lane_unit);
            StageGates<T>(gates_rows + lane_row * C::kGatesPitch + warp * kResultBytes, gates,
                          lane);
            *reinterpret_cast<float*>(cell_rows + lane_row * C::kCellPitch +
                                      (warp * 4 + lane_unit) * 4) = c[f];
            ptx::NamedBarrier(1, C::kConsumers);
            // `row_at(row)` is where the row begins in `to`, in elements.
            const auto store_hidden = [&](const unsigned char* stage, int task, void* to,
                                          const auto& row_at) {
              constexpr int kVectors = C::kResult;  // of 16 bytes, a row
              const int at = task / kVectors, part = task % kVectors;
              const int from_unit = block * kGridUnits + part * (16 / C::kResult);
              if (task < 0 || at >= kGridFlightRows || flight_row + at >= p.batch ||
                  from_unit >= hidden) {
                return;
              }
              *reinterpret_cast<uint4*>(static_cast<T*>(to) + row_at(flight_row + at) + from_unit) =
                  *reinterpret_cast<const uint4*>(stage + at * C::kHiddenPitch + part * 16);
            };
            const int thread = threadIdx.x;
            if (p.return_sequences || last) {
              store_hidden(output_rows, thread - 128, q.output,
                           [&](int64_t b) { return OutputAt(p, q, b, step); });
            }
            StoreGates<T>(gates_rows, q.gates, block * kGridUnits, hidden, p.batch - flight_row,
                          [&](int at) { return step * p.batch + flight_row + at; });
            const int at = (thread - 192) / 4, from_unit = block * kGridUnits + thread % 4 * 4;
            if (thread >= 192 && flight_row + at < p.batch && from_unit < hidden) {
              *reinterpret_cast<uint4*>(q.cell + (step * p.batch + flight_row + at) * hidden +
                                        from_unit) =
                  *reinterpret_cast<const uint4*>(cell_rows + at * C::kCellPitch + thread % 4 * 16);
            }
            if (q.hidden != nullptr) {
              store_hidden(hidden_rows, thread - 160, q.hidden,
                           [&](int64_t b) { return (step * p.batch + b) * hidden; });
            }
          }
          if (last && lives[f]) {
            static_cast<Bits<T>*>(q.final_h)[row[f] * hidden + unit] = h[f];
            static_cast<T*>(q.final_c)[row[f] * hidden + unit] = FromAccumulator<T>(c[f]);
          }
          valid[f] = next_valid;
#pragma unroll
          for (int g = 0; g < 4; ++g) x[f][g] = next_x[g];
        }
        if (multiplies) ++consumed;
      }
    }
  }
  ptx::ClusterSync();  // no block ends while copies of the other may come in
}

}  // namespace tfl::cuda::grid

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_FORWARD_CUH_
