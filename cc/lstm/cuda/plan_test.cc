// The choice of family, on devices that need not be there.
#include "cc/lstm/cuda/plan.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "cc/lstm/cuda/block/plan.h"
#include "cc/lstm/cuda/dtype.h"

namespace tfl::cuda {
namespace {

DeviceLimits Pascal() { return {60, 56, 48 << 10, 64 << 10, 65536, 4 << 20, true}; }
DeviceLimits Ampere() { return {80, 108, 163 << 10, 164 << 10, 65536, 40 << 20, true}; }
DeviceLimits Ada() { return {89, 128, 99 << 10, 100 << 10, 65536, 72 << 20, true}; }
DeviceLimits Hopper() { return {90, 132, 227 << 10, 228 << 10, 65536, 60 << 20, true}; }

tfl_lstm_spec Spec(int64_t batch, int64_t steps, int64_t hidden, tfl_dtype dtype, bool training) {
  tfl_lstm_spec spec = {};
  spec.num_directions = 1;
  spec.batch = batch;
  spec.steps = steps;
  spec.input_size = hidden;
  spec.hidden_size = hidden;
  spec.dtype = spec.weight_dtype = dtype;
  spec.recurrent_activation = TFL_SIGMOID;
  spec.return_sequences = 1;
  spec.training = training;
  return spec;
}

// Families as a test wants them: supported up to a hidden size, forward and backward apart.
bool UpTo128(const tfl_lstm_spec& s, const DeviceLimits&) { return s.hidden_size <= 128; }
bool UpTo256(const tfl_lstm_spec& s, const DeviceLimits&) { return s.hidden_size <= 256; }
bool OnHopperUpTo1024(const tfl_lstm_spec& s, const DeviceLimits& d) {
  return d.compute_capability == 90 && s.hidden_size <= 1024;
}
bool Always(const tfl_lstm_spec&, const DeviceLimits&) { return true; }
bool Never(const tfl_lstm_spec&, const DeviceLimits&) { return false; }

Family Make(const char* name, ReserveLayout layout, decltype(&Always) forward,
            decltype(&Always) backward) {
  Family family = {};
  family.name = name;
  family.reserve_layout = layout;
  family.forward_supported = forward;
  family.backward_supported = backward;
  return family;
}

const std::vector<Family>& TestFamilies() {
  static const auto* families =
      new std::vector<Family>{Make("cluster", ReserveLayout::kCluster, UpTo256, UpTo128),
                              Make("grid", ReserveLayout::kSteps, OnHopperUpTo1024, Never),
                              Make("step", ReserveLayout::kSteps, Always, Always)};
  return *families;
}

struct Row {
  int64_t hidden;
  DeviceLimits limits;
  bool training;
  const char* forced;
  const char* forward;  // null: an error
  const char* backward;
};

TEST(MakePlan, Table) {
  const Row rows[] = {
      {64, Hopper(), false, nullptr, "cluster", nullptr},
      {64, Hopper(), true, nullptr, "cluster", "cluster"},
      {256, Hopper(), false, nullptr, "cluster", nullptr},
      // Cluster has no backward here, and no other family reads its reserve.
      {256, Hopper(), true, nullptr, "grid", "step"},
      {1024, Hopper(), true, nullptr, "grid", "step"},
      {1024, Ampere(), true, nullptr, "step", "step"},
      {2048, Hopper(), false, nullptr, "step", nullptr},
      {64, Pascal(), true, "step", "step", "step"},
      {1024, Hopper(), true, "grid", "grid", "step"},
      {1024, Ampere(), true, "grid", nullptr, nullptr},
      {256, Hopper(), true, "cluster", nullptr, nullptr},
      {256, Hopper(), false, "cluster", "cluster", nullptr},
      {256, Hopper(), false, "wavefront", "cluster", nullptr},
      {64, Hopper(), true, "nonsense", nullptr, nullptr},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(std::to_string(row.hidden) + " " + (row.forced == nullptr ? "" : row.forced));
    Plan plan = {};
    const tfl_status status = MakePlan(Spec(16, 8, row.hidden, TFL_BFLOAT16, row.training),
                                       row.limits, TestFamilies(), row.forced, &plan);
    if (row.forward == nullptr) {
      EXPECT_EQ(status.code, TFL_INVALID_ARGUMENT);
      EXPECT_NE(std::strstr(status.message, row.forced), nullptr) << status.message;
      continue;
    }
    ASSERT_EQ(status.code, TFL_OK) << status.message;
    EXPECT_STREQ(plan.forward->name, row.forward);
    if (row.backward == nullptr) {
      EXPECT_EQ(plan.backward, nullptr);
    } else {
      ASSERT_NE(plan.backward, nullptr);
      EXPECT_STREQ(plan.backward->name, row.backward);
    }
  }
}

struct BuiltRow {
  int64_t batch, hidden;
  tfl_dtype dtype;
  bool allow_tf32;
  DeviceLimits limits;
  const char* family;
};

// By measurement: docs/performance.md and what it links to.
TEST(MakePlan, BuiltFamilies) {
  const BuiltRow rows[] = {
      {1, 128, TFL_BFLOAT16, false, Hopper(), "block"},
      {1, 128, TFL_FLOAT16, false, Ampere(), "block"},
      {64, 512, TFL_FLOAT16, false, Hopper(), "cluster"},
      {256, 512, TFL_BFLOAT16, false, Hopper(), "cluster"},
      {64, 1024, TFL_BFLOAT16, false, Hopper(), "grid"},
      {16, 256, TFL_FLOAT32, true, Hopper(), "cluster"},
      {16, 256, TFL_FLOAT32, false, Hopper(), "vector"},
      {64, 512, TFL_FLOAT32, true, Hopper(), "grid"},
      {64, 512, TFL_FLOAT32, false, Hopper(), "tile"},
      {256, 512, TFL_FLOAT32, false, Hopper(), "tile"},
      {64, 1024, TFL_FLOAT32, false, Hopper(), "tile"},
      {64, 256, TFL_FLOAT32, false, Hopper(), "tile"},
      {16, 512, TFL_FLOAT32, false, Hopper(), "tile"},
      {8, 512, TFL_FLOAT32, false, Hopper(), "vector"},
      {4, 1024, TFL_FLOAT32, false, Hopper(), "vector"},
      {8, 1024, TFL_FLOAT32, false, Hopper(), "tile"},
      {128, 1024, TFL_FLOAT32, false, Hopper(), "step"},
      {32, 256, TFL_FLOAT32, false, Ampere(), "vector"},
      {2000, 512, TFL_FLOAT32, false, Hopper(), "step"},
      {64, 2048, TFL_FLOAT32, false, Hopper(), "step"},
      {64, 512, TFL_FLOAT32, false, Ampere(), "step"},
      // With leave to round, where the grid family does not run the call.
      {64, 500, TFL_FLOAT32, true, Hopper(), "tile"},
      {256, 500, TFL_FLOAT32, true, Hopper(), "step"},
      {16, 256, TFL_FLOAT64, false, Hopper(), "step"},
      {16, 256, TFL_FLOAT32, true, Ampere(), "vector"},
  };
  for (const BuiltRow& row : rows) {
    for (bool training : {false, true}) {
      tfl_lstm_spec spec = Spec(row.batch, 64, row.hidden, row.dtype, training);
      spec.allow_tf32 = row.allow_tf32;
      Plan plan = {};
      ASSERT_EQ(MakePlan(spec, row.limits, Families(), nullptr, &plan).code, TFL_OK);
      EXPECT_STREQ(plan.forward->name, row.family) << row.batch << " " << row.hidden;
    }
  }
}

TEST(MakeBlockPlan, Table) {
  const struct {
    int64_t batch, hidden;
    int directions;
    DeviceLimits limits;
    int padded_hidden;  // 0: not supported
    int kernel_rows, rows, blocks, waves, slots;
  } rows[] = {
      {1, 128, 1, Hopper(), 128, 2, 1, 1, 1, 4},    {132, 65, 1, Hopper(), 128, 2, 1, 132, 1, 4},
      {133, 128, 1, Hopper(), 128, 2, 2, 67, 1, 4}, {264, 128, 1, Hopper(), 128, 2, 2, 132, 1, 4},
      {264, 128, 2, Hopper(), 128, 4, 4, 66, 1, 4}, {265, 128, 1, Hopper(), 128, 4, 3, 89, 1, 4},
      {700, 64, 1, Hopper(), 64, 8, 6, 117, 1, 2},  {1056, 128, 1, Hopper(), 128, 8, 8, 132, 1, 4},
      {1057, 1, 1, Hopper(), 64, 8, 5, 212, 2, 2},  {1, 128, 1, Ampere(), 128, 2, 1, 1, 1, 4},
      {1, 128, 1, Ada(), 128, 2, 1, 1, 1, 2},       {1, 64, 1, Pascal(), 0, 0, 0, 0, 0, 0},
      {1, 129, 1, Hopper(), 0, 0, 0, 0, 0, 0},      {0, 64, 1, Hopper(), 0, 0, 0, 0, 0, 0},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(std::to_string(row.batch) + " x " + std::to_string(row.hidden));
    tfl_lstm_spec spec = Spec(row.batch, 64, row.hidden, TFL_FLOAT16, true);
    spec.num_directions = row.directions;
    BlockPlan plan;
    ASSERT_EQ(MakeBlockPlan(spec, row.limits, &plan), row.padded_hidden != 0);
    if (row.padded_hidden == 0) continue;
    EXPECT_EQ(plan.padded_hidden, row.padded_hidden);
    EXPECT_EQ(plan.kernel_rows, row.kernel_rows);
    EXPECT_EQ(plan.rows, row.rows);
    EXPECT_EQ(plan.blocks, row.blocks);
    EXPECT_EQ(plan.waves, row.waves);
    EXPECT_EQ(plan.slots, row.slots);
  }
}

TEST(MakeBlockPlan, OtherTypesActivationsAndMasks) {
  BlockPlan plan;
  EXPECT_FALSE(MakeBlockPlan(Spec(1, 8, 64, TFL_FLOAT32, true), Hopper(), &plan));
  tfl_lstm_spec spec = Spec(1, 8, 64, TFL_BFLOAT16, true);
  EXPECT_TRUE(MakeBlockPlan(spec, Hopper(), &plan));
  spec.weight_dtype = TFL_FLOAT32;
  EXPECT_TRUE(MakeBlockPlan(spec, Hopper(), &plan));
  spec.num_recurrent_dropout_masks = 1;
  EXPECT_TRUE(MakeBlockPlan(spec, Hopper(), &plan));
  spec.num_recurrent_dropout_masks = 4;
  EXPECT_FALSE(MakeBlockPlan(spec, Hopper(), &plan));
  spec.num_recurrent_dropout_masks = 0;
  spec.activation = TFL_RELU;
  EXPECT_FALSE(MakeBlockPlan(spec, Hopper(), &plan));
}

// TF32's switch may move between forward and backward: the reserve's size tells how it stood,
// unless its layout is the same.
TEST(MakePlan, ReservesOfDifferentLayoutsDifferInSize) {
  int differ = 0;
  for (int64_t batch : {1, 2, 7, 300}) {
    for (int64_t steps : {1, 2, 64}) {
      for (int64_t hidden : {1, 3, 63, 64, 65, 128, 256, 257}) {
        Plan plans[2];
        tfl_lstm_spec spec = Spec(batch, steps, hidden, TFL_FLOAT32, true);
        for (int directions : {1, 2}) {
          spec.num_directions = directions;
          for (int tf32 = 0; tf32 < 2; ++tf32) {
            spec.allow_tf32 = tf32;
            ASSERT_EQ(MakePlan(spec, Hopper(), Families(), nullptr, &plans[tf32]).code, TFL_OK);
          }
          if (plans[0].forward->reserve_layout == plans[1].forward->reserve_layout) continue;
          ++differ;
          EXPECT_GT(Align(plans[1].forward->reserve_bytes(spec)),
                    Align(plans[0].forward->reserve_bytes(spec)))
              << batch << " " << steps << " " << hidden;
        }
      }
    }
  }
  EXPECT_GT(differ, 0);
}

// No size, type or device is without a plan, and both directions agree on the reserve.
TEST(MakePlan, EveryCallOfTheBuiltFamiliesHasAPlan) {
  for (const DeviceLimits& limits : {Pascal(), Ampere(), Hopper()}) {
    for (int64_t batch : {1, 3, 64, 70000}) {
      for (int64_t hidden : {1, 7, 128, 256, 512, 1000, 1024, 8192}) {
        for (tfl_dtype dtype : {TFL_FLOAT32, TFL_FLOAT64, TFL_FLOAT16, TFL_BFLOAT16}) {
          for (bool training : {false, true}) {
            Plan plan = {};
            const tfl_lstm_spec spec = Spec(batch, 5, hidden, dtype, training);
            ASSERT_EQ(MakePlan(spec, limits, Families(), nullptr, &plan).code, TFL_OK);
            EXPECT_GE(plan.forward->forward_workspace_bytes(spec), 0);
            if (!training) continue;
            EXPECT_EQ(plan.forward->reserve_layout, plan.backward->reserve_layout);
            EXPECT_EQ(plan.forward->reserve_bytes(spec), plan.backward->reserve_bytes(spec));
            EXPECT_GE(plan.forward->reserve_bytes(spec), 5 * batch * hidden * 8);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tfl::cuda
