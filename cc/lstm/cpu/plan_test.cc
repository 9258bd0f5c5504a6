// How many threads a call takes, and whether they wait for each other at every step.
#include "cc/lstm/cpu/plan.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace tfl::cpu {
namespace {

// Multiply-adds that are worth another thread's waiting, well below what plan.cc asks for.
constexpr int64_t kWorthWaiting = 8 << 10;

tfl_lstm_spec Spec(int64_t batch, int64_t steps, int64_t input_size, int64_t hidden_size) {
  tfl_lstm_spec spec = {};
  spec.batch = batch;
  spec.steps = steps;
  spec.input_size = input_size;
  spec.hidden_size = hidden_size;
  spec.num_directions = 1;
  spec.dtype = spec.weight_dtype = TFL_FLOAT32;
  spec.activation = TFL_TANH;
  spec.recurrent_activation = TFL_SIGMOID;
  return spec;
}

Plan PlanOf(const tfl_lstm_spec& spec, int threads) {
  Plan plan;
  const tfl_status status = MakePlan(spec, threads, &plan);
  EXPECT_EQ(status.code, TFL_OK) << status.message;
  return plan;
}

TEST(PlanTest, OneRowIsSharedOnlyWhereAStepIsWorthTheWait) {
  for (int64_t hidden : {1, 16, 32, 64, 100, 128, 256, 512, 1024}) {
    for (int threads : {1, 2, 8, 64}) {
      SCOPED_TRACE(::testing::Message() << hidden << " units, " << threads << " threads");
      const Plan plan = PlanOf(Spec(1, 500, 7, hidden), threads);
      EXPECT_LE(plan.shares, threads);
      // Else one thread runs the row through all steps.
      if (plan.row_tasks == 0) {
        EXPECT_GE(4 * hidden * hidden / plan.shares, kWorthWaiting);
      } else {
        EXPECT_EQ(plan.row_tasks, 1);
      }
    }
  }
}

TEST(PlanTest, SmallCallsTakeOneThread) {
  for (int threads : {1, 2, 8, 64}) {
    EXPECT_EQ(PlanOf(Spec(1, 1, 16, 64), threads).shares, 1);
    EXPECT_EQ(PlanOf(Spec(3, 5, 2, 4), threads).shares, 1);
  }
}

TEST(PlanTest, LargeCallsTakeAll) {
  for (int threads : {1, 2, 8, 64}) {
    EXPECT_EQ(PlanOf(Spec(1, 64, 1024, 1024), threads).shares, threads);
    EXPECT_EQ(PlanOf(Spec(64, 200, 64, 256), threads).shares, threads);
  }
}

TEST(PlanTest, FewUnitsAndManyRowsDoNotWaitAtEveryStep) {
  const Plan plan = PlanOf(Spec(256, 100, 32, 64), 8);
  EXPECT_EQ(plan.shares, 8);
  EXPECT_EQ(plan.row_tasks, 8);
}

TEST(PlanTest, OneRowReadsKernelInPlaceWhereCacheHoldsIt) {
  for (int64_t cache : {0, 1 << 20, 2 << 20}) {
    EXPECT_TRUE(ReadsDirectly(256, cache));
    EXPECT_FALSE(ReadsDirectly(512, cache));
  }
  EXPECT_TRUE(ReadsDirectly(192, 512 << 10));
  EXPECT_FALSE(ReadsDirectly(256, 512 << 10));
  EXPECT_FALSE(PlanOf(Spec(1, 64, 512, 512), 2).direct_recurrent);
  EXPECT_FALSE(PlanOf(Spec(2, 64, 128, 128), 2).direct_recurrent);
}

}  // namespace
}  // namespace tfl::cpu
