#include "cc/xla/lstm_attributes.h"

#include "absl/strings/str_cat.h"

namespace tf_fused_lstm {
namespace {

// The one list of a layer's fields. `visit(name, field)` for each of them.
template <typename Spec, typename Visit>
void VisitFields(Spec& spec, Visit visit) {
  visit("batch", spec.batch);
  visit("steps", spec.steps);
  visit("input_size", spec.input_size);
  visit("hidden_size", spec.hidden_size);
  visit("dtype", spec.dtype);
  visit("weight_dtype", spec.weight_dtype);
  visit("activation", spec.activation);
  visit("recurrent_activation", spec.recurrent_activation);
  visit("num_directions", spec.num_directions);
  visit("time_major", spec.time_major);
  visit("go_backwards", spec.go_backwards);
  visit("return_sequences", spec.return_sequences);
  visit("zero_output_for_mask", spec.zero_output_for_mask);
  visit("has_bias", spec.has_bias);
  visit("has_mask", spec.has_mask);
  visit("has_initial_h", spec.has_initial_h);
  visit("has_initial_c", spec.has_initial_c);
  visit("num_dropout_masks", spec.num_dropout_masks);
  visit("num_recurrent_dropout_masks", spec.num_recurrent_dropout_masks);
  visit("training", spec.training);
  visit("allow_tf32", spec.allow_tf32);
}

std::string Named(size_t layer, const char* name) {
  return absl::StrCat("layer", layer, "_", name);
}

}  // namespace

std::string ToText(const LstmAttributes& attributes) {
  std::string text = "{";
  const auto add = [&text](const std::string& name, int64_t value) {
    absl::StrAppend(&text, text == "{" ? "" : ", ", name, " = ", value, " : i64");
  };
  add("layers", static_cast<int64_t>(attributes.spec.size()));
  add("num_threads", attributes.num_threads);
  add("has_dropout_mask", attributes.has_dropout_mask);
  add("has_recurrent_dropout_mask", attributes.has_recurrent_dropout_mask);
  for (size_t layer = 0; layer < attributes.spec.size(); ++layer) {
    VisitFields(attributes.spec[layer], [&](const char* name, const auto& field) {
      add(Named(layer, name), static_cast<int64_t>(field));
    });
  }
  return text + "}";
}

xla::ffi::Error FromDictionary(const xla::ffi::Dictionary& dictionary, LstmAttributes* attributes) {
  xla::ffi::Error error = xla::ffi::Error::Success();
  const auto read = [&](const std::string& name, auto* field) {
    const xla::ffi::ErrorOr<int64_t> value = dictionary.get<int64_t>(name);
    if (value.has_value()) {
      *field = static_cast<std::remove_pointer_t<decltype(field)>>(*value);
    } else {
      error = value.error();
    }
  };
  size_t layers = 0;
  read("layers", &layers);
  read("num_threads", &attributes->num_threads);
  read("has_dropout_mask", &attributes->has_dropout_mask);
  read("has_recurrent_dropout_mask", &attributes->has_recurrent_dropout_mask);
  attributes->spec.resize(layers);
  for (size_t layer = 0; layer < layers; ++layer) {
    VisitFields(attributes->spec[layer],
                [&](const char* name, auto& field) { read(Named(layer, name), &field); });
  }
  return error;
}

}  // namespace tf_fused_lstm
