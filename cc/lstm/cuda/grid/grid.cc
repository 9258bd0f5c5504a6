#include "cc/lstm/cuda/grid/grid.h"

#include <algorithm>

#include "cc/lstm/cuda/dtype.h"
#include "cc/lstm/cuda/grid/plan.h"
#include "cc/lstm/cuda/grid/sm90/forward.h"
#include "cc/lstm/cuda/reserve.h"
#include "cc/lstm/cuda/status.h"
#include "cc/lstm/cuda/step/step.h"

namespace tfl::cuda {
namespace {

// Room for the most that any plan exchanges: two buffers of h for every resident row.
constexpr int64_t kMaxGroups = 8;
constexpr int64_t kExchangeBytes = kMaxGroups * 2 * 1024 * 32 * 2;
constexpr int64_t kCounterBytes = kMaxGroups * kGridMaxChunks * kGridCounterPitch * 4;

}  // namespace

bool GridForwardSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits) {
  GridPlan plan;
  return MakeGridPlan(spec, limits, 0, &plan);
}

// The step family's need is in it, for a device that turns out to be shared (see GridForward).
int64_t GridForwardWorkspaceBytes(const tfl_lstm_spec& spec) {
  return std::max(Align(kExchangeBytes) + Align(kCounterBytes), StepForwardWorkspaceBytes(spec));
}

tfl_status GridForward(const ForwardRecurrence& call, cudaStream_t stream) {
  const tfl_lstm_spec& spec = call.spec;
  DeviceLimits limits;
  TFL_RETURN_IF_ERROR(GetDeviceLimits(call.device, &limits));
  GridPlan plan;
  int resident_blocks = 0;
  if (!MakeGridPlan(spec, limits, 0, &plan)) {
    return Error(TFL_INTERNAL, "the grid family was asked for a call that it does not support");
  }
  TFL_RETURN_IF_ERROR(GridResidentBlocks(plan, spec.dtype, call.device, &resident_blocks));
  // Fewer multiprocessors than the device has, as under MIG or MPS: fewer groups or another family.
  if (resident_blocks == 0 || !MakeGridPlan(spec, limits, resident_blocks, &plan) ||
      plan.groups > kMaxGroups) {
    return StepForward(call, stream);
  }

  Arena arena(call.workspace);
  const Reserve reserve(spec, spec.training ? call.reserve : nullptr);
  GridForwardParams params = {};
  params.projection = static_cast<const float*>(call.projection);
  params.recurrent_kernel = call.recurrent_kernel;
  params.bias = call.bias;
  params.wide_weights = spec.weight_dtype == TFL_FLOAT32;
  params.initial_h = static_cast<const uint16_t*>(call.initial_h);
  params.initial_c = call.initial_c;
  params.mask = call.mask;
  params.output = static_cast<uint16_t*>(call.output);
  params.final_h = static_cast<uint16_t*>(call.final_h);
  params.final_c = call.final_c;
  params.gates = static_cast<uint16_t*>(spec.training ? reserve.gates : nullptr);
  params.cell = static_cast<float*>(spec.training ? reserve.cell : nullptr);
  params.hidden = static_cast<uint16_t*>(spec.training ? reserve.hidden : nullptr);
  params.exchange = arena.Take(kExchangeBytes);
  params.counters = static_cast<uint32_t*>(arena.Take(kCounterBytes));
  params.batch = spec.batch;
  params.steps = static_cast<int>(spec.steps);
  params.hidden_size = static_cast<int>(spec.hidden_size);
  params.slices = static_cast<int>(plan.slices);
  params.groups = plan.groups;
  params.batch_stride = spec.time_major ? 1 : spec.steps;
  params.step_stride = spec.time_major ? spec.batch : 1;
  params.go_backwards = spec.go_backwards != 0;
  params.return_sequences = spec.return_sequences != 0;
  params.zero_output_for_mask = spec.zero_output_for_mask != 0;
  TFL_RETURN_IF_ERROR(FromCuda(cudaMemsetAsync(params.counters, 0, kCounterBytes, stream),
                               "clearing the grid's counters"));
  return LaunchGridForward(plan, spec.dtype, params, stream);
}

}  // namespace tfl::cuda
