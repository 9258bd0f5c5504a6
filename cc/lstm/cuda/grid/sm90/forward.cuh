// The whole recurrence in one kernel, for 16-bit factors on Hopper.
//
// float32 tensors, where TF32's precision is allowed, meet in float16, whose 11 significant bits
// are TF32's: weights times a power of two that brings a block's largest below 2^15, h times one
// that does so for its row. The sums are float32 and divided by both. What is lost below float16's
// range is less than 2^-39 of the largest factor.
//
// A group of blocks_per_group blocks holds the recurrent kernel once; each block computes 16 units
// for the group's `kRows` batch rows, in flights of 16 rows. Four warpgroups:
//   0, 1  multiply. The block's part of the recurrent kernel, 64 gate rows by kHidden, lies in
//         their registers; they split k: wgmma with the weights as the M side, from registers, and
//         h as the N side, from shared memory. Their sums go to shared memory.
//   2     adds the halves, computes the cells and writes the results, while 0 and 1 multiply the
//         next flight.
//   3     exchanges: two warps store the block's units of h in a global buffer and add one to the
//         counter of their chunk (8 blocks); two wait for the counters, and bring each chunk into
//         both blocks of the cluster by one bulk copy, so that products start chunk by chunk. While
//         one flight's h is on its way, the others compute.
// There is no barrier of the grid.
//
// Two buffers suffice, in global and in shared memory: a block publishes a flight's h number j
// after it has consumed number j - 1, all of which was published by blocks that had consumed number
// j - 2. What passes between warpgroups needs one place a flight: the next to fill it has waited,
// through the exchange, for what comes of the last.
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
    for (int k = threadIdx.x / kVectors; k < p.hidden_size; k += C::kMultiplierThreads / kVectors) {
      const float4 four = __ldg(reinterpret_cast<const float4*>(
          static_cast<const float*>(q.recurrent_kernel) +
          (size_t(k) * 4 + at / kGridUnits) * p.hidden_size + unit));
      most = LargerFinite(LargerFinite(most, four.x), four.y);
      most = LargerFinite(LargerFinite(most, four.z), four.w);
    }
  }
  most = WarpMost(most);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = most;
  ptx::NamedBarrier(kMultipliers, C::kMultiplierThreads);
#pragma unroll
  for (int i = 0; i < C::kMultiplierThreads / 32; ++i) most = fmaxf(most, shared[i]);
  ptx::NamedBarrier(kMultipliers, C::kMultiplierThreads);
  return ScaleFor(most);
}

// scales[row] for `h` (null: 1 everywhere) times the dropout of the slice's rows; those beyond the
// batch are computed like row 0.
template <int kRows>
__device__ __forceinline__ void RowScales(const GridForwardParams& p, const GridForwardDirection& q,
                                          const float* h, int64_t first_row, float* scales) {
  const float* dropout = static_cast<const float*>(q.recurrent_dropout);
  for (int at = threadIdx.x / 32 % 4; at < kRows; at += 4) {
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
  for (int task = threadIdx.x; task < kHidden * kVectors; task += C::kMultiplierThreads) {
    const int k = task / kVectors, at = task % kVectors * 8;
    const int gate = at / kGridUnits, unit = first_unit + at % kGridUnits;
    uint4 vector = make_uint4(0, 0, 0, 0);
    if (k < p.hidden_size && unit < p.hidden_size) {
      vector = LoadWeights<F>(q.recurrent_kernel, p.wide_weights,
                              (size_t(k) * 4 + gate) * p.hidden_size + unit, scale);
    }
    *reinterpret_cast<uint4*>(shared + k * C::kStagingPitch + at * 2) = vector;
  }
  ptx::NamedBarrier(kMultipliers, C::kMultiplierThreads);
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
__global__ void __launch_bounds__(kGridForwardThreads, 1) __cluster_dims__(kGridClusterBlocks, 1, 1)
    ForwardKernel(const __grid_constant__ GridForwardParams p) {
  using F = typename Factor<T>::type;
  using C = Config<F, kHidden, kRows>;
  constexpr bool kScaled = !std::is_same_v<T, F>;
  constexpr int kFlights = C::kFlights;
  constexpr int kCellThreads = 128;
  // Of a thread. Most of a multiplier's registers hold weights.
  constexpr int kWeightRegisters = kHidden / 8, kExchangeRegisters = 40;
  constexpr int kMultiplierRegisters = kWeightRegisters < 72 ? 112 : kWeightRegisters + 40;
  constexpr int kCellRegisters = 512 - 2 * kMultiplierRegisters - kExchangeRegisters;
  // Sums of each half of k are float2 [8 pairs of rows][gate, unit], padded against bank conflicts.
  constexpr int kPairPitch = 4 * kGridUnits + 4;
  constexpr int kSumsPitch = 8 * kPairPitch * 2;  // floats
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ __align__(8) uint64_t full[kFlights][2][C::kChunks];
  __shared__ float row_scales[2][kRows];  // with kScaled: for initial_h, and for what steps give
  __shared__ float weight_unscale;
  __shared__ uint4 outgoing[kFlights][32];  // h of the block's units, core matrices like those read
  const int any_group = blockIdx.x / C::kBlocks, block = blockIdx.x % C::kBlocks;
  const int group = any_group % p.groups;
  const GridForwardDirection& q = p.directions[any_group / p.groups];
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32 % 4, 0);
  const int lane = threadIdx.x % 32;
  if (threadIdx.x == 0) InitBarriers<C>(ptx::SharedAddress(full));
  const uint32_t buffers = ptx::SharedAddress(shared), barriers = ptx::SharedAddress(full);
  float* sums = reinterpret_cast<float*>(shared + C::kSums);
  constexpr int kBlockBytes = kGridUnits * kGridFlightRows * C::kElement;  // of h, a flight
  static_assert(kBlockBytes == sizeof(outgoing[0]));
  static_assert(kFlights * C::kChunks <= kGridCounters);
  uint32_t* counters = p.counters + any_group * kGridCounters * kGridCounterPitch;
  const bool starts_with_h = q.initial_h != nullptr;
  const uint32_t a_slice = starts_with_h ? p.steps : p.steps - 1;
  const uint32_t publications = a_slice * SlicesOf(group, p.slices, p.groups);
  const unsigned cleared = ClearCounters(counters, block);

  if (warpgroup == 3) {
    ptx::SetRegisters<kExchangeRegisters, kGridForwardThreads>();
    CountersAreClear(cleared);
    ptx::ClusterSync();  // both blocks have emptied their shared memory of weights
    Exchange e;
    e.count = publications;
    e.publishers = kGridChunkBlocks;
    e.first_chunk = 0;
    e.own_chunk = block / kGridChunkBlocks;
    e.own_offset = block * kBlockBytes;
    e.buffers =
        static_cast<unsigned char*>(p.exchange) + size_t(any_group) * kFlights * C::kFlightBytes;
    e.bytes = C::kBufferBytes;
    e.counters = counters;
    e.flight_counters = C::kChunks * kGridCounterPitch;
    Serve<C, kCellThreads>(e, warp, outgoing, buffers, barriers);
  } else if (warpgroup < 2) {
    ptx::SetRegisters<kMultiplierRegisters, kGridForwardThreads>();
    uint32_t weights[C::kHalfSteps][4];
    float weight_scale = 1;
    if constexpr (kScaled) {
      weight_scale = WeightScale<C>(p, q, reinterpret_cast<float*>(shared), block * kGridUnits);
      if (threadIdx.x == 0) weight_unscale = 1.f / weight_scale;
    }
    LoadFragments<F, C>(p, q, shared, block * kGridUnits, weight_scale, weights);
    CountersAreClear(cleared);
    ptx::FenceAsyncShared();
    ptx::ClusterSync();
    for (uint32_t number = 0; number < publications; ++number) {
#pragma unroll
      for (int f = 0; f < kFlights; ++f) {
        float d[8] = {};
        Multiply<F, C>(d, weights, f, number, warpgroup, buffers, barriers);
        // Neither half alone waits for the block's own h; when both have come, its cells have read
        // the sums before these.
        ptx::NamedBarrier(kMultipliers, C::kMultiplierThreads);
        // This warp's rows are 4 units of each gate; a lane has them of rows of the batch in pairs.
        float2* to = reinterpret_cast<float2*>(sums + (f * 2 + warpgroup) * kSumsPitch) +
                     lane % 4 * kPairPitch + lane / 16 * kGridUnits + warp * 4 + lane / 4 % 4;
#pragma unroll
        for (int tile = 0; tile < 2; ++tile) {
          to[tile * 4 * kPairPitch] = make_float2(d[4 * tile], d[4 * tile + 1]);
          to[tile * 4 * kPairPitch + 2 * kGridUnits] =
              make_float2(d[4 * tile + 2], d[4 * tile + 3]);
        }
        ptx::NamedBarrierArrive(kSummed + f, C::kMultiplierThreads + kCellThreads);
      }
    }
  } else {
    ptx::SetRegisters<kCellRegisters, kGridForwardThreads>();
    CountersAreClear(cleared);
    ptx::ClusterSync();
    // This thread's cells: one unit, two neighbouring rows of each flight's 16.
    const int local_unit = lane % 16, unit = block * kGridUnits + local_unit;
    const int pair = warp * 2 + lane / 16;
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
    constexpr float kUnitScale = 16384;  // of h that steps gave, at most 1
    // Core matrices are 8 rows by 8 units.
    Bits<F>* my_outgoing = reinterpret_cast<Bits<F>*>(outgoing) +
                           (local_unit / 8 * kGridFlightRows + pair * 2) * 8 + local_unit % 8;
    const float2* my_sums = reinterpret_cast<const float2*>(sums) + pair * kPairPitch + local_unit;

    for (int slice = group; slice < p.slices; slice += p.groups) {
      int row[kFlights][2] = {};
      bool lives[kFlights][2], seen[kFlights][2], valid[kFlights][2];
      float c[kFlights][2], x[kFlights][2][4], dropout[kFlights][2];
      Bits<T> h[kFlights][2];
      float scale[kFlights][2], step_scale[kFlights][2];  // of h, as published; of what steps give
      const bool drops = q.recurrent_dropout != nullptr;
      const auto publish = [&](int f) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          Bits<F>* to = my_outgoing + f * (kBlockBytes / 2) + r * 8;
          const float value = FromBits<T>(h[f][r]) * dropout[f][r];  // dropout is 1 without a mask
          *to = ToBits<F>(kScaled ? value * scale[f][r] : value);
        }
        ptx::NamedBarrierArrive(kPublished + f, kCellThreads + 32);
      };
      const auto load_step = [&](int step, int f, int r, float(&values)[4]) {
        const int64_t time = q.go_backwards ? p.steps - 1 - step : step;
        const int64_t at = row[f][r] * p.batch_stride + time * p.step_stride;
        const float* from = q.projection + at * 4 * hidden + unit;
#pragma unroll
        for (int g = 0; g < 4; ++g) values[g] = unit_lives ? __ldg(from + g * hidden) : 0.f;
        return p.mask == nullptr || __ldg(p.mask + at) != 0;
      };
#pragma unroll
      for (int f = 0; f < kFlights; ++f) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          row[f][r] = slice * kRows + f * kGridFlightRows + pair * 2 + r;
          lives[f][r] = row[f][r] < p.batch && unit_lives;
          if (row[f][r] >= p.batch) row[f][r] = 0;  // computed like row 0, and stored nowhere
          seen[f][r] = false;
          const int64_t state = int64_t(row[f][r]) * hidden + unit;
          dropout[f][r] = drops && unit_lives
                              ? ToAccumulator(static_cast<const T*>(q.recurrent_dropout)[state])
                              : 1.f;
          h[f][r] =
              starts_with_h && unit_lives ? static_cast<const Bits<T>*>(q.initial_h)[state] : 0;
          c[f][r] = q.initial_c != nullptr && unit_lives
                        ? ToAccumulator(static_cast<const T*>(q.initial_c)[state])
                        : 0.f;
          valid[f][r] = load_step(0, f, r, x[f][r]);
          scale[f][r] = step_scale[f][r] = kUnitScale;
        }
      }
      if (kScaled && (starts_with_h || drops)) {
        const int64_t first_row = int64_t(slice) * kRows;
        ptx::NamedBarrier(kCells, kCellThreads);  // the last slice's scales have been read
        RowScales<kRows>(p, q, static_cast<const float*>(q.initial_h), first_row, row_scales[0]);
        RowScales<kRows>(p, q, nullptr, first_row, row_scales[1]);
        ptx::NamedBarrier(kCells, kCellThreads);
#pragma unroll
        for (int f = 0; f < kFlights; ++f) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            scale[f][r] = row_scales[0][f * kGridFlightRows + pair * 2 + r];
            step_scale[f][r] = row_scales[1][f * kGridFlightRows + pair * 2 + r];
          }
        }
      }
      if (starts_with_h) {
#pragma unroll
        for (int f = 0; f < kFlights; ++f) publish(f);
      }

      for (int step = 0; step < p.steps; ++step) {
        const bool last = step + 1 == p.steps;
#pragma unroll
        for (int f = 0; f < kFlights; ++f) {
          float next_x[2][4];
          bool next_valid[2];
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            next_valid[r] = load_step(last ? step : step + 1, f, r, next_x[r]);
          }
          float z[2][4] = {};
          if (step > 0 || starts_with_h) {
            ptx::NamedBarrier(kSummed + f, C::kMultiplierThreads + kCellThreads);
#pragma unroll
            for (int g = 0; g < 4; ++g) {
              const float2* from = my_sums + f * kSumsPitch + g * kGridUnits;
              const float2 first = from[0], second = from[kSumsPitch / 2];
              z[0][g] = first.x + second.x;
              z[1][g] = first.y + second.y;
            }
          }
          // Both rows at each stage, without branches, so that their chains of instructions run
          // side by side.
          float gates[2][4];
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const float unscale = kScaled ? weight_unscale * ptx::Reciprocal(scale[f][r]) : 1.f;
#pragma unroll
            for (int g = 0; g < 4; ++g) {
              const float sum = z[r][g] * unscale + (x[f][r][g] + bias[g]);
              gates[r][g] = ptx::Exp2(sum * (g == 2 ? kTanhFactor : kSigmoidFactor));
            }
          }
#pragma unroll
          for (int r = 0; r < 2; ++r) {
#pragma unroll
            for (int g = 0; g < 4; ++g) gates[r][g] = ptx::Reciprocal(1.f + gates[r][g]);
            gates[r][2] = fmaf(-2.f, gates[r][2], 1.f);
          }
          float next_c[2], next_h[2];
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            next_c[r] = fmaf(gates[r][1], c[f][r], gates[r][0] * gates[r][2]);
            next_h[r] = ptx::Exp2(kTanhFactor * next_c[r]);
          }
#pragma unroll
          for (int r = 0; r < 2; ++r) next_h[r] = ptx::Reciprocal(1.f + next_h[r]);
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            const Bits<T> bits = ToBits<T>(gates[r][3] * fmaf(-2.f, next_h[r], 1.f));
            c[f][r] = valid[f][r] ? next_c[r] : c[f][r];
            h[f][r] = valid[f][r] ? bits : h[f][r];
            scale[f][r] = valid[f][r] ? step_scale[f][r] : scale[f][r];
            seen[f][r] |= valid[f][r];
          }
          if (!last) publish(f);

            // No other block waits for what follows. A warp writes whole sectors, 16 units of a
            // row.
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            if (lives[f][r]) {
              const bool repeats = valid[f][r] || (seen[f][r] && !p.zero_output_for_mask);
              if (p.return_sequences || last) {
                static_cast<Bits<T>*>(q.output)[OutputAt(p, q, row[f][r], step) + unit] =
                    repeats ? h[f][r] : Bits<T>(0);
              }
              if (q.gates != nullptr) {
                const int64_t at = step * p.batch + row[f][r];
                Bits<T>* to = static_cast<Bits<T>*>(q.gates) + at * 4 * hidden + unit;
#pragma unroll
                for (int g = 0; g < 4; ++g) to[g * hidden] = ToBits<T>(gates[r][g]);
                q.cell[at * hidden + unit] = c[f][r];
                if (q.hidden != nullptr) {
                  static_cast<Bits<T>*>(q.hidden)[at * hidden + unit] = h[f][r];
                }
              }
              if (last) {
                static_cast<Bits<T>*>(q.final_h)[int64_t(row[f][r]) * hidden + unit] = h[f][r];
                static_cast<T*>(q.final_c)[int64_t(row[f][r]) * hidden + unit] =
                    FromAccumulator<T>(c[f][r]);
              }
            }
            valid[f][r] = next_valid[r];
#pragma unroll
            for (int g = 0; g < 4; ++g) x[f][r][g] = next_x[r][g];
          }
        }
      }
    }
  }
  __syncwarp();
  ptx::ClusterSync();  // no block ends while copies of the other may come in
}

}  // namespace tfl::cuda::grid

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_FORWARD_CUH_
