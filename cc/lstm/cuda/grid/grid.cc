#include "cc/lstm/cuda/grid/grid.h"

#include <algorithm>
#include <initializer_list>

#include "cc/lstm/cuda/dtype.h"
#include "cc/lstm/cuda/elementwise.h"
#include "cc/lstm/cuda/grid/plan.h"
#include "cc/lstm/cuda/grid/sm90/kernels.h"
#include "cc/lstm/cuda/previous_hidden.h"
#include "cc/lstm/cuda/reserve.h"
#include "cc/lstm/cuda/status.h"
#include "cc/lstm/cuda/step/step.h"

namespace tfl::cuda {
namespace {

// Room for the most that any plan exchanges: two buffers for every resident group.
constexpr int64_t kMaxGroups = 8;
constexpr int64_t kMaxHidden = 1024;
constexpr int64_t kMaxRows = 32;
constexpr int64_t kCounterBytes = kMaxGroups * kGridCounters * kGridCounterPitch * 4;

struct ForwardScratch {
  void* exchange;
  void* counters;
  int64_t bytes;

  explicit ForwardScratch(void* base) {
    Arena arena(base);
    exchange = arena.Take(kMaxGroups * 2 * kMaxHidden * kMaxRows * 2);
    counters = arena.Take(kCounterBytes);
    bytes = arena.used();
  }
};

struct BackwardScratch {
  void* exchange;
  void* partials;
  void* counters;
  int64_t* first_valid;
  int64_t bytes;

  BackwardScratch(const tfl_lstm_spec& spec, void* base) {
    Arena arena(base);
    exchange = arena.Take(kMaxGroups * 2 * 4 * kMaxHidden * kMaxRows * 2);
    partials = arena.Take(kMaxGroups * 2 * 4 * kMaxHidden * kMaxRows * 4);
    counters = arena.Take(kCounterBytes);
    first_valid = static_cast<int64_t*>(
        arena.Take(spec.has_mask ? spec.batch * static_cast<int64_t>(sizeof(int64_t)) : 0));
    bytes = arena.used();
  }
};

// The plan for what the device can hold right now; false: another family's call. Fewer
// multiprocessors than the limits promise, as under MIG or MPS, may leave fewer groups or none.
tfl_status PlanOnDevice(const tfl_lstm_spec& spec, GridDirection direction, int device,
                        GridPlan* plan, bool* fits) {
  DeviceLimits limits;
  TFL_RETURN_IF_ERROR(GetDeviceLimits(device, &limits));
  if (!MakeGridPlan(spec, limits, direction, 0, plan)) {
    return Error(TFL_INTERNAL, "the grid family was asked for a call that it does not support");
  }
  // Fewer groups may want more rows each, hence another kernel, of which to ask again.
  int blocks = limits.multiprocessors, rows = 0;
  do {
    rows = plan->rows;
    int resident_blocks = 0;
    TFL_RETURN_IF_ERROR(GridResidentBlocks(*plan, direction, spec.dtype, device, &resident_blocks));
    blocks = std::min(blocks, resident_blocks);
    *fits = blocks != 0 && MakeGridPlan(spec, limits, direction, blocks, plan);
  } while (*fits && plan->rows != rows);
  *fits = *fits && plan->groups <= kMaxGroups;
  return Ok();
}

// The fields that both directions have.
template <typename Params>
void FillCommon(const tfl_lstm_spec& spec, const GridPlan& plan, Params* params) {
  params->wide_weights = spec.weight_dtype == TFL_FLOAT32;
  params->batch = spec.batch;
  params->steps = static_cast<int>(spec.steps);
  params->hidden_size = static_cast<int>(spec.hidden_size);
  params->slices = static_cast<int>(plan.slices);
  params->groups = plan.groups;
  params->batch_stride = spec.time_major ? 1 : spec.steps;
  params->step_stride = spec.time_major ? spec.batch : 1;
  params->go_backwards = spec.go_backwards != 0;
  params->return_sequences = spec.return_sequences != 0;
  params->zero_output_for_mask = spec.zero_output_for_mask != 0;
}

// The kernels read and write 16 bytes at once; a tensor that is a slice of another may not allow
// it.
bool Aligned(std::initializer_list<const void*> pointers) {
  uintptr_t bits = 0;
  for (const void* pointer : pointers) bits |= reinterpret_cast<uintptr_t>(pointer);
  return bits % 16 == 0;
}

}  // namespace

bool GridForwardSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits) {
  GridPlan plan;
  return MakeGridPlan(spec, limits, GridDirection::kForward, 0, &plan);
}
bool GridBackwardSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits) {
  GridPlan plan;
  return MakeGridPlan(spec, limits, GridDirection::kBackward, 0, &plan);
}

// The step family's need is in both: it takes over where the grid does not fit after all.
int64_t GridForwardWorkspaceBytes(const tfl_lstm_spec& spec) {
  return std::max(ForwardScratch(nullptr).bytes, StepForwardWorkspaceBytes(spec));
}
int64_t GridBackwardWorkspaceBytes(const tfl_lstm_spec& spec) {
  return std::max(BackwardScratch(spec, nullptr).bytes, StepBackwardWorkspaceBytes(spec));
}

tfl_status GridForward(const ForwardRecurrence& call, cudaStream_t stream) {
  const tfl_lstm_spec& spec = call.spec;
  GridPlan plan;
  bool fits = false;
  TFL_RETURN_IF_ERROR(PlanOnDevice(spec, GridDirection::kForward, call.device, &plan, &fits));
  if (!fits || !Aligned({call.recurrent_kernel, call.output, call.reserve})) {
    return StepForward(call, stream);
  }
  const ForwardScratch scratch(call.workspace);
  const Reserve reserve(spec, spec.training ? call.reserve : nullptr);
  GridForwardParams params = {};
  FillCommon(spec, plan, &params);
  params.projection = static_cast<const float*>(call.projection);
  params.recurrent_kernel = call.recurrent_kernel;
  params.bias = call.bias;
  params.initial_h = call.initial_h;
  params.initial_c = call.initial_c;
  params.mask = call.mask;
  params.output = call.output;
  params.final_h = call.final_h;
  params.final_c = call.final_c;
  params.gates = reserve.gates;
  params.cell = static_cast<float*>(reserve.cell);
  params.hidden = reserve.hidden;
  params.exchange = scratch.exchange;
  params.counters = static_cast<uint32_t*>(scratch.counters);
  return LaunchGrid(plan, GridDirection::kForward, spec.dtype, &params, stream);
}

tfl_status GridBackward(const BackwardRecurrence& call, cudaStream_t stream) {
  const tfl_lstm_spec& spec = call.spec;
  GridPlan plan;
  bool fits = false;
  TFL_RETURN_IF_ERROR(PlanOnDevice(spec, GridDirection::kBackward, call.device, &plan, &fits));
  if (!fits || !Aligned({call.recurrent_kernel, call.grad_gates})) {
    return StepBackward(call, stream);
  }
  const BackwardScratch scratch(spec, call.workspace);
  const Reserve reserve(spec, call.reserve);
  if (call.mask != nullptr) {
    TFL_RETURN_IF_ERROR(FirstValidStep(spec, call.mask, scratch.first_valid, stream));
  }
  GridBackwardParams params = {};
  FillCommon(spec, plan, &params);
  params.recurrent_kernel = call.recurrent_kernel;
  params.initial_c = call.initial_c;
  params.mask = call.mask;
  params.first_valid = scratch.first_valid;
  params.gates = reserve.gates;
  params.cell = static_cast<const float*>(reserve.cell);
  params.grad_output = call.grad_output;
  params.grad_final_h = call.grad_final_h;
  params.grad_final_c = call.grad_final_c;
  params.grad_gates = call.grad_gates;
  params.grad_initial_h = call.grad_initial_h;
  params.grad_initial_c = call.grad_initial_c;
  params.exchange = scratch.exchange;
  params.partials = scratch.partials;
  params.counters = static_cast<uint32_t*>(scratch.counters);
  TFL_RETURN_IF_ERROR(LaunchGrid(plan, GridDirection::kBackward, spec.dtype, &params, stream));
  return WritePreviousHiddenFromReserve(call, scratch.first_valid, stream);
}

}  // namespace tfl::cuda
