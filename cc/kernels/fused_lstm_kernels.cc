// FusedLSTM and FusedLSTMGrad on CPU and GPU: check, allocate, call the core.
#include <vector>

#include "cc/kernels/device.h"
#include "cc/kernels/lstm_call.h"
#include "cc/kernels/lstm_stack.h"
#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/tensor_float_32_utils.h"

namespace tf_fused_lstm {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::OpOutputList;
using tensorflow::Tensor;
using tensorflow::TensorShape;

absl::Status AllocateBytes(OpKernelContext* ctx, int64_t bytes, Tensor* tensor) {
  return ctx->allocate_temp(tensorflow::DT_UINT8, TensorShape({bytes}), tensor);
}

// Tensor `index` of output list `name`; null where the list is empty.
absl::Status AllocateOutput(OpKernelContext* ctx, const char* name, size_t index,
                            const TensorShape& shape, void** data) {
  OpOutputList list;
  TF_RETURN_IF_ERROR(ctx->output_list(name, &list));
  *data = nullptr;
  if (list.size() == 0) return absl::OkStatus();
  Tensor* tensor = nullptr;
  TF_RETURN_IF_ERROR(list.allocate(static_cast<int>(index), shape, &tensor));
  *data = tensor->data();
  return absl::OkStatus();
}

void SetForAll(StackSpec* spec, bool training) {
  for (tfl_lstm_spec& layer : *spec) {
    layer.allow_tf32 = tensorflow::tensor_float_32_execution_enabled();
    layer.training = layer.training || training;
  }
}

template <typename Device>
class FusedLSTMOp : public OpKernel {
 public:
  explicit FusedLSTMOp(OpKernelConstruction* ctx) : OpKernel(ctx), call_(ctx) {}

  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, Run(ctx)); }

 private:
  absl::Status Run(OpKernelContext* ctx) const {
    StackSpec spec;
    StackForward call;
    TF_RETURN_IF_ERROR(call_.Describe(ctx, &spec, &call.inputs));
    SetForAll(&spec, false);
    const Device device(ctx);
    StackPlan plan;
    TF_RETURN_IF_ERROR(ToStatus(PlanStack(device, spec, &plan)));
    call.outputs.assign(spec.size(), {});
    TF_RETURN_IF_ERROR(
        AllocateOutput(ctx, "output", 0, OutputShape(spec.back()), &call.outputs.back().output));
    const size_t directions = spec[0].num_directions;
    for (size_t cell = 0; cell < spec.size() * directions; ++cell) {
      const size_t layer = cell / directions, d = cell % directions;
      const TensorShape state = StateShape(spec[layer]);
      tfl_lstm_outputs& outputs = call.outputs[layer];
      TF_RETURN_IF_ERROR(AllocateOutput(ctx, "final_h", cell, state, &outputs.final_h[d]));
      TF_RETURN_IF_ERROR(AllocateOutput(ctx, "final_c", cell, state, &outputs.final_c[d]));
    }
    TF_RETURN_IF_ERROR(
        AllocateOutput(ctx, "reserve", 0, TensorShape({plan.reserve_bytes}), &call.reserve));
    Tensor workspace;
    TF_RETURN_IF_ERROR(AllocateBytes(ctx, plan.forward_workspace_bytes, &workspace));
    call.workspace = workspace.data();
    return ToStatus(RunStackForward(device, spec, plan, call));
  }

  const LstmCall call_;
};

template <typename Device>
class FusedLSTMGradOp : public OpKernel {
 public:
  explicit FusedLSTMGradOp(OpKernelConstruction* ctx) : OpKernel(ctx), call_(ctx) {}

  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, Run(ctx)); }

 private:
  absl::Status Run(OpKernelContext* ctx) const {
    StackSpec spec;
    StackBackward call;
    TF_RETURN_IF_ERROR(call_.Describe(ctx, &spec, &call.inputs));
    SetForAll(&spec, true);
    TF_RETURN_IF_ERROR(call_.DescribeSaved(ctx, spec, &call.saved));
    const Device device(ctx);
    const Tensor* given = nullptr;
    TF_RETURN_IF_ERROR(ctx->input("reserve", &given));
    StackPlan plan;
    TF_RETURN_IF_ERROR(ToStatus(PlanStackFor(given->NumElements(), device, &spec, &plan)));

    Forward again;  // alive until backward is queued
    bool keeps = false;
    TF_RETURN_IF_ERROR(CheckReserve(given->shape(), plan, &keeps));
    if (keeps) {
      call.reserve = given->data();
    } else {
      TF_RETURN_IF_ERROR(again.Run(ctx, device, spec, plan, call.inputs));
      call.saved.back().output = again.output.data();
      call.reserve = again.reserve.data();
    }

    call.gradients.assign(spec.size(), {});
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, "grad_x", 0, RowsShape(spec[0], spec[0].input_size),
                                      &call.gradients[0].grad_x));
    const size_t directions = spec[0].num_directions;
    for (size_t cell = 0; cell < spec.size() * directions; ++cell) {
      TF_RETURN_IF_ERROR(AllocateCell(ctx, spec[cell / directions], cell, cell % directions,
                                      &call.gradients[cell / directions]));
    }
    Tensor workspace;
    TF_RETURN_IF_ERROR(AllocateBytes(ctx, plan.backward_workspace_bytes, &workspace));
    call.workspace = workspace.data();
    return ToStatus(RunStackBackward(device, spec, plan, call));
  }

  static absl::Status AllocateCell(OpKernelContext* ctx, const tfl_lstm_spec& spec, size_t cell,
                                   size_t direction, tfl_lstm_gradients* gradients) {
    const int64_t gates = 4 * spec.hidden_size;
    const TensorShape state = StateShape(spec);
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, "grad_kernel", cell,
                                      TensorShape({spec.input_size, gates}),
                                      &gradients->grad_kernel[direction]));
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, "grad_recurrent_kernel", cell,
                                      TensorShape({spec.hidden_size, gates}),
                                      &gradients->grad_recurrent_kernel[direction]));
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, "grad_bias", cell, TensorShape({gates}),
                                      &gradients->grad_bias[direction]));
    TF_RETURN_IF_ERROR(
        AllocateOutput(ctx, "grad_initial_h", cell, state, &gradients->grad_initial_h[direction]));
    return AllocateOutput(ctx, "grad_initial_c", cell, state,
                          &gradients->grad_initial_c[direction]);
  }

  // The forward pass run again for its output and reserve.
  struct Forward {
    Tensor output, reserve, workspace;
    std::vector<Tensor> states;

    absl::Status Run(OpKernelContext* ctx, const Device& device, const StackSpec& spec,
                     const StackPlan& plan, const std::vector<tfl_lstm_inputs>& inputs) {
      const tensorflow::DataType type = ctx->input_dtype(0);
      StackForward call;
      call.inputs = inputs;
      call.outputs.assign(spec.size(), {});
      TF_RETURN_IF_ERROR(ctx->allocate_temp(type, OutputShape(spec.back()), &output));
      call.outputs.back().output = output.data();
      for (size_t layer = 0; layer < spec.size(); ++layer) {
        tfl_lstm_outputs& outputs = call.outputs[layer];
        for (int d = 0; d < spec[layer].num_directions; ++d) {
          for (void** state : {&outputs.final_h[d], &outputs.final_c[d]}) {
            states.emplace_back();
            TF_RETURN_IF_ERROR(ctx->allocate_temp(type, StateShape(spec[layer]), &states.back()));
            *state = states.back().data();
          }
        }
      }
      TF_RETURN_IF_ERROR(AllocateBytes(ctx, plan.reserve_bytes, &reserve));
      TF_RETURN_IF_ERROR(AllocateBytes(ctx, plan.forward_workspace_bytes, &workspace));
      call.reserve = reserve.data();
      call.workspace = workspace.data();
      return ToStatus(RunStackForward(device, spec, plan, call));
    }
  };

  const LstmCall call_;
};

REGISTER_KERNEL_BUILDER(Name("FusedLSTM").Device(tensorflow::DEVICE_CPU), FusedLSTMOp<CpuDevice>);
REGISTER_KERNEL_BUILDER(Name("FusedLSTMGrad").Device(tensorflow::DEVICE_CPU),
                        FusedLSTMGradOp<CpuDevice>);

// A library without CUDA code registers nothing for GPUs, so that soft placement takes the CPU.
template <typename Kernel>
void RegisterForGpu(const char* op) {
  static const tensorflow::kernel_factory::OpKernelRegistrar registrar(
      tensorflow::KernelDefBuilder(op).Device(tensorflow::DEVICE_GPU).Build(), op,
      [](OpKernelConstruction* ctx) -> OpKernel* { return new Kernel(ctx); });
}

[[maybe_unused]] const bool registered_for_gpu = [] {
  if (tfl_built_with_cuda() == 0) return false;
  RegisterForGpu<FusedLSTMOp<GpuDevice>>("FusedLSTM");
  RegisterForGpu<FusedLSTMGradOp<GpuDevice>>("FusedLSTMGrad");
  return true;
}();

}  // namespace
}  // namespace tf_fused_lstm
