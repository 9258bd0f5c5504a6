#include "cc/xla/lstm_attributes.h"

#include "absl/strings/str_cat.h"

namespace tf_fused_lstm {
namespace {

// The one list of fields. `visit(name, field)` for each of them.
template <typename Attributes, typename Visit>
void VisitFields(Attributes& attributes, Visit visit) {
  auto& spec = attributes.spec;
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
  visit("num_threads", attributes.num_threads);
}

}  // namespace

std::string ToText(const LstmAttributes& attributes) {
  std::string text;
  VisitFields(attributes, [&text](const char* name, const auto& field) {
    absl::StrAppend(&text, text.empty() ? "{" : ", ", name, " = ", static_cast<int64_t>(field),
                    " : i64");
  });
  return text + "}";
}

xla::ffi::Error FromDictionary(const xla::ffi::Dictionary& dictionary, LstmAttributes* attributes) {
  xla::ffi::Error error = xla::ffi::Error::Success();
  VisitFields(*attributes, [&](const char* name, auto& field) {
    const xla::ffi::ErrorOr<int64_t> value = dictionary.get<int64_t>(name);
    if (value.has_value()) {
      field = static_cast<std::remove_reference_t<decltype(field)>>(*value);
    } else {
      error = value.error();
    }
  });
  return error;
}

}  // namespace tf_fused_lstm
