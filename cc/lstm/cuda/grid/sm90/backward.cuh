// Backward through the whole recurrence in one kernel, for 16-bit types and TF32 on Hopper.
//
// Flights and exchange are forward's (forward.cuh); the two warpgroups that multiply compute the
// cells too, since here a warpgroup of their own was slower. The gradient of h needs every gate
// gradient times the transposed recurrent kernel: k is four times as long as forward. A block's
// share, 64 units by a quarter of k, fills the same registers as forward's; the four blocks of a
// unit tile (one for each quarter of k) sum in two rounds a step:
//   1. gate gradients go out and come in by chunks, just as h does forward;
//   2. each block hands 16 units' partial sums to each of the four blocks of its tile through
//   global
//      memory, as words that carry their number: no counter, and no order to wait for.
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
  for (int task = threadIdx.x; task < kTileUnits * kHidden / kVector;
       task += C::kMultiplierThreads) {
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
  ptx::NamedBarrier(kMultipliers, C::kMultiplierThreads);
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

// The lanes that differ in bits 2 and 3 hold four gates of one unit each, of 4 neighbours: each
// gets one gate, number 2 (bit 2) + (bit 3), of all 4 units.
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

// Stores the 4 gates of 16 units of a flight's rows from `stage` (rows of kGatesPitch) to a tensor
// [rows, 4 hidden] of type T whose row r lies at row row_at(r); rows from `rows` on are left out.
template <typename T, typename RowAt>
__device__ __forceinline__ void StoreGates(const unsigned char* stage, void* to, int first_unit,
                                           int hidden, int64_t rows, RowAt&& row_at) {
  constexpr int kElement = sizeof(T), kPitch = 64 * kElement + 16;
  constexpr int kVectors = kElement;  // of 16 bytes, a gate
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
__global__ void __launch_bounds__(kGridBackwardThreads, 1)
    __cluster_dims__(kGridClusterBlocks, 1, 1)
        BackwardKernel(const __grid_constant__ GridBackwardParams p) {
  using C = Config<T, kHidden, kRows>;
  constexpr int kFlights = C::kFlights;
  constexpr int kUnitTiles = kHidden / kTileUnits;
  constexpr int kChunkCounters = kQuarters * C::kChunks;
  // Words of partial sums of 16 units and a flight's rows, from one block to another.
  constexpr int kPartials = kGridUnits * kGridFlightRows;
  constexpr int kHalfSumBytes = 256;                            // a row
  constexpr int kGatesPitch = 4 * kGridUnits * sizeof(T) + 16;  // bytes a row of the stage
  constexpr int kFlightPartials = 2 * C::kBlocks * kQuarters * kPartials;
  static_assert(kUnitTiles % kGridClusterBlocks == 0, "blocks of a cluster share their quarter");
  static_assert(kFlights * kChunkCounters <= kGridCounters);
  extern __shared__ __align__(1024) unsigned char shared[];
  __shared__ __align__(8) uint64_t full[kFlights][2][C::kChunks];
  // Gate gradients of the block's units, core matrices like those read.
  __shared__ uint4 outgoing[kFlights][kGridUnits * kGridFlightRows * C::kElement / 4];
  const int any_group = blockIdx.x / C::kBlocks, block = blockIdx.x % C::kBlocks;
  const int group = any_group % p.groups;
  const GridBackwardDirection& q = p.directions[any_group / p.groups];
  const int quarter = block / kUnitTiles, tile = block % kUnitTiles;
  const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32 % 4, 0);
  if (threadIdx.x == 0) InitBarriers<C>(ptx::SharedAddress(full));
  const uint32_t buffers = ptx::SharedAddress(shared), barriers = ptx::SharedAddress(full);
  uint32_t* counters = p.counters + any_group * kGridCounters * kGridCounterPitch;
  // partials: [flights][2][to block][from quarter][kPartials] of (bits of float, number)
  uint2* partials =
      static_cast<uint2*>(p.partials) + size_t(any_group) * kFlights * kFlightPartials;
  const bool ends_with_h = q.grad_initial_h != nullptr;
#pragma unroll
  for (int buffer = 0; buffer < kFlights * 2; ++buffer) {
    uint4* mine =
        reinterpret_cast<uint4*>(partials + (buffer * C::kBlocks + block) * kQuarters * kPartials);
    for (int i = threadIdx.x; i < kQuarters * kPartials / 2; i += kGridBackwardThreads) {
      mine[i] = make_uint4(0, 0, 0, 0);
    }
  }
  const unsigned cleared = ClearCounters(counters, block);

  if (warpgroup == 2) {
    ptx::SetRegisters<40, kGridBackwardThreads>();
    CountersAreClear(cleared);
    ptx::ClusterSync();
    const uint32_t a_slice = ends_with_h ? p.steps : p.steps - 1;
    Exchange e;
    e.count = a_slice * SlicesOf(group, p.slices, p.groups);
    e.publishers = kPublishers;
    e.first_chunk = quarter * C::kChunks;
    e.own_chunk = tile * 2 + quarter / 2;
    e.own_offset = e.own_chunk * C::kChunkBytes + quarter % 2 * (C::kChunkBytes / 2);
    e.bytes = kQuarters * C::kBufferBytes;
    e.buffers =
        static_cast<unsigned char*>(p.exchange) + size_t(any_group) * kFlights * 2 * e.bytes;
    e.counters = counters;
    e.flight_counters = kChunkCounters * kGridCounterPitch;
    Serve<C, C::kMultiplierThreads>(e, warp, outgoing, buffers, barriers);
  } else {
    ptx::SetRegisters<232, kGridBackwardThreads>();
    const int lane = threadIdx.x % 32;
    uint32_t weights[C::kHalfSteps][4];
    LoadTransposed<T, kHidden, C>(p, q, shared, tile, quarter, weights);
    CountersAreClear(cleared);
    ptx::FenceAsyncShared();
    ptx::ClusterSync();

    // This thread's cells: one unit, one row of each flight's 16. They lie as the fragments of the
    // partial sums do: of a lane's four, two are of unit lane / 4, two of lane / 4 + 8.
    const int local_unit = lane / 4 + warp / 2 * 8;
    const int unit = tile * kTileUnits + quarter * kGridUnits + local_unit;
    const int local_row = warpgroup * 8 + lane % 4 * 2 + warp % 2;
    const int hidden = p.hidden_size;
    const bool unit_lives = unit < hidden;
    float* half_sums = reinterpret_cast<float*>(shared + C::kSums);
    unsigned char* gates_stage = shared + C::kSums + kRows * kHalfSumBytes;
    // Core matrices are 8 rows by 16 bytes: two units' gate gradients, or one's of float32.
    constexpr int kUnitBytes = 4 * C::kElement;
    unsigned char* my_outgoing = reinterpret_cast<unsigned char*>(outgoing) +
                                 local_unit * kUnitBytes / 16 * (kGridFlightRows * 16) +
                                 local_unit * kUnitBytes % 16 + local_row * 16;
    uint32_t number = 0;  // of the publication that the flights consume next

    const auto publish = [&](int f, const float(&g)[4]) {
      unsigned char* to = my_outgoing + f * int(sizeof(outgoing[0]));
      if constexpr (C::kElement == 4) {
        *reinterpret_cast<uint4*>(to) = make_uint4(ptx::RoundToTf32(g[0]), ptx::RoundToTf32(g[1]),
                                                   ptx::RoundToTf32(g[2]), ptx::RoundToTf32(g[3]));
      } else {
        *reinterpret_cast<uint2*>(to) =
            make_uint2(uint32_t(ToBits<T>(g[0])) | uint32_t(ToBits<T>(g[1])) << 16,
                       uint32_t(ToBits<T>(g[2])) | uint32_t(ToBits<T>(g[3])) << 16);
      }
      ptx::NamedBarrierArrive(kPublished + f, C::kMultiplierThreads + 32);
    };

    // Multiplies what the flight published last, and hands on the sums.
    const auto multiply = [&](int f) {
      float d[8] = {};
      Multiply<T, C>(d, weights, f, number, warpgroup, buffers, barriers);
      AddHalves<C>(d, half_sums, f, warpgroup);
      // A warp's 16 units belong to the block of quarter `warp`.
      uint2* to = partials + f * kFlightPartials +
                  (((number & 1) * C::kBlocks + warp * kUnitTiles + tile) * kQuarters + quarter) *
                      kPartials +
                  warpgroup * 32 + lane;
#pragma unroll
      for (int i = 0; i < 4; ++i) ptx::StoreRelaxed(to + i * 64, __float_as_uint(d[i]), number + 1);
    };

    // The gradient that comes back from the step published last, for this thread's cell.
    const auto collect = [&](int f) {
      const uint2* from = partials + f * kFlightPartials +
                          ((number & 1) * C::kBlocks + block) * kQuarters * kPartials + warp * 64 +
                          warpgroup * 32 + lane;
      uint2 parts[kQuarters];
#pragma unroll
      for (int i = 0; i < kQuarters; ++i) parts[i] = ptx::LoadRelaxed(from + i * kPartials);
#pragma unroll
      for (int i = 0; i < kQuarters; ++i) {
        while (parts[i].y != number + 1) parts[i] = ptx::LoadRelaxed(from + i * kPartials);
      }
      return (__uint_as_float(parts[0].x) + __uint_as_float(parts[1].x)) +
             (__uint_as_float(parts[2].x) + __uint_as_float(parts[3].x));
    };

    for (int slice = group; slice < p.slices; slice += p.groups) {
      int64_t row[kFlights] = {}, first_valid[kFlights] = {};
      bool lives[kFlights];
      float dh[kFlights], dc[kFlights], passed[kFlights], c[kFlights], dropout[kFlights];
      BackwardInput<T> now[kFlights];
      const auto load_step = [&](int step, int f) {
        const int64_t time = q.go_backwards ? p.steps - 1 - step : step;
        BackwardInput<T> in = {};
        const int64_t at = (step * p.batch + row[f]) * hidden + unit;
        in.valid = p.mask == nullptr ||
                   __ldg(p.mask + row[f] * p.batch_stride + time * p.step_stride) != 0;
        in.output_is_h = in.valid || (!p.zero_output_for_mask && step > first_valid[f]);
        if (!unit_lives) return in;
        const Bits<T>* gates =
            static_cast<const Bits<T>*>(q.gates) + (step * p.batch + row[f]) * 4 * hidden + unit;
#pragma unroll
        for (int g = 0; g < 4; ++g) in.gates[g] = __ldg(gates + g * hidden);
        if (step > 0) {
          in.previous_c = __ldg(q.cell + at - p.batch * hidden);
        } else if (q.initial_c != nullptr) {
          in.previous_c = ToAccumulator(static_cast<const T*>(q.initial_c)[row[f] * hidden + unit]);
        }
        if (q.grad_output != nullptr && (p.return_sequences || step + 1 == p.steps)) {
          in.grad_output = __ldg(static_cast<const Bits<T>*>(q.grad_output) +
                                 OutputAt(p, q, row[f], step) + unit);
        }
        return in;
      };
#pragma unroll
      for (int f = 0; f < kFlights; ++f) {
        row[f] = int64_t(slice) * kRows + f * kGridFlightRows + local_row;
        lives[f] = row[f] < p.batch && unit_lives;
        if (row[f] >= p.batch) row[f] = 0;  // computed like row 0, and stored nowhere
        first_valid[f] = p.mask == nullptr ? 0 : q.first_valid[row[f]];
        const int64_t state = row[f] * hidden + unit;
        const auto read = [&](const void* gradient) {
          return gradient != nullptr && unit_lives
                     ? ToAccumulator(static_cast<const T*>(gradient)[state])
                     : 0.f;
        };
        dh[f] = read(q.grad_final_h);
        dc[f] = read(q.grad_final_c);
        passed[f] = 0;
        dropout[f] = q.recurrent_dropout != nullptr && unit_lives
                         ? ToAccumulator(static_cast<const T*>(q.recurrent_dropout)[state])
                         : 1.f;
        c[f] =
            unit_lives ? __ldg(q.cell + ((p.steps - 1) * p.batch + row[f]) * hidden + unit) : 0.f;
        now[f] = load_step(p.steps - 1, f);
      }
      ptx::NamedBarrier(kMultipliers,
                        C::kMultiplierThreads);  // the last slice's results have left their stage

      for (int step = p.steps - 1; step >= 0; --step) {
        BackwardInput<T> next[kFlights];
#pragma unroll
        for (int f = 0; f < kFlights; ++f) {
          next[f] = load_step(step > 0 ? step - 1 : 0, f);
          if (step + 1 < p.steps) multiply(f);
        }
#pragma unroll
        for (int f = 0; f < kFlights; ++f) {
          if (step + 1 < p.steps) dh[f] = fmaf(collect(f), dropout[f], passed[f]);
          const BackwardInput<T>& in = now[f];
          if (in.output_is_h) dh[f] += FromBits<T>(in.grad_output);
          passed[f] = dh[f];
          float gates[4] = {};
          if (in.valid) {
            const float i = FromBits<T>(in.gates[0]), o = FromBits<T>(in.gates[3]),
                        forget = FromBits<T>(in.gates[1]), g = FromBits<T>(in.gates[2]);
            const float tanh_c = FastTanh(c[f]);
            const float d = dc[f] + dh[f] * o * (1.f - tanh_c * tanh_c);
            gates[0] = d * g * i * (1.f - i);
            gates[1] = d * in.previous_c * forget * (1.f - forget);
            gates[2] = d * i * (1.f - g * g);
            gates[3] = dh[f] * tanh_c * o * (1.f - o);
            dc[f] = d * forget;
            passed[f] = 0;
          }
          if (step > 0 || ends_with_h) publish(f, gates);

          // No other block waits for what follows. The stage is the flight's own, written again
          // behind the next step's barriers.
          unsigned char* stage = gates_stage + f * (kGridFlightRows * kGatesPitch);
          StageGates<T>(stage + local_row * kGatesPitch + (local_unit & ~3) * C::kElement, gates,
                        lane);
          ptx::NamedBarrier(kMultipliers, C::kMultiplierThreads);
          const int64_t time = q.go_backwards ? p.steps - 1 - step : step;
          const int64_t first_row = int64_t(slice) * kRows + f * kGridFlightRows;
          StoreGates<T>(stage, q.grad_gates, tile * kTileUnits + quarter * kGridUnits, hidden,
                        p.batch - first_row, [&](int at) {
                          return (first_row + at) * p.batch_stride + time * p.step_stride;
                        });
          c[f] = in.previous_c;
        }
        if (step + 1 < p.steps) ++number;
#pragma unroll
        for (int f = 0; f < kFlights; ++f) now[f] = next[f];
      }
      if (ends_with_h) {
#pragma unroll
        for (int f = 0; f < kFlights; ++f) multiply(f);
#pragma unroll
        for (int f = 0; f < kFlights; ++f) dh[f] = collect(f);
        ++number;
      }
#pragma unroll
      for (int f = 0; f < kFlights; ++f) {
        if (!lives[f]) continue;
        const int64_t state = row[f] * hidden + unit;
        if (ends_with_h) {
          static_cast<T*>(q.grad_initial_h)[state] =
              FromAccumulator<T>(fmaf(dh[f], dropout[f], passed[f]));
        }
        if (q.grad_initial_c != nullptr) {
          static_cast<T*>(q.grad_initial_c)[state] = FromAccumulator<T>(dc[f]);
        }
      }
    }
  }
  ptx::ClusterSync();  // no block ends while copies of the other may come in
}

}  // namespace tfl::cuda::grid

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_BACKWARD_CUH_
