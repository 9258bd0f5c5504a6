// The CUDA entry points of lstm.h: the input projection before the recurrence, the weight and input
// gradients after it, and the division of the workspace. The recurrence is a family's (plan.h).
// Directions run at once where the family can, else one after the other in the same scratch.
#include <cuda_runtime_api.h>

#include "cc/lstm/cuda/call.h"
#include "cc/lstm/cuda/check.h"
#include "cc/lstm/cuda/dtype.h"
#include "cc/lstm/cuda/elementwise.h"
#include "cc/lstm/cuda/plan.h"
#include "cc/lstm/cuda/recurrence.h"
#include "cc/lstm/cuda/status.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {
namespace {

tfl_status Clear(void* tensor, int64_t bytes, cudaStream_t stream) {
  if (tensor == nullptr || bytes == 0) return Ok();
  return FromCuda(cudaMemsetAsync(tensor, 0, bytes, stream), "clearing a tensor");
}

// to = from, or zeros where from is null.
tfl_status CopyState(const tfl_lstm_spec& spec, const void* from, void* to, cudaStream_t stream) {
  const int64_t count = spec.batch * spec.hidden_size;
  if (to == nullptr || count == 0) return Ok();
  if (from == nullptr) return Clear(to, count * SizeOf(spec.dtype), stream);
  return Convert(from, spec.dtype, to, spec.dtype, count, stream);
}

tfl_status ForwardOfNothing(const tfl_lstm_spec& spec, const tfl_lstm_inputs& inputs,
                            const tfl_lstm_outputs& outputs, cudaStream_t stream) {
  for (int d = 0; d < spec.num_directions; ++d) {
    TFL_RETURN_IF_ERROR(CopyState(spec, inputs.initial_h[d], outputs.final_h[d], stream));
    TFL_RETURN_IF_ERROR(CopyState(spec, inputs.initial_c[d], outputs.final_c[d], stream));
  }
  if (spec.return_sequences) return Ok();
  const int64_t states = spec.num_directions * spec.batch * spec.hidden_size;
  return Clear(outputs.output, states * SizeOf(spec.dtype), stream);
}

tfl_status BackwardOfNothing(const tfl_lstm_spec& spec, const tfl_lstm_saved& saved,
                             const tfl_lstm_gradients& gradients, cudaStream_t stream) {
  const int64_t hidden = spec.hidden_size, weight = SizeOf(spec.weight_dtype);
  TFL_RETURN_IF_ERROR(
      Clear(gradients.grad_x, Rows(spec) * spec.input_size * SizeOf(spec.dtype), stream));
  for (int d = 0; d < spec.num_directions; ++d) {
    TFL_RETURN_IF_ERROR(
        Clear(gradients.grad_kernel[d], 4 * spec.input_size * hidden * weight, stream));
    TFL_RETURN_IF_ERROR(
        Clear(gradients.grad_recurrent_kernel[d], 4 * hidden * hidden * weight, stream));
    TFL_RETURN_IF_ERROR(Clear(gradients.grad_bias[d], 4 * hidden * weight, stream));
    TFL_RETURN_IF_ERROR(
        CopyState(spec, saved.grad_final_h[d], gradients.grad_initial_h[d], stream));
    TFL_RETURN_IF_ERROR(
        CopyState(spec, saved.grad_final_c[d], gradients.grad_initial_c[d], stream));
  }
  return Ok();
}
tfl_status Forward(const tfl_lstm_spec& spec, const tfl_lstm_inputs& inputs,
                   const tfl_lstm_outputs& outputs, const tfl_cuda_runtime& runtime) {
  TFL_RETURN_IF_ERROR(CheckSpec(spec));
  TFL_RETURN_IF_ERROR(CheckInputs(spec, inputs));
  TFL_RETURN_IF_ERROR(CheckOutputs(spec, outputs));
  const auto stream = static_cast<cudaStream_t>(runtime.stream);
  if (NothingRuns(spec)) return ForwardOfNothing(spec, inputs, outputs, stream);
  Plan plan;
  TFL_RETURN_IF_ERROR(PlanFor(spec, runtime.device, &plan));
  const ForwardWorkspace workspace(spec, plan, AlignedBase(outputs.workspace));
  ForwardRecurrence calls[TFL_MAX_DIRECTIONS] = {};
  for (int d = 0; d < spec.num_directions; ++d) {
    bool may_begin_early = false;
    TFL_RETURN_IF_ERROR(Project(spec, d, inputs, workspace, runtime, &may_begin_early));
    calls[d] = DescribeForward(spec, d, plan, inputs, outputs, workspace, runtime.device);
    calls[d].may_begin_early = may_begin_early;
    if (!plan.forward_both) TFL_RETURN_IF_ERROR(plan.forward->forward(calls[d], stream));
  }
  return plan.forward_both ? plan.forward->forward_both(calls, stream) : Ok();
}
tfl_status Backward(const tfl_lstm_spec& spec, const tfl_lstm_inputs& inputs,
                    const tfl_lstm_saved& saved, const tfl_lstm_gradients& gradients,
                    const tfl_cuda_runtime& runtime) {
  TFL_RETURN_IF_ERROR(CheckSpec(spec));
  TFL_RETURN_IF_ERROR(CheckInputs(spec, inputs));
  TFL_RETURN_IF_ERROR(CheckSaved(spec, saved));
  const auto stream = static_cast<cudaStream_t>(runtime.stream);
  if (NothingRuns(spec)) return BackwardOfNothing(spec, saved, gradients, stream);
  if (gradients.workspace == nullptr) {
    return Error(TFL_INVALID_ARGUMENT, "workspace must not be null");
  }
  Plan plan;
  TFL_RETURN_IF_ERROR(PlanFor(spec, runtime.device, &plan));
  const BackwardWorkspace workspace(spec, plan, AlignedBase(gradients.workspace));
  BackwardRecurrence calls[TFL_MAX_DIRECTIONS] = {};
  for (int d = 0; d < spec.num_directions; ++d) {
    calls[d] = DescribeBackward(spec, d, plan, inputs, saved, gradients, workspace, runtime.device);
  }
  if (plan.backward_both) TFL_RETURN_IF_ERROR(plan.backward->backward_both(calls, stream));
  for (int d = 0; d < spec.num_directions; ++d) {
    if (!plan.backward_both) TFL_RETURN_IF_ERROR(plan.backward->backward(calls[d], stream));
    TFL_RETURN_IF_ERROR(
        WeightAndInputGradients(spec, d, inputs, gradients, workspace, runtime.device, stream));
  }
  return Ok();
}

tfl_status Sizes(const tfl_lstm_spec& spec, int device, tfl_lstm_sizes* sizes) {
  *sizes = {};
  TFL_RETURN_IF_ERROR(CheckSpec(spec));
  if (NothingRuns(spec)) return Ok();
  Plan plan;
  TFL_RETURN_IF_ERROR(PlanFor(spec, device, &plan));
  sizes->forward_workspace_bytes = ForwardWorkspace(spec, plan, nullptr).bytes + kAlignment;
  if (spec.training) {
    sizes->reserve_bytes = spec.num_directions * Align(plan.forward->reserve_bytes(spec));
    sizes->backward_workspace_bytes = BackwardWorkspace(spec, plan, nullptr).bytes + kAlignment;
  }
  return Ok();
}

}  // namespace
}  // namespace tfl::cuda

extern "C" {

int32_t tfl_built_with_cuda(void) { return 1; }

tfl_status tfl_cuda_lstm_sizes(const tfl_lstm_spec* spec, int32_t device, tfl_lstm_sizes* sizes) {
  TFL_RETURN_IF_ERROR(tfl::cuda::DemandAll({{"spec", spec}, {"sizes", sizes}}));
  return tfl::cuda::Sizes(*spec, device, sizes);
}

tfl_status tfl_cuda_lstm_forward(const tfl_lstm_spec* spec, const tfl_lstm_inputs* inputs,
                                 const tfl_lstm_outputs* outputs, const tfl_cuda_runtime* runtime) {
  TFL_RETURN_IF_ERROR(tfl::cuda::DemandAll(
      {{"spec", spec}, {"inputs", inputs}, {"outputs", outputs}, {"runtime", runtime}}));
  const tfl::cuda::DeviceScope scope(runtime->device);
  TFL_RETURN_IF_ERROR(scope.status());
  return tfl::cuda::Forward(*spec, *inputs, *outputs, *runtime);
}

tfl_status tfl_cuda_lstm_backward(const tfl_lstm_spec* spec, const tfl_lstm_inputs* inputs,
                                  const tfl_lstm_saved* saved, const tfl_lstm_gradients* gradients,
                                  const tfl_cuda_runtime* runtime) {
  TFL_RETURN_IF_ERROR(tfl::cuda::DemandAll({{"spec", spec},
                                            {"inputs", inputs},
                                            {"saved", saved},
                                            {"gradients", gradients},
                                            {"runtime", runtime}}));
  const tfl::cuda::DeviceScope scope(runtime->device);
  TFL_RETURN_IF_ERROR(scope.status());
  return tfl::cuda::Backward(*spec, *inputs, *saved, *gradients, *runtime);
}

}  // extern "C"
