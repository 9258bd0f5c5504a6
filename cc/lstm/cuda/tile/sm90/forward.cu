// One kernel for all steps in full float32: the recurrent kernel spread over the shared memory of a
// group of blocks, register tiles of multiply-adds, h travelling through L2.
//
// Batch rows go through a step in flights, which the block's two teams of four warps take by turns:
// while one team sums, computes cells or waits for h, the other multiplies. A team's warps split k,
// each with the units of a quarter of the blocks. Two warps fetch: a lane for every stage of each
// quarter waits until the blocks of a chunk have counted themselves in and copies their h. A warp
// for each team announces: it stores what the team's cells left in shared memory and counts.
// Two buffers of h suffice: a block publishes step s after it has read all of step s - 1, which all
// blocks published after they had read all of step s - 2.
#include <cooperative_groups.h>

#include <utility>

#include "cc/lstm/cuda/ptx.cuh"
#include "cc/lstm/cuda/scalar.cuh"
#include "cc/lstm/cuda/sm90/ptx.cuh"
#include "cc/lstm/cuda/status.h"
#include "cc/lstm/cuda/tile/sm90/activation.cuh"
#include "cc/lstm/cuda/tile/sm90/kernels.h"
#include "cc/lstm/cuda/vector/kernels.h"

namespace tfl::cuda {
namespace tile {

using namespace sm90;

constexpr int kTeamThreads = kTileWarps * 32;
constexpr int kMultiplyingWarps = kTileTeams * kTileWarps;
constexpr int kFetchingWarp = kMultiplyingWarps;
constexpr int kFetchingWarps = 2;
constexpr int kAnnouncingWarp = kFetchingWarp + kFetchingWarps;  // and the next, one a team
constexpr int kThreads = (kAnnouncingWarp + kTileTeams) * 32;
constexpr int kTeamBarrier = 1;  // and the next

template <int kShape>
struct Config {
  static constexpr TileShape kTile = kTileShapes[kShape];
  static constexpr int kRows = kTile.rows();
  static constexpr int kUnits = kTile.units();
  static constexpr int kThreadUnits = kTile.thread_units;
  static constexpr int kDepth = kTile.depth();
  static constexpr int kCells = kRows * kUnits;
  static constexpr int kThreadCells = (kCells + kTeamThreads - 1) / kTeamThreads;
  static constexpr int kSumRows = 8 / kDepth;  // whose sums a lane writes
  static_assert(kDepth == 1 || kDepth == 2 || kDepth == 4);
  static constexpr bool kPairs = kUnits % (2 * kDepth) == 0;
  static_assert(kUnits % kDepth == 0);
};

struct Barriers {
  uint64_t full[kTileWarps][kTileStages];
  uint64_t empty[kTileWarps][kTileStages];
  uint64_t published[kTileMaxFlights];
  uint64_t multiplied[kMultiplyingWarps];
};

// The blocks whose units a warp multiplies.
struct WarpBlocks {
  int first, end;
  __device__ WarpBlocks(int blocks, int warp)
      : first(blocks * warp / kTileWarps), end(blocks * (warp + 1) / kTileWarps) {}
  __device__ int Chunks(int chunk_blocks) const {
    return (end - first + chunk_blocks - 1) / chunk_blocks;
  }
};

__device__ __forceinline__ void CpAsyncBulkFromGlobal(uint32_t shared, const void* global,
                                                      uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(barrier)
      : "memory");
}

// What a group's warps share of its part of the exchange.
struct Group {
  int slices_before;  // of all directions before its own
  int group;
  int flights;  // its own
  __device__ int64_t Slice(const TileForwardParams& p, int flight) const {
    return group + int64_t(flight) * p.groups;
  }
  __device__ float* Buffer(const TileForwardParams& p, int flight, uint32_t number,
                           int block_floats) const {
    return p.exchange + ((slices_before + Slice(p, flight)) * 2 + (number & 1)) *
                            p.blocks_per_group * block_floats;
  }
  __device__ uint32_t* Counter(const TileForwardParams& p, int flight, int warp, int chunk) const {
    return p.counters +
           (((slices_before + Slice(p, flight)) * kTileWarps + warp) * p.warp_chunks + chunk) *
               kTileCounterPitch;
  }
};

// A lane for each stage of half of the multiplying warps, which those of both teams share: every
// fourth chunk.
template <class C>
__device__ __forceinline__ void Fetch(const TileForwardParams& p, const Group& g,
                                      const TileLayout& layout, uint32_t shared, Barriers* barriers,
                                      int half, uint32_t publications) {
  constexpr int kBlockFloats = C::kUnits * C::kRows;
  constexpr int kQuarters = kTileWarps / kFetchingWarps;
  const int lane = threadIdx.x % 32;
  const int quarter = half * kQuarters + lane / kTileStages % kQuarters;
  const int stage = lane % kTileStages;
  const WarpBlocks blocks(p.blocks_per_group, quarter);
  const int chunks = blocks.Chunks(p.chunk_blocks);
  const uint32_t full = SharedAddress(&barriers->full[quarter][stage]);
  const uint32_t empty = SharedAddress(&barriers->empty[quarter][stage]);
  const uint32_t to = shared + layout.stages + (quarter * kTileStages + stage) * layout.stage;
  int chunk = stage, flight = 0;
  uint32_t number = 0, parity = 1;
  if (lane >= kQuarters * kTileStages || chunks == 0) number = publications;
  const auto normalize = [&] {
    while (number < publications && chunk >= chunks) {
      chunk -= chunks;
      if (++flight == g.flights) {
        flight = 0;
        ++number;
      }
    }
  };
  normalize();
  bool counted = false;  // all blocks of the chunk
  while (__any_sync(~0u, number < publications)) {
    if (number >= publications) continue;
    const int first = blocks.first + chunk * p.chunk_blocks;
    const int count = min(p.chunk_blocks, blocks.end - first);
    if (!counted) {
      counted = LdAcquireGpu(g.Counter(p, flight, quarter, chunk)) >= count * (number + 1);
    }
    if (counted && MbarrierTestParity(empty, parity)) {
      ptx::FenceAsyncGlobal();
      const uint32_t bytes = count * kBlockFloats * 4;
      MbarrierArriveExpectTx(full, bytes);
      CpAsyncBulkFromGlobal(to, g.Buffer(p, flight, number, kBlockFloats) + first * kBlockFloats,
                            bytes, full);
      counted = false;
      parity ^= 1;
      chunk += kTileStages;
      normalize();
    }
  }
}

template <class C>
__device__ __forceinline__ void Announce(const TileForwardParams& p, const Group& g,
                                         const float* outgoing, Barriers* barriers, int team,
                                         int block, uint32_t publications) {
  constexpr int kBlockFloats = C::kUnits * C::kRows;
  const int lane = threadIdx.x % 32;
  int warp = 0;
  while (block >= WarpBlocks(p.blocks_per_group, warp).end) ++warp;
  const int chunk = (block - WarpBlocks(p.blocks_per_group, warp).first) / p.chunk_blocks;
  for (uint32_t number = 0; number < publications; ++number) {
    for (int flight = team; flight < g.flights; flight += kTileTeams) {
      const float4* from = reinterpret_cast<const float4*>(outgoing + flight * kBlockFloats);
      float4* to = reinterpret_cast<float4*>(g.Buffer(p, flight, number, kBlockFloats) +
                                             block * kBlockFloats);
      MbarrierWaitParity(SharedAddress(&barriers->published[flight]), number & 1);
#pragma unroll
      for (int i = lane; i < kBlockFloats / 4; i += 32) to[i] = from[i];
      __syncwarp();
      if (lane == 0) ptx::AddRelease(g.Counter(p, flight, warp, chunk), 1);
    }
  }
}

// What a lane multiplies at one k: 8 rows of h, the gates of its units.
template <class C>
struct Factors {
  float4 h[2];
  float4 w[C::kThreadUnits];
  __device__ __forceinline__ void Load(const float* h_at, const float4* w_at) {
    h[0] = *reinterpret_cast<const float4*>(h_at);
    h[1] = *reinterpret_cast<const float4*>(h_at + C::kRows / 2);
#pragma unroll
    for (int u = 0; u < C::kThreadUnits; ++u) w[u] = w_at[u * C::kTile.col_groups];
  }
  __device__ __forceinline__ void Multiply(float (&sums)[8][C::kThreadUnits][4]) const {
    const float rows[8] = {h[0].x, h[0].y, h[0].z, h[0].w, h[1].x, h[1].y, h[1].z, h[1].w};
#pragma unroll
    for (int r = 0; r < 8; ++r) {
#pragma unroll
      for (int u = 0; u < C::kThreadUnits; ++u) {
        sums[r][u][0] = fmaf(rows[r], w[u].x, sums[r][u][0]);
        sums[r][u][1] = fmaf(rows[r], w[u].y, sums[r][u][1]);
        sums[r][u][2] = fmaf(rows[r], w[u].z, sums[r][u][2]);
        sums[r][u][3] = fmaf(rows[r], w[u].w, sums[r][u][3]);
      }
    }
  }
};

// Adds over the lanes that differ in bit `kLaneBit`; each of a pair keeps half of the first kRows
// rows, in its first ones.
template <class C, int kRows, int kLaneBit>
__device__ __forceinline__ void AddLanes(float (&sums)[8][C::kThreadUnits][4], int lane) {
  const bool upper = (lane & kLaneBit) != 0;
#pragma unroll
  for (int r = 0; r < kRows / 2; ++r) {
#pragma unroll
    for (int u = 0; u < C::kThreadUnits; ++u) {
#pragma unroll
      for (int g = 0; g < 4; ++g) {
        const float low = sums[r][u][g], high = sums[r + kRows / 2][u][g];
        sums[r][u][g] = (upper ? high : low) + __shfl_xor_sync(~0u, upper ? low : high, kLaneBit);
      }
    }
  }
}

// The place of a cell's four sums: a row of units and, against bank conflicts, every fourth row a
// gap.
template <class C>
__device__ __forceinline__ int SumAt(int row, int unit) {
  return row * C::kUnits + unit + row / 4 * 4;
}

// A multiplying warp's own.
template <class C>
struct Multiplier {
  const float4* weights;  // at this lane's k and units
  const float* stages;    // at this lane's k and rows
  int stage_floats;
  int blocks;
  int chunk_blocks;
  int chunks;
  uint32_t full, empty;  // barriers of stage 0; those of the next follow

  // sums += h R over this lane's k, of the product numbered `product` of those of both teams.
  __device__ __forceinline__ void Run(uint32_t product, float (&sums)[8][C::kThreadUnits][4]) {
    constexpr int kStepH = C::kDepth * C::kRows, kStepW = C::kDepth * C::kUnits;
    for (int chunk = 0; chunk < chunks; ++chunk) {
      const uint32_t position = product * chunks + chunk, stage = position % kTileStages;
      const float* h = stages + stage * stage_floats;
      const float4* w = weights + chunk * chunk_blocks * (C::kUnits * C::kUnits);
      const int units = min(chunk_blocks, blocks - chunk * chunk_blocks) * C::kUnits;
      Factors<C> first, second = {};
      MbarrierWaitParity(full + 8 * stage, position / kTileStages & 1);
      first.Load(h, w);
#pragma unroll 2
      for (int k = 0; k < units; k += 2 * C::kDepth) {
        const bool two = C::kPairs || k + C::kDepth < units;
        if (two) second.Load(h + kStepH, w + kStepW);
        first.Multiply(sums);
        h += 2 * kStepH;
        w += 2 * kStepW;
        if (k + 2 * C::kDepth < units) first.Load(h, w);
        if (two) second.Multiply(sums);
      }
      MbarrierArrive(empty + 8 * stage);
    }
  }
};

// A step of a thread's cells: from z to the gates' values, and to the next c and h where valid.
template <class C, typename GateFunction, typename StateFunction>
__device__ __forceinline__ void Cells(const bool (&valid)[C::kThreadCells],
                                      float (&gates)[C::kThreadCells][4],
                                      float (&c)[C::kThreadCells], float (&h)[C::kThreadCells],
                                      GateFunction&& gate_function,
                                      StateFunction&& state_function) {
#pragma unroll
  for (int i = 0; i < C::kThreadCells; ++i) {
    float(&y)[4] = gates[i];
    y[0] = gate_function(y[0]);
    y[1] = gate_function(y[1]);
    y[2] = state_function(y[2]);
    y[3] = gate_function(y[3]);
    const float next_c = y[1] * c[i] + y[0] * y[2];
    const float next_h = y[3] * state_function(next_c);
    c[i] = valid[i] ? next_c : c[i];
    h[i] = valid[i] ? next_h : h[i];
  }
}

__device__ __forceinline__ int64_t OutputAt(const TileForwardParams& p,
                                            const TileForwardDirection& q, int64_t b, int step) {
  const int64_t row = q.output_reversed ? p.steps - 1 - step : step;
  return (p.return_sequences ? b * p.batch_stride + row * p.step_stride : b) * p.output_stride;
}

template <int kShape>
__global__ void __launch_bounds__(kThreads, 1)
    TileForwardKernel(const __grid_constant__ TileForwardParams p) {
  using C = Config<kShape>;
  constexpr int kBlockFloats = C::kUnits * C::kRows;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ Barriers barriers;
  __shared__ float4 bias[C::kUnits];
  const int any_group = blockIdx.x / p.blocks_per_group, block = blockIdx.x % p.blocks_per_group;
  const int direction = any_group / p.groups;
  const TileForwardDirection& q = p.directions[direction];
  Group g;
  g.slices_before = direction * p.slices;
  g.group = any_group % p.groups;
  g.flights = (p.slices - g.group + p.groups - 1) / p.groups;
  const int hidden = p.hidden_size, first_unit = block * C::kUnits;
  const int padded_hidden = p.blocks_per_group * C::kUnits;
  const TileLayout layout(C::kTile, padded_hidden, p.flights, p.chunk_blocks);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = threadIdx.x % 32;

  // The group's counters of arrivals, a share of them each block's. No block counts or waits before
  // all are clear.
  const int flight_counters = kTileWarps * p.warp_chunks;
  for (int i = block + threadIdx.x * p.blocks_per_group; i < g.flights * flight_counters;
       i += kThreads * p.blocks_per_group) {
    g.Counter(p, i / flight_counters, 0, 0)[i % flight_counters * kTileCounterPitch] = 0;
  }
  unsigned cleared = cooperative_groups::this_grid().barrier_arrive();

  if (threadIdx.x == 0) {
    for (uint64_t& multiplied : barriers.multiplied) MbarrierInit(SharedAddress(&multiplied), 32);
    for (int w = 0; w < kTileWarps; ++w) {
      for (int s = 0; s < kTileStages; ++s) {
        MbarrierInit(SharedAddress(&barriers.full[w][s]), 1);
        MbarrierInit(SharedAddress(&barriers.empty[w][s]), 32);
      }
    }
    for (uint64_t& published : barriers.published) {
      MbarrierInit(SharedAddress(&published), kTeamThreads);
    }
    FenceMbarrierInit();
  }
  // [k][unit][gate], zeros where there is no such k or unit.
  for (int i = threadIdx.x; i < padded_hidden * 4 * C::kUnits; i += kThreads) {
    const int unit = i % C::kUnits, gate = i / C::kUnits % 4, k = i / (4 * C::kUnits);
    const bool lives = k < hidden && first_unit + unit < hidden;
    const float* from =
        q.recurrent_kernel + (lives ? (int64_t(k) * 4 + gate) * hidden + first_unit + unit : 0);
    CpAsync<4>(SharedAddress(shared) + ((k * C::kUnits + unit) * 4 + gate) * 4, from, lives);
  }
  CpAsyncCommit();
  for (int i = threadIdx.x; i < 4 * C::kUnits; i += kThreads) {
    const int unit = i % C::kUnits, gate = i / C::kUnits;
    reinterpret_cast<float*>(bias)[unit * 4 + gate] =
        q.bias != nullptr && first_unit + unit < hidden ? q.bias[gate * hidden + first_unit + unit]
                                                        : 0.f;
  }
  CpAsyncWait<0>();
  __syncthreads();
  cooperative_groups::this_grid().barrier_wait(std::move(cleared));

  float* outgoing = reinterpret_cast<float*>(shared + layout.outgoing);
  const bool starts_with_h = q.initial_h != nullptr;
  const uint32_t publications = starts_with_h ? p.steps : p.steps - 1;
  if (warp >= kAnnouncingWarp) {
    Announce<C>(p, g, outgoing, &barriers, warp - kAnnouncingWarp, block, publications);
    return;
  }
  if (warp >= kFetchingWarp) {
    Fetch<C>(p, g, layout, SharedAddress(shared), &barriers, warp - kFetchingWarp, publications);
    return;
  }

  const int team = warp / kTileWarps, team_thread = threadIdx.x % kTeamThreads;
  const int col_group = lane % C::kTile.col_groups;
  const int row_group = lane / C::kTile.col_groups % C::kTile.row_groups;
  const int depth = lane / (C::kTile.col_groups * C::kTile.row_groups);
  Multiplier<C> multiplier;
  {
    const WarpBlocks blocks(p.blocks_per_group, warp % kTileWarps);
    multiplier.weights = reinterpret_cast<const float4*>(shared) +
                         (blocks.first * C::kUnits + depth) * C::kUnits + col_group;
    multiplier.stages =
        reinterpret_cast<const float*>(shared + layout.stages +
                                       warp % kTileWarps * kTileStages * layout.stage) +
        depth * C::kRows + row_group * 4;
    multiplier.stage_floats = layout.stage / 4;
    multiplier.blocks = blocks.end - blocks.first;
    multiplier.chunk_blocks = p.chunk_blocks;
    multiplier.chunks = blocks.Chunks(p.chunk_blocks);
    multiplier.full = SharedAddress(&barriers.full[warp % kTileWarps][0]);
    multiplier.empty = SharedAddress(&barriers.empty[warp % kTileWarps][0]);
  }
  float4* team_sums =
      reinterpret_cast<float4*>(shared + layout.sums + team * kTileWarps * layout.sums_bytes);
  const int warp_sums = layout.sums_bytes / 16;  // float4
  float* c_state = reinterpret_cast<float*>(shared + layout.c) + team_thread;
  float* h_state = reinterpret_cast<float*>(shared + layout.h) + team_thread;
  constexpr int kFlightSlots = C::kThreadCells * kTeamThreads;
  uint32_t seen[C::kThreadCells] = {};  // a bit a flight
  const bool usual = p.activation == TFL_TANH && p.recurrent_activation == TFL_SIGMOID;

  // This thread's cells: number i is of row `row` of the flight.
  struct Cell {
    int row, unit;      // in the flight, in the block
    int64_t b, state;   // batch element, place in a state
    bool there, lives;  // as a place of the flight, as a cell of the call
  };
  const auto cell = [&](int flight, int i) {
    const int index = i * kTeamThreads + team_thread;
    Cell at;
    at.row = index / C::kUnits;
    at.unit = index % C::kUnits;
    at.there = C::kCells % kTeamThreads == 0 || index < C::kCells;
    at.b = g.Slice(p, flight) * C::kRows + at.row;
    at.lives = at.there && at.b < p.batch && first_unit + at.unit < hidden;
    at.state = at.b * hidden + first_unit + at.unit;
    return at;
  };
  const auto publish = [&](int flight, const float(&h)[C::kThreadCells]) {
#pragma unroll
    for (int i = 0; i < C::kThreadCells; ++i) {
      const Cell at = cell(flight, i);
      if (at.there) outgoing[flight * kBlockFloats + at.unit * C::kRows + at.row] = h[i];
    }
    MbarrierArrive(SharedAddress(&barriers.published[flight]));
  };

  for (int flight = team; flight < g.flights; flight += kTileTeams) {
    float first_h[C::kThreadCells];
#pragma unroll
    for (int i = 0; i < C::kThreadCells; ++i) {
      const Cell at = cell(flight, i);
      float h = 0, c = 0;
      if (at.lives) {
        if (q.initial_c != nullptr) c = q.initial_c[at.state];
        if (starts_with_h) h = q.initial_h[at.state];
      }
      c_state[flight * kFlightSlots + i * kTeamThreads] = c;
      h_state[flight * kFlightSlots + i * kTeamThreads] = h;
      const bool drops = at.lives && q.recurrent_dropout != nullptr;
      first_h[i] = drops ? h * q.recurrent_dropout[at.state] : h;
    }
    if (starts_with_h) publish(flight, first_h);
  }

  // A scheduler's two warps, one of each team, multiply by turns: side by side they would also sum
  // and wait for h side by side. A team that has a flight less than the other passes.
  const bool takes_turns = g.flights > 1;
  const uint32_t my_turn = SharedAddress(&barriers.multiplied[warp]);
  const uint32_t other_turn =
      SharedAddress(&barriers.multiplied[(warp + kTileWarps) % kMultiplyingWarps]);
  uint32_t turn_parity = team == 0 ? 1 : 0;
  const auto take_turn = [&] {
    if (takes_turns) MbarrierWaitParity(other_turn, turn_parity);
    turn_parity ^= 1;
  };
  const auto end_turn = [&] {
    if (takes_turns) MbarrierArrive(my_turn);
  };

  for (int step = 0; step < p.steps; ++step) {
    const bool last = step + 1 == p.steps;
    const bool multiplies = step > 0 || starts_with_h;
    const int64_t time = q.go_backwards ? p.steps - 1 - step : step;
    for (int flight = team; flight < g.flights; flight += kTileTeams) {
      // Asked for before the products, used after them.
      float x[C::kThreadCells][4], dropout[C::kThreadCells];
      bool valid[C::kThreadCells];
#pragma unroll
      for (int i = 0; i < C::kThreadCells; ++i) {
        const Cell at = cell(flight, i);
        const int64_t row = at.b * p.batch_stride + time * p.step_stride;
        const float* from = q.projection + row * 4 * hidden + first_unit + at.unit;
#pragma unroll
        for (int gate = 0; gate < 4; ++gate) {
          x[i][gate] = at.lives ? __ldg(from + gate * hidden) : 0.f;
        }
        valid[i] = !at.lives || p.mask == nullptr || __ldg(p.mask + row) != 0;
        dropout[i] = at.lives && q.recurrent_dropout != nullptr && !last
                         ? __ldg(q.recurrent_dropout + at.state)
                         : 1.f;
      }
      if (multiplies) {
        float sums[8][C::kThreadUnits][4] = {};
        take_turn();
        multiplier.Run((starts_with_h ? step : step - 1) * g.flights + flight, sums);
        end_turn();
        if constexpr (C::kDepth > 1) AddLanes<C, 8, 16>(sums, lane);
        if constexpr (C::kDepth > 2) AddLanes<C, 4, 8>(sums, lane);
        BarSync<kTeamThreads>(kTeamBarrier + team);  // the sums before these have been read
        float4* to = team_sums + warp % kTileWarps * warp_sums;
#pragma unroll
        for (int r = 0; r < C::kSumRows; ++r) {
          // Rows 0 to 3 of the tile are in the upper half of the flight's, 4 to 7 in the lower.
          const int tile_row = depth * C::kSumRows + r;
          const int row = (tile_row / 4) * (C::kRows / 2) + row_group * 4 + tile_row % 4;
#pragma unroll
          for (int u = 0; u < C::kThreadUnits; ++u) {
            to[SumAt<C>(row, u * C::kTile.col_groups + col_group)] =
                make_float4(sums[r][u][0], sums[r][u][1], sums[r][u][2], sums[r][u][3]);
          }
        }
        BarSync<kTeamThreads>(kTeamBarrier + team);
      }
      float gates[C::kThreadCells][4];
#pragma unroll
      for (int i = 0; i < C::kThreadCells; ++i) {
        const Cell at = cell(flight, i);
        float4 z = bias[at.unit];
        z = make_float4(x[i][0] + z.x, x[i][1] + z.y, x[i][2] + z.z, x[i][3] + z.w);
        if (multiplies && at.there) {
          float4 parts[kTileWarps];
#pragma unroll
          for (int w = 0; w < kTileWarps; ++w) {
            parts[w] = team_sums[w * warp_sums + SumAt<C>(at.row, at.unit)];
          }
          z.x += (parts[0].x + parts[1].x) + (parts[2].x + parts[3].x);
          z.y += (parts[0].y + parts[1].y) + (parts[2].y + parts[3].y);
          z.z += (parts[0].z + parts[1].z) + (parts[2].z + parts[3].z);
          z.w += (parts[0].w + parts[1].w) + (parts[2].w + parts[3].w);
        }
        gates[i][0] = z.x, gates[i][1] = z.y, gates[i][2] = z.z, gates[i][3] = z.w;
      }
      float c[C::kThreadCells], h[C::kThreadCells];
#pragma unroll
      for (int i = 0; i < C::kThreadCells; ++i) {
        c[i] = c_state[flight * kFlightSlots + i * kTeamThreads];
        h[i] = h_state[flight * kFlightSlots + i * kTeamThreads];
      }
      if (usual) {
        Cells<C>(
            valid, gates, c, h, [](float z) { return StraightSigmoid(z); },
            [](float z) { return StraightTanh(z); });
      } else {
        Cells<C>(
            valid, gates, c, h, [&p](float z) { return Activate(p.recurrent_activation, z); },
            [&p](float z) { return Activate(p.activation, z); });
      }
      float outgoing_h[C::kThreadCells];
#pragma unroll
      for (int i = 0; i < C::kThreadCells; ++i) {
        c_state[flight * kFlightSlots + i * kTeamThreads] = c[i];
        h_state[flight * kFlightSlots + i * kTeamThreads] = h[i];
        seen[i] |= static_cast<uint32_t>(valid[i]) << flight;
        // What other activations make of zeros must not reach the products.
        outgoing_h[i] = cell(flight, i).lives ? h[i] * dropout[i] : 0.f;
      }
      if (!last) publish(flight, outgoing_h);

        // Nobody waits for what follows.
#pragma unroll
      for (int i = 0; i < C::kThreadCells; ++i) {
        const Cell at = cell(flight, i);
        if (!at.lives) continue;
        const int unit = first_unit + at.unit;
        if (p.return_sequences || last) {
          const bool repeats =
              valid[i] || ((seen[i] >> flight & 1) != 0 && !p.zero_output_for_mask);
          q.output[OutputAt(p, q, at.b, step) + unit] = repeats ? h[i] : 0.f;
        }
        if (q.gates != nullptr) {
          const int64_t row = step * p.batch + at.b;
#pragma unroll
          for (int gate = 0; gate < 4; ++gate) {
            q.gates[(row * 4 + gate) * hidden + unit] = gates[i][gate];
          }
          q.cell[row * hidden + unit] = c[i];
          if (q.hidden != nullptr) q.hidden[row * hidden + unit] = h[i];
        }
        if (last) {
          q.final_h[at.state] = h[i];
          q.final_c[at.state] = c[i];
        }
      }
    }
    if (multiplies && team == 1 && g.flights % 2 == 1) {
      take_turn();
      end_turn();
    }
  }
}

template <int kShape>
const void* Kernel(int shape) {
  if constexpr (kShape == kTileShapeCount) {
    return nullptr;
  } else {
    return shape == kShape ? reinterpret_cast<const void*>(&TileForwardKernel<kShape>)
                           : Kernel<kShape + 1>(shape);
  }
}

}  // namespace tile

tfl_status LaunchTileForward(const TilePlan& plan, int directions, TileForwardParams params,
                             cudaStream_t stream) {
  const void* kernel = tile::Kernel<0>(plan.shape);
  TFL_RETURN_IF_ERROR(AllowSharedBytes(kernel, plan.shared_bytes));
  // Cooperative: the driver refuses the launch rather than start a part of it.
  void* arguments[] = {&params};
  const dim3 blocks(directions * plan.groups * plan.blocks_per_group);
  return FromCuda(cudaLaunchCooperativeKernel(kernel, blocks, dim3(tile::kThreads), arguments,
                                              plan.shared_bytes, stream),
                  "launching the tile kernel");
}

}  // namespace tfl::cuda
