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
  int64_t* first_valid;
  int64_t bytes;

  BackwardScratch(const tfl_lstm_spec& spec, void* base) {
    Arena arena(base);
    exchange = arena.Take(ExchangeBytes(spec, 4));
    first_valid = static_cast<int64_t*>(
        arena.Take(spec.has_mask ? spec.batch * static_cast<int64_t>(sizeof(int64_t)) : 0));
    bytes = arena.used();
  }
};

tfl_status PlanFor(const tfl_lstm_spec& spec, int device, VectorPlan* plan) {
  DeviceLimits limits;
  TFL_RETURN_IF_ERROR(GetDeviceLimits(device, &limits));
  if (MakeVectorPlan(spec, limits, plan)) return Ok();
  return Error(TFL_INTERNAL, "the vector family was asked for a call that it does not support");
}

template <typename Call>
void FillCommon(const Call& call, const VectorPlan& plan, void* exchange, VectorCommon* params) {
  const tfl_lstm_spec& spec = call.spec;
  params->recurrent_kernel = call.recurrent_kernel;
  params->wide_weights = spec.weight_dtype == TFL_FLOAT32;
  params->mask = call.mask;
  params->exchange = static_cast<uint64_t*>(exchange);
  params->batch = spec.batch;
  params->steps = static_cast<int>(spec.steps);
  params->hidden_size = static_cast<int>(spec.hidden_size);
  params->rows = plan.rows;
  params->blocks_per_group = plan.blocks_per_group;
  params->batch_stride = spec.time_major ? 1 : spec.steps;
  params->step_stride = spec.time_major ? spec.batch : 1;
  params->go_backwards = spec.go_backwards != 0;
  params->return_sequences = spec.return_sequences != 0;
  params->zero_output_for_mask = spec.zero_output_for_mask != 0;
  params->activation = spec.activation;
  params->recurrent_activation = spec.recurrent_activation;
  params->initial_c = call.initial_c;
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
               "asking for the vector kernel's shared memory"));
  most = bytes;
  return Ok();
}

bool VectorSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits) {
  VectorPlan plan;
  return MakeVectorPlan(spec, limits, &plan);
}

// A row costs arithmetic, which tensor cores do for many rows at once: measured on an H200, 16 rows
// of 256 units still take less than half of a product a step, 8 rows of 1024 as long. Where the
// grid would run forward alone, a product a step backward would cost more than it gains.
bool VectorPreferred(const tfl_lstm_spec& spec, const DeviceLimits& limits) {
  constexpr int64_t kFewSteps = 3, kMostCells = 4096;
  VectorPlan plan;
  return spec.steps >= kFewSteps && !GridBackwardSupported(spec, limits) &&
         MakeVectorPlan(spec, limits, &plan) && plan.rows * spec.hidden_size <= kMostCells;
}

int64_t VectorForwardWorkspaceBytes(const tfl_lstm_spec& spec) { return ExchangeBytes(spec, 1); }
int64_t VectorBackwardWorkspaceBytes(const tfl_lstm_spec& spec) {
  return BackwardScratch(spec, nullptr).bytes;
}

tfl_status VectorForward(const ForwardRecurrence& call, cudaStream_t stream) {
  const tfl_lstm_spec& spec = call.spec;
  VectorPlan plan;
  TFL_RETURN_IF_ERROR(PlanFor(spec, call.device, &plan));
  const Reserve reserve(spec, spec.training ? call.reserve : nullptr);
  VectorForwardParams params = {};
  FillCommon(call, plan, call.workspace, &params);
  params.projection = static_cast<const float*>(call.projection);
  params.bias = call.bias;
  params.initial_h = call.initial_h;
  params.output = call.output;
  params.final_h = call.final_h;
  params.final_c = call.final_c;
  params.gates = reserve.gates;
  params.cell = static_cast<float*>(reserve.cell);
  params.hidden = reserve.hidden;
  return LaunchVectorForward(plan, spec.dtype, params, stream);
}

tfl_status VectorBackward(const BackwardRecurrence& call, cudaStream_t stream) {
  const tfl_lstm_spec& spec = call.spec;
  VectorPlan plan;
  TFL_RETURN_IF_ERROR(PlanFor(spec, call.device, &plan));
  const BackwardScratch scratch(spec, call.workspace);
  const Reserve reserve(spec, call.reserve);
  if (call.mask != nullptr) {
    TFL_RETURN_IF_ERROR(FirstValidStep(spec, call.mask, scratch.first_valid, stream));
  }
  VectorBackwardParams params = {};
  FillCommon(call, plan, scratch.exchange, &params);
  params.first_valid = scratch.first_valid;
  params.gates = reserve.gates;
  params.cell = static_cast<const float*>(reserve.cell);
  params.grad_output = call.grad_output;
  params.grad_final_h = call.grad_final_h;
  params.grad_final_c = call.grad_final_c;
  params.grad_gates = call.grad_gates;
  params.grad_initial_h = call.grad_initial_h;
  params.grad_initial_c = call.grad_initial_c;
  TFL_RETURN_IF_ERROR(LaunchVectorBackward(plan, spec.dtype, params, stream));
  return WritePreviousHiddenFromReserve(call, scratch.first_valid, stream);
}

}  // namespace tfl::cuda
