// FusedLSTM and FusedLSTMGrad in functions that XLA compiles: check, then emit a custom call to the
// core. Sizes are known while compiling, so reserve and workspace are results of the call.
#include <algorithm>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cc/kernels/core_device.h"
#include "cc/kernels/lstm_call.h"
#include "cc/kernels/xla_on_demand.h"
#include "cc/xla/lstm_attributes.h"
#include "tensorflow/compiler/tf2xla/shape_util.h"
#include "tensorflow/compiler/tf2xla/xla_op_kernel.h"
#include "tensorflow/compiler/tf2xla/xla_op_registry.h"
#include "tensorflow/core/platform/tensor_float_32_utils.h"
#include "xla/hlo/builder/xla_builder.h"
#include "xla/layout_util.h"
#include "xla/shape_util.h"

namespace tf_fused_lstm {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::XlaOpKernel;
using tensorflow::XlaOpKernelContext;

xla::Shape Bytes(int64_t bytes) { return xla::ShapeUtil::MakeShape(xla::U8, {bytes}); }

// The custom call's results but for its workspace.
absl::StatusOr<std::vector<xla::XlaOp>> EmitCall(XlaOpKernelContext* ctx, const char* target,
                                                 const std::vector<xla::XlaOp>& operands,
                                                 std::vector<xla::Shape> results,
                                                 int64_t workspace_bytes,
                                                 const LstmAttributes& attributes) {
  std::vector<xla::Shape> operand_shapes;
  for (const xla::XlaOp& operand : operands) {
    TF_ASSIGN_OR_RETURN(xla::Shape shape, ctx->builder()->GetShape(operand));
    // The core takes row-major tensors; left alone, XLA may choose another layout.
    xla::LayoutUtil::SetToDefaultLayout(&shape);
    operand_shapes.push_back(std::move(shape));
  }
  const size_t count = results.size();
  results.push_back(Bytes(workspace_bytes + kWorkspaceAlignment));
  const xla::XlaOp call = xla::CustomCallWithLayout(
      ctx->builder(), target, operands, xla::ShapeUtil::MakeTupleShape(results), operand_shapes,
      ToText(attributes), /*has_side_effect=*/false, /*output_operand_aliasing=*/{},
      /*literal=*/nullptr, xla::CustomCallSchedule::SCHEDULE_NONE,
      xla::CustomCallApiVersion::API_VERSION_TYPED_FFI);
  std::vector<xla::XlaOp> values;
  for (size_t i = 0; i < count; ++i) values.push_back(xla::GetTupleElement(call, i));
  return values;
}

// What the kernels of the two ops share.
class LstmXlaKernel : public XlaOpKernel {
 public:
  explicit LstmXlaKernel(OpKernelConstruction* ctx)
      : XlaOpKernel(ctx),
        call_(ctx),
        on_gpu_(ctx->device_type() == tensorflow::DEVICE_GPU_XLA_JIT) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_dropout_mask", &num_dropout_mask_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("num_recurrent_dropout_mask", &num_recurrent_dropout_mask_));
  }

  void Compile(XlaOpKernelContext* ctx) override {
    const absl::Status status = Emit(ctx);
    if (!status.ok()) ctx->CtxFailure(__FILE__, __LINE__, status);
  }

 protected:
  virtual absl::Status Emit(XlaOpKernelContext* ctx) const = 0;

  // XLA's tensors hold their shape, so that the op kernels' checks serve here too.
  absl::Status Describe(XlaOpKernelContext* ctx, LstmAttributes* attributes) const {
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      TF_ASSIGN_OR_RETURN(const xla::Shape shape, ctx->InputXlaShape(i));
      if (shape.is_dynamic()) {
        return absl::UnimplementedError(absl::StrCat(call_.NameOfInput(ctx->op_kernel_context(), i),
                                                     " must have a static shape under XLA, got ",
                                                     shape.ToString()));
      }
    }
    std::vector<tfl_lstm_inputs> unused;
    TF_RETURN_IF_ERROR(call_.Describe(ctx->op_kernel_context(), &attributes->spec, &unused));
    for (tfl_lstm_spec& layer : attributes->spec) {
      layer.allow_tf32 = tensorflow::tensor_float_32_execution_enabled();
    }
    attributes->has_dropout_mask = num_dropout_mask_ > 0;
    attributes->has_recurrent_dropout_mask = num_recurrent_dropout_mask_ > 0;
    const auto* threads = ctx->op_kernel_context()->device()->tensorflow_cpu_worker_threads();
    attributes->num_threads = threads == nullptr ? 1 : ThreadsOf(*threads);
    return absl::OkStatus();
  }

  // For a reserve of reserve_bytes that forward kept, 0 for none.
  absl::Status Plan(XlaOpKernelContext* ctx, int64_t reserve_bytes, LstmAttributes* attributes,
                    StackPlan* plan) const {
    const int ordinal = std::max(ctx->compiler()->options().device_ordinal, 0);
    return ToStatus(
        on_gpu_ ? PlanStackFor(reserve_bytes, CudaCore({nullptr, ordinal}), &attributes->spec, plan)
                : PlanStackFor(reserve_bytes, CpuSizes{{}, attributes->num_threads},
                               &attributes->spec, plan));
  }

  // The same buffers must do for a run without a thread pool. The reserve does not depend on it.
  struct CpuSizes : LayersInTurn {
    int32_t num_threads;
    tfl_status Sizes(const tfl_lstm_spec& spec, tfl_lstm_sizes* sizes) const {
      tfl_lstm_sizes alone;
      tfl_status status = tfl_cpu_lstm_sizes(&spec, 1, &alone);
      if (status.code == TFL_OK) status = tfl_cpu_lstm_sizes(&spec, num_threads, sizes);
      if (status.code != TFL_OK) return status;
      sizes->forward_workspace_bytes =
          std::max(sizes->forward_workspace_bytes, alone.forward_workspace_bytes);
      sizes->backward_workspace_bytes =
          std::max(sizes->backward_workspace_bytes, alone.backward_workspace_bytes);
      return status;
    }
  };

  // output, final_h of every cell, final_c likewise, reserve.
  absl::StatusOr<std::vector<xla::XlaOp>> EmitForward(XlaOpKernelContext* ctx,
                                                      const std::vector<xla::XlaOp>& operands,
                                                      const LstmAttributes& attributes,
                                                      const StackPlan& plan) const {
    const StackSpec& spec = attributes.spec;
    std::vector<xla::Shape> results(1), states;
    TF_RETURN_IF_ERROR(tensorflow::TensorShapeToXLAShape(ctx->input_type(0),
                                                         OutputShape(spec.back()), &results[0]));
    for (const tfl_lstm_spec& layer : spec) {
      xla::Shape state;
      TF_RETURN_IF_ERROR(
          tensorflow::TensorShapeToXLAShape(ctx->input_type(0), StateShape(layer), &state));
      states.insert(states.end(), layer.num_directions, state);
    }
    for (int i = 0; i < 2; ++i) results.insert(results.end(), states.begin(), states.end());
    results.push_back(Bytes(plan.reserve_bytes));
    return EmitCall(ctx, kForwardTarget, operands, std::move(results), plan.forward_workspace_bytes,
                    attributes);
  }

  static std::vector<xla::XlaOp> Inputs(XlaOpKernelContext* ctx, int count) {
    std::vector<xla::XlaOp> inputs;
    for (int i = 0; i < count; ++i) inputs.push_back(ctx->Input(i));
    return inputs;
  }

  static void SetOutputs(XlaOpKernelContext* ctx, const std::vector<xla::XlaOp>& outputs) {
    for (size_t i = 0; i < outputs.size(); ++i) ctx->SetOutput(static_cast<int>(i), outputs[i]);
  }

  const LstmCall call_;

 private:
  const bool on_gpu_;
  int num_dropout_mask_ = 0;
  int num_recurrent_dropout_mask_ = 0;
};

class FusedLSTMXlaKernel : public LstmXlaKernel {
 public:
  using LstmXlaKernel::LstmXlaKernel;

 protected:
  absl::Status Emit(XlaOpKernelContext* ctx) const override {
    LstmAttributes attributes;
    StackPlan plan;
    TF_RETURN_IF_ERROR(Describe(ctx, &attributes));
    TF_RETURN_IF_ERROR(Plan(ctx, 0, &attributes, &plan));
    TF_ASSIGN_OR_RETURN(const std::vector<xla::XlaOp> outputs,
                        EmitForward(ctx, Inputs(ctx, ctx->num_inputs()), attributes, plan));
    SetOutputs(ctx, outputs);
    return absl::OkStatus();
  }
};

class FusedLSTMGradXlaKernel : public LstmXlaKernel {
 public:
  using LstmXlaKernel::LstmXlaKernel;

 protected:
  absl::Status Emit(XlaOpKernelContext* ctx) const override {
    LstmAttributes attributes;
    StackPlan plan;
    TF_RETURN_IF_ERROR(Describe(ctx, &attributes));
    for (tfl_lstm_spec& layer : attributes.spec) layer.training = true;
    const StackSpec& spec = attributes.spec;
    std::vector<tfl_lstm_saved> unused;
    TF_RETURN_IF_ERROR(call_.DescribeSaved(ctx->op_kernel_context(), spec, &unused));

    // After the shared inputs: output, reserve, grad_output, grad_final_h and grad_final_c.
    const int cells = static_cast<int>(spec.size()) * spec[0].num_directions;
    const int shared = ctx->num_inputs() - 3 - 2 * cells;
    std::vector<xla::XlaOp> operands = Inputs(ctx, ctx->num_inputs());
    const TensorShape reserve = ctx->op_kernel_context()->input(shared + 1).shape();
    TF_RETURN_IF_ERROR(Plan(ctx, reserve.num_elements(), &attributes, &plan));
    bool keeps = false;
    TF_RETURN_IF_ERROR(CheckReserve(reserve, plan, &keeps));
    if (!keeps) {
      TF_ASSIGN_OR_RETURN(const std::vector<xla::XlaOp> forward,
                          EmitForward(ctx, Inputs(ctx, shared), attributes, plan));
      operands[shared] = forward.front();
      operands[shared + 1] = forward.back();
    }

    // The gradients have the shapes of what they are with respect to; masks have none.
    const int masks = spec[0].has_mask +
                      cells * (attributes.has_dropout_mask + attributes.has_recurrent_dropout_mask);
    std::vector<xla::Shape> results;
    for (int i = 0; i < shared - masks; ++i) {
      TF_ASSIGN_OR_RETURN(xla::Shape shape, ctx->InputXlaShape(i));
      xla::LayoutUtil::SetToDefaultLayout(&shape);
      results.push_back(std::move(shape));
    }
    TF_ASSIGN_OR_RETURN(const std::vector<xla::XlaOp> gradients,
                        EmitCall(ctx, kBackwardTarget, operands, std::move(results),
                                 plan.backward_workspace_bytes, attributes));
    SetOutputs(ctx, gradients);
    return absl::OkStatus();
  }
};

}  // namespace
}  // namespace tf_fused_lstm

extern "C" __attribute__((visibility("default"))) tensorflow::OpKernel*
tf_fused_lstm_make_xla_kernel(tensorflow::OpKernelConstruction* ctx) {
  if (ctx->def().op() == "FusedLSTM") return new tf_fused_lstm::FusedLSTMXlaKernel(ctx);
  return new tf_fused_lstm::FusedLSTMGradXlaKernel(ctx);
}
static_assert(
    std::is_same_v<decltype(tf_fused_lstm_make_xla_kernel), tf_fused_lstm::MakeXlaKernel>);
