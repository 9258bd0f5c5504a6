// The plan of a stack for a reserve that forward kept, with a core that need not be there.
#include "cc/kernels/lstm_stack.h"

#include <gtest/gtest.h>

namespace tf_fused_lstm {
namespace {

// With TF32 the reserve is larger from 4 units on.
tfl_status Sizes(const tfl_lstm_spec& spec, tfl_lstm_sizes* sizes) {
  sizes->reserve_bytes = spec.allow_tf32 && spec.hidden_size >= 4 ? 2048 : 512;
  sizes->forward_workspace_bytes = spec.allow_tf32 ? 11 : 7;
  sizes->backward_workspace_bytes = spec.allow_tf32 ? 13 : 9;
  return tfl_status{};
}

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
      ASSERT_EQ(PlanStack(spec, Sizes, &kept).code, TFL_OK);
      for (bool now : {false, true}) {
        spec = Spec(layers, 8, now);
        ASSERT_EQ(PlanStackFor(kept.reserve_bytes, Sizes, &spec, &plan).code, TFL_OK);
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
      ASSERT_EQ(PlanStackFor(c.reserve_bytes, Sizes, &spec, &plan).code, TFL_OK);
      EXPECT_EQ(spec[0].allow_tf32, now);
      EXPECT_EQ(plan.forward_workspace_bytes, now ? 11 : 7);
    }
  }
}

TEST(PlanStack, RefusesLayersWhoseBytesTogetherOverflow) {
  const auto large = [](const tfl_lstm_spec&, tfl_lstm_sizes* sizes) {
    *sizes = {int64_t{1} << 61, int64_t{1} << 61, int64_t{1} << 61};
    return tfl_status{};
  };
  StackPlan plan;
  EXPECT_EQ(PlanStack(Spec(2, 8, false), large, &plan).code, TFL_OK);
  for (int layers : {4, 6, 8, 9}) {
    EXPECT_EQ(PlanStack(Spec(layers, 8, false), large, &plan).code, TFL_INVALID_ARGUMENT);
  }
  StackSpec spec = Spec(3, int64_t{1} << 40, false);
  for (tfl_lstm_spec& layer : spec) layer.steps = int64_t{1} << 30;
  EXPECT_EQ(PlanStack(spec, Sizes, &plan).code, TFL_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace tf_fused_lstm
