// The CPU half of the C interface: checks the arguments, then runs the program on a team.
#include "cc/lstm/cpu/call.h"
#include "cc/lstm/cpu/plan.h"
#include "cc/lstm/cpu/status.h"
#include "cc/lstm/cpu/team.h"
#include "cc/lstm/lstm.h"

namespace tfl::cpu {
namespace {

// Finds the first pointer that is null although its tensor has elements.
class PointerCheck {
 public:
  void Require(const char* name, const void* pointer, bool has_elements) {
    if (missing_ == nullptr && has_elements && pointer == nullptr) missing_ = name;
  }
  tfl_status Result() const {
    if (missing_ == nullptr) return Ok();
    return InvalidArgument("%s must point to a tensor, got null", missing_);
  }

 private:
  const char* missing_ = nullptr;
};

void RequireInputs(const tfl_lstm_spec& spec, const tfl_lstm_inputs& inputs, PointerCheck* check) {
  const bool rows = spec.batch > 0 && spec.steps > 0;
  const bool units = spec.hidden_size > 0;
  const bool state = spec.batch > 0 && units;
  check->Require("x", inputs.x, rows && spec.input_size > 0);
  check->Require("mask", inputs.mask, spec.has_mask && rows);
  for (int d = 0; d < spec.num_directions; ++d) {
    check->Require("kernel", inputs.kernel[d], spec.input_size > 0 && units);
    check->Require("recurrent_kernel", inputs.recurrent_kernel[d], units);
    check->Require("bias", inputs.bias[d], spec.has_bias && units);
    check->Require("initial_h", inputs.initial_h[d], spec.has_initial_h && state);
    check->Require("initial_c", inputs.initial_c[d], spec.has_initial_c && state);
    check->Require("dropout_mask", inputs.dropout_mask[d],
                   spec.num_dropout_masks > 0 && spec.batch > 0 && spec.input_size > 0);
    check->Require("recurrent_dropout_mask", inputs.recurrent_dropout_mask[d],
                   spec.num_recurrent_dropout_masks > 0 && state);
  }
}

tfl_status PlanCall(const tfl_lstm_spec* spec, const tfl_cpu_runtime* runtime, Plan* plan) {
  if (spec == nullptr) return InvalidArgument("spec must not be null");
  if (runtime == nullptr) return InvalidArgument("runtime must not be null");
  return MakePlan(*spec, runtime->num_threads, plan);
}

// Without rows or units the weight gradients are sums of nothing, the others have no elements or
// none that depends on anything.
bool IsEmpty(const tfl_lstm_spec& spec) { return spec.batch == 0 || spec.hidden_size == 0; }

void ClearGradients(const tfl_lstm_spec& spec, const tfl_lstm_gradients& gradients) {
  const auto clear = [](void* to, tfl_dtype type, int64_t a, int64_t b, int64_t c) {
    if (to == nullptr || a == 0 || b == 0 || c == 0) return;
    const int64_t element = type == TFL_FLOAT64 ? 8 : type == TFL_FLOAT32 ? 4 : 2;
    __builtin_memset(to, 0, static_cast<size_t>(a * b * c * element));
  };
  const int64_t gates = 4 * spec.hidden_size;
  clear(gradients.grad_x, spec.dtype, spec.batch, spec.steps, spec.input_size);
  for (int d = 0; d < spec.num_directions; ++d) {
    clear(gradients.grad_kernel[d], spec.weight_dtype, spec.input_size, gates, 1);
    clear(gradients.grad_recurrent_kernel[d], spec.weight_dtype, spec.hidden_size, gates, 1);
    clear(gradients.grad_bias[d], spec.weight_dtype, gates, 1, 1);
  }
}

}  // namespace
}  // namespace tfl::cpu

tfl_status tfl_cpu_lstm_sizes(const tfl_lstm_spec* spec, int32_t num_threads,
                              tfl_lstm_sizes* sizes) {
  using namespace tfl::cpu;
  if (spec == nullptr) return InvalidArgument("spec must not be null");
  if (sizes == nullptr) return InvalidArgument("sizes must not be null");
  Plan plan;
  if (tfl_status status = MakePlan(*spec, num_threads, &plan); status.code != TFL_OK) return status;
  sizes->reserve_bytes = spec->num_directions * plan.reserve.bytes;
  sizes->forward_workspace_bytes = spec->num_directions * plan.forward.bytes;
  sizes->backward_workspace_bytes = spec->num_directions * plan.backward.bytes;
  return Ok();
}

tfl_status tfl_cpu_lstm_forward(const tfl_lstm_spec* spec, const tfl_lstm_inputs* inputs,
                                const tfl_lstm_outputs* outputs, const tfl_cpu_runtime* runtime) {
  using namespace tfl::cpu;
  ForwardCall call;
  if (tfl_status status = PlanCall(spec, runtime, &call.plan); status.code != TFL_OK) return status;
  if (inputs == nullptr) return InvalidArgument("inputs must not be null");
  if (outputs == nullptr) return InvalidArgument("outputs must not be null");
  const bool state = spec->batch > 0 && spec->hidden_size > 0;
  PointerCheck check;
  RequireInputs(*spec, *inputs, &check);
  check.Require("output", outputs->output, state && (!spec->return_sequences || spec->steps > 0));
  for (int d = 0; d < spec->num_directions; ++d) {
    check.Require("final_h", outputs->final_h[d], state);
    check.Require("final_c", outputs->final_c[d], state);
  }
  check.Require("reserve", outputs->reserve, spec->training && state);
  check.Require("workspace", outputs->workspace, state);
  if (tfl_status status = check.Result(); status.code != TFL_OK) return status;
  if (IsEmpty(*spec)) return Ok();
  call.spec = *spec;
  call.inputs = *inputs;
  call.outputs = *outputs;
  RunTeam(
      *runtime, call.plan.shares,
      [](void* context, Member& member) { Forward(*static_cast<ForwardCall*>(context), member); },
      &call);
  return Ok();
}

tfl_status tfl_cpu_lstm_backward(const tfl_lstm_spec* spec, const tfl_lstm_inputs* inputs,
                                 const tfl_lstm_saved* saved, const tfl_lstm_gradients* gradients,
                                 const tfl_cpu_runtime* runtime) {
  using namespace tfl::cpu;
  BackwardCall call;
  if (tfl_status status = PlanCall(spec, runtime, &call.plan); status.code != TFL_OK) return status;
  if (inputs == nullptr) return InvalidArgument("inputs must not be null");
  if (saved == nullptr) return InvalidArgument("saved must not be null");
  if (gradients == nullptr) return InvalidArgument("gradients must not be null");
  if (!spec->training) {
    return InvalidArgument("spec.training must be set: backward reads the reserve of its forward");
  }
  const bool state = spec->batch > 0 && spec->hidden_size > 0;
  PointerCheck check;
  RequireInputs(*spec, *inputs, &check);
  check.Require("reserve", saved->reserve, state);
  check.Require("workspace", gradients->workspace, state);
  if (tfl_status status = check.Result(); status.code != TFL_OK) return status;
  if (IsEmpty(*spec)) {
    ClearGradients(*spec, *gradients);
    return Ok();
  }
  call.spec = *spec;
  call.inputs = *inputs;
  call.saved = *saved;
  call.gradients = *gradients;
  RunTeam(
      *runtime, call.plan.shares,
      [](void* context, Member& member) { Backward(*static_cast<BackwardCall*>(context), member); },
      &call);
  return Ok();
}
