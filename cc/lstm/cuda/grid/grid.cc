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

// Room for the most that any plan exchanges: two buffers for every resident block.
constexpr int64_t kMaxBlocks = 160;
constexpr int64_t kMaxGroups = 8;
constexpr int64_t kCounterBytes = kMaxGroups * kGridCounters * kGridCounterPitch * 4;
constexpr int64_t kStateBytes = 32 * kGridUnits * 4;  // h of a block's units in float32

struct ForwardScratch {
  void* exchange;
  void* counters;
  int64_t bytes;

  explicit ForwardScratch(void* base) {
    Arena arena(base);
    exchange = arena.Take(kMaxBlocks * 2 * kStateBytes / 2);
    counters = arena.Take(kCounterBytes);
    bytes = arena.used();
  }
};

struct BackwardScratch {
  void* exchange;
  void* partials;
  void* counters;
  int64_t* first_valid[TFL_MAX_DIRECTIONS];
  int64_t bytes;

  BackwardScratch(const tfl_lstm_spec& spec, void* base) {
    Arena arena(base);
    exchange = arena.Take(kMaxBlocks * 2 * 4 * kStateBytes);
    partials = arena.Take(kMaxBlocks * 2 * 4 * kStateBytes * 2);  // of four quarters, with numbers
    counters = arena.Take(kCounterBytes);
    for (int64_t*& first : first_valid) {
      first = static_cast<int64_t*>(
          arena.Take(spec.has_mask ? spec.batch * static_cast<int64_t>(sizeof(int64_t)) : 0));
    }
    bytes = arena.used();
  }
};

// The blocks that one of `directions` may have at the most.
int BlocksFor(const DeviceLimits& limits, int directions) {
  return limits.multiprocessors / directions / kGridClusterBlocks * kGridClusterBlocks;
}

// The plan of one of `directions` that run at once, for what the device can hold right now; false:
// another family's call. Fewer multiprocessors than the limits promise, as under MIG or MPS, may
// leave fewer groups or none.
tfl_status PlanOnDevice(const tfl_lstm_spec& spec, GridDirection direction, int directions,
                        int device, GridPlan* plan, bool* fits) {
  DeviceLimits limits;
  TFL_RETURN_IF_ERROR(GetDeviceLimits(device, &limits));
  int blocks = BlocksFor(limits, directions);
  if (!MakeGridPlan(spec, limits, direction, blocks, plan)) {
    return Error(TFL_INTERNAL, "the grid family was asked for a call that it does not support");
  }
  // Fewer groups may want more rows each, hence another kernel, of which to ask again.
  int rows = 0;
  do {
    rows = plan->rows;
    int resident_blocks = 0;
    TFL_RETURN_IF_ERROR(GridResidentBlocks(*plan, direction, spec.dtype, device, &resident_blocks));
    blocks = std::min(blocks, resident_blocks / directions);
    *fits = blocks != 0 && MakeGridPlan(spec, limits, direction, blocks, plan);
  } while (*fits && plan->rows != rows);
  const int all_groups = directions * plan->groups;
  *fits = *fits && all_groups <= kMaxGroups && all_groups * plan->blocks_per_group <= kMaxBlocks;
  return Ok();
}

// What both passes' parameters have; the calls differ in what is a direction's own.
template <typename Call, typename Params>
void FillCommon(const Call* calls, int directions, const GridPlan& plan, Params* params) {
  const tfl_lstm_spec& spec = calls[0].spec;
  params->wide_weights = spec.weight_dtype == TFL_FLOAT32;
  params->mask = calls[0].mask;
  params->batch = spec.batch;
  params->steps = static_cast<int>(spec.steps);
  params->hidden_size = static_cast<int>(spec.hidden_size);
  params->slices = static_cast<int>(plan.slices);
  params->groups = plan.groups;
  params->batch_stride = spec.time_major ? 1 : spec.steps;
  params->step_stride = spec.time_major ? spec.batch : 1;
  params->output_stride = calls[0].output_stride;
  params->return_sequences = spec.return_sequences != 0;
  params->zero_output_for_mask = spec.zero_output_for_mask != 0;
  for (int d = 0; d < directions; ++d) {
    const Call& call = calls[d];
    GridDirectionParams& own = params->directions[d];
    own.recurrent_kernel = call.recurrent_kernel;
    own.recurrent_dropout = call.recurrent_dropout_mask;
    own.initial_c = call.initial_c;
    own.go_backwards = call.spec.go_backwards != 0;
    own.output_reversed = call.output_reversed;
  }
}

// The kernels read and write 16 bytes at once; a tensor that is a slice of another may not allow
// it.
bool Aligned(std::initializer_list<const void*> pointers) {
  uintptr_t bits = 0;
  for (const void* pointer : pointers) bits |= reinterpret_cast<uintptr_t>(pointer);
  return bits % 16 == 0;
}

tfl_status Forward(const ForwardRecurrence* calls, int directions, cudaStream_t stream) {
  const tfl_lstm_spec& spec = calls[0].spec;
  GridPlan plan;
  bool fits = false;
  TFL_RETURN_IF_ERROR(
      PlanOnDevice(spec, GridDirection::kForward, directions, calls[0].device, &plan, &fits));
  for (int d = 0; d < directions; ++d) {
    fits = fits && Aligned({calls[d].recurrent_kernel, calls[d].output, calls[d].reserve});
  }
  if (!fits) {
    for (int d = 0; d < directions; ++d) TFL_RETURN_IF_ERROR(StepForward(calls[d], stream));
    return Ok();
  }
  const ForwardScratch scratch(calls[0].workspace);
  GridForwardParams params = {};
  FillCommon(calls, directions, plan, &params);
  params.exchange = scratch.exchange;
  params.counters = static_cast<uint32_t*>(scratch.counters);
  for (int d = 0; d < directions; ++d) {
    const ForwardRecurrence& call = calls[d];
    const Reserve reserve(spec, spec.training ? call.reserve : nullptr);
    GridForwardDirection& own = params.directions[d];
    own.projection = static_cast<const float*>(call.projection);
    own.bias = call.bias;
    own.initial_h = call.initial_h;
    own.output = call.output;
    own.final_h = call.final_h;
    own.final_c = call.final_c;
    own.gates = reserve.gates;
    own.cell = static_cast<float*>(reserve.cell);
    own.hidden = reserve.hidden;
  }
  return LaunchGrid(plan, GridDirection::kForward, spec.dtype, directions, &params, stream);
}

tfl_status Backward(const BackwardRecurrence* calls, int directions, cudaStream_t stream) {
  const tfl_lstm_spec& spec = calls[0].spec;
  GridPlan plan;
  bool fits = false;
  TFL_RETURN_IF_ERROR(
      PlanOnDevice(spec, GridDirection::kBackward, directions, calls[0].device, &plan, &fits));
  for (int d = 0; d < directions; ++d) {
    fits = fits && Aligned({calls[d].recurrent_kernel, calls[d].grad_gates});
  }
  if (!fits) {
    for (int d = 0; d < directions; ++d) TFL_RETURN_IF_ERROR(StepBackward(calls[d], stream));
    return Ok();
  }
  const BackwardScratch scratch(spec, calls[0].workspace);
  GridBackwardParams params = {};
  FillCommon(calls, directions, plan, &params);
  params.exchange = scratch.exchange;
  params.partials = scratch.partials;
  params.counters = static_cast<uint32_t*>(scratch.counters);
  for (int d = 0; d < directions; ++d) {
    const BackwardRecurrence& call = calls[d];
    const Reserve reserve(spec, call.reserve);
    GridBackwardDirection& own = params.directions[d];
    own.first_valid = scratch.first_valid[d];
    own.gates = reserve.gates;
    own.cell = static_cast<const float*>(reserve.cell);
    own.grad_output = call.grad_output;
    own.grad_final_h = call.grad_final_h;
    own.grad_final_c = call.grad_final_c;
    own.grad_gates = call.grad_gates;
    own.grad_initial_h = call.grad_initial_h;
    own.grad_initial_c = call.grad_initial_c;
    if (call.mask == nullptr) continue;
    TFL_RETURN_IF_ERROR(FirstValidStep(call.spec, call.mask, scratch.first_valid[d], stream));
  }
  TFL_RETURN_IF_ERROR(
      LaunchGrid(plan, GridDirection::kBackward, spec.dtype, directions, &params, stream));
  for (int d = 0; d < directions; ++d) {
    TFL_RETURN_IF_ERROR(WritePreviousHiddenFromReserve(calls[d], scratch.first_valid[d], stream));
  }
  return Ok();
}

bool BothSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits, GridDirection direction) {
  GridPlan plan;
  const int blocks = BlocksFor(limits, 2);
  return blocks != 0 && MakeGridPlan(spec, limits, direction, blocks, &plan);
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

bool GridForwardBothSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits) {
  return BothSupported(spec, limits, GridDirection::kForward);
}
bool GridBackwardBothSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits) {
  return BothSupported(spec, limits, GridDirection::kBackward);
}

tfl_status GridForward(const ForwardRecurrence& call, cudaStream_t stream) {
  return Forward(&call, 1, stream);
}
tfl_status GridBackward(const BackwardRecurrence& call, cudaStream_t stream) {
  return Backward(&call, 1, stream);
}
tfl_status GridForwardBoth(const ForwardRecurrence (&calls)[2], cudaStream_t stream) {
  return Forward(calls, 2, stream);
}
tfl_status GridBackwardBoth(const BackwardRecurrence (&calls)[2], cudaStream_t stream) {
  return Backward(calls, 2, stream);
}

}  // namespace tfl::cuda
