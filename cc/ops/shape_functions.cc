#include "cc/ops/shape_functions.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tf_fused_lstm {
namespace {

using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// The dimensions that the inputs agree on, and the handles the outputs are made of.
struct Sizes {
  DimensionHandle batch;
  DimensionHandle steps;
  DimensionHandle input_size;
  DimensionHandle hidden_size;
  bool time_major;
  bool return_sequences;
};

absl::Status Annotated(absl::string_view argument, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(argument, ": ", status.message()));
}

// Merges `dims`, in order, into the shape of input `name`, tensor `index` of its list.
class Inputs {
 public:
  explicit Inputs(InferenceContext* c) : c_(c) {}

  absl::Status Count(const char* name, int* count) const {
    std::vector<ShapeHandle> shapes;
    TF_RETURN_IF_ERROR(c_->input(name, &shapes));
    *count = static_cast<int>(shapes.size());
    return absl::OkStatus();
  }

  absl::Status Merge(const char* name, std::vector<DimensionHandle*> dims) const {
    std::vector<ShapeHandle> shapes;
    TF_RETURN_IF_ERROR(c_->input(name, &shapes));
    for (ShapeHandle shape : shapes) {
      TF_RETURN_IF_ERROR(Annotated(name, c_->WithRank(shape, dims.size(), &shape)));
      for (size_t i = 0; i < dims.size(); ++i) {
        DimensionHandle merged;  // a Merge that fails clears its result
        if (!c_->Merge(*dims[i], c_->Dim(shape, i), &merged).ok()) {
          return WrongDimension(name, *dims[i], i, shape);
        }
        *dims[i] = merged;
      }
    }
    return absl::OkStatus();
  }

  // As Merge, for a last dimension of 4 * hidden_size.
  absl::Status MergeGates(const char* name, std::vector<DimensionHandle*> dims,
                          DimensionHandle* hidden_size) const {
    DimensionHandle gates;
    TF_RETURN_IF_ERROR(c_->Multiply(*hidden_size, 4, &gates));
    dims.push_back(&gates);
    TF_RETURN_IF_ERROR(Merge(name, dims));
    DimensionHandle hidden;
    TF_RETURN_IF_ERROR(Annotated(name, c_->Divide(gates, 4, /*evenly_divisible=*/true, &hidden)));
    DimensionHandle merged;
    if (!c_->Merge(*hidden_size, hidden, &merged).ok()) {  // recurrent_kernel's own dimensions
      DimensionHandle wanted;
      TF_RETURN_IF_ERROR(Annotated(name, c_->Multiply(*hidden_size, 4, &wanted)));
      std::vector<ShapeHandle> shapes;
      TF_RETURN_IF_ERROR(c_->input(name, &shapes));
      return WrongDimension(name, wanted, dims.size() - 1, shapes[0]);
    }
    *hidden_size = merged;
    return absl::OkStatus();
  }

 private:
  absl::Status WrongDimension(const char* name, DimensionHandle wanted, size_t dimension,
                              ShapeHandle shape) const {
    return absl::InvalidArgumentError(absl::StrCat(name, " must have ", c_->DebugString(wanted),
                                                   " in dimension ", dimension, ", got shape ",
                                                   c_->DebugString(shape)));
  }

  InferenceContext* c_;
};

std::vector<DimensionHandle*> Rows(Sizes* s) {
  if (s->time_major) return {&s->steps, &s->batch};
  return {&s->batch, &s->steps};
}

ShapeHandle RowsBy(InferenceContext* c, Sizes s, DimensionHandle last) {
  return s.time_major ? c->MakeShape({s.steps, s.batch, last})
                      : c->MakeShape({s.batch, s.steps, last});
}

ShapeHandle OutputShape(InferenceContext* c, const Sizes& s) {
  if (!s.return_sequences) return c->MakeShape({s.batch, s.hidden_size});
  return RowsBy(c, s, s.hidden_size);
}

absl::Status OnlyOneLayer(const Inputs& inputs) {
  int cells = 0;
  TF_RETURN_IF_ERROR(inputs.Count("kernel", &cells));
  if (cells != 1) {
    return absl::InvalidArgumentError(absl::StrCat("kernel must be 1 tensor, got ", cells));
  }
  for (const char* name : {"bias", "initial_h", "initial_c", "mask"}) {
    int count = 0;
    TF_RETURN_IF_ERROR(inputs.Count(name, &count));
    if (count > 1) {
      return absl::InvalidArgumentError(absl::StrCat(name, " must be no tensor or 1, got ", count));
    }
  }
  return absl::OkStatus();
}

absl::Status InferSizes(InferenceContext* c, Sizes* s) {
  TF_RETURN_IF_ERROR(c->GetAttr("time_major", &s->time_major));
  TF_RETURN_IF_ERROR(c->GetAttr("return_sequences", &s->return_sequences));
  s->batch = s->steps = s->input_size = s->hidden_size = c->UnknownDim();
  const Inputs inputs(c);
  TF_RETURN_IF_ERROR(OnlyOneLayer(inputs));
  std::vector<DimensionHandle*> x_dims = Rows(s);
  x_dims.push_back(&s->input_size);
  TF_RETURN_IF_ERROR(inputs.Merge("x", x_dims));
  TF_RETURN_IF_ERROR(inputs.MergeGates("recurrent_kernel", {&s->hidden_size}, &s->hidden_size));
  TF_RETURN_IF_ERROR(inputs.MergeGates("kernel", {&s->input_size}, &s->hidden_size));
  TF_RETURN_IF_ERROR(inputs.MergeGates("bias", {}, &s->hidden_size));
  TF_RETURN_IF_ERROR(inputs.Merge("initial_h", {&s->batch, &s->hidden_size}));
  TF_RETURN_IF_ERROR(inputs.Merge("initial_c", {&s->batch, &s->hidden_size}));
  return inputs.Merge("mask", Rows(s));
}

absl::Status SetList(InferenceContext* c, const char* name, ShapeHandle shape) {
  std::vector<ShapeHandle> shapes;
  TF_RETURN_IF_ERROR(c->output(name, &shapes));
  std::fill(shapes.begin(), shapes.end(), shape);
  return c->set_output(name, shapes);
}

}  // namespace

absl::Status ForwardShape(InferenceContext* c) {
  Sizes s;
  TF_RETURN_IF_ERROR(InferSizes(c, &s));
  const ShapeHandle state = c->MakeShape({s.batch, s.hidden_size});
  TF_RETURN_IF_ERROR(SetList(c, "output", OutputShape(c, s)));
  TF_RETURN_IF_ERROR(SetList(c, "final_h", state));
  TF_RETURN_IF_ERROR(SetList(c, "final_c", state));
  // Also without `training`: building the gradient of a traced function turns it on.
  return SetList(c, "reserve", c->Vector(c->UnknownDim()));
}

absl::Status GradientShape(InferenceContext* c) {
  Sizes s;
  TF_RETURN_IF_ERROR(InferSizes(c, &s));
  const Inputs inputs(c);
  for (const char* name : {"output", "grad_output"}) {
    std::vector<DimensionHandle*> dims = {&s.batch};
    if (s.return_sequences) dims = Rows(&s);
    dims.push_back(&s.hidden_size);
    TF_RETURN_IF_ERROR(inputs.Merge(name, dims));
  }
  TF_RETURN_IF_ERROR(inputs.Merge("grad_final_h", {&s.batch, &s.hidden_size}));
  TF_RETURN_IF_ERROR(inputs.Merge("grad_final_c", {&s.batch, &s.hidden_size}));
  DimensionHandle reserve_bytes = c->UnknownDim();
  TF_RETURN_IF_ERROR(inputs.Merge("reserve", {&reserve_bytes}));

  DimensionHandle gates;
  TF_RETURN_IF_ERROR(c->Multiply(s.hidden_size, 4, &gates));
  TF_RETURN_IF_ERROR(SetList(c, "grad_x", RowsBy(c, s, s.input_size)));
  TF_RETURN_IF_ERROR(SetList(c, "grad_kernel", c->MakeShape({s.input_size, gates})));
  TF_RETURN_IF_ERROR(SetList(c, "grad_recurrent_kernel", c->MakeShape({s.hidden_size, gates})));
  TF_RETURN_IF_ERROR(SetList(c, "grad_bias", c->MakeShape({gates})));
  const ShapeHandle state = c->MakeShape({s.batch, s.hidden_size});
  TF_RETURN_IF_ERROR(SetList(c, "grad_initial_h", state));
  return SetList(c, "grad_initial_c", state);
}

}  // namespace tf_fused_lstm
