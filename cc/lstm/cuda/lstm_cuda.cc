// The CUDA entry points of lstm.h: the input projection before the recurrence, the weight and input
// gradients after it, and the division of the workspace. The recurrence is a family's (plan.h).
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdlib>
#include <initializer_list>
#include <utility>

#include "cc/lstm/cuda/check.h"
#include "cc/lstm/cuda/device_limits.h"
#include "cc/lstm/cuda/dtype.h"
#include "cc/lstm/cuda/elementwise.h"
#include "cc/lstm/cuda/gemm.h"
#include "cc/lstm/cuda/plan.h"
#include "cc/lstm/cuda/recurrence.h"
#include "cc/lstm/cuda/status.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {
namespace {

int64_t Rows(const tfl_lstm_spec& spec) { return spec.batch * spec.steps; }
bool NothingRuns(const tfl_lstm_spec& spec) { return Rows(spec) == 0 || spec.hidden_size == 0; }

// The projection stays in the accumulator's type: rounding it would cost more accuracy than a
// 16-bit h does.
tfl_dtype ProjectionType(const tfl_lstm_spec& spec) { return AccumulatorOf(spec.dtype); }

int64_t ConvertedKernelBytes(const tfl_lstm_spec& spec) {
  if (spec.weight_dtype == spec.dtype) return 0;
  return 4 * spec.input_size * spec.hidden_size * SizeOf(spec.dtype);
}

// The products and the recurrence run one after the other, so their scratch shares one place.
struct ForwardWorkspace {
  void* projection;
  void* recurrence;
  void* gemm;
  void* kernel;
  int64_t bytes;

  ForwardWorkspace(const tfl_lstm_spec& spec, int64_t recurrence_bytes, void* base) {
    Arena lasting(base);
    projection = lasting.Take(4 * Rows(spec) * spec.hidden_size * SizeOf(ProjectionType(spec)));
    recurrence = lasting.Take(0);
    Arena products(recurrence);
    gemm = products.Take(kGemmWorkspaceBytes);
    kernel = products.Take(ConvertedKernelBytes(spec));
    bytes = lasting.used() + std::max(products.used(), Align(recurrence_bytes));
  }
};

struct BackwardWorkspace {
  void* grad_gates;
  void* previous_h;
  void* recurrence;
  void* gemm;
  void* kernel;
  void* column_sum;
  int64_t bytes;

  BackwardWorkspace(const tfl_lstm_spec& spec, int64_t recurrence_bytes, void* base) {
    const int64_t rows = Rows(spec), hidden = spec.hidden_size;
    Arena lasting(base);
    grad_gates = lasting.Take(4 * rows * hidden * SizeOf(spec.dtype));
    previous_h = lasting.Take(rows * hidden * SizeOf(spec.dtype));
    recurrence = lasting.Take(0);
    Arena products(recurrence);
    gemm = products.Take(kGemmWorkspaceBytes);
    kernel = products.Take(ConvertedKernelBytes(spec));
    column_sum = products.Take(ColumnSumWorkspaceBytes(rows, 4 * hidden, spec.dtype));
    bytes = lasting.used() + std::max(products.used(), Align(recurrence_bytes));
  }
};

// The caller aligns to 64 bytes; the parts want kAlignment.
void* AlignedBase(void* workspace) {
  return reinterpret_cast<void*>(
      Align(static_cast<int64_t>(reinterpret_cast<intptr_t>(workspace))));
}

// Kernels, and what the driver says of them, belong to the current device: makes it the call's, and
// puts the caller's back after.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    if (cudaGetDevice(&before_) == cudaSuccess && before_ != device) {
      changed_ = true;
      error_ = cudaSetDevice(device);
    }
  }
  ~DeviceScope() {
    if (changed_) cudaSetDevice(before_);
  }
  tfl_status status() const { return FromCuda(error_, "choosing the device"); }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t error_ = cudaSuccess;
};

tfl_status PlanFor(const tfl_lstm_spec& spec, int device, Plan* plan) {
  DeviceLimits limits;
  TFL_RETURN_IF_ERROR(GetDeviceLimits(device, &limits));
  const DeviceScope scope(device);  // how many clusters fit is asked of the current device
  TFL_RETURN_IF_ERROR(scope.status());
  return MakePlan(spec, limits, Families(), std::getenv(kForcePlanVariable), plan);
}

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
  TFL_RETURN_IF_ERROR(CopyState(spec, inputs.initial_h, outputs.final_h, stream));
  TFL_RETURN_IF_ERROR(CopyState(spec, inputs.initial_c, outputs.final_c, stream));
  return spec.return_sequences ? Ok() : CopyState(spec, nullptr, outputs.output, stream);
}

tfl_status BackwardOfNothing(const tfl_lstm_spec& spec, const tfl_lstm_saved& saved,
                             const tfl_lstm_gradients& gradients, cudaStream_t stream) {
  const int64_t hidden = spec.hidden_size, weight = SizeOf(spec.weight_dtype);
  TFL_RETURN_IF_ERROR(
      Clear(gradients.grad_x, Rows(spec) * spec.input_size * SizeOf(spec.dtype), stream));
  TFL_RETURN_IF_ERROR(Clear(gradients.grad_kernel, 4 * spec.input_size * hidden * weight, stream));
  TFL_RETURN_IF_ERROR(Clear(gradients.grad_recurrent_kernel, 4 * hidden * hidden * weight, stream));
  TFL_RETURN_IF_ERROR(Clear(gradients.grad_bias, 4 * hidden * weight, stream));
  TFL_RETURN_IF_ERROR(CopyState(spec, saved.grad_final_h, gradients.grad_initial_h, stream));
  return CopyState(spec, saved.grad_final_c, gradients.grad_initial_c, stream);
}

// Gives *kernel: the input weights in spec.dtype, converted into scratch where they differ.
tfl_status KernelInDtype(const tfl_lstm_spec& spec, const void* given, void* scratch,
                         cudaStream_t stream, const void** kernel) {
  *kernel = given;
  if (spec.weight_dtype == spec.dtype) return Ok();
  *kernel = scratch;
  return Convert(given, spec.weight_dtype, scratch, spec.dtype,
                 4 * spec.input_size * spec.hidden_size, stream);
}

tfl_status Forward(const tfl_lstm_spec& given, const tfl_lstm_inputs& inputs,
                   const tfl_lstm_outputs& outputs, const tfl_cuda_runtime& runtime) {
  tfl_lstm_spec spec = given;
  TFL_RETURN_IF_ERROR(CheckSpec(spec));
  TFL_RETURN_IF_ERROR(CheckInputs(spec, inputs));
  TFL_RETURN_IF_ERROR(CheckOutputs(spec, outputs));
  const auto stream = static_cast<cudaStream_t>(runtime.stream);
  if (NothingRuns(spec)) return ForwardOfNothing(spec, inputs, outputs, stream);
  Plan plan;
  TFL_RETURN_IF_ERROR(PlanFor(spec, runtime.device, &plan));
  const ForwardWorkspace workspace(spec, plan.forward->forward_workspace_bytes(spec),
                                   AlignedBase(outputs.workspace));

  const void* kernel;
  TFL_RETURN_IF_ERROR(KernelInDtype(spec, inputs.kernel, workspace.kernel, stream, &kernel));
  Gemm projection = {};
  projection.m = Rows(spec);
  projection.n = 4 * spec.hidden_size;
  projection.k = spec.input_size;
  projection.a = inputs.x;
  projection.lda = spec.input_size;
  projection.b = kernel;
  projection.ldb = projection.ldc = 4 * spec.hidden_size;
  projection.c = workspace.projection;
  projection.input_dtype = spec.dtype;
  projection.output_dtype = ProjectionType(spec);
  projection.allow_tf32 = spec.allow_tf32 != 0;
  TFL_RETURN_IF_ERROR(RunGemm(projection, runtime.device, workspace.gemm, stream));

  ForwardRecurrence call = {};
  call.spec = spec;
  call.projection = workspace.projection;
  call.projection_dtype = ProjectionType(spec);
  call.recurrent_kernel = inputs.recurrent_kernel;
  call.bias = spec.has_bias ? inputs.bias : nullptr;
  call.initial_h = spec.has_initial_h ? inputs.initial_h : nullptr;
  call.initial_c = spec.has_initial_c ? inputs.initial_c : nullptr;
  call.mask = spec.has_mask ? inputs.mask : nullptr;
  call.output = outputs.output;
  call.final_h = outputs.final_h;
  call.final_c = outputs.final_c;
  call.reserve = spec.training ? outputs.reserve : nullptr;
  call.workspace = workspace.recurrence;
  call.device = runtime.device;
  return plan.forward->forward(call, stream);
}

// grad_kernel, grad_recurrent_kernel, grad_bias and grad_x from the gate gradients.
tfl_status WeightAndInputGradients(const tfl_lstm_spec& spec, const tfl_lstm_inputs& inputs,
                                   const tfl_lstm_gradients& gradients,
                                   const BackwardWorkspace& workspace, int device,
                                   cudaStream_t stream) {
  const int64_t rows = Rows(spec), gates = 4 * spec.hidden_size;
  Gemm gemm = {};
  gemm.n = gates;
  gemm.k = rows;
  gemm.transpose_a = true;
  gemm.b = workspace.grad_gates;
  gemm.ldb = gemm.ldc = gates;
  gemm.input_dtype = spec.dtype;
  gemm.output_dtype = spec.weight_dtype;
  gemm.allow_tf32 = spec.allow_tf32 != 0;
  if (gradients.grad_kernel != nullptr) {
    gemm.m = gemm.lda = spec.input_size;
    gemm.a = inputs.x;
    gemm.c = gradients.grad_kernel;
    TFL_RETURN_IF_ERROR(RunGemm(gemm, device, workspace.gemm, stream));
  }
  if (gradients.grad_recurrent_kernel != nullptr) {
    gemm.m = gemm.lda = spec.hidden_size;
    gemm.a = workspace.previous_h;
    gemm.c = gradients.grad_recurrent_kernel;
    TFL_RETURN_IF_ERROR(RunGemm(gemm, device, workspace.gemm, stream));
  }
  if (gradients.grad_bias != nullptr) {
    TFL_RETURN_IF_ERROR(ColumnSum(workspace.grad_gates, spec.dtype, rows, gates,
                                  gradients.grad_bias, spec.weight_dtype, workspace.column_sum,
                                  stream));
  }
  if (gradients.grad_x != nullptr) {
    const void* kernel;
    TFL_RETURN_IF_ERROR(KernelInDtype(spec, inputs.kernel, workspace.kernel, stream, &kernel));
    gemm.m = rows;
    gemm.n = gemm.ldc = spec.input_size;
    gemm.k = gemm.lda = gemm.ldb = gates;
    gemm.a = workspace.grad_gates;
    gemm.transpose_a = false;
    gemm.b = kernel;
    gemm.transpose_b = true;
    gemm.c = gradients.grad_x;
    gemm.output_dtype = spec.dtype;
    TFL_RETURN_IF_ERROR(RunGemm(gemm, device, workspace.gemm, stream));
  }
  return Ok();
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
  const BackwardWorkspace workspace(spec, plan.backward->backward_workspace_bytes(spec),
                                    AlignedBase(gradients.workspace));
  BackwardRecurrence call = {};
  call.spec = spec;
  call.recurrent_kernel = inputs.recurrent_kernel;
  call.initial_h = spec.has_initial_h ? inputs.initial_h : nullptr;
  call.initial_c = spec.has_initial_c ? inputs.initial_c : nullptr;
  call.mask = spec.has_mask ? inputs.mask : nullptr;
  call.output = saved.output;
  call.reserve = saved.reserve;
  call.grad_output = saved.grad_output;
  call.grad_final_h = saved.grad_final_h;
  call.grad_final_c = saved.grad_final_c;
  call.grad_gates = workspace.grad_gates;
  call.grad_gates_dtype = spec.dtype;
  call.previous_h = gradients.grad_recurrent_kernel == nullptr ? nullptr : workspace.previous_h;
  call.grad_initial_h = gradients.grad_initial_h;
  call.grad_initial_c = gradients.grad_initial_c;
  call.workspace = workspace.recurrence;
  call.device = runtime.device;
  TFL_RETURN_IF_ERROR(plan.backward->backward(call, stream));
  return WeightAndInputGradients(spec, inputs, gradients, workspace, runtime.device, stream);
}

tfl_status DemandAll(std::initializer_list<std::pair<const char*, const void*>> arguments) {
  for (const auto& [name, pointer] : arguments) {
    if (pointer == nullptr) return Error(TFL_INVALID_ARGUMENT, "%s must not be null", name);
  }
  return Ok();
}

tfl_status Sizes(const tfl_lstm_spec& spec, int device, tfl_lstm_sizes* sizes) {
  *sizes = {};
  TFL_RETURN_IF_ERROR(CheckSpec(spec));
  if (NothingRuns(spec)) return Ok();
  Plan plan;
  TFL_RETURN_IF_ERROR(PlanFor(spec, device, &plan));
  sizes->forward_workspace_bytes =
      ForwardWorkspace(spec, plan.forward->forward_workspace_bytes(spec), nullptr).bytes +
      kAlignment;
  if (spec.training) {
    sizes->reserve_bytes = plan.forward->reserve_bytes(spec);
    sizes->backward_workspace_bytes =
        BackwardWorkspace(spec, plan.backward->backward_workspace_bytes(spec), nullptr).bytes +
        kAlignment;
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
