// Layers on top of each other as one call: each but the first reads the output of the one below,
// after it or, on a device that can, while it runs.
//
// A device has the core's functions for a layer, Sizes, Forward and Backward, and for layers at
// once, StackSizes, StackForward and StackBackward.
//
// A layer's description, inputs, outputs and gradients are the core's. Where a layer's neighbour is
// the other side of a pointer (x above the first layer, output, grad_output and grad_x between two
// layers) it is filled in here, as the reserve and the workspace are.
#ifndef TF_FUSED_LSTM_CC_KERNELS_LSTM_STACK_H_
#define TF_FUSED_LSTM_CC_KERNELS_LSTM_STACK_H_

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <vector>

#include "cc/lstm/lstm.h"

namespace tf_fused_lstm {

using StackSpec = std::vector<tfl_lstm_spec>;

struct StackForward {
  std::vector<tfl_lstm_inputs> inputs;
  std::vector<tfl_lstm_outputs> outputs;
  void* reserve = nullptr;    // StackPlan::reserve_bytes, if training
  void* workspace = nullptr;  // StackPlan::forward_workspace_bytes
};

struct StackBackward {
  std::vector<tfl_lstm_inputs> inputs;
  std::vector<tfl_lstm_saved> saved;
  std::vector<tfl_lstm_gradients> gradients;
  const void* reserve = nullptr;
  void* workspace = nullptr;  // StackPlan::backward_workspace_bytes
};

// Where the layers' parts of reserve and workspace lie. A reserve holds every layer's, then the
// outputs of all layers but the last.
struct StackPlan {
  std::vector<int64_t> reserves;  // offsets into the reserve, one a layer
  std::vector<int64_t> outputs;   // likewise, one a layer but the last
  int64_t slot_bytes = 0;         // of the largest output between two layers
  int64_t forward_slots = 0;      // for such outputs, at the head of a workspace
  int64_t backward_slots = 0;     // for their gradients
  bool forward_at_once = false;
  bool backward_at_once = false;
  int64_t reserve_bytes = 0;
  int64_t forward_workspace_bytes = 0;
  int64_t backward_workspace_bytes = 0;
};

// Sums and products of bytes that stop at kMostBytes: each layer passes the core's own checks, all
// of them together need not.
constexpr int64_t kMostBytes = std::numeric_limits<int64_t>::max();

inline int64_t AddBytes(int64_t a, int64_t b) {
  int64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? kMostBytes : sum;
}
inline int64_t MultiplyBytes(int64_t a, int64_t b) {
  int64_t product;
  return __builtin_mul_overflow(a, b, &product) ? kMostBytes : product;
}

// Bytes of the output of a layer below another.
inline int64_t BetweenBytes(const tfl_lstm_spec& spec) {
  const int64_t element = spec.dtype == TFL_FLOAT64 ? 8 : spec.dtype == TFL_FLOAT32 ? 4 : 2;
  if (spec.batch == 0 || spec.steps == 0 || spec.hidden_size == 0) return 0;
  const int64_t cells = MultiplyBytes(MultiplyBytes(spec.batch, spec.steps), spec.hidden_size);
  return MultiplyBytes(cells, spec.num_directions * element);
}

inline int64_t AlignStack(int64_t bytes) {
  const int64_t up = AddBytes(bytes, 255);
  return up == kMostBytes ? kMostBytes : up / 256 * 256;
}

inline void* StackPart(void* base, int64_t offset) { return static_cast<char*>(base) + offset; }
inline const void* StackPart(const void* base, int64_t offset) {
  return static_cast<const char*>(base) + offset;
}

// A base of devices that run layers only one after the other.
struct LayersInTurn {
  tfl_status StackSizes(const StackSpec&, tfl_lstm_stack_sizes* sizes) const {
    *sizes = {};
    return tfl_status{};
  }
  template <typename... Arguments>
  tfl_status StackForward(const Arguments&...) const {
    return tfl_status{TFL_INTERNAL, "no layers run at once here"};
  }
  template <typename... Arguments>
  tfl_status StackBackward(const Arguments&...) const {
    return tfl_status{TFL_INTERNAL, "no layers run at once here"};
  }
};

template <typename Device>
tfl_status PlanStack(const Device& device, const StackSpec& spec, StackPlan* plan) {
  *plan = StackPlan();
  const size_t layers = spec.size();
  const bool training = spec[0].training;
  int64_t forward = 0, backward = 0;
  for (size_t l = 0; l < layers; ++l) {
    tfl_lstm_sizes layer;
    const tfl_status status = device.Sizes(spec[l], &layer);
    if (status.code != TFL_OK) return status;
    plan->reserves.push_back(plan->reserve_bytes);
    // A single layer's reserve is the core's, byte for byte.
    plan->reserve_bytes = AddBytes(
        plan->reserve_bytes, layers == 1 ? layer.reserve_bytes : AlignStack(layer.reserve_bytes));
    forward = std::max(forward, layer.forward_workspace_bytes);
    backward = std::max(backward, layer.backward_workspace_bytes);
    if (l + 1 < layers) {
      plan->slot_bytes = std::max(plan->slot_bytes, AlignStack(BetweenBytes(spec[l])));
    }
  }
  for (size_t l = 0; l + 1 < layers && training; ++l) {
    plan->outputs.push_back(plan->reserve_bytes);
    plan->reserve_bytes = AddBytes(plan->reserve_bytes, AlignStack(BetweenBytes(spec[l])));
  }
  tfl_lstm_stack_sizes at_once = {};
  tfl_status status = layers > 1 ? device.StackSizes(spec, &at_once) : tfl_status{};
  if (status.code != TFL_OK) return status;
  plan->forward_at_once = at_once.forward_at_once;
  plan->backward_at_once = at_once.backward_at_once;
  if (plan->forward_at_once) forward = at_once.forward_workspace_bytes;
  if (plan->backward_at_once) backward = at_once.backward_workspace_bytes;
  // One after the other needs two: what a layer reads, and what it writes. At once, outputs need
  // one each, and no gradient is ever in memory.
  const auto between = static_cast<int64_t>(layers) - 1, two = std::min<int64_t>(2, between);
  plan->forward_slots = training ? 0 : plan->forward_at_once ? between : two;
  plan->backward_slots = plan->backward_at_once ? 0 : two;
  plan->forward_workspace_bytes =
      AddBytes(forward, MultiplyBytes(plan->slot_bytes, plan->forward_slots));
  plan->backward_workspace_bytes =
      AddBytes(backward, MultiplyBytes(plan->slot_bytes, plan->backward_slots));
  // Some room is left for what a caller adds to align a buffer.
  if (std::max({plan->reserve_bytes, plan->forward_workspace_bytes,
                plan->backward_workspace_bytes}) > kMostBytes - 4096) {
    status.code = TFL_INVALID_ARGUMENT;
    std::snprintf(status.message, sizeof(status.message),
                  "kernel and recurrent_kernel must be of layers whose scratch together fits in 63 "
                  "bits of bytes, got %zu layers of batch %lld, steps %lld",
                  layers, static_cast<long long>(spec[0].batch),
                  static_cast<long long>(spec[0].steps));
  }
  return status;
}

// The plan for a reserve of `reserve_bytes`, 0 for none. TensorFlow's TF32 switch may have moved
// since forward kept it, and with it the kernels that keep and read a reserve; its size tells how
// the switch stood, and `spec` is set to that.
template <typename Device>
tfl_status PlanStackFor(int64_t reserve_bytes, const Device& device, StackSpec* spec,
                        StackPlan* plan) {
  const tfl_status status = PlanStack(device, *spec, plan);
  if (status.code != TFL_OK || reserve_bytes == 0 || reserve_bytes == plan->reserve_bytes) {
    return status;
  }
  StackSpec other = *spec;
  for (tfl_lstm_spec& layer : other) layer.allow_tf32 = !layer.allow_tf32;
  StackPlan other_plan;
  if (PlanStack(device, other, &other_plan).code == TFL_OK &&
      other_plan.reserve_bytes == reserve_bytes) {
    *spec = other;
    *plan = other_plan;
  }
  return status;
}

template <typename Device>
tfl_status RunStackForward(const Device& device, const StackSpec& spec, const StackPlan& plan,
                           StackForward call) {
  const size_t layers = spec.size();
  const bool training = spec[0].training;
  for (size_t l = 0; l < layers; ++l) {
    tfl_lstm_outputs& outputs = call.outputs[l];
    if (l > 0) call.inputs[l].x = call.outputs[l - 1].output;
    if (l + 1 < layers) {
      outputs.output = training
                           ? StackPart(call.reserve, plan.outputs[l])
                           : StackPart(call.workspace, static_cast<int64_t>(l) %
                                                           plan.forward_slots * plan.slot_bytes);
    }
    if (training) outputs.reserve = StackPart(call.reserve, plan.reserves[l]);
    outputs.workspace = StackPart(call.workspace, plan.forward_slots * plan.slot_bytes);
    if (plan.forward_at_once) continue;
    const tfl_status status = device.Forward(spec[l], call.inputs[l], outputs);
    if (status.code != TFL_OK) return status;
  }
  if (plan.forward_at_once) return device.StackForward(spec, call.inputs, call.outputs);
  tfl_status ok = {};
  return ok;
}

template <typename Device>
tfl_status RunStackBackward(const Device& device, const StackSpec& spec, const StackPlan& plan,
                            StackBackward call) {
  const size_t layers = spec.size();
  for (size_t l = layers; l-- > 0;) {
    tfl_lstm_saved& saved = call.saved[l];
    tfl_lstm_gradients& gradients = call.gradients[l];
    if (l > 0) {
      call.inputs[l].x = StackPart(call.reserve, plan.outputs[l - 1]);
      if (!plan.backward_at_once) {
        gradients.grad_x = StackPart(call.workspace, (l - 1) % 2 * plan.slot_bytes);
      }
    }
    if (l + 1 < layers) {
      saved.output = StackPart(call.reserve, plan.outputs[l]);
      if (!plan.backward_at_once) {
        saved.grad_output = StackPart(call.workspace, l % 2 * plan.slot_bytes);
      }
    }
    saved.reserve = StackPart(call.reserve, plan.reserves[l]);
    gradients.workspace = StackPart(call.workspace, plan.backward_slots * plan.slot_bytes);
    if (plan.backward_at_once) continue;
    const tfl_status status = device.Backward(spec[l], call.inputs[l], saved, gradients);
    if (status.code != TFL_OK) return status;
  }
  if (plan.backward_at_once) {
    return device.StackBackward(spec, call.inputs, call.saved, call.gradients);
  }
  tfl_status ok = {};
  return ok;
}

}  // namespace tf_fused_lstm

#endif  // TF_FUSED_LSTM_CC_KERNELS_LSTM_STACK_H_
