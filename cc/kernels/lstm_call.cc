#include "cc/kernels/lstm_call.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace tf_fused_lstm {
namespace {

using tensorflow::DataType;
using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

tfl_dtype CoreDtype(DataType type) {
  switch (type) {
    case tensorflow::DT_DOUBLE:
      return TFL_FLOAT64;
    case tensorflow::DT_HALF:
      return TFL_FLOAT16;
    case tensorflow::DT_BFLOAT16:
      return TFL_BFLOAT16;
    default:
      return TFL_FLOAT32;  // the op's list of types holds no other
  }
}

tfl_activation CoreActivation(const std::string& name) {
  if (name == "sigmoid") return TFL_SIGMOID;
  if (name == "hard_sigmoid") return TFL_HARD_SIGMOID;
  if (name == "relu") return TFL_RELU;
  if (name == "linear") return TFL_LINEAR;
  return TFL_TANH;  // the op's list of names holds no other
}

template <typename Value>
absl::Status GetFlag(OpKernelConstruction* ctx, const char* name, Value* flag) {
  bool value = false;
  TF_RETURN_IF_ERROR(ctx->GetAttr(name, &value));
  *flag = value;
  return absl::OkStatus();
}

absl::Status ReadAttributes(OpKernelConstruction* ctx, tfl_lstm_spec* spec) {
  DataType type, weight_type;
  TF_RETURN_IF_ERROR(ctx->GetAttr("T", &type));
  TF_RETURN_IF_ERROR(ctx->GetAttr("W", &weight_type));
  spec->dtype = CoreDtype(type);
  spec->weight_dtype = CoreDtype(weight_type);
  const bool narrow = spec->dtype == TFL_FLOAT16 || spec->dtype == TFL_BFLOAT16;
  if (spec->weight_dtype != spec->dtype && !(narrow && spec->weight_dtype == TFL_FLOAT32)) {
    return absl::InvalidArgumentError(
        absl::StrCat("kernel must be ", tensorflow::DataTypeString(type), narrow ? " or float" : "",
                     " like x, got ", tensorflow::DataTypeString(weight_type)));
  }
  int cells = 0;
  TF_RETURN_IF_ERROR(ctx->GetAttr("N", &cells));
  if (cells != 1) {
    return absl::InvalidArgumentError(absl::StrCat("kernel must be 1 tensor, got ", cells));
  }
  for (const char* name : {"bias", "initial_h", "initial_c", "mask"}) {
    int count = 0;
    TF_RETURN_IF_ERROR(ctx->GetAttr(absl::StrCat("num_", name), &count));
    if (count > 1) {
      return absl::InvalidArgumentError(absl::StrCat(name, " must be no tensor or 1, got ", count));
    }
  }
  std::string activation, recurrent_activation;
  TF_RETURN_IF_ERROR(ctx->GetAttr("activation", &activation));
  TF_RETURN_IF_ERROR(ctx->GetAttr("recurrent_activation", &recurrent_activation));
  spec->num_directions = 1;
  spec->activation = CoreActivation(activation);
  spec->recurrent_activation = CoreActivation(recurrent_activation);
  TF_RETURN_IF_ERROR(GetFlag(ctx, "time_major", &spec->time_major));
  TF_RETURN_IF_ERROR(GetFlag(ctx, "go_backwards", &spec->go_backwards));
  TF_RETURN_IF_ERROR(GetFlag(ctx, "return_sequences", &spec->return_sequences));
  TF_RETURN_IF_ERROR(GetFlag(ctx, "zero_output_for_mask", &spec->zero_output_for_mask));
  if (ctx->HasAttr("training")) TF_RETURN_IF_ERROR(GetFlag(ctx, "training", &spec->training));
  return absl::OkStatus();
}

// The only tensor of list `name`, or null where it has none.
absl::Status Optional(OpKernelContext* ctx, const char* name, const Tensor** tensor) {
  OpInputList list;
  TF_RETURN_IF_ERROR(ctx->input_list(name, &list));
  *tensor = list.size() == 0 ? nullptr : &list[0];
  return absl::OkStatus();
}

absl::Status WrongShape(const char* name, const std::string& wanted, const TensorShape& got) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must have shape ", wanted, ", got ", got.DebugString()));
}

// Whether the shapes made of x's and recurrent_kernel's sizes exist: the sizes of a tensor without
// elements may have products beyond int64, and a TensorShape of those would end the process.
absl::Status CheckSizes(const tfl_lstm_spec& spec) {
  const int64_t gates = 4 * spec.hidden_size;
  const int64_t outer = spec.time_major ? spec.steps : spec.batch;
  const int64_t inner = spec.time_major ? spec.batch : spec.steps;
  TensorShape shape;
  if (TensorShape::BuildTensorShape({spec.input_size, gates}, &shape).ok() &&
      TensorShape::BuildTensorShape({spec.batch, spec.hidden_size}, &shape).ok() &&
      TensorShape::BuildTensorShape({outer, inner, spec.hidden_size}, &shape).ok()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "x and recurrent_kernel must have sizes whose products fit in 63 bits, got batch ",
      spec.batch, ", steps ", spec.steps, ", input_size ", spec.input_size, ", hidden_size ",
      spec.hidden_size));
}

// Shapes as text for error messages.
constexpr char kStateMeaning[] = "[batch, hidden_size]";

const char* OutputMeaning(const tfl_lstm_spec& spec) {
  if (!spec.return_sequences) return kStateMeaning;
  return spec.time_major ? "[steps, batch, hidden_size]" : "[batch, steps, hidden_size]";
}

}  // namespace

LstmCall::LstmCall(OpKernelConstruction* ctx) { OP_REQUIRES_OK(ctx, ReadAttributes(ctx, &spec_)); }

absl::Status LstmCall::Checked(OpKernelContext* ctx, const char* name, const char* meaning,
                               const TensorShape& wanted, const void** data) const {
  const Tensor* tensor = nullptr;
  TF_RETURN_IF_ERROR(Optional(ctx, name, &tensor));
  *data = nullptr;
  if (tensor == nullptr) return absl::OkStatus();
  if (tensor->shape() != wanted) {
    return WrongShape(name, absl::StrCat(meaning, " = ", wanted.DebugString()), tensor->shape());
  }
  *data = tensor->data();
  return absl::OkStatus();
}

absl::Status LstmCall::Describe(OpKernelContext* ctx, tfl_lstm_spec* spec,
                                tfl_lstm_inputs* inputs) const {
  *spec = spec_;
  *inputs = {};
  const Tensor* x = nullptr;
  const Tensor* recurrent_kernel = nullptr;
  TF_RETURN_IF_ERROR(Optional(ctx, "x", &x));
  TF_RETURN_IF_ERROR(Optional(ctx, "recurrent_kernel", &recurrent_kernel));
  if (x->dims() != 3) {
    return WrongShape(
        "x", spec->time_major ? "[steps, batch, input_size]" : "[batch, steps, input_size]",
        x->shape());
  }
  const TensorShape& square = recurrent_kernel->shape();
  if (square.dims() != 2 || square.dim_size(1) % 4 != 0 ||
      square.dim_size(1) / 4 != square.dim_size(0)) {
    return WrongShape("recurrent_kernel", "[hidden_size, 4 * hidden_size]", square);
  }
  spec->batch = x->dim_size(spec->time_major ? 1 : 0);
  spec->steps = x->dim_size(spec->time_major ? 0 : 1);
  spec->input_size = x->dim_size(2);
  spec->hidden_size = square.dim_size(0);
  TF_RETURN_IF_ERROR(CheckSizes(*spec));
  inputs->x = x->data();
  inputs->recurrent_kernel[0] = recurrent_kernel->data();

  const int64_t gates = square.dim_size(1);
  TF_RETURN_IF_ERROR(Checked(ctx, "kernel", "[input_size, 4 * hidden_size]",
                             TensorShape({spec->input_size, gates}), &inputs->kernel[0]));
  TF_RETURN_IF_ERROR(
      Checked(ctx, "bias", "[4 * hidden_size]", TensorShape({gates}), &inputs->bias[0]));
  const TensorShape state = StateShape(*spec);
  TF_RETURN_IF_ERROR(Checked(ctx, "initial_h", kStateMeaning, state, &inputs->initial_h[0]));
  TF_RETURN_IF_ERROR(Checked(ctx, "initial_c", kStateMeaning, state, &inputs->initial_c[0]));
  TensorShape rows({spec->batch, spec->steps});
  if (spec->time_major) rows = TensorShape({spec->steps, spec->batch});
  const void* mask = nullptr;
  TF_RETURN_IF_ERROR(
      Checked(ctx, "mask", spec->time_major ? "[steps, batch]" : "[batch, steps]", rows, &mask));
  inputs->mask = static_cast<const uint8_t*>(mask);

  // By the lists' lengths, not by the pointers: those of empty tensors are null.
  const auto present = [ctx](const char* name) {
    const Tensor* tensor = nullptr;
    return Optional(ctx, name, &tensor).ok() && tensor != nullptr;
  };
  spec->has_bias = present("bias");
  spec->has_initial_h = present("initial_h");
  spec->has_initial_c = present("initial_c");
  spec->has_mask = present("mask");
  return absl::OkStatus();
}

absl::Status LstmCall::DescribeSaved(OpKernelContext* ctx, const tfl_lstm_spec& spec,
                                     tfl_lstm_saved* saved) const {
  *saved = {};
  const TensorShape output = OutputShape(spec);
  const TensorShape state = StateShape(spec);
  TF_RETURN_IF_ERROR(Checked(ctx, "output", OutputMeaning(spec), output, &saved->output));
  TF_RETURN_IF_ERROR(Checked(ctx, "grad_output", OutputMeaning(spec), output, &saved->grad_output));
  TF_RETURN_IF_ERROR(Checked(ctx, "grad_final_h", kStateMeaning, state, &saved->grad_final_h[0]));
  return Checked(ctx, "grad_final_c", kStateMeaning, state, &saved->grad_final_c[0]);
}

TensorShape RowsShape(const tfl_lstm_spec& spec, int64_t last) {
  if (spec.time_major) return TensorShape({spec.steps, spec.batch, last});
  return TensorShape({spec.batch, spec.steps, last});
}

TensorShape OutputShape(const tfl_lstm_spec& spec) {
  return spec.return_sequences ? RowsShape(spec, spec.hidden_size) : StateShape(spec);
}

TensorShape StateShape(const tfl_lstm_spec& spec) {
  return TensorShape({spec.batch, spec.hidden_size});
}

absl::Status CheckReserve(const TensorShape& shape, const tfl_lstm_sizes& sizes, bool* keeps) {
  *keeps = shape == TensorShape({sizes.reserve_bytes});
  if (*keeps || shape == TensorShape({0})) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("reserve must be empty, shape [0], or FusedLSTM's of the same call, shape [",
                   sizes.reserve_bytes, "], got ", shape.DebugString()));
}

absl::Status ToStatus(const tfl_status& status) {
  switch (status.code) {
    case TFL_OK:
      return absl::OkStatus();
    case TFL_INVALID_ARGUMENT:
      return absl::InvalidArgumentError(status.message);
    case TFL_UNAVAILABLE:
      return absl::UnimplementedError(status.message);
    case TFL_RESOURCE_EXHAUSTED:
      return absl::ResourceExhaustedError(status.message);
    case TFL_INTERNAL:
      break;
  }
  return absl::InternalError(status.message);
}

}  // namespace tf_fused_lstm
