// The CUDA entry points of lstm.h for stacks whose layers run at once: one launch of all
// recurrences (sm90/stack.h), with only the first layer's input projection before it and all
// layers' weight gradients after it.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <vector>

#include "cc/lstm/cuda/call.h"
#include "cc/lstm/cuda/check.h"
#include "cc/lstm/cuda/device_limits.h"
#include "cc/lstm/cuda/dtype.h"
#include "cc/lstm/cuda/plan.h"
#include "cc/lstm/cuda/recurrence.h"
#include "cc/lstm/cuda/sm90/stack.h"
#include "cc/lstm/cuda/status.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {
namespace {

struct Stack {
  const tfl_lstm_spec* specs;
  int layers;
  std::vector<Plan> plans;
  bool forward_at_once, backward_at_once;
};

tfl_status PlanStack(const tfl_lstm_spec* specs, int layers, int device, Stack* stack) {
  stack->specs = specs;
  stack->layers = layers;
  stack->plans.assign(layers, {});
  stack->forward_at_once = stack->backward_at_once = false;
  bool nothing = false;
  for (int l = 0; l < layers; ++l) {
    TFL_RETURN_IF_ERROR(CheckSpec(specs[l]));
    nothing |= NothingRuns(specs[l]);
  }
  if (nothing) return Ok();
  bool forward = true, backward = specs[0].training != 0;
  for (int l = 0; l < layers; ++l) {
    Plan& plan = stack->plans[l];
    TFL_RETURN_IF_ERROR(PlanFor(specs[l], device, &plan));
    forward &= plan.forward->reserve_layout == ReserveLayout::kCluster;
    backward &=
        plan.backward != nullptr && plan.backward->reserve_layout == ReserveLayout::kCluster;
  }
  const StackForce force = StackForceOf(std::getenv(kForcePlanVariable));
  if (force == StackForce::kNever) return Ok();
  DeviceLimits limits;
  TFL_RETURN_IF_ERROR(GetDeviceLimits(device, &limits));
  const DeviceScope scope(device);
  TFL_RETURN_IF_ERROR(scope.status());
  const bool only_if_faster = force != StackForce::kAlways;
  stack->forward_at_once =
      forward && ClusterStackForwardSupported(specs, layers, only_if_faster, limits);
  stack->backward_at_once =
      backward && ClusterStackBackwardSupported(specs, layers, only_if_faster, limits);
  return Ok();
}

// The first layer's workspace as if it were alone, then the counts.
struct StackForwardWorkspace {
  ForwardWorkspace first;
  void* counts;
  int64_t bytes;

  StackForwardWorkspace(const Stack& stack, void* base)
      : first(stack.specs[0], stack.plans[0], base) {
    Arena arena(base);
    arena.Take(first.bytes);
    counts = arena.Take(ClusterStackWorkspaceBytes(stack.specs[0], stack.layers));
    bytes = arena.used();
  }
};

// The layers' workspaces in one place, since their products run one after the other, but for the
// recurrences' results: the first layer's stay in that place, the others' follow it.
struct StackBackwardWorkspace {
  std::vector<BackwardWorkspace> layers;
  void* counts;
  int64_t bytes;

  StackBackwardWorkspace(const Stack& stack, void* base) {
    int64_t shared = 0;
    for (int l = 0; l < stack.layers; ++l) {
      layers.emplace_back(stack.specs[l], stack.plans[l], base);
      shared = std::max(shared, layers[l].bytes);
    }
    Arena arena(base);
    arena.Take(shared);
    for (int l = 1; l < stack.layers; ++l) {
      const tfl_lstm_spec& spec = stack.specs[l];
      const int64_t states = Rows(spec) * spec.hidden_size * SizeOf(spec.dtype);
      layers[l].grad_gates[0] = arena.Take(4 * states);
      layers[l].previous_h[0] = arena.Take(states);
    }
    counts = arena.Take(ClusterStackWorkspaceBytes(stack.specs[0], stack.layers));
    bytes = arena.used();
  }
};

tfl_status CheckLayers(const tfl_lstm_spec* specs, int32_t num_layers) {
  TFL_RETURN_IF_ERROR(DemandAll({{"specs", specs}}));
  if (num_layers < 1) {
    return Error(TFL_INVALID_ARGUMENT, "num_layers must be at least 1, got %d", num_layers);
  }
  return Ok();
}

tfl_status Sizes(const tfl_lstm_spec* specs, int layers, int device, tfl_lstm_stack_sizes* sizes) {
  *sizes = {};
  Stack stack;
  TFL_RETURN_IF_ERROR(PlanStack(specs, layers, device, &stack));
  sizes->forward_at_once = stack.forward_at_once;
  sizes->backward_at_once = stack.backward_at_once;
  if (stack.forward_at_once) {
    sizes->forward_workspace_bytes = StackForwardWorkspace(stack, nullptr).bytes + kAlignment;
  }
  if (stack.backward_at_once) {
    sizes->backward_workspace_bytes = StackBackwardWorkspace(stack, nullptr).bytes + kAlignment;
  }
  return Ok();
}

tfl_status NotAtOnce() {
  return Error(TFL_INVALID_ARGUMENT, "these layers do not run at once (tfl_cuda_lstm_stack_sizes)");
}

tfl_status Forward(const tfl_lstm_spec* specs, int layers, const tfl_lstm_inputs* inputs,
                   const tfl_lstm_outputs* outputs, const tfl_cuda_runtime& runtime) {
  Stack stack;
  TFL_RETURN_IF_ERROR(PlanStack(specs, layers, runtime.device, &stack));
  if (!stack.forward_at_once) return NotAtOnce();
  for (int l = 0; l < layers; ++l) {
    TFL_RETURN_IF_ERROR(CheckInputs(specs[l], inputs[l]));
    tfl_lstm_outputs all = outputs[l];
    all.workspace = outputs[0].workspace;
    TFL_RETURN_IF_ERROR(CheckOutputs(specs[l], all));
    if (l > 0 && inputs[l].x != outputs[l - 1].output) {
      return Error(TFL_INVALID_ARGUMENT, "x of layer %d must be the output of layer %d", l, l - 1);
    }
  }
  const StackForwardWorkspace workspace(stack, AlignedBase(outputs[0].workspace));
  TFL_RETURN_IF_ERROR(Project(specs[0], 0, inputs[0], workspace.first, runtime));
  std::vector<ForwardRecurrence> calls;
  std::vector<const void*> kernels;
  for (int l = 0; l < layers; ++l) {
    calls.push_back(DescribeForward(specs[l], 0, stack.plans[l], inputs[l], outputs[l],
                                    workspace.first, runtime.device));
    if (l > 0) calls[l].projection = nullptr;
    calls[l].workspace = workspace.counts;
    kernels.push_back(inputs[l].kernel[0]);
  }
  return ClusterStackForward(calls.data(), kernels.data(), layers,
                             static_cast<cudaStream_t>(runtime.stream));
}

tfl_status Backward(const tfl_lstm_spec* specs, int layers, const tfl_lstm_inputs* inputs,
                    const tfl_lstm_saved* saved, const tfl_lstm_gradients* gradients,
                    const tfl_cuda_runtime& runtime) {
  Stack stack;
  TFL_RETURN_IF_ERROR(PlanStack(specs, layers, runtime.device, &stack));
  if (!stack.backward_at_once) return NotAtOnce();
  TFL_RETURN_IF_ERROR(DemandAll({{"workspace", gradients[0].workspace}}));
  for (int l = 0; l < layers; ++l) {
    TFL_RETURN_IF_ERROR(CheckInputs(specs[l], inputs[l]));
    TFL_RETURN_IF_ERROR(CheckSaved(specs[l], saved[l]));
  }
  const StackBackwardWorkspace workspace(stack, AlignedBase(gradients[0].workspace));
  std::vector<BackwardRecurrence> calls;
  std::vector<const void*> kernels;
  std::vector<tfl_lstm_gradients> wanted(gradients, gradients + layers);
  for (int l = 0; l < layers; ++l) {
    if (l > 0) wanted[l].grad_x = nullptr;
    calls.push_back(DescribeBackward(specs[l], 0, stack.plans[l], inputs[l], saved[l], wanted[l],
                                     workspace.layers[l], runtime.device));
    if (l + 1 < layers) calls[l].grad_output = nullptr;
    calls[l].workspace = workspace.counts;
    kernels.push_back(inputs[l].kernel[0]);
  }
  const auto stream = static_cast<cudaStream_t>(runtime.stream);
  TFL_RETURN_IF_ERROR(ClusterStackBackward(calls.data(), kernels.data(), layers, stream));
  for (int l = layers; l-- > 0;) {
    TFL_RETURN_IF_ERROR(WeightAndInputGradients(specs[l], 0, inputs[l], wanted[l],
                                                workspace.layers[l], runtime.device, stream));
  }
  return Ok();
}

}  // namespace
}  // namespace tfl::cuda

extern "C" {

tfl_status tfl_cuda_lstm_stack_sizes(const tfl_lstm_spec* specs, int32_t num_layers, int32_t device,
                                     tfl_lstm_stack_sizes* sizes) {
  TFL_RETURN_IF_ERROR(tfl::cuda::CheckLayers(specs, num_layers));
  TFL_RETURN_IF_ERROR(tfl::cuda::DemandAll({{"sizes", sizes}}));
  return tfl::cuda::Sizes(specs, num_layers, device, sizes);
}

tfl_status tfl_cuda_lstm_stack_forward(const tfl_lstm_spec* specs, int32_t num_layers,
                                       const tfl_lstm_inputs* inputs,
                                       const tfl_lstm_outputs* outputs,
                                       const tfl_cuda_runtime* runtime) {
  TFL_RETURN_IF_ERROR(tfl::cuda::CheckLayers(specs, num_layers));
  TFL_RETURN_IF_ERROR(
      tfl::cuda::DemandAll({{"inputs", inputs}, {"outputs", outputs}, {"runtime", runtime}}));
  const tfl::cuda::DeviceScope scope(runtime->device);
  TFL_RETURN_IF_ERROR(scope.status());
  return tfl::cuda::Forward(specs, num_layers, inputs, outputs, *runtime);
}

tfl_status tfl_cuda_lstm_stack_backward(const tfl_lstm_spec* specs, int32_t num_layers,
                                        const tfl_lstm_inputs* inputs, const tfl_lstm_saved* saved,
                                        const tfl_lstm_gradients* gradients,
                                        const tfl_cuda_runtime* runtime) {
  TFL_RETURN_IF_ERROR(tfl::cuda::CheckLayers(specs, num_layers));
  TFL_RETURN_IF_ERROR(tfl::cuda::DemandAll(
      {{"inputs", inputs}, {"saved", saved}, {"gradients", gradients}, {"runtime", runtime}}));
  const tfl::cuda::DeviceScope scope(runtime->device);
  TFL_RETURN_IF_ERROR(scope.status());
  return tfl::cuda::Backward(specs, num_layers, inputs, saved, gradients, *runtime);
}

}  // extern "C"
