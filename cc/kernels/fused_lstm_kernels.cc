// FusedLSTM and FusedLSTMGrad on CPU and GPU: check, allocate, call the core.
#include "cc/kernels/device.h"
#include "cc/kernels/lstm_call.h"
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

absl::Status AllocateOutput(OpKernelContext* ctx, const char* name, const TensorShape& shape,
                            void** data) {
  OpOutputList list;
  TF_RETURN_IF_ERROR(ctx->output_list(name, &list));
  *data = nullptr;
  if (list.size() == 0) return absl::OkStatus();
  Tensor* tensor = nullptr;
  TF_RETURN_IF_ERROR(list.allocate(0, shape, &tensor));
  *data = tensor->data();
  return absl::OkStatus();
}

template <typename Device>
class FusedLSTMOp : public OpKernel {
 public:
  explicit FusedLSTMOp(OpKernelConstruction* ctx) : OpKernel(ctx), call_(ctx) {}

  void Compute(OpKernelContext* ctx) override { OP_REQUIRES_OK(ctx, Run(ctx)); }

 private:
  absl::Status Run(OpKernelContext* ctx) const {
    tfl_lstm_spec spec;
    tfl_lstm_inputs inputs;
    TF_RETURN_IF_ERROR(call_.Describe(ctx, &spec, &inputs));
    spec.allow_tf32 = tensorflow::tensor_float_32_execution_enabled();
    const Device device(ctx);
    tfl_lstm_sizes sizes;
    TF_RETURN_IF_ERROR(ToStatus(device.Sizes(spec, &sizes)));
    tfl_lstm_outputs outputs = {};
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, "output", OutputShape(spec), &outputs.output));
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, "final_h", StateShape(spec), &outputs.final_h[0]));
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, "final_c", StateShape(spec), &outputs.final_c[0]));
    TF_RETURN_IF_ERROR(
        AllocateOutput(ctx, "reserve", TensorShape({sizes.reserve_bytes}), &outputs.reserve));
    Tensor workspace;
    TF_RETURN_IF_ERROR(AllocateBytes(ctx, sizes.forward_workspace_bytes, &workspace));
    outputs.workspace = workspace.data();
    return ToStatus(device.Forward(spec, inputs, outputs));
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
    tfl_lstm_spec spec;
    tfl_lstm_inputs inputs;
    tfl_lstm_saved saved;
    TF_RETURN_IF_ERROR(call_.Describe(ctx, &spec, &inputs));
    spec.allow_tf32 = tensorflow::tensor_float_32_execution_enabled();
    spec.training = true;
    TF_RETURN_IF_ERROR(call_.DescribeSaved(ctx, spec, &saved));
    const Device device(ctx);
    tfl_lstm_sizes sizes;
    TF_RETURN_IF_ERROR(ToStatus(device.Sizes(spec, &sizes)));

    Tensor output, reserve;  // of a forward pass run again; alive until backward is queued
    const Tensor* given = nullptr;
    TF_RETURN_IF_ERROR(ctx->input("reserve", &given));
    bool keeps = false;
    TF_RETURN_IF_ERROR(CheckReserve(given->shape(), sizes, &keeps));
    if (keeps) {
      saved.reserve = given->data();
    } else {
      TF_RETURN_IF_ERROR(RunForward(ctx, device, spec, sizes, inputs, &output, &reserve));
      saved.output = output.data();
      saved.reserve = reserve.data();
    }

    tfl_lstm_gradients gradients = {};
    const int64_t gates = 4 * spec.hidden_size;
    const TensorShape state = StateShape(spec);
    TF_RETURN_IF_ERROR(
        AllocateOutput(ctx, "grad_x", RowsShape(spec, spec.input_size), &gradients.grad_x));
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, "grad_kernel", TensorShape({spec.input_size, gates}),
                                      &gradients.grad_kernel[0]));
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, "grad_recurrent_kernel",
                                      TensorShape({spec.hidden_size, gates}),
                                      &gradients.grad_recurrent_kernel[0]));
    TF_RETURN_IF_ERROR(
        AllocateOutput(ctx, "grad_bias", TensorShape({gates}), &gradients.grad_bias[0]));
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, "grad_initial_h", state, &gradients.grad_initial_h[0]));
    TF_RETURN_IF_ERROR(AllocateOutput(ctx, "grad_initial_c", state, &gradients.grad_initial_c[0]));
    Tensor workspace;
    TF_RETURN_IF_ERROR(AllocateBytes(ctx, sizes.backward_workspace_bytes, &workspace));
    gradients.workspace = workspace.data();
    return ToStatus(device.Backward(spec, inputs, saved, gradients));
  }

  static absl::Status RunForward(OpKernelContext* ctx, const Device& device,
                                 const tfl_lstm_spec& spec, const tfl_lstm_sizes& sizes,
                                 const tfl_lstm_inputs& inputs, Tensor* output, Tensor* reserve) {
    const tensorflow::DataType type = ctx->input_dtype(0);
    Tensor final_h, final_c, workspace;
    TF_RETURN_IF_ERROR(ctx->allocate_temp(type, OutputShape(spec), output));
    TF_RETURN_IF_ERROR(ctx->allocate_temp(type, StateShape(spec), &final_h));
    TF_RETURN_IF_ERROR(ctx->allocate_temp(type, StateShape(spec), &final_c));
    TF_RETURN_IF_ERROR(AllocateBytes(ctx, sizes.reserve_bytes, reserve));
    TF_RETURN_IF_ERROR(AllocateBytes(ctx, sizes.forward_workspace_bytes, &workspace));
    tfl_lstm_outputs outputs = {};
    outputs.output = output->data();
    outputs.final_h[0] = final_h.data();
    outputs.final_c[0] = final_c.data();
    outputs.reserve = reserve->data();
    outputs.workspace = workspace.data();
    return ToStatus(device.Forward(spec, inputs, outputs));
  }

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
