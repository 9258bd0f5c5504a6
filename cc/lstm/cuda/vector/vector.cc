#include "cc/lstm/cuda/vector/vector.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "cc/lstm/cuda/dtype.h"
#include "cc/lstm/cuda/elementwise.h"
#include "cc/lstm/cuda/grid/grid.h"
#include "cc/lstm/cuda/previous_hidden.h"
#include "cc/lstm/cuda/reserve.h"
#include "cc/lstm/cuda/status.h"
#include "cc/lstm/cuda/vector/kernels.h"
#include "cc/lstm/cuda/vector/plan.h"

namespace tfl::cuda {
namespace {

// Two buffers of 8-byte words for every batch row; groups may round the rows up.
int64_t ExchangeBytes(const tfl_lstm_spec& spec, int64_t words_a_unit) {
  const int64_t units = (spec.hidden_size + kVectorUnits - 1) / kVectorUnits * kVectorUnits;
  return 2 * (spec.batch + kVectorMaxRows) * units * words_a_unit * 8;
}

struct BackwardScratch {
  void* exchange;
  int64_t* first_valid[TFL_MAX_DIRECTIONS];
  int64_t bytes;

  BackwardScratch(const tfl_lstm_spec& spec, void* base) {
    Arena arena(base);
    exchange = arena.Take(spec.num_directions * ExchangeBytes(spec, 4));
    for (int64_t*& first : first_valid) {
      first = static_cast<int64_t*>(
          arena.Take(spec.has_mask ? spec.batch * static_cast<int64_t>(sizeof(int64_t)) : 0));
    }
    bytes = arena.used();
  }
};

tfl_status PlanFor(const tfl_lstm_spec& spec, int device, int directions, VectorPlan* plan) {
  DeviceLimits limits;
  TFL_RETURN_IF_ERROR(GetDeviceLimits(device, &limits));
  if (MakeVectorPlan(spec, limits, directions, plan)) return Ok();
  return Error(TFL_INTERNAL, "the vector family was asked for a call that it does not support");
}

// What both passes' parameters have; the calls differ in what is a direction's own.
template <typename Call, typename Params>
void FillCommon(const Call* calls, int directions, const VectorPlan& plan, void* exchange,
                Params* params) {
  const tfl_lstm_spec& spec = calls[0].spec;
  params->wide_weights = spec.weight_dtype == TFL_FLOAT32;
  params->mask = calls[0].mask;
  params->exchange = static_cast<uint64_t*>(exchange);
  params->batch = spec.batch;
  params->steps = static_cast<int>(spec.steps);
  params->hidden_size = static_cast<int>(spec.hidden_size);
  params->groups = plan.groups;
  params->rows = plan.rows;
  params->blocks_per_group = plan.blocks_per_group;
  params->batch_stride = spec.time_major ? 1 : spec.steps;
  params->step_stride = spec.time_major ? spec.batch : 1;
  params->output_stride = calls[0].output_stride;
  params->return_sequences = spec.return_sequences != 0;
  params->zero_output_for_mask = spec.zero_output_for_mask != 0;
  params->activation = spec.activation;
  params->recurrent_activation = spec.recurrent_activation;
  for (int d = 0; d < directions; ++d) {
    const Call& call = calls[d];
    VectorDirection& own = params->directions[d];
    own.recurrent_kernel = call.recurrent_kernel;
    own.recurrent_dropout = call.recurrent_dropout_mask;
    own.initial_c = call.initial_c;
    own.go_backwards = call.spec.go_backwards != 0;
    own.output_reversed = call.output_reversed;
  }
}

tfl_status Forward(const ForwardRecurrence* calls, int directions, cudaStream_t stream) {
  const tfl_lstm_spec& spec = calls[0].spec;
  VectorPlan plan;
  TFL_RETURN_IF_ERROR(PlanFor(spec, calls[0].device, directions, &plan));
  VectorForwardParams params = {};
  FillCommon(calls, directions, plan, calls[0].workspace, &params);
  params.projection_parts = calls[0].projection_parts;
  for (int d = 0; d < directions; ++d) {
    const ForwardRecurrence& call = calls[d];
    const Reserve reserve(spec, spec.training ? call.reserve : nullptr);
    VectorForwardDirection& own = params.directions[d];
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
  return LaunchVectorForward(plan, spec.dtype, directions, params, stream);
}

tfl_status Backward(const BackwardRecurrence* calls, int directions, cudaStream_t stream) {
  const tfl_lstm_spec& spec = calls[0].spec;
  VectorPlan plan;
  TFL_RETURN_IF_ERROR(PlanFor(spec, calls[0].device, directions, &plan));
  const BackwardScratch scratch(spec, calls[0].workspace);
  VectorBackwardParams params = {};
  FillCommon(calls, directions, plan, scratch.exchange, &params);
  for (int d = 0; d < directions; ++d) {
    const BackwardRecurrence& call = calls[d];
    const Reserve reserve(spec, call.reserve);
    VectorBackwardDirection& own = params.directions[d];
    own.gates = reserve.gates;
    own.cell = static_cast<const float*>(reserve.cell);
    own.grad_output = call.grad_output;
    own.grad_final_h = call.grad_final_h;
    own.grad_final_c = call.grad_final_c;
    own.grad_gates = call.grad_gates;
    own.grad_initial_h = call.grad_initial_h;
    own.grad_initial_c = call.grad_initial_c;
    own.first_valid = scratch.first_valid[d];
    if (call.mask == nullptr) continue;
    TFL_RETURN_IF_ERROR(FirstValidStep(call.spec, call.mask, scratch.first_valid[d], stream));
  }
  TFL_RETURN_IF_ERROR(LaunchVectorBackward(plan, spec.dtype, directions, params, stream));
  for (int d = 0; d < directions; ++d) {
    TFL_RETURN_IF_ERROR(WritePreviousHiddenFromReserve(calls[d], scratch.first_valid[d], stream));
  }
  return Ok();
}

}  // namespace

tfl_status AllowSharedBytes(const void* kernel, int bytes) {
  constexpr int kAlwaysAllowed = 48 << 10;
  if (bytes <= kAlwaysAllowed) return Ok();
  int device = 0;
  TFL_RETURN_IF_ERROR(FromCuda(cudaGetDevice(&device), "asking for the current device"));
  static std::mutex mutex;
  static auto* allowed = new std::map<std::pair<const void*, int>, int>;
  std::lock_guard<std::mutex> lock(mutex);
  int& most = (*allowed)[{kernel, device}];
  if (bytes <= most) return Ok();
  TFL_RETURN_IF_ERROR(
      FromCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
               "asking for a kernel's shared memory"));
  most = bytes;
  return Ok();
}

bool VectorSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits) {
  VectorPlan plan;
  return MakeVectorPlan(spec, limits, 1, &plan);
}

// A row costs arithmetic, which tensor cores do for many rows at once: measured on an H200, 16 rows
// of 256 units still take less than half of a product a step, 8 rows of 1024 as long. Where the
// grid would run forward alone, a product a step backward would cost more than it gains.
bool VectorPreferred(const tfl_lstm_spec& spec, const DeviceLimits& limits) {
  constexpr int64_t kFewSteps = 3, kMostCells = 4096;
  VectorPlan plan;
  return spec.steps >= kFewSteps && !GridBackwardSupported(spec, limits) &&
         MakeVectorPlan(spec, limits, 1, &plan) && plan.rows * spec.hidden_size <= kMostCells;
}

bool VectorBothSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits) {
  VectorPlan plan;
  return MakeVectorPlan(spec, limits, 2, &plan);
}

int64_t VectorForwardWorkspaceBytes(const tfl_lstm_spec& spec) {
  return spec.num_directions * ExchangeBytes(spec, 1);
}
int64_t VectorBackwardWorkspaceBytes(const tfl_lstm_spec& spec) {
  return BackwardScratch(spec, nullptr).bytes;
}

tfl_status VectorForward(const ForwardRecurrence& call, cudaStream_t stream) {
  return Forward(&call, 1, stream);
}
tfl_status VectorBackward(const BackwardRecurrence& call, cudaStream_t stream) {
  return Backward(&call, 1, stream);
}
tfl_status VectorForwardBoth(const ForwardRecurrence (&calls)[2], cudaStream_t stream) {
  return Forward(calls, 2, stream);
}
tfl_status VectorBackwardBoth(const BackwardRecurrence (&calls)[2], cudaStream_t stream) {
  return Backward(calls, 2, stream);
}

}  // namespace tfl::cuda
