// Backward through the whole recurrence in one kernel, for 16-bit types on Hopper.
//
// The gradient of h needs every gate gradient times the transposed recurrent kernel: k is four
// times as long as forward. A block's share, 64 units by a quarter of k, fills the same registers
// as forward's; the four blocks of a unit tile (one for each quarter of k) sum in two rounds a
// step:
//   1. gate gradients go out and come in by chunks, just as h does forward (forward.cuh);
//   2. each block hands 16 units' partial sums to each of the three other blocks of its tile
//      through global memory, and goes on with 16 units of its own.
// k counts unit * 4 + gate, so that a thread's four gate gradients are 8 bytes in a row. Quarter q
// holds units [q, q + 1) * kHidden / 4. A chunk is 32 units, the work of two blocks.
//
// Two buffers suffice in both rounds: publication j follows the partial sums j - 1 of four blocks
// that together consumed all publications j - 1, and so all blocks are done with number j - 2.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_BACKWARD_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_BACKWARD_CUH_

#include "cc/lstm/cuda/grid/sm90/common.cuh"

namespace tfl::cuda::grid {

constexpr int kQuarters = 4;
constexpr int kTileUnits = kQuarters * kGridUnits;
constexpr int kPublishers = 2;  // blocks a chunk

// Fills weights[step][4]: rows are the tile's 64 units, k the quarter's gate gradients.
template <typename T, int kHidden, typename C>
__device__ __forceinline__ void LoadTransposed(const GridBackwardParams& p,
                                               const GridBackwardDirection& q,
                                               unsigned char* shared, int tile, int quarter,
                                               uint32_t (*weights)[4]) {
  constexpr int kUnits = kHidden / kQuarters, kElement = C::kElement;
  constexpr int kVector = 16 / kElement;  // weights in 16 bytes
#pragma unroll 8
  for (int task = threadIdx.x; task < kTileUnits * kHidden / kVector; task += C::kConsumers) {
    const int row = task / (kHidden / kVector), at = task % (kHidden / kVector) * kVector;
    const int gate = at / kUnits, unit = quarter * kUnits + at % kUnits;
    const int to_unit = tile * kTileUnits + row;
    uint4 vector = make_uint4(0, 0, 0, 0);
    if (to_unit < p.hidden_size && unit < p.hidden_size) {
      vector = LoadWeights<T>(q.recurrent_kernel, p.wide_weights,
                              (size_t(to_unit) * 4 + gate) * p.hidden_size + unit);
    }
    *reinterpret_cast<uint4*>(shared + row * C::kBackwardPitch + at * kElement) = vector;
  }
  ptx::NamedBarrier(1, C::kConsumers);
  const int group = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
#pragma unroll
  for (int step = 0; step < C::kHalfSteps; ++step) {
#pragma unroll
    for (int part = 0; part < 4; ++part) {
      const int row = warp * 16 + lane / 4 + (part & 1) * 8;
      const int k = (group * C::kHalfSteps + step) * C::kStepK + lane % 4 * (4 / kElement) +
                    (part & 2) * (8 / kElement);
      const unsigned char* at =
          shared + row * C::kBackwardPitch + (k % 4 * kUnits + k / 4) * kElement;
      if constexpr (kElement == 4) {
        weights[step][part] = *reinterpret_cast<const uint32_t*>(at);
      } else {  // gates k % 4, which is even, and the next
        weights[step][part] = uint32_t(*reinterpret_cast<const uint16_t*>(at)) |
                              uint32_t(*reinterpret_cast<const uint16_t*>(at + kUnits * 2)) << 16;
      }
    }
  }
}

// What a cell needs of one step, as loaded.
template <typename T>
struct BackwardInput {
  Bits<T> gates[4];
  Bits<T> grad_output;
  float previous_c;
  bool valid;
  bool output_is_h;
};

template <typename T, int kHidden, int kRows>
__global__ void __launch_bounds__(Config<T, T, kHidden, kRows>::kThreads, 1)
    __cluster_dims__(kGridClusterBlocks, 1, 1)
        BackwardKernel(const __grid_constant__ GridBackwardParams p) {
  using C = Config<T, T, kHidden, kRows>;
  constexpr int kTiles = C::kTiles;
  constexpr int kUnitTiles = kHidden / kTileUnits;
  constexpr int kExchangeBytes = kQuarters * C::kBufferBytes;
  // Partial sums of 16 units and all rows, from one block to another, as mma fragments.
  constexpr int kPartialFloats = kGridUnits * kRows;
  static_assert(kUnitTiles % kGridClusterBlocks == 0, "blocks of a cluster share their quarter");
  static_assert(2 * kUnitTiles + C::kBlocks <= kGridCounters);
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ __align__(8) uint64_t full[2 * C::kChunks];
  const int any_group = blockIdx.x / C::kBlocks, block = blockIdx.x % C::kBlocks;
  const int group = any_group % p.groups;
  const GridBackwardDirection& q = p.directions[any_group / p.groups];
  const int quarter = block / kUnitTiles, tile = block % kUnitTiles;
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  const uint32_t buffers = ptx::SharedAddress(shared), barriers = ptx::SharedAddress(full);
  if (threadIdx.x == 0) InitBarriers<C>(barriers);
  unsigned char* exchange =
      static_cast<unsigned char*>(p.exchange) + size_t(any_group) * 2 * kExchangeBytes;
  uint32_t* counters = p.counters + any_group * kGridCounters * kGridCounterPitch;
  uint32_t* partial_counters = counters + 2 * kUnitTiles * kGridCounterPitch;
  const bool ends_with_h = q.grad_initial_h != nullptr;
  const unsigned cleared = ClearCounters(counters, block);

  if (warpgroup == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    CountersAreClear(cleared);
    ptx::ClusterSync();
    const uint32_t a_slice = ends_with_h ? p.steps : p.steps - 1;
    Produce<C>(a_slice * SlicesOf(group, p.slices, p.groups), kPublishers, quarter * C::kChunks,
               exchange, kExchangeBytes, counters, buffers, barriers);
    __syncwarp();
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
    const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32 % 4, 0);
    const int lane = threadIdx.x % 32;
    uint32_t weights[C::kHalfSteps][4];
    LoadTransposed<T, kHidden, C>(p, q, shared, tile, quarter, weights);
    CountersAreClear(cleared);
    ptx::FenceAsyncShared();
    ptx::ClusterSync();

    // This thread's cells: one unit, kTiles neighbouring rows (or one). They lie as the fragments
    // of the partial sums do: fragment f of a lane has units lane / 4 and lane / 4 + 8 of two rows.
    const int fragment = kTiles == 2 ? warp / 2 : 0;
    const int element = kTiles == 2 ? warp % 2 * 2 : warp;  // of the fragment's four
    const int local_unit = lane / 4 + element / 2 * 8;
    const int unit = tile * kTileUnits + quarter * kGridUnits + local_unit;
    const int local_row = (warpgroup * kTiles + fragment) * 8 + lane % 4 * 2 + element % 2;
    const int partial_at = ((warpgroup * kTiles + fragment) * 32 + lane) * 4 + element;
    const int hidden = p.hidden_size;
    const bool unit_lives = unit < hidden;
    float* half_sums = reinterpret_cast<float*>(shared + C::kHalfSums);
    float* own_partial = reinterpret_cast<float*>(shared + C::kStage);
    unsigned char* gates_stage = shared + C::kStage + kPartialFloats * 4;
    // partials: [2][to block][from quarter][kPartialFloats]
    float* partials = static_cast<float*>(p.partials) +
                      size_t(any_group) * 2 * C::kBlocks * kQuarters * kPartialFloats;
    // Core matrices are 8 rows by 16 bytes: two units' gate gradients, or one's of float32.
    constexpr int kUnitBytes = 4 * C::kElement;
    unsigned char* my_exchange =
        exchange + (tile * 2 + quarter / 2) * C::kChunkBytes + quarter % 2 * (C::kChunkBytes / 2) +
        local_unit * kUnitBytes / 16 * (kRows * 16) + local_unit * kUnitBytes % 16;
    uint32_t consumed = 0, published = 0;

    const auto publish = [&](const float(&gates)[kTiles][4]) {
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        unsigned char* to = my_exchange + (published & 1) * kExchangeBytes + (local_row + n) * 16;
        const float(&g)[4] = gates[n];
        if constexpr (C::kElement == 4) {
          *reinterpret_cast<uint4*>(to) =
              make_uint4(ptx::RoundToTf32(g[0]), ptx::RoundToTf32(g[1]), ptx::RoundToTf32(g[2]),
                         ptx::RoundToTf32(g[3]));
        } else {
          *reinterpret_cast<uint2*>(to) =
              make_uint2(uint32_t(ToBits<T>(g[0])) | uint32_t(ToBits<T>(g[1])) << 16,
                         uint32_t(ToBits<T>(g[2])) | uint32_t(ToBits<T>(g[3])) << 16);
        }
      }
      ++published;
      ptx::FenceAsyncGlobal();
      ptx::NamedBarrier(1, C::kConsumers);
      if (threadIdx.x == 0) {
        ptx::AddRelease(counters + (tile * 2 + quarter / 2) * kGridCounterPitch, 1);
      }
    };

    // The gradient that comes back from the step published last, for this thread's cells.
    const auto collect = [&](float(&sums)[kTiles]) {
      float d[8 * kTiles];
#pragma unroll
      for (int i = 0; i < 8 * kTiles; ++i) d[i] = 0;
      Multiply<T, kRows, C>(d, weights, consumed, warpgroup, buffers, barriers);
      AddHalves<C>(d, half_sums, consumed, warpgroup, barriers);
      float* buffer = partials + (consumed & 1) * (C::kBlocks * kQuarters * kPartialFloats);
      // A warp's 16 units belong to the block of quarter `warp`.
      float* to = warp == quarter ? own_partial
                                  : buffer + ((warp * kUnitTiles + tile) * kQuarters + quarter) *
                                                 kPartialFloats;
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        reinterpret_cast<float4*>(to)[(warpgroup * kTiles + n) * 32 + lane] =
            make_float4(d[4 * n], d[4 * n + 1], d[4 * n + 2], d[4 * n + 3]);
      }
      ptx::NamedBarrier(1, C::kConsumers);
      if (threadIdx.x < kQuarters && static_cast<int>(threadIdx.x) != quarter) {
        ptx::AddRelease(partial_counters + (threadIdx.x * kUnitTiles + tile) * kGridCounterPitch,
                        1);
      }
      ++consumed;
      while (ptx::LoadAcquire(partial_counters + block * kGridCounterPitch) <
             (kQuarters - 1) * consumed) {
      }
      const float* from = buffer + block * kQuarters * kPartialFloats + partial_at;
      float parts[kQuarters][kTiles];
#pragma unroll
      for (int q = 0; q < kQuarters; ++q) {
        const float* part = q == quarter ? own_partial + partial_at : from + q * kPartialFloats;
        if constexpr (kTiles == 2) {
          const float2 two = q == quarter ? *reinterpret_cast<const float2*>(part)
                                          : __ldcg(reinterpret_cast<const float2*>(part));
          parts[q][0] = two.x;
          parts[q][1] = two.y;
        } else {
          parts[q][0] = q == quarter ? *part : __ldcg(part);
        }
      }
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        sums[n] = (parts[0][n] + parts[1][n]) + (parts[2][n] + parts[3][n]);
      }
    };

    for (int slice = group; slice < p.slices; slice += p.groups) {
      int64_t row[kTiles], first_valid[kTiles];
      bool lives[kTiles];
      float dh[kTiles], dc[kTiles], passed[kTiles], c[kTiles], dropout[kTiles];
      BackwardInput<T> now[kTiles];
      const auto load_step = [&](int step, BackwardInput<T>(&input)[kTiles]) {
        const int64_t time = q.go_backwards ? p.steps - 1 - step : step;
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          BackwardInput<T>& in = input[n];
          in = {};
          const int64_t at = (step * p.batch + row[n]) * hidden + unit;
          in.valid = p.mask == nullptr ||
                     __ldg(p.mask + row[n] * p.batch_stride + time * p.step_stride) != 0;
          in.output_is_h = in.valid || (!p.zero_output_for_mask && step > first_valid[n]);
          if (!unit_lives) continue;
          const Bits<T>* gates =
              static_cast<const Bits<T>*>(q.gates) + (step * p.batch + row[n]) * 4 * hidden + unit;
#pragma unroll
          for (int g = 0; g < 4; ++g) in.gates[g] = __ldg(gates + g * hidden);
          if (step > 0) {
            in.previous_c = __ldg(q.cell + at - p.batch * hidden);
          } else if (q.initial_c != nullptr) {
            in.previous_c =
                ToAccumulator(static_cast<const T*>(q.initial_c)[row[n] * hidden + unit]);
          }
          if (q.grad_output != nullptr && (p.return_sequences || step + 1 == p.steps)) {
            in.grad_output = __ldg(static_cast<const Bits<T>*>(q.grad_output) +
                                   OutputAt(p, q, row[n], step) + unit);
          }
        }
      };
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        row[n] = int64_t(slice) * kRows + local_row + n;
        lives[n] = row[n] < p.batch && unit_lives;
        if (row[n] >= p.batch) row[n] = 0;  // computed like row 0, and stored nowhere
        first_valid[n] = p.mask == nullptr ? 0 : q.first_valid[row[n]];
        const int64_t state = row[n] * hidden + unit;
        const auto read = [&](const void* gradient) {
          return gradient != nullptr && unit_lives
                     ? ToAccumulator(static_cast<const T*>(gradient)[state])
                     : 0.f;
        };
        dh[n] = read(q.grad_final_h);
        dc[n] = read(q.grad_final_c);
        passed[n] = 0;
        dropout[n] = q.recurrent_dropout != nullptr && unit_lives
                         ? ToAccumulator(static_cast<const T*>(q.recurrent_dropout)[state])
                         : 1.f;
        c[n] =
            unit_lives ? __ldg(q.cell + ((p.steps - 1) * p.batch + row[n]) * hidden + unit) : 0.f;
      }
      load_step(p.steps - 1, now);
      ptx::NamedBarrier(1, C::kConsumers);  // the last slice's results have left their stage

      for (int step = p.steps - 1; step >= 0; --step) {
        BackwardInput<T> next[kTiles];
        load_step(step > 0 ? step - 1 : 0, next);
        if (step + 1 < p.steps) {
          collect(dh);
#pragma unroll
          for (int n = 0; n < kTiles; ++n) dh[n] = fmaf(dh[n], dropout[n], passed[n]);
        }
        float gates[kTiles][4];
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          const BackwardInput<T>& in = now[n];
          if (in.output_is_h) dh[n] += FromBits<T>(in.grad_output);
          passed[n] = dh[n];
          gates[n][0] = gates[n][1] = gates[n][2] = gates[n][3] = 0;
          if (in.valid) {
            const float i = FromBits<T>(in.gates[0]), f = FromBits<T>(in.gates[1]),
                        g = FromBits<T>(in.gates[2]), o = FromBits<T>(in.gates[3]);
            const float tanh_c = FastTanh(c[n]);
            const float d = dc[n] + dh[n] * o * (1.f - tanh_c * tanh_c);
            gates[n][0] = d * g * i * (1.f - i);
            gates[n][1] = d * in.previous_c * f * (1.f - f);
            gates[n][2] = d * i * (1.f - g * g);
            gates[n][3] = dh[n] * tanh_c * o * (1.f - o);
            dc[n] = d * f;
            passed[n] = 0;
          }
        }
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          StageGates<T>(
              gates_stage + (local_row + n) * C::kGatesPitch + (local_unit & ~3) * C::kElement,
              gates[n], lane);
        }
        if (step > 0 || ends_with_h) {
          publish(gates);
        } else {
          ptx::NamedBarrier(1, C::kConsumers);
        }

        // Nobody waits for what follows. The stage is written again behind the next step's barrier.
        const int64_t time = q.go_backwards ? p.steps - 1 - step : step;
        const int64_t first_row = int64_t(slice) * kRows;
        StoreGates<T, kRows>(gates_stage, q.grad_gates, tile * kTileUnits + quarter * kGridUnits,
                             hidden, p.batch - first_row, [&](int at) {
                               return (first_row + at) * p.batch_stride + time * p.step_stride;
                             });
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
          c[n] = now[n].previous_c;
          now[n] = next[n];
        }
      }
      if (ends_with_h) collect(dh);
#pragma unroll
      for (int n = 0; n < kTiles; ++n) {
        if (!lives[n]) continue;
        const int64_t state = row[n] * hidden + unit;
        if (ends_with_h) {
          static_cast<T*>(q.grad_initial_h)[state] =
              FromAccumulator<T>(fmaf(dh[n], dropout[n], passed[n]));
        }
        if (q.grad_initial_c != nullptr) {
          static_cast<T*>(q.grad_initial_c)[state] = FromAccumulator<T>(dc[n]);
        }
      }
    }
  }
  ptx::ClusterSync();  // no block ends while copies of the other may come in
}

}  // namespace tfl::cuda::grid

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_BACKWARD_CUH_
