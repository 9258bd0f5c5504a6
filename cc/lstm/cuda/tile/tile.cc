#include "cc/lstm/cuda/tile/tile.h"

#include <algorithm>

#include "cc/lstm/cuda/dtype.h"
#include "cc/lstm/cuda/grid/grid.h"
#include "cc/lstm/cuda/reserve.h"
#include "cc/lstm/cuda/status.h"
#include "cc/lstm/cuda/tile/plan.h"
#include "cc/lstm/cuda/tile/sm90/kernels.h"
#include "cc/lstm/cuda/vector/plan.h"
#include "cc/lstm/cuda/vector/vector.h"

namespace tfl::cuda {
namespace {

// Room for whatever way the plan cuts the call.
struct Scratch {
  float* exchange;
  uint32_t* counters;
  int64_t bytes;

  Scratch(const tfl_lstm_spec& spec, void* base) {
    int64_t floats = 0, count = 0;
    for (const TileShape& shape : kTileShapes) {
      const int64_t slices = (spec.batch + shape.rows() - 1) / shape.rows();
      const int64_t blocks = (spec.hidden_size + shape.units() - 1) / shape.units();
      floats = std::max(floats, 2 * slices * blocks * shape.rows() * shape.units());
      // A warp's chunks are no more than its blocks, whose number is rounded up.
      count = std::max(count, slices * (blocks + kTileWarps));
    }
    Arena arena(base);
    exchange = static_cast<float*>(arena.Take(spec.num_directions * floats * 4));
    counters =
        static_cast<uint32_t*>(arena.Take(spec.num_directions * count * kTileCounterPitch * 4));
    bytes = arena.used();
  }
};

tfl_status Forward(const ForwardRecurrence* calls, int directions, cudaStream_t stream) {
  const tfl_lstm_spec& spec = calls[0].spec;
  DeviceLimits limits;
  TFL_RETURN_IF_ERROR(GetDeviceLimits(calls[0].device, &limits));
  TilePlan plan;
  if (!MakeTilePlan(spec, limits, directions, &plan)) {
    return Error(TFL_INTERNAL, "the tile family was asked for a call that it does not support");
  }
  const Scratch scratch(spec, calls[0].workspace);
  TileForwardParams params = {};
  params.mask = calls[0].mask;
  params.exchange = scratch.exchange;
  params.counters = scratch.counters;
  params.batch = spec.batch;
  params.steps = static_cast<int>(spec.steps);
  params.hidden_size = static_cast<int>(spec.hidden_size);
  params.blocks_per_group = plan.blocks_per_group;
  params.groups = plan.groups;
  params.slices = static_cast<int>(plan.slices);
  params.flights = plan.flights;
  params.chunk_blocks = plan.chunk_blocks;
  params.warp_chunks = plan.warp_chunks;
  params.batch_stride = spec.time_major ? 1 : spec.steps;
  params.step_stride = spec.time_major ? spec.batch : 1;
  params.output_stride = calls[0].output_stride;
  params.return_sequences = spec.return_sequences != 0;
  params.zero_output_for_mask = spec.zero_output_for_mask != 0;
  params.activation = spec.activation;
  params.recurrent_activation = spec.recurrent_activation;
  const auto floats = [](const void* tensor) { return static_cast<const float*>(tensor); };
  for (int d = 0; d < directions; ++d) {
    const ForwardRecurrence& call = calls[d];
    const Reserve reserve(spec, spec.training ? call.reserve : nullptr);
    TileForwardDirection& own = params.directions[d];
    own.projection = floats(call.projection);
    own.recurrent_kernel = floats(call.recurrent_kernel);
    own.recurrent_dropout = floats(call.recurrent_dropout_mask);
    own.bias = floats(call.bias);
    own.initial_h = floats(call.initial_h);
    own.initial_c = floats(call.initial_c);
    own.output = static_cast<float*>(call.output);
    own.final_h = static_cast<float*>(call.final_h);
    own.final_c = static_cast<float*>(call.final_c);
    own.gates = static_cast<float*>(reserve.gates);
    own.cell = static_cast<float*>(reserve.cell);
    own.hidden = static_cast<float*>(reserve.hidden);
    own.go_backwards = call.spec.go_backwards != 0;
    own.output_reversed = call.output_reversed;
  }
  return LaunchTileForward(plan, directions, params, stream);
}

bool Supported(const tfl_lstm_spec& spec, const DeviceLimits& limits, int directions) {
  TilePlan plan;
  return MakeTilePlan(spec, limits, directions, &plan);
}

}  // namespace

bool TileForwardSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits) {
  return Supported(spec, limits, 1);
}
// By measurement: docs/performance/grids.md. Bringing the recurrent kernel in takes as long as a
// product or two, cuBLASLt's large products run at a higher rate, and much sooner with leave to
// round; few rows are the vector family's.
bool TilePreferred(const tfl_lstm_spec& spec, const DeviceLimits& limits) {
  constexpr int kMostFlights = 4;
  constexpr int64_t kFewSteps = 3, kMostProducts = 1 << 26, kMostRoundedProducts = 1 << 24;
  constexpr int64_t kMostVectorCells = 4096, kMostVectorHidden = 512;
  TilePlan plan;
  if (spec.steps < kFewSteps || !MakeTilePlan(spec, limits, 1, &plan)) return false;
  const int64_t products = spec.batch * spec.hidden_size * spec.hidden_size;
  if (products > (spec.allow_tf32 ? kMostRoundedProducts : kMostProducts)) return false;
  if (plan.flights > kMostFlights || GridForwardSupported(spec, limits)) return false;
  VectorPlan vector;
  const bool many = spec.hidden_size <= kMostVectorHidden &&
                    MakeVectorPlan(spec, limits, 1, &vector) &&
                    vector.rows * spec.hidden_size >= kMostVectorCells;
  return many || !VectorPreferred(spec, limits);
}
bool TileForwardBothSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits) {
  return Supported(spec, limits, 2);
}

int64_t TileForwardWorkspaceBytes(const tfl_lstm_spec& spec) {
  return Scratch(spec, nullptr).bytes;
}

tfl_status TileForward(const ForwardRecurrence& call, cudaStream_t stream) {
  return Forward(&call, 1, stream);
}
tfl_status TileForwardBoth(const ForwardRecurrence (&calls)[2], cudaStream_t stream) {
  return Forward(calls, 2, stream);
}

}  // namespace tfl::cuda
