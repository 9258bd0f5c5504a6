#include "cc/lstm/cuda/step/step.h"

#include "cc/lstm/cuda/dtype.h"
#include "cc/lstm/cuda/elementwise.h"
#include "cc/lstm/cuda/gemm.h"
#include "cc/lstm/cuda/previous_hidden.h"
#include "cc/lstm/cuda/reserve.h"
#include "cc/lstm/cuda/status.h"
#include "cc/lstm/cuda/step/pointwise.h"

namespace tfl::cuda {
namespace {

// Bytes of one value per (batch, unit).
int64_t StateBytes(const tfl_lstm_spec& spec, tfl_dtype dtype) {
  return spec.batch * spec.hidden_size * SizeOf(dtype);
}

int64_t RecurrentKernelCount(const tfl_lstm_spec& spec) {
  return 4 * spec.hidden_size * spec.hidden_size;
}

// The parts of k in a step's product, whose sum the kernel after it takes.
int ForwardParts(const tfl_lstm_spec& spec) {
  return spec.num_recurrent_dropout_masks > 1
             ? 1
             : PartsFor(spec.batch, 4 * spec.hidden_size, spec.hidden_size);
}
int BackwardParts(const tfl_lstm_spec& spec) {
  return spec.num_recurrent_dropout_masks > 0
             ? 1
             : PartsFor(spec.batch, spec.hidden_size, 4 * spec.hidden_size);
}

struct ForwardScratch {
  void* gemm;
  void* recurrent_kernel;  // dtype, where the weights are wider
  void* bias;              // accumulator type, where the weights are narrower
  void* product;
  void* initial_c;  // accumulator type, where dtype is narrower
  void* h;
  void* c;
  void* dropped;  // dtype [masks, batch, hidden]
  int64_t* first_valid;
  int64_t bytes;

  ForwardScratch(const tfl_lstm_spec& spec, void* base) {
    Arena arena(base);
    const tfl_dtype wide = AccumulatorOf(spec.dtype);
    gemm = arena.Take(kGemmWorkspaceBytes);
    recurrent_kernel = arena.Take(
        spec.weight_dtype == spec.dtype ? 0 : RecurrentKernelCount(spec) * SizeOf(spec.dtype));
    bias = arena.Take(spec.weight_dtype == wide ? 0 : 4 * spec.hidden_size * SizeOf(wide));
    product = arena.Take(ForwardParts(spec) * 4 * StateBytes(spec, wide));
    initial_c = arena.Take(spec.dtype == wide ? 0 : StateBytes(spec, wide));
    h = arena.Take(StateBytes(spec, spec.dtype));
    c = arena.Take(spec.training ? 0 : StateBytes(spec, wide));
    dropped = arena.Take(spec.num_recurrent_dropout_masks * StateBytes(spec, spec.dtype));
    first_valid = static_cast<int64_t*>(
        arena.Take(spec.has_mask ? spec.batch * static_cast<int64_t>(sizeof(int64_t)) : 0));
    bytes = arena.used();
  }
};

struct BackwardScratch {
  void* gemm;
  void* recurrent_kernel;
  void* initial_c;
  void* grad_h;
  void* grad_c;
  void* grad_gates;  // of one step, dense, where x is batch-major
  void* product;     // the gradient of h, in parts or before its dropout mask
  int64_t* first_valid;
  int64_t bytes;

  BackwardScratch(const tfl_lstm_spec& spec, void* base) {
    Arena arena(base);
    const tfl_dtype wide = AccumulatorOf(spec.dtype);
    gemm = arena.Take(kGemmWorkspaceBytes);
    recurrent_kernel = arena.Take(
        spec.weight_dtype == spec.dtype ? 0 : RecurrentKernelCount(spec) * SizeOf(spec.dtype));
    initial_c = arena.Take(spec.dtype == wide ? 0 : StateBytes(spec, wide));
    grad_h = arena.Take(StateBytes(spec, wide));
    grad_c = arena.Take(StateBytes(spec, wide));
    grad_gates = arena.Take(spec.time_major ? 0 : 4 * StateBytes(spec, spec.dtype));
    product = arena.Take(BackwardParts(spec) * StateBytes(spec, wide));
    first_valid = static_cast<int64_t*>(
        arena.Take(spec.has_mask ? spec.batch * static_cast<int64_t>(sizeof(int64_t)) : 0));
    bytes = arena.used();
  }
};

// Gives *converted: `values` itself, or a copy in `scratch` if the types differ.
tfl_status Converted(const void* values, tfl_dtype from, tfl_dtype to, int64_t count, void* scratch,
                     cudaStream_t stream, const void** converted) {
  *converted = values;
  if (values == nullptr || from == to) return Ok();
  *converted = scratch;
  return Convert(values, from, scratch, to, count, stream);
}

// h, or one of its gradients, as rows for their dropout masks.
DropoutRows StateRows(const tfl_lstm_spec& spec) {
  return {spec.dtype, spec.batch, spec.hidden_size, spec.batch, 1};
}

const void* At(const void* base, int64_t elements, tfl_dtype dtype) {
  return base == nullptr ? nullptr : static_cast<const char*>(base) + elements * SizeOf(dtype);
}
void* At(void* base, int64_t elements, tfl_dtype dtype) {
  return const_cast<void*>(At(const_cast<const void*>(base), elements, dtype));
}

}  // namespace

int64_t StepReserveBytes(const tfl_lstm_spec& spec) { return Reserve(spec, nullptr).bytes; }
int64_t StepForwardWorkspaceBytes(const tfl_lstm_spec& spec) {
  return ForwardScratch(spec, nullptr).bytes;
}
int64_t StepBackwardWorkspaceBytes(const tfl_lstm_spec& spec) {
  return BackwardScratch(spec, nullptr).bytes;
}

tfl_status StepForward(const ForwardRecurrence& call, cudaStream_t stream) {
  const tfl_lstm_spec& spec = call.spec;
  const tfl_dtype dtype = spec.dtype, wide = AccumulatorOf(dtype);
  const int64_t batch = spec.batch, steps = spec.steps, hidden = spec.hidden_size;
  const ForwardScratch scratch(spec, call.workspace);
  const Reserve reserve(spec, spec.training ? call.reserve : nullptr);
  const void *recurrent_kernel, *bias, *initial_c;
  TFL_RETURN_IF_ERROR(Converted(call.recurrent_kernel, spec.weight_dtype, dtype,
                                RecurrentKernelCount(spec), scratch.recurrent_kernel, stream,
                                &recurrent_kernel));
  TFL_RETURN_IF_ERROR(
      Converted(call.bias, spec.weight_dtype, wide, 4 * hidden, scratch.bias, stream, &bias));
  TFL_RETURN_IF_ERROR(Converted(call.initial_c, dtype, wide, batch * hidden, scratch.initial_c,
                                stream, &initial_c));
  if (call.mask != nullptr) {
    TFL_RETURN_IF_ERROR(FirstValidStep(spec, call.mask, scratch.first_valid, stream));
  }

  Gemm gemm = {};
  gemm.m = batch;
  gemm.n = 4 * hidden;
  gemm.k = hidden;
  gemm.lda = hidden;
  gemm.b = recurrent_kernel;
  gemm.ldb = gemm.ldc = 4 * hidden;
  gemm.c = scratch.product;
  gemm.parts = ForwardParts(spec);
  gemm.input_dtype = dtype;
  gemm.output_dtype = wide;
  gemm.allow_tf32 = spec.allow_tf32 != 0;

  ForwardStep step = {};
  step.batch_stride = spec.time_major ? 1 : steps;
  step.bias = bias;
  step.first_valid = scratch.first_valid;
  step.zero_output_for_mask = spec.zero_output_for_mask != 0;
  step.activation = spec.activation;
  step.recurrent_activation = spec.recurrent_activation;
  step.batch = batch;
  step.hidden_size = hidden;
  step.previous_h = call.initial_h;
  step.previous_c = initial_c;
  step.product_parts = ForwardParts(spec);
  step.h = scratch.h;
  const int masks = spec.num_recurrent_dropout_masks;
  const int64_t cells = batch * hidden;
  step.dropout_mask = call.recurrent_dropout_mask;
  step.dropout_masks = masks;
  step.dropped = scratch.dropped;
  for (int mask = 0; mask < masks && call.initial_h != nullptr; ++mask) {
    TFL_RETURN_IF_ERROR(Drop(StateRows(spec), call.initial_h,
                             At(call.recurrent_dropout_mask, mask * cells, dtype),
                             At(scratch.dropped, mask * cells, dtype), stream));
  }
  // The product of a step: h R, or with a mask for each gate one product for each.
  const auto multiply = [&](const void* h) -> tfl_status {
    gemm.a = masks == 0 ? h : scratch.dropped;
    if (masks < 4) return RunGemm(gemm, call.device, scratch.gemm, stream);
    for (int gate = 0; gate < 4; ++gate) {
      Gemm part = gemm;
      part.n = hidden;
      part.a = At(scratch.dropped, gate * cells, dtype);
      part.b = At(gemm.b, gate * hidden, dtype);
      part.c = At(gemm.c, gate * hidden, wide);
      TFL_RETURN_IF_ERROR(RunGemm(part, call.device, scratch.gemm, stream));
    }
    return Ok();
  };
  const int64_t step_rows = spec.time_major ? batch : 1;  // from one step's first row to the next's
  for (int64_t s = 0; s < steps; ++s) {
    const int64_t t = spec.go_backwards ? steps - 1 - s : s;
    const bool last = s == steps - 1;
    if (step.previous_h != nullptr) {
      TFL_RETURN_IF_ERROR(multiply(step.previous_h));
      step.product = scratch.product;
    }
    step.step = s;
    step.projection = At(call.projection, t * step_rows * 4 * hidden, wide);
    step.mask = call.mask == nullptr ? nullptr : call.mask + t * step_rows;
    step.c = spec.training ? At(reserve.cell, s * batch * hidden, wide) : scratch.c;
    step.gates = spec.training ? At(reserve.gates, s * batch * 4 * hidden, dtype) : nullptr;
    step.hidden_copy = spec.training ? At(reserve.hidden, s * batch * hidden, dtype) : nullptr;
    if (spec.return_sequences) {
      const int64_t row = call.output_reversed ? steps - 1 - s : s;
      step.output = At(call.output, row * step_rows * call.output_stride, dtype);
      step.output_batch_stride = step.batch_stride * call.output_stride;
    } else {
      step.output = last ? call.output : nullptr;
      step.output_batch_stride = call.output_stride;
    }
    step.final_h = last ? call.final_h : nullptr;
    step.final_c = last ? call.final_c : nullptr;
    TFL_RETURN_IF_ERROR(RunForwardStep(step, dtype, stream));
    step.previous_h = scratch.h;
    step.previous_c = step.c;
  }
  return Ok();
}

tfl_status StepBackward(const BackwardRecurrence& call, cudaStream_t stream) {
  const tfl_lstm_spec& spec = call.spec;
  const tfl_dtype dtype = spec.dtype, wide = AccumulatorOf(dtype);
  const int64_t batch = spec.batch, steps = spec.steps, hidden = spec.hidden_size;
  const int64_t cells = batch * hidden;
  const BackwardScratch scratch(spec, call.workspace);
  const Reserve reserve(spec, call.reserve);
  const void *recurrent_kernel, *initial_c;
  TFL_RETURN_IF_ERROR(Converted(call.recurrent_kernel, spec.weight_dtype, dtype,
                                RecurrentKernelCount(spec), scratch.recurrent_kernel, stream,
                                &recurrent_kernel));
  TFL_RETURN_IF_ERROR(
      Converted(call.initial_c, dtype, wide, cells, scratch.initial_c, stream, &initial_c));
  if (call.mask != nullptr) {
    TFL_RETURN_IF_ERROR(FirstValidStep(spec, call.mask, scratch.first_valid, stream));
  }
  const auto begin = [&](const void* gradient, void* state) {
    if (gradient != nullptr) return Convert(gradient, dtype, state, wide, cells, stream);
    return FromCuda(cudaMemsetAsync(state, 0, cells * SizeOf(wide), stream),
                    "clearing a state's gradient");
  };
  TFL_RETURN_IF_ERROR(begin(call.grad_final_h, scratch.grad_h));
  TFL_RETURN_IF_ERROR(begin(call.grad_final_c, scratch.grad_c));

  const int64_t step_rows = spec.time_major ? batch : 1;
  BackwardStep step = {};
  step.batch_stride = spec.time_major ? 1 : steps;
  step.first_valid = scratch.first_valid;
  step.zero_output_for_mask = spec.zero_output_for_mask != 0;
  step.activation = spec.activation;
  step.recurrent_activation = spec.recurrent_activation;
  step.batch = batch;
  step.hidden_size = hidden;
  step.product_parts = BackwardParts(spec);
  step.grad_h = scratch.grad_h;
  step.grad_c = scratch.grad_c;
  step.grad_gates_dense = spec.time_major ? nullptr : scratch.grad_gates;

  Gemm gemm = {};
  gemm.m = batch;
  gemm.n = hidden;
  gemm.k = 4 * hidden;
  gemm.lda = 4 * hidden;
  gemm.b = recurrent_kernel;
  gemm.ldb = 4 * hidden;
  gemm.transpose_b = true;
  gemm.c = scratch.product;
  gemm.parts = BackwardParts(spec);
  gemm.ldc = hidden;
  gemm.input_dtype = dtype;
  gemm.output_dtype = wide;
  gemm.allow_tf32 = spec.allow_tf32 != 0;
  const int masks = spec.num_recurrent_dropout_masks;
  // product = the gate gradients times R transposed; with dropout grad_h (+)= that, each gate's
  // share times its mask.
  const auto multiply = [&]() -> tfl_status {
    if (masks == 0) return RunGemm(gemm, call.device, scratch.gemm, stream);
    Gemm part = gemm;
    if (masks == 4) part.k = hidden;
    for (int gate = 0; gate < masks; ++gate) {
      part.a = At(gemm.a, gate * hidden, dtype);
      part.b = At(gemm.b, gate * hidden, dtype);
      TFL_RETURN_IF_ERROR(RunGemm(part, call.device, scratch.gemm, stream));
      TFL_RETURN_IF_ERROR(AddDropped(StateRows(spec), scratch.product,
                                     At(call.recurrent_dropout_mask, gate * cells, dtype),
                                     gate > 0 || call.mask != nullptr, scratch.grad_h, stream));
    }
    return Ok();
  };
  for (int64_t s = steps - 1; s >= 0; --s) {
    const int64_t t = spec.go_backwards ? steps - 1 - s : s;
    step.step = s;
    step.gates = At(reserve.gates, s * 4 * cells, dtype);
    step.cell = At(reserve.cell, s * cells, wide);
    step.previous_c = s == 0 ? initial_c : At(reserve.cell, (s - 1) * cells, wide);
    step.mask = call.mask == nullptr ? nullptr : call.mask + t * step_rows;
    step.grad_gates = At(call.grad_gates, t * step_rows * 4 * hidden, dtype);
    if (spec.return_sequences) {
      const int64_t row = call.output_reversed ? steps - 1 - s : s;
      step.grad_output = At(call.grad_output, row * step_rows * call.output_stride, dtype);
      step.grad_output_batch_stride = step.batch_stride * call.output_stride;
    } else {
      step.grad_output = s == steps - 1 ? call.grad_output : nullptr;
      step.grad_output_batch_stride = call.output_stride;
    }
    TFL_RETURN_IF_ERROR(RunBackwardStep(step, dtype, stream));
    if (s == 0 && call.grad_initial_h == nullptr) break;
    gemm.a = spec.time_major ? step.grad_gates : step.grad_gates_dense;
    TFL_RETURN_IF_ERROR(multiply());
    if (masks == 0) step.product = scratch.product;
  }
  if (call.grad_initial_h != nullptr) {
    const void* passed = step.product == nullptr || call.mask != nullptr ? scratch.grad_h : nullptr;
    const int parts = step.product == nullptr ? 0 : step.product_parts;
    TFL_RETURN_IF_ERROR(
        SumParts(step.product, parts, cells, passed, call.grad_initial_h, dtype, stream));
  }
  if (call.grad_initial_c != nullptr) {
    TFL_RETURN_IF_ERROR(Convert(scratch.grad_c, wide, call.grad_initial_c, dtype, cells, stream));
  }

  return WritePreviousHiddenFromReserve(call, scratch.first_valid, stream);
}

}  // namespace tfl::cuda
