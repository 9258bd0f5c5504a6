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

// What the inputs agree on.
struct Layer {
  DimensionHandle input_size;
  DimensionHandle hidden_size;
  DimensionHandle units;  // of its output
};
struct Sizes {
  DimensionHandle batch;
  DimensionHandle steps;
  std::vector<Layer> layers;
  int directions;
  bool time_major;
  bool return_sequences;

  Layer& OfCell(int cell) { return layers[cell / directions]; }
};

absl::Status Annotated(absl::string_view argument, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(argument, ": ", status.message()));
}

// Merges dimensions, in order, into the shapes of inputs. Cell 2 of input kernel is "kernel[2]"
// where there are several cells.
class Inputs {
 public:
  explicit Inputs(InferenceContext* c) : c_(c) {}

  absl::Status Count(const char* name, int* count) const {
    std::vector<ShapeHandle> shapes;
    TF_RETURN_IF_ERROR(c_->input(name, &shapes));
    *count = static_cast<int>(shapes.size());
    return absl::OkStatus();
  }

  void set_cells(int cells) { cells_ = cells; }
  int cells() const { return cells_; }

  // An input that all cells share; nothing where its list is empty.
  absl::Status Merge(const char* name, const std::vector<DimensionHandle*>& dims) const {
    return MergeInto(name, name, 0, dims);
  }

  // A cell's tensor of a list; nothing where the list is empty.
  absl::Status MergeCell(const char* name, int cell,
                         const std::vector<DimensionHandle*>& dims) const {
    return MergeInto(Named(name, cell), name, cell, dims);
  }

  // As MergeCell, for a last dimension of 4 * hidden_size.
  absl::Status MergeGates(const char* name, int cell, std::vector<DimensionHandle*> dims,
                          DimensionHandle* hidden_size) const {
    const std::string named = Named(name, cell);
    DimensionHandle gates;
    TF_RETURN_IF_ERROR(c_->Multiply(*hidden_size, 4, &gates));
    dims.push_back(&gates);
    TF_RETURN_IF_ERROR(MergeCell(name, cell, dims));
    DimensionHandle hidden;
    TF_RETURN_IF_ERROR(Annotated(named, c_->Divide(gates, 4, /*evenly_divisible=*/true, &hidden)));
    DimensionHandle merged;
    if (!c_->Merge(*hidden_size, hidden, &merged).ok()) {  // recurrent_kernel's own dimensions
      DimensionHandle wanted;
      TF_RETURN_IF_ERROR(Annotated(named, c_->Multiply(*hidden_size, 4, &wanted)));
      std::vector<ShapeHandle> shapes;
      TF_RETURN_IF_ERROR(c_->input(name, &shapes));
      return WrongDimension(named, wanted, dims.size() - 1, shapes[cell]);
    }
    *hidden_size = merged;
    return absl::OkStatus();
  }

 private:
  std::string Named(const char* name, int cell) const {
    return cells_ == 1 ? name : absl::StrCat(name, "[", cell, "]");
  }

  absl::Status MergeInto(const std::string& named, const char* name, int index,
                         const std::vector<DimensionHandle*>& dims) const {
    std::vector<ShapeHandle> shapes;
    TF_RETURN_IF_ERROR(c_->input(name, &shapes));
    if (shapes.empty()) return absl::OkStatus();
    ShapeHandle shape = shapes[index];
    TF_RETURN_IF_ERROR(Annotated(named, c_->WithRank(shape, dims.size(), &shape)));
    for (size_t i = 0; i < dims.size(); ++i) {
      DimensionHandle merged;  // a Merge that fails clears its result
      if (!c_->Merge(*dims[i], c_->Dim(shape, i), &merged).ok()) {
        return WrongDimension(named, *dims[i], i, shape);
      }
      *dims[i] = merged;
    }
    return absl::OkStatus();
  }

  absl::Status WrongDimension(const std::string& named, DimensionHandle wanted, size_t dimension,
                              ShapeHandle shape) const {
    return absl::InvalidArgumentError(absl::StrCat(named, " must have ", c_->DebugString(wanted),
                                                   " in dimension ", dimension, ", got shape ",
                                                   c_->DebugString(shape)));
  }

  InferenceContext* c_;
  int cells_ = 1;
};

std::vector<DimensionHandle*> Rows(Sizes* s) {
  if (s->time_major) return {&s->steps, &s->batch};
  return {&s->batch, &s->steps};
}

ShapeHandle RowsBy(InferenceContext* c, const Sizes& s, DimensionHandle last) {
  return s.time_major ? c->MakeShape({s.steps, s.batch, last})
                      : c->MakeShape({s.batch, s.steps, last});
}

ShapeHandle OutputShape(InferenceContext* c, const Sizes& s) {
  const DimensionHandle units = s.layers.back().units;
  if (!s.return_sequences) return c->MakeShape({s.batch, units});
  return RowsBy(c, s, units);
}

absl::Status CheckCounts(Inputs* inputs, int directions) {
  int cells = 0;
  TF_RETURN_IF_ERROR(inputs->Count("kernel", &cells));
  if (cells % directions != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("kernel must be an even number of tensors with bidirectional, got ", cells));
  }
  for (const char* name :
       {"bias", "initial_h", "initial_c", "dropout_mask", "recurrent_dropout_mask"}) {
    int count = 0;
    TF_RETURN_IF_ERROR(inputs->Count(name, &count));
    if (count != 0 && count != cells) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, " must be no tensor or ", cells, ", got ", count));
    }
  }
  int count = 0;
  TF_RETURN_IF_ERROR(inputs->Count("mask", &count));
  if (count > 1) {
    return absl::InvalidArgumentError(absl::StrCat("mask must be no tensor or 1, got ", count));
  }
  inputs->set_cells(cells);
  return absl::OkStatus();
}

absl::Status MergeCell(InferenceContext* c, const Inputs& inputs, int cell, Sizes* s) {
  Layer& layer = s->OfCell(cell);
  DimensionHandle* hidden = &layer.hidden_size;
  TF_RETURN_IF_ERROR(inputs.MergeGates("recurrent_kernel", cell, {hidden}, hidden));
  TF_RETURN_IF_ERROR(inputs.MergeGates("kernel", cell, {&layer.input_size}, hidden));
  TF_RETURN_IF_ERROR(inputs.MergeGates("bias", cell, {}, hidden));
  TF_RETURN_IF_ERROR(inputs.MergeCell("initial_h", cell, {&s->batch, hidden}));
  TF_RETURN_IF_ERROR(inputs.MergeCell("initial_c", cell, {&s->batch, hidden}));
  DimensionHandle masks = c->UnknownDim();
  TF_RETURN_IF_ERROR(
      inputs.MergeCell("dropout_mask", cell, {&masks, &s->batch, &layer.input_size}));
  DimensionHandle recurrent_masks = c->UnknownDim();
  return inputs.MergeCell("recurrent_dropout_mask", cell, {&recurrent_masks, &s->batch, hidden});
}

absl::Status InferSizes(InferenceContext* c, Inputs* inputs, Sizes* s) {
  bool bidirectional = false;
  TF_RETURN_IF_ERROR(c->GetAttr("time_major", &s->time_major));
  TF_RETURN_IF_ERROR(c->GetAttr("return_sequences", &s->return_sequences));
  TF_RETURN_IF_ERROR(c->GetAttr("bidirectional", &bidirectional));
  s->directions = bidirectional ? 2 : 1;
  TF_RETURN_IF_ERROR(CheckCounts(inputs, s->directions));
  s->batch = c->UnknownDim();
  s->steps = c->UnknownDim();
  s->layers.resize(inputs->cells() / s->directions);
  DimensionHandle below = c->UnknownDim();
  std::vector<DimensionHandle*> x_dims = Rows(s);
  x_dims.push_back(&below);
  TF_RETURN_IF_ERROR(inputs->Merge("x", x_dims));
  for (size_t l = 0; l < s->layers.size(); ++l) {
    Layer& layer = s->layers[l];
    layer.input_size = below;
    layer.hidden_size = c->UnknownDim();
    for (int d = 0; d < s->directions; ++d) {
      TF_RETURN_IF_ERROR(MergeCell(c, *inputs, static_cast<int>(l) * s->directions + d, s));
    }
    TF_RETURN_IF_ERROR(c->Multiply(layer.hidden_size, s->directions, &layer.units));
    below = layer.units;
  }
  return inputs->Merge("mask", Rows(s));
}

// Sets every tensor of an output list to `shape(layer)` of its cell.
template <typename Shape>
absl::Status SetCells(InferenceContext* c, const char* name, Sizes* s, const Shape& shape) {
  std::vector<ShapeHandle> shapes;
  TF_RETURN_IF_ERROR(c->output(name, &shapes));
  for (size_t cell = 0; cell < shapes.size(); ++cell) {
    shapes[cell] = shape(s->OfCell(static_cast<int>(cell)));
  }
  return c->set_output(name, shapes);
}

absl::Status SetOutput(InferenceContext* c, const char* name, ShapeHandle shape) {
  return c->set_output(name, {shape});
}

}  // namespace

absl::Status ForwardShape(InferenceContext* c) {
  Sizes s;
  Inputs inputs(c);
  TF_RETURN_IF_ERROR(InferSizes(c, &inputs, &s));
  const auto state = [&](const Layer& layer) { return c->MakeShape({s.batch, layer.hidden_size}); };
  TF_RETURN_IF_ERROR(SetOutput(c, "output", OutputShape(c, s)));
  TF_RETURN_IF_ERROR(SetCells(c, "final_h", &s, state));
  TF_RETURN_IF_ERROR(SetCells(c, "final_c", &s, state));
  // Also without `training`: building the gradient of a traced function turns it on.
  return SetOutput(c, "reserve", c->Vector(c->UnknownDim()));
}

absl::Status GradientShape(InferenceContext* c) {
  Sizes s;
  Inputs inputs(c);
  TF_RETURN_IF_ERROR(InferSizes(c, &inputs, &s));
  for (const char* name : {"output", "grad_output"}) {
    std::vector<DimensionHandle*> dims = {&s.batch};
    if (s.return_sequences) dims = Rows(&s);
    dims.push_back(&s.layers.back().units);
    TF_RETURN_IF_ERROR(inputs.Merge(name, dims));
  }
  for (int cell = 0; cell < inputs.cells(); ++cell) {
    for (const char* name : {"grad_final_h", "grad_final_c"}) {
      TF_RETURN_IF_ERROR(inputs.MergeCell(name, cell, {&s.batch, &s.OfCell(cell).hidden_size}));
    }
  }
  DimensionHandle reserve_bytes = c->UnknownDim();
  TF_RETURN_IF_ERROR(inputs.Merge("reserve", {&reserve_bytes}));
  if (s.directions == 1) s.layers.back().hidden_size = s.layers.back().units;

  std::vector<DimensionHandle> gates(s.layers.size());
  for (size_t l = 0; l < s.layers.size(); ++l) {
    TF_RETURN_IF_ERROR(c->Multiply(s.layers[l].hidden_size, 4, &gates[l]));
  }
  const auto gates_of = [&](const Layer& layer) { return gates[&layer - s.layers.data()]; };
  const auto state = [&](const Layer& layer) { return c->MakeShape({s.batch, layer.hidden_size}); };
  TF_RETURN_IF_ERROR(SetOutput(c, "grad_x", RowsBy(c, s, s.layers[0].input_size)));
  TF_RETURN_IF_ERROR(SetCells(c, "grad_kernel", &s, [&](const Layer& layer) {
    return c->MakeShape({layer.input_size, gates_of(layer)});
  }));
  TF_RETURN_IF_ERROR(SetCells(c, "grad_recurrent_kernel", &s, [&](const Layer& layer) {
    return c->MakeShape({layer.hidden_size, gates_of(layer)});
  }));
  TF_RETURN_IF_ERROR(SetCells(c, "grad_bias", &s,
                              [&](const Layer& layer) { return c->MakeShape({gates_of(layer)}); }));
  TF_RETURN_IF_ERROR(SetCells(c, "grad_initial_h", &s, state));
  return SetCells(c, "grad_initial_c", &s, state);
}

}  // namespace tf_fused_lstm
