#include "cc/lstm/cuda/check.h"

#include <cstdint>
#include <initializer_list>

#include "cc/lstm/cuda/dtype.h"
#include "cc/lstm/cuda/status.h"

namespace tfl::cuda {
namespace {

// Products of sizes stay below this, so that byte counts fit 64 bits with room to add.
constexpr int64_t kMaxElements = int64_t{1} << 56;

bool ProductFits(std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (int64_t size : sizes) {
    if (size == 0) return true;
    if (product > kMaxElements / size) return false;
    product *= size;
  }
  return true;
}

tfl_status Demand(const void* pointer, bool needed, const char* name) {
  if (pointer != nullptr || !needed) return Ok();
  return Error(TFL_INVALID_ARGUMENT, "%s must not be null", name);
}

}  // namespace

tfl_status CheckSpec(const tfl_lstm_spec& spec) {
  const struct {
    const char* name;
    int64_t value;
  } sizes[] = {{"batch", spec.batch},
               {"steps", spec.steps},
               {"input_size", spec.input_size},
               {"hidden_size", spec.hidden_size}};
  for (const auto& size : sizes) {
    if (size.value < 0) {
      return Error(TFL_INVALID_ARGUMENT, "%s must not be negative; got %lld", size.name,
                   static_cast<long long>(size.value));
    }
  }
  if (SizeOf(spec.dtype) == 0) {
    return Error(TFL_INVALID_ARGUMENT, "dtype must be a tfl_dtype; got %d", spec.dtype);
  }
  if (spec.weight_dtype != spec.dtype &&
      !(Is16Bit(spec.dtype) && spec.weight_dtype == TFL_FLOAT32)) {
    return Error(TFL_INVALID_ARGUMENT,
                 "weight_dtype must be dtype (%d), or float32 below a 16-bit dtype; got %d",
                 spec.dtype, spec.weight_dtype);
  }
  if (spec.num_directions < 1 || spec.num_directions > TFL_MAX_DIRECTIONS) {
    return Error(TFL_INVALID_ARGUMENT, "num_directions must be 1 or 2; got %d",
                 spec.num_directions);
  }
  if (spec.num_directions == 2 && spec.go_backwards) {
    return Error(TFL_INVALID_ARGUMENT, "go_backwards must not be set with two directions");
  }
  for (int masks : {spec.num_dropout_masks, spec.num_recurrent_dropout_masks}) {
    if (masks != 0 && masks != 1 && masks != 4) {
      return Error(TFL_INVALID_ARGUMENT,
                   "num_dropout_masks and num_recurrent_dropout_masks must be 0, 1 or 4; got %d",
                   masks);
    }
  }
  for (tfl_activation activation : {spec.activation, spec.recurrent_activation}) {
    if (activation < TFL_TANH || activation > TFL_LINEAR) {
      return Error(TFL_INVALID_ARGUMENT, "activation must be a tfl_activation; got %d", activation);
    }
  }
  const int64_t h = spec.hidden_size, i = spec.input_size;
  if (!ProductFits({spec.batch, spec.steps, 4, h}) || !ProductFits({spec.batch, spec.steps, i}) ||
      !ProductFits({4, h, h}) || !ProductFits({4, h, i})) {
    return Error(TFL_INVALID_ARGUMENT,
                 "x and recurrent_kernel must have sizes whose scratch fits in 63 bits of bytes, "
                 "got batch %lld, steps %lld, input_size %lld, hidden_size %lld",
                 static_cast<long long>(spec.batch), static_cast<long long>(spec.steps),
                 static_cast<long long>(i), static_cast<long long>(h));
  }
  return Ok();
}

tfl_status CheckInputs(const tfl_lstm_spec& spec, const tfl_lstm_inputs& inputs) {
  const bool rows = spec.batch != 0 && spec.steps != 0, hidden = spec.hidden_size != 0;
  const bool input = spec.input_size != 0, states = spec.batch != 0 && hidden;
  TFL_RETURN_IF_ERROR(Demand(inputs.x, rows && input, "x"));
  for (int d = 0; d < spec.num_directions; ++d) {
    TFL_RETURN_IF_ERROR(Demand(inputs.kernel[d], input && hidden, "kernel"));
    TFL_RETURN_IF_ERROR(Demand(inputs.recurrent_kernel[d], hidden, "recurrent_kernel"));
    TFL_RETURN_IF_ERROR(Demand(inputs.bias[d], spec.has_bias && hidden, "bias"));
    TFL_RETURN_IF_ERROR(Demand(inputs.initial_h[d], spec.has_initial_h && states, "initial_h"));
    TFL_RETURN_IF_ERROR(Demand(inputs.initial_c[d], spec.has_initial_c && states, "initial_c"));
    TFL_RETURN_IF_ERROR(Demand(inputs.dropout_mask[d],
                               spec.num_dropout_masks > 0 && spec.batch != 0 && input,
                               "dropout_mask"));
    TFL_RETURN_IF_ERROR(Demand(inputs.recurrent_dropout_mask[d],
                               spec.num_recurrent_dropout_masks > 0 && states,
                               "recurrent_dropout_mask"));
  }
  return Demand(inputs.mask, spec.has_mask && rows, "mask");
}

tfl_status CheckOutputs(const tfl_lstm_spec& spec, const tfl_lstm_outputs& outputs) {
  const bool states = spec.batch != 0 && spec.hidden_size != 0;
  TFL_RETURN_IF_ERROR(
      Demand(outputs.output, states && (spec.steps != 0 || !spec.return_sequences), "output"));
  for (int d = 0; d < spec.num_directions; ++d) {
    TFL_RETURN_IF_ERROR(Demand(outputs.final_h[d], states, "final_h"));
    TFL_RETURN_IF_ERROR(Demand(outputs.final_c[d], states, "final_c"));
  }
  if (!states || spec.steps == 0) return Ok();
  TFL_RETURN_IF_ERROR(Demand(outputs.reserve, spec.training, "reserve"));
  return Demand(outputs.workspace, true, "workspace");
}

tfl_status CheckSaved(const tfl_lstm_spec& spec, const tfl_lstm_saved& saved) {
  if (!spec.training) {
    return Error(TFL_INVALID_ARGUMENT, "training must be set: backward reads forward's reserve");
  }
  if (spec.batch == 0 || spec.hidden_size == 0 || spec.steps == 0) return Ok();
  TFL_RETURN_IF_ERROR(Demand(saved.output, true, "output"));
  return Demand(saved.reserve, true, "reserve");
}

}  // namespace tfl::cuda
