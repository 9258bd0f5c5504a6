// The plan of a stack for a reserve that forward kept, with a core that need not be there.
#include "cc/kernels/lstm_stack.h"

#include <gtest/gtest.h>

#include <vector>

namespace tf_fused_lstm {
namespace {

// With TF32 the reserve is larger from 4 units on.
struct Device : LayersInTurn {
  tfl_status Sizes(const tfl_lstm_spec& spec, tfl_lstm_sizes* sizes) const {
    sizes->reserve_bytes = spec.allow_tf32 && spec.hidden_size >= 4 ? 2048 : 512;
    sizes->forward_workspace_bytes = spec.allow_tf32 ? 11 : 7;
    sizes->backward_workspace_bytes = spec.allow_tf32 ? 13 : 9;
    return tfl_status{};
  }
};

StackSpec Spec(int layers, int64_t hidden, bool allow_tf32) {
  tfl_lstm_spec spec = {};
  spec.batch = spec.steps = spec.num_directions = spec.training = 1;
  spec.hidden_size = hidden;
  spec.allow_tf32 = allow_tf32;
  return StackSpec(layers, spec);
}

TEST(PlanStackFor, TakesTheSwitchFromTheReservesSize) {
  for (int layers : {1, 3}) {
    for (bool then : {false, true}) {
      StackSpec spec = Spec(layers, 8, then);
      StackPlan kept, plan;
      ASSERT_EQ(PlanStack(Device(), spec, &kept).code, TFL_OK);
      for (bool now : {false, true}) {
        spec = Spec(layers, 8, now);
        ASSERT_EQ(PlanStackFor(kept.reserve_bytes, Device(), &spec, &plan).code, TFL_OK);
        for (const tfl_lstm_spec& layer : spec) EXPECT_EQ(layer.allow_tf32, then);
        EXPECT_EQ(plan.reserve_bytes, kept.reserve_bytes);
        EXPECT_EQ(plan.backward_workspace_bytes, kept.backward_workspace_bytes);
      }
    }
  }
}

TEST(PlanStackFor, KeepsTheSwitchWhereTheSizeTellsNothing) {
  // No reserve, one that either setting gives, and one that neither gives.
  const struct { int64_t reserve_bytes, hidden; } cases[] = {{0, 8}, {512, 2}, {100, 8}};
  for (const auto& c : cases) {
    for (bool now : {false, true}) {
      StackSpec spec = Spec(1, c.hidden, now);
      StackPlan plan;
      ASSERT_EQ(PlanStackFor(c.reserve_bytes, Device(), &spec, &plan).code, TFL_OK);
      EXPECT_EQ(spec[0].allow_tf32, now);
      EXPECT_EQ(plan.forward_workspace_bytes, now ? 11 : 7);
    }
  }
}

TEST(PlanStack, RefusesLayersWhoseBytesTogetherOverflow) {
  struct Large : LayersInTurn {
    tfl_status Sizes(const tfl_lstm_spec&, tfl_lstm_sizes* sizes) const {
      *sizes = {int64_t{1} << 61, int64_t{1} << 61, int64_t{1} << 61};
      return tfl_status{};
    }
  } large;
  StackPlan plan;
  EXPECT_EQ(PlanStack(large, Spec(2, 8, false), &plan).code, TFL_OK);
  for (int layers : {4, 6, 8, 9}) {
    EXPECT_EQ(PlanStack(large, Spec(layers, 8, false), &plan).code, TFL_INVALID_ARGUMENT);
  }
  StackSpec spec = Spec(3, int64_t{1} << 40, false);
  for (tfl_lstm_spec& layer : spec) layer.steps = int64_t{1} << 30;
  EXPECT_EQ(PlanStack(Device(), spec, &plan).code, TFL_INVALID_ARGUMENT);
}

// A device that can run layers at once, and what it was asked to run.
struct AtOnce {
  bool forward, backward;
  mutable std::vector<tfl_lstm_inputs> inputs;
  mutable std::vector<tfl_lstm_outputs> outputs;
  mutable std::vector<tfl_lstm_saved> saved;
  mutable std::vector<tfl_lstm_gradients> gradients;
  mutable int stack_calls = 0;

  tfl_status Sizes(const tfl_lstm_spec&, tfl_lstm_sizes* sizes) const {
    *sizes = {512, 1000, 2000};
    return tfl_status{};
  }
  tfl_status Forward(const tfl_lstm_spec&, const tfl_lstm_inputs& in,
                     const tfl_lstm_outputs& out) const {
    inputs.push_back(in);
    outputs.push_back(out);
    return tfl_status{};
  }
  tfl_status Backward(const tfl_lstm_spec&, const tfl_lstm_inputs& in, const tfl_lstm_saved& kept,
                      const tfl_lstm_gradients& out) const {
    inputs.insert(inputs.begin(), in);
    saved.insert(saved.begin(), kept);
    gradients.insert(gradients.begin(), out);
    return tfl_status{};
  }
  tfl_status StackSizes(const StackSpec&, tfl_lstm_stack_sizes* sizes) const {
    *sizes = {forward, backward, forward ? 3000 : 0, backward ? 4000 : 0};
    return tfl_status{};
  }
  tfl_status StackForward(const StackSpec&, const std::vector<tfl_lstm_inputs>& in,
                          const std::vector<tfl_lstm_outputs>& out) const {
    ++stack_calls;
    inputs = in;
    outputs = out;
    return tfl_status{};
  }
  tfl_status StackBackward(const StackSpec&, const std::vector<tfl_lstm_inputs>& in,
                           const std::vector<tfl_lstm_saved>& kept,
                           const std::vector<tfl_lstm_gradients>& out) const {
    ++stack_calls;
    inputs = in;
    saved = kept;
    gradients = out;
    return tfl_status{};
  }
};

// 4 layers with 256 bytes between two.
StackSpec FourLayers(bool training) {
  StackSpec spec = Spec(4, 32, false);
  for (tfl_lstm_spec& layer : spec) {
    layer.batch = 2;
    layer.dtype = TFL_FLOAT32;
    layer.training = training;
  }
  return spec;
}

TEST(RunStack, GivesEveryOutputItsOwnRoomWhereLayersRunAtOnce) {
  alignas(256) static char memory[1 << 14];
  for (bool at_once : {false, true}) {
    const StackSpec spec = FourLayers(false);
    const AtOnce device{at_once, false};
    StackPlan plan;
    ASSERT_EQ(PlanStack(device, spec, &plan).code, TFL_OK);
    EXPECT_EQ(plan.forward_workspace_bytes, at_once ? 3000 + 3 * 256 : 1000 + 2 * 256);
    StackForward call;
    call.inputs.resize(4);
    call.outputs.resize(4);
    call.outputs[3].output = memory + 8192;
    call.workspace = memory;
    ASSERT_EQ(RunStackForward(device, spec, plan, call).code, TFL_OK);
    EXPECT_EQ(device.stack_calls, at_once);
    ASSERT_EQ(device.outputs.size(), 4u);
    EXPECT_EQ(device.outputs[2].output, memory + (at_once ? 512 : 0));
    EXPECT_EQ(device.outputs[3].output, memory + 8192);
    for (int l = 1; l < 4; ++l) EXPECT_EQ(device.inputs[l].x, device.outputs[l - 1].output);
    EXPECT_EQ(device.outputs[0].workspace, memory + (at_once ? 768 : 512));
  }
}

TEST(RunStack, KeepsGradientsBetweenLayersOnlyInTurn) {
  static char memory[1 << 14];
  for (bool at_once : {false, true}) {
    const StackSpec spec = FourLayers(true);
    const AtOnce device{false, at_once};
    StackPlan plan;
    ASSERT_EQ(PlanStack(device, spec, &plan).code, TFL_OK);
    EXPECT_EQ(plan.forward_workspace_bytes, 1000);
    EXPECT_EQ(plan.backward_workspace_bytes, at_once ? 4000 : 2000 + 2 * 256);
    StackBackward call;
    call.inputs.resize(4);
    call.saved.resize(4);
    call.gradients.resize(4);
    call.reserve = memory;
    call.workspace = memory + 8192;
    ASSERT_EQ(RunStackBackward(device, spec, plan, call).code, TFL_OK);
    EXPECT_EQ(device.stack_calls, at_once);
    ASSERT_EQ(device.saved.size(), 4u);
    for (int l = 0; l < 4; ++l) {
      EXPECT_EQ(device.saved[l].reserve, memory + 512 * l);
      if (l == 3) continue;
      EXPECT_EQ(device.saved[l].output, memory + 4 * 512 + 256 * l);
      EXPECT_EQ(device.inputs[l + 1].x, device.saved[l].output);
      EXPECT_EQ(device.saved[l].grad_output, device.gradients[l + 1].grad_x);
      EXPECT_EQ(device.saved[l].grad_output == nullptr, at_once);
    }
    EXPECT_EQ(device.gradients[0].workspace, memory + 8192 + (at_once ? 0 : 512));
  }
}

}  // namespace
}  // namespace tf_fused_lstm
