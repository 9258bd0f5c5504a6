#include "cc/lstm/cuda/call.h"

#include <algorithm>
#include <cstdlib>

#include "cc/lstm/cuda/device_limits.h"
#include "cc/lstm/cuda/dtype.h"
#include "cc/lstm/cuda/elementwise.h"
#include "cc/lstm/cuda/gemm.h"

namespace tfl::cuda {
namespace {

int64_t XBytes(const tfl_lstm_spec& spec, tfl_dtype dtype) {
  return Rows(spec) * spec.input_size * SizeOf(dtype);
}

// The projection stays in the accumulator's type: rounding it would cost more accuracy than a
// 16-bit h does.
tfl_dtype ProjectionType(const tfl_lstm_spec& spec) { return AccumulatorOf(spec.dtype); }

// A product of few elements is done in parts of k where the recurrence can sum them: cuBLASLt would
// add a kernel for that. A dropout mask for each gate makes products of its own.
int ProjectionParts(const tfl_lstm_spec& spec, const Plan& plan) {
  if (!plan.forward->sums_projection || spec.num_dropout_masks > 0) return 1;
  const int64_t rows = Rows(spec), gates = 4 * spec.hidden_size, depth = spec.input_size;
  const int parts = PartsFor(rows, gates, depth);
  return parts > 1 && rows * gates * depth > kSmallGemmMostProducts ? parts : 1;
}

int64_t ConvertedKernelBytes(const tfl_lstm_spec& spec) {
  if (spec.weight_dtype == spec.dtype) return 0;
  return 4 * spec.input_size * spec.hidden_size * SizeOf(spec.dtype);
}

// Whether grad_x is a sum of several products, and has no room for it itself.
bool GradXIsSummed(const tfl_lstm_spec& spec) {
  return (spec.num_directions > 1 || spec.num_dropout_masks > 0) &&
         AccumulatorOf(spec.dtype) != spec.dtype;
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

const void* At(const void* base, int64_t elements, tfl_dtype dtype) {
  return base == nullptr ? nullptr : static_cast<const char*>(base) + elements * SizeOf(dtype);
}
void* At(void* base, int64_t elements, tfl_dtype dtype) {
  return const_cast<void*>(At(const_cast<const void*>(base), elements, dtype));
}

// The spec as direction d reads x by it.
tfl_lstm_spec DirectionSpec(tfl_lstm_spec spec, int d) {
  if (d == 1) spec.go_backwards = 1;
  return spec;
}
int64_t OutputStride(const tfl_lstm_spec& spec) { return spec.num_directions * spec.hidden_size; }

// A tensor over time of `width` a row, as rows for its dropout masks.
DropoutRows MaskedRows(const tfl_lstm_spec& spec, int64_t width) {
  return {spec.dtype, Rows(spec), width, spec.batch, spec.time_major ? 1 : spec.steps};
}

// c = a b of one direction, or of each gate by itself where a has a dropout mask for each: b and c
// then hold the gates' columns side by side.
tfl_status GatedGemm(const Gemm& gemm, const DropoutRows& rows, const void* masks, int num_masks,
                     int64_t hidden, void* dropped, int device, void* workspace,
                     cudaStream_t stream) {
  if (num_masks == 0) return RunGemm(gemm, device, workspace, stream);
  for (int gate = 0; gate < num_masks; ++gate) {
    TFL_RETURN_IF_ERROR(
        Drop(rows, gemm.a, At(masks, gate * rows.batch * rows.width, rows.dtype), dropped, stream));
    Gemm part = gemm;
    part.a = dropped;
    if (num_masks == 4) part.n = hidden;
    part.b = At(gemm.b, gate * hidden, gemm.input_dtype);
    part.c = At(gemm.c, gate * hidden, gemm.output_dtype);
    TFL_RETURN_IF_ERROR(RunGemm(part, device, workspace, stream));
  }
  return Ok();
}

// Direction d's share of grad_x, set or (from the second on) added.
tfl_status InputGradient(const tfl_lstm_spec& spec, int d, const tfl_lstm_inputs& inputs,
                         const tfl_lstm_gradients& gradients, const BackwardWorkspace& workspace,
                         int device, cudaStream_t stream) {
  const int64_t gates = 4 * spec.hidden_size;
  const int masks = spec.num_dropout_masks;
  const bool summed = GradXIsSummed(spec);
  void* sum = summed ? workspace.grad_x : gradients.grad_x;
  const void* kernel;
  TFL_RETURN_IF_ERROR(KernelInDtype(spec, inputs.kernel[d], workspace.kernel, stream, &kernel));
  Gemm gemm = {};
  gemm.m = Rows(spec);
  gemm.n = gemm.ldc = spec.input_size;
  gemm.k = gemm.lda = gemm.ldb = gates;
  gemm.a = workspace.grad_gates[d];
  gemm.b = kernel;
  gemm.transpose_b = true;
  gemm.c = sum;
  gemm.accumulate = d > 0;
  gemm.input_dtype = spec.dtype;
  gemm.output_dtype = summed ? AccumulatorOf(spec.dtype) : spec.dtype;
  gemm.allow_tf32 = spec.allow_tf32 != 0;
  if (masks == 0) {
    TFL_RETURN_IF_ERROR(RunGemm(gemm, device, workspace.gemm, stream));
  }
  const DropoutRows rows = MaskedRows(spec, spec.input_size);
  for (int gate = 0; gate < masks; ++gate) {
    Gemm part = gemm;
    if (masks == 4) part.k = spec.hidden_size;
    part.a = At(gemm.a, gate * spec.hidden_size, spec.dtype);
    part.b = At(gemm.b, gate * spec.hidden_size, spec.dtype);
    part.c = workspace.dropped;
    part.accumulate = false;
    TFL_RETURN_IF_ERROR(RunGemm(part, device, workspace.gemm, stream));
    const void* mask = At(inputs.dropout_mask[d], gate * rows.batch * rows.width, spec.dtype);
    TFL_RETURN_IF_ERROR(AddDropped(rows, workspace.dropped, mask, d > 0 || gate > 0, sum, stream));
  }
  if (!summed || d + 1 < spec.num_directions) return Ok();
  return Convert(sum, AccumulatorOf(spec.dtype), gradients.grad_x, spec.dtype,
                 Rows(spec) * spec.input_size, stream);
}

}  // namespace

ForwardWorkspace::ForwardWorkspace(const tfl_lstm_spec& spec, const Plan& plan, void* base) {
  const int64_t recurrence_bytes = plan.forward->forward_workspace_bytes(spec);
  projection_parts = ProjectionParts(spec, plan);
  const int64_t projected =
      projection_parts * 4 * Rows(spec) * spec.hidden_size * SizeOf(ProjectionType(spec));
  Arena lasting(base);
  projection[0] = lasting.Take(projected);
  projection[1] = plan.forward_both ? lasting.Take(projected) : projection[0];
  recurrence = lasting.Take(0);
  Arena products(recurrence);
  gemm = products.Take(kGemmWorkspaceBytes);
  kernel = products.Take(ConvertedKernelBytes(spec));
  dropped = products.Take(spec.num_dropout_masks == 0 ? 0 : XBytes(spec, spec.dtype));
  bytes = lasting.used() + std::max(products.used(), Align(recurrence_bytes));
}

BackwardWorkspace::BackwardWorkspace(const tfl_lstm_spec& spec, const Plan& plan, void* base) {
  const int64_t recurrence_bytes = plan.backward->backward_workspace_bytes(spec);
  const int64_t rows = Rows(spec), hidden = spec.hidden_size;
  Arena lasting(base);
  for (int d = 0; d < TFL_MAX_DIRECTIONS; ++d) {
    const bool own = d == 0 || plan.backward_both;
    grad_gates[d] = own ? lasting.Take(4 * rows * hidden * SizeOf(spec.dtype)) : grad_gates[0];
    previous_h[d] = own ? lasting.Take(rows * hidden * SizeOf(spec.dtype)) : previous_h[0];
  }
  const tfl_dtype wide = AccumulatorOf(spec.dtype);
  grad_x = lasting.Take(GradXIsSummed(spec) ? XBytes(spec, wide) : 0);
  recurrence = lasting.Take(0);
  Arena products(recurrence);
  gemm = products.Take(kGemmWorkspaceBytes);
  kernel = products.Take(ConvertedKernelBytes(spec));
  column_sum = products.Take(ColumnSumWorkspaceBytes(rows, 4 * hidden, spec.dtype));
  dropped = products.Take(
      std::max(spec.num_dropout_masks == 0 ? 0 : XBytes(spec, wide),
               spec.num_recurrent_dropout_masks == 0 ? 0 : rows * hidden * SizeOf(spec.dtype)));
  unmasked_x = products.Take(spec.has_mask ? XBytes(spec, spec.dtype) : 0);
  bytes = lasting.used() + std::max(products.used(), Align(recurrence_bytes));
}

void* AlignedBase(void* workspace) {
  return reinterpret_cast<void*>(
      Align(static_cast<int64_t>(reinterpret_cast<intptr_t>(workspace))));
}

tfl_status PlanFor(const tfl_lstm_spec& spec, int device, Plan* plan) {
  DeviceLimits limits;
  TFL_RETURN_IF_ERROR(GetDeviceLimits(device, &limits));
  const DeviceScope scope(device);  // how many clusters fit is asked of the current device
  TFL_RETURN_IF_ERROR(scope.status());
  return MakePlan(spec, limits, Families(), std::getenv(kForcePlanVariable), plan);
}

tfl_status Project(const tfl_lstm_spec& spec, int d, const tfl_lstm_inputs& inputs,
                   const ForwardWorkspace& workspace, const tfl_cuda_runtime& runtime,
                   bool* next_may_begin_early) {
  const auto stream = static_cast<cudaStream_t>(runtime.stream);
  const void* kernel;
  TFL_RETURN_IF_ERROR(KernelInDtype(spec, inputs.kernel[d], workspace.kernel, stream, &kernel));
  Gemm gemm = {};
  gemm.m = Rows(spec);
  gemm.n = 4 * spec.hidden_size;
  gemm.k = spec.input_size;
  gemm.a = inputs.x;
  gemm.lda = spec.input_size;
  gemm.b = kernel;
  gemm.ldb = gemm.ldc = 4 * spec.hidden_size;
  gemm.c = workspace.projection[d];
  gemm.parts = workspace.projection_parts;
  gemm.one_kernel = gemm.parts > 1;
  gemm.input_dtype = spec.dtype;
  gemm.output_dtype = ProjectionType(spec);
  gemm.allow_tf32 = spec.allow_tf32 != 0;
  if (next_may_begin_early != nullptr) {
    *next_may_begin_early = spec.num_dropout_masks == 0 && SmallGemmSuits(gemm);
  }
  return GatedGemm(gemm, MaskedRows(spec, spec.input_size), inputs.dropout_mask[d],
                   spec.num_dropout_masks, spec.hidden_size, workspace.dropped, runtime.device,
                   workspace.gemm, stream);
}

ForwardRecurrence DescribeForward(const tfl_lstm_spec& spec, int d, const Plan& plan,
                                  const tfl_lstm_inputs& inputs, const tfl_lstm_outputs& outputs,
                                  const ForwardWorkspace& workspace, int device) {
  ForwardRecurrence call = {};
  call.spec = DirectionSpec(spec, d);
  call.projection = workspace.projection[d];
  call.projection_parts = workspace.projection_parts;
  call.projection_dtype = ProjectionType(spec);
  call.recurrent_kernel = inputs.recurrent_kernel[d];
  call.bias = spec.has_bias ? inputs.bias[d] : nullptr;
  call.initial_h = spec.has_initial_h ? inputs.initial_h[d] : nullptr;
  call.initial_c = spec.has_initial_c ? inputs.initial_c[d] : nullptr;
  call.mask = spec.has_mask ? inputs.mask : nullptr;
  call.recurrent_dropout_mask = inputs.recurrent_dropout_mask[d];
  call.output = At(outputs.output, d * spec.hidden_size, spec.dtype);
  call.output_stride = OutputStride(spec);
  call.output_reversed = d == 1;
  call.final_h = outputs.final_h[d];
  call.final_c = outputs.final_c[d];
  if (spec.training) {
    call.reserve =
        static_cast<char*>(outputs.reserve) + d * Align(plan.forward->reserve_bytes(spec));
  }
  call.workspace = workspace.recurrence;
  call.device = device;
  return call;
}

tfl_status WeightAndInputGradients(const tfl_lstm_spec& spec, int d, const tfl_lstm_inputs& inputs,
                                   const tfl_lstm_gradients& gradients,
                                   const BackwardWorkspace& workspace, int device,
                                   cudaStream_t stream) {
  const int64_t rows = Rows(spec), hidden = spec.hidden_size, gates = 4 * hidden;
  Gemm gemm = {};
  gemm.n = gates;
  gemm.k = rows;
  gemm.transpose_a = true;
  gemm.b = workspace.grad_gates[d];
  gemm.ldb = gemm.ldc = gates;
  gemm.input_dtype = spec.dtype;
  gemm.output_dtype = spec.weight_dtype;
  gemm.allow_tf32 = spec.allow_tf32 != 0;
  if (gradients.grad_kernel[d] != nullptr) {
    gemm.m = gemm.lda = spec.input_size;
    gemm.a = inputs.x;
    if (spec.has_mask) {  // 0 times whatever lies in x at masked steps must be 0
      TFL_RETURN_IF_ERROR(CopyUnmaskedRows(inputs.x, inputs.mask, rows, spec.input_size, spec.dtype,
                                           workspace.unmasked_x, stream));
      gemm.a = workspace.unmasked_x;
    }
    gemm.c = gradients.grad_kernel[d];
    TFL_RETURN_IF_ERROR(GatedGemm(gemm, MaskedRows(spec, spec.input_size), inputs.dropout_mask[d],
                                  spec.num_dropout_masks, hidden, workspace.dropped, device,
                                  workspace.gemm, stream));
  }
  if (gradients.grad_recurrent_kernel[d] != nullptr) {
    gemm.m = gemm.lda = hidden;
    gemm.a = workspace.previous_h[d];
    gemm.c = gradients.grad_recurrent_kernel[d];
    TFL_RETURN_IF_ERROR(GatedGemm(gemm, MaskedRows(spec, hidden), inputs.recurrent_dropout_mask[d],
                                  spec.num_recurrent_dropout_masks, hidden, workspace.dropped,
                                  device, workspace.gemm, stream));
  }
  if (gradients.grad_bias[d] != nullptr) {
    TFL_RETURN_IF_ERROR(ColumnSum(workspace.grad_gates[d], spec.dtype, rows, gates,
                                  gradients.grad_bias[d], spec.weight_dtype, workspace.column_sum,
                                  stream));
  }
  if (gradients.grad_x == nullptr) return Ok();
  return InputGradient(spec, d, inputs, gradients, workspace, device, stream);
}

BackwardRecurrence DescribeBackward(const tfl_lstm_spec& spec, int d, const Plan& plan,
                                    const tfl_lstm_inputs& inputs, const tfl_lstm_saved& saved,
                                    const tfl_lstm_gradients& gradients,
                                    const BackwardWorkspace& workspace, int device) {
  BackwardRecurrence call = {};
  call.spec = DirectionSpec(spec, d);
  call.recurrent_kernel = inputs.recurrent_kernel[d];
  call.initial_h = spec.has_initial_h ? inputs.initial_h[d] : nullptr;
  call.initial_c = spec.has_initial_c ? inputs.initial_c[d] : nullptr;
  call.mask = spec.has_mask ? inputs.mask : nullptr;
  call.recurrent_dropout_mask = inputs.recurrent_dropout_mask[d];
  call.output = At(saved.output, d * spec.hidden_size, spec.dtype);
  call.reserve =
      static_cast<const char*>(saved.reserve) + d * Align(plan.forward->reserve_bytes(spec));
  call.grad_output = At(saved.grad_output, d * spec.hidden_size, spec.dtype);
  call.output_stride = OutputStride(spec);
  call.output_reversed = d == 1;
  call.grad_final_h = saved.grad_final_h[d];
  call.grad_final_c = saved.grad_final_c[d];
  call.grad_gates = workspace.grad_gates[d];
  call.grad_gates_dtype = spec.dtype;
  call.previous_h =
      gradients.grad_recurrent_kernel[d] == nullptr ? nullptr : workspace.previous_h[d];
  call.grad_initial_h = gradients.grad_initial_h[d];
  call.grad_initial_c = gradients.grad_initial_c[d];
  call.workspace = workspace.recurrence;
  call.device = device;
  return call;
}

tfl_status DemandAll(std::initializer_list<std::pair<const char*, const void*>> arguments) {
  for (const auto& [name, pointer] : arguments) {
    if (pointer == nullptr) return Error(TFL_INVALID_ARGUMENT, "%s must not be null", name);
  }
  return Ok();
}

}  // namespace tfl::cuda
