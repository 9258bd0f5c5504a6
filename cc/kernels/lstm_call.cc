#include "cc/kernels/lstm_call.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tensorflow/core/platform/cpu_info.h"

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

absl::Status ReadAttributes(OpKernelConstruction* ctx, tfl_lstm_spec* spec, size_t* cells) {
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
  bool bidirectional = false;
  int count = 0;
  TF_RETURN_IF_ERROR(ctx->GetAttr("bidirectional", &bidirectional));
  TF_RETURN_IF_ERROR(ctx->GetAttr("N", &count));
  *cells = count;
  spec->num_directions = bidirectional ? 2 : 1;
  if (count % spec->num_directions != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("kernel must be an even number of tensors with bidirectional, got ", count));
  }
  for (const char* name :
       {"bias", "initial_h", "initial_c", "dropout_mask", "recurrent_dropout_mask"}) {
    TF_RETURN_IF_ERROR(ctx->GetAttr(absl::StrCat("num_", name), &count));
    if (count != 0 && static_cast<size_t>(count) != *cells) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " must be no tensor or ", *cells, ", got ", count));
    }
  }
  TF_RETURN_IF_ERROR(ctx->GetAttr("num_mask", &count));
  if (count > 1) {
    return absl::InvalidArgumentError(absl::StrCat("mask must be no tensor or 1, got ", count));
  }
  std::string activation, recurrent_activation;
  TF_RETURN_IF_ERROR(ctx->GetAttr("activation", &activation));
  TF_RETURN_IF_ERROR(ctx->GetAttr("recurrent_activation", &recurrent_activation));
  spec->activation = CoreActivation(activation);
  spec->recurrent_activation = CoreActivation(recurrent_activation);
  TF_RETURN_IF_ERROR(GetFlag(ctx, "time_major", &spec->time_major));
  TF_RETURN_IF_ERROR(GetFlag(ctx, "go_backwards", &spec->go_backwards));
  TF_RETURN_IF_ERROR(GetFlag(ctx, "return_sequences", &spec->return_sequences));
  TF_RETURN_IF_ERROR(GetFlag(ctx, "zero_output_for_mask", &spec->zero_output_for_mask));
  if (bidirectional && spec->go_backwards) {
    return absl::InvalidArgumentError("go_backwards must be false with bidirectional, got true");
  }
  if (ctx->HasAttr("training")) TF_RETURN_IF_ERROR(GetFlag(ctx, "training", &spec->training));
  return absl::OkStatus();
}

// The tensor of list `name` for a cell, or null where the list is empty.
absl::Status Find(OpKernelContext* ctx, const char* name, size_t cell, const Tensor** tensor) {
  OpInputList list;
  TF_RETURN_IF_ERROR(ctx->input_list(name, &list));
  *tensor = list.size() == 0 ? nullptr : &list[static_cast<int>(cell)];
  return absl::OkStatus();
}

// By the lists' lengths, not by the pointers: those of empty tensors are null.
bool Present(OpKernelContext* ctx, const char* name) {
  const Tensor* tensor = nullptr;
  return Find(ctx, name, 0, &tensor).ok() && tensor != nullptr;
}

absl::Status WrongShape(const std::string& name, const std::string& wanted,
                        const TensorShape& got) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must have shape ", wanted, ", got ", got.DebugString()));
}

// Whether the shapes made of x's and recurrent_kernel's sizes exist: the sizes of a tensor without
// elements may have products beyond int64, and a TensorShape of those would end the process.
absl::Status CheckSizes(const tfl_lstm_spec& spec) {
  const int64_t gates = 4 * spec.hidden_size;
  const int64_t units = spec.num_directions * spec.hidden_size;
  const int64_t outer = spec.time_major ? spec.steps : spec.batch;
  const int64_t inner = spec.time_major ? spec.batch : spec.steps;
  TensorShape shape;
  if (TensorShape::BuildTensorShape({spec.input_size, gates}, &shape).ok() &&
      TensorShape::BuildTensorShape({spec.batch, spec.hidden_size}, &shape).ok() &&
      TensorShape::BuildTensorShape({4, spec.batch, spec.hidden_size}, &shape).ok() &&
      TensorShape::BuildTensorShape({4, spec.batch, spec.input_size}, &shape).ok() &&
      TensorShape::BuildTensorShape({spec.batch, units}, &shape).ok() &&
      TensorShape::BuildTensorShape({outer, inner, units}, &shape).ok()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "x and recurrent_kernel must have sizes whose products fit in 63 bits, got batch ",
      spec.batch, ", steps ", spec.steps, ", input_size ", spec.input_size, ", hidden_size ",
      spec.hidden_size));
}

// Shapes as text for error messages.
constexpr char kStateMeaning[] = "[batch, hidden_size]";

std::string OutputMeaning(const tfl_lstm_spec& spec) {
  const char* units = spec.num_directions == 2 ? "2 * hidden_size]" : "hidden_size]";
  if (!spec.return_sequences) return absl::StrCat("[batch, ", units);
  return absl::StrCat(spec.time_major ? "[steps, batch, " : "[batch, steps, ", units);
}

}  // namespace

LstmCall::LstmCall(OpKernelConstruction* ctx) {
  OP_REQUIRES_OK(ctx, ReadAttributes(ctx, &spec_, &cells_));
  return_sequences_ = spec_.return_sequences;
}

std::string LstmCall::Named(const char* name, size_t cell) const {
  return cells_ == 1 ? name : absl::StrCat(name, "[", cell, "]");
}

std::string LstmCall::NameOfInput(OpKernelContext* ctx, int index) const {
  for (const char* name : {"x", "kernel", "recurrent_kernel", "bias", "initial_h", "initial_c",
                           "mask", "dropout_mask", "recurrent_dropout_mask", "output", "reserve",
                           "grad_output", "grad_final_h", "grad_final_c"}) {
    int start = 0, stop = 0;
    if (ctx->op_kernel().InputRange(name, &start, &stop).ok() && start <= index && index < stop) {
      return stop - start == 1 ? name : Named(name, index - start);
    }
  }
  return absl::StrCat("input ", index);
}

absl::Status LstmCall::Checked(OpKernelContext* ctx, const char* name, size_t cell,
                               const char* meaning, const TensorShape& wanted,
                               const void** data) const {
  const Tensor* tensor = nullptr;
  TF_RETURN_IF_ERROR(Find(ctx, name, cell, &tensor));
  *data = nullptr;
  if (tensor == nullptr) return absl::OkStatus();
  if (tensor->shape() != wanted) {
    return WrongShape(Named(name, cell), absl::StrCat(meaning, " = ", wanted.DebugString()),
                      tensor->shape());
  }
  *data = tensor->data();
  return absl::OkStatus();
}

// Dropout masks: [count, batch, width] with count 0, 1 or 4, the same for a layer's directions.
absl::Status LstmCall::CheckedMasks(OpKernelContext* ctx, const char* name, size_t cell,
                                    int64_t batch, int64_t width, uint8_t* count,
                                    const void** data) const {
  const Tensor* tensor = nullptr;
  TF_RETURN_IF_ERROR(Find(ctx, name, cell, &tensor));
  *data = nullptr;
  if (tensor == nullptr) return absl::OkStatus();
  const TensorShape& shape = tensor->shape();
  const int64_t masks = shape.dims() == 3 ? shape.dim_size(0) : -1;
  const bool first = cell % spec_.num_directions == 0;
  if ((masks != 0 && masks != 1 && masks != 4) || (!first && masks != *count) ||
      shape.dim_size(1) != batch || shape.dim_size(2) != width) {
    return WrongShape(
        Named(name, cell),
        absl::StrCat("[0, 1 or 4, the same for a layer's directions; ", batch, ", ", width, "]"),
        shape);
  }
  *count = static_cast<uint8_t>(masks);
  *data = tensor->data();
  return absl::OkStatus();
}

absl::Status LstmCall::DescribeLayer(OpKernelContext* ctx, size_t layer, int64_t input_size,
                                     tfl_lstm_spec* spec, tfl_lstm_inputs* inputs) const {
  const size_t directions = spec_.num_directions, first = layer * directions;
  const Tensor* recurrent_kernel = nullptr;
  TF_RETURN_IF_ERROR(Find(ctx, "recurrent_kernel", first, &recurrent_kernel));
  const TensorShape& square = recurrent_kernel->shape();
  if (square.dims() != 2 || square.dim_size(1) % 4 != 0 ||
      square.dim_size(1) / 4 != square.dim_size(0)) {
    return WrongShape(Named("recurrent_kernel", first), "[hidden_size, 4 * hidden_size]", square);
  }
  spec->input_size = input_size;
  spec->hidden_size = square.dim_size(0);
  TF_RETURN_IF_ERROR(CheckSizes(*spec));
  const int64_t gates = square.dim_size(1);
  const TensorShape state = StateShape(*spec);
  for (size_t d = 0; d < directions; ++d) {
    const size_t cell = first + d;
    TF_RETURN_IF_ERROR(Checked(ctx, "recurrent_kernel", cell, "[hidden_size, 4 * hidden_size]",
                               square, &inputs->recurrent_kernel[d]));
    TF_RETURN_IF_ERROR(Checked(ctx, "kernel", cell,
                               layer == 0 ? "[input_size, 4 * hidden_size]"
                                          : "[units of the layer below, 4 * hidden_size]",
                               TensorShape({input_size, gates}), &inputs->kernel[d]));
    TF_RETURN_IF_ERROR(
        Checked(ctx, "bias", cell, "[4 * hidden_size]", TensorShape({gates}), &inputs->bias[d]));
    TF_RETURN_IF_ERROR(
        Checked(ctx, "initial_h", cell, kStateMeaning, state, &inputs->initial_h[d]));
    TF_RETURN_IF_ERROR(
        Checked(ctx, "initial_c", cell, kStateMeaning, state, &inputs->initial_c[d]));
    TF_RETURN_IF_ERROR(CheckedMasks(ctx, "dropout_mask", cell, spec->batch, input_size,
                                    &spec->num_dropout_masks, &inputs->dropout_mask[d]));
    TF_RETURN_IF_ERROR(CheckedMasks(ctx, "recurrent_dropout_mask", cell, spec->batch,
                                    spec->hidden_size, &spec->num_recurrent_dropout_masks,
                                    &inputs->recurrent_dropout_mask[d]));
  }
  return absl::OkStatus();
}

absl::Status LstmCall::Describe(OpKernelContext* ctx, StackSpec* spec,
                                std::vector<tfl_lstm_inputs>* inputs) const {
  tfl_lstm_spec common = spec_;
  const Tensor* x = nullptr;
  TF_RETURN_IF_ERROR(Find(ctx, "x", 0, &x));
  if (x->dims() != 3) {
    return WrongShape(
        "x", common.time_major ? "[steps, batch, input_size]" : "[batch, steps, input_size]",
        x->shape());
  }
  common.batch = x->dim_size(common.time_major ? 1 : 0);
  common.steps = x->dim_size(common.time_major ? 0 : 1);
  TensorShape rows({common.batch, common.steps});
  if (common.time_major) rows = TensorShape({common.steps, common.batch});
  common.has_bias = Present(ctx, "bias");
  common.has_initial_h = Present(ctx, "initial_h");
  common.has_initial_c = Present(ctx, "initial_c");
  common.has_mask = Present(ctx, "mask");
  common.return_sequences = true;

  const size_t layers = cells_ / common.num_directions;
  spec->assign(layers, common);
  inputs->assign(layers, {});
  spec->back().return_sequences = return_sequences_;
  int64_t input_size = x->dim_size(2);
  for (size_t layer = 0; layer < layers; ++layer) {
    TF_RETURN_IF_ERROR(DescribeLayer(ctx, layer, input_size, &(*spec)[layer], &(*inputs)[layer]));
    input_size = common.num_directions * (*spec)[layer].hidden_size;
  }
  // Last, as its shape can only be wrong where x's sizes are right.
  const Tensor* mask = nullptr;
  TF_RETURN_IF_ERROR(Find(ctx, "mask", 0, &mask));
  if (mask != nullptr && mask->shape() != rows) {
    return WrongShape("mask",
                      absl::StrCat(common.time_major ? "[steps, batch]" : "[batch, steps]", " = ",
                                   rows.DebugString()),
                      mask->shape());
  }
  for (tfl_lstm_inputs& layer : *inputs) {
    layer.mask = mask == nullptr ? nullptr : static_cast<const uint8_t*>(mask->data());
  }
  (*inputs)[0].x = x->data();
  return absl::OkStatus();
}

absl::Status LstmCall::DescribeSaved(OpKernelContext* ctx, const StackSpec& spec,
                                     std::vector<tfl_lstm_saved>* saved) const {
  saved->assign(spec.size(), {});
  const std::string meaning = OutputMeaning(spec.back());
  const TensorShape output = OutputShape(spec.back());
  for (const auto& [name, data] : {std::pair("output", &saved->back().output),
                                   std::pair("grad_output", &saved->back().grad_output)}) {
    const Tensor* tensor = nullptr;
    TF_RETURN_IF_ERROR(Find(ctx, name, 0, &tensor));
    if (tensor->shape() != output) {
      return WrongShape(name, absl::StrCat(meaning, " = ", output.DebugString()), tensor->shape());
    }
    *data = tensor->data();
  }
  for (size_t cell = 0; cell < cells_; ++cell) {
    const size_t layer = cell / spec_.num_directions, d = cell % spec_.num_directions;
    const TensorShape state = StateShape(spec[layer]);
    TF_RETURN_IF_ERROR(
        Checked(ctx, "grad_final_h", cell, kStateMeaning, state, &(*saved)[layer].grad_final_h[d]));
    TF_RETURN_IF_ERROR(
        Checked(ctx, "grad_final_c", cell, kStateMeaning, state, &(*saved)[layer].grad_final_c[d]));
  }
  return absl::OkStatus();
}

TensorShape RowsShape(const tfl_lstm_spec& spec, int64_t last) {
  if (spec.time_major) return TensorShape({spec.steps, spec.batch, last});
  return TensorShape({spec.batch, spec.steps, last});
}

TensorShape OutputShape(const tfl_lstm_spec& spec) {
  const int64_t units = spec.num_directions * spec.hidden_size;
  return spec.return_sequences ? RowsShape(spec, units) : TensorShape({spec.batch, units});
}

TensorShape StateShape(const tfl_lstm_spec& spec) {
  return TensorShape({spec.batch, spec.hidden_size});
}

absl::Status CheckReserve(const TensorShape& shape, const StackPlan& plan, bool* keeps) {
  *keeps = shape == TensorShape({plan.reserve_bytes});
  if (*keeps || shape == TensorShape({0})) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("reserve must be empty, shape [0], or FusedLSTM's of the same call, shape [",
                   plan.reserve_bytes, "], got ", shape.DebugString()));
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

int ThreadsOf(const tensorflow::DeviceBase::CpuWorkerThreads& pool) {
  return std::clamp(tensorflow::port::NumSchedulableCPUs(), 1, std::max(pool.num_threads, 1));
}

}  // namespace tf_fused_lstm
