// How the grid and vector recurrences are cut, on devices that need not be there.
#include <gtest/gtest.h>

#include <string>

#include "cc/lstm/cuda/grid/plan.h"
#include "cc/lstm/cuda/vector/plan.h"

namespace tfl::cuda {
namespace {

DeviceLimits Pascal() { return {61, 20, 48 << 10, 96 << 10, 65536, 2 << 20, true}; }
DeviceLimits Ampere() { return {80, 108, 163 << 10, 164 << 10, 65536, 40 << 20, true}; }
DeviceLimits Hopper() { return {90, 132, 227 << 10, 228 << 10, 65536, 60 << 20, true}; }

tfl_lstm_spec Spec(int64_t batch, int64_t hidden, tfl_dtype dtype) {
  tfl_lstm_spec spec = {};
  spec.num_directions = 1;
  spec.batch = batch;
  spec.steps = 10;
  spec.hidden_size = hidden;
  spec.dtype = spec.weight_dtype = dtype;
  spec.recurrent_activation = TFL_SIGMOID;
  spec.allow_tf32 = 1;
  return spec;
}

TEST(MakeGridPlan, Table) {
  constexpr GridDirection kForward = GridDirection::kForward, kBackward = GridDirection::kBackward;
  const struct {
    int64_t batch, hidden;
    tfl_dtype dtype;
    int resident_blocks;
    int padded_hidden;  // 0: not supported
    int rows, groups;
    int64_t slices;
    int shared_bytes;
    GridDirection direction = kForward;
  } rows[] = {
      {64, 1024, TFL_BFLOAT16, 0, 1024, 32, 2, 2, 148480},
      {1, 1024, TFL_BFLOAT16, 0, 1024, 16, 1, 1, 147456},
      {33, 1000, TFL_FLOAT16, 0, 1024, 32, 2, 2, 148480},
      {192, 1024, TFL_FLOAT16, 0, 1024, 32, 2, 6, 148480},
      {193, 1024, TFL_FLOAT16, 0, 0, 0, 0, 0, 0},  // four passes
      {64, 768, TFL_BFLOAT16, 0, 768, 32, 2, 2, 115712},
      {64, 512, TFL_FLOAT32, 0, 512, 16, 4, 4, 73728},
      {64, 512, TFL_FLOAT32, 0, 512, 16, 4, 4, 139264, kBackward},
      {128, 264, TFL_FLOAT32, 0, 512, 32, 4, 4, 82944},
      {128, 264, TFL_FLOAT32, 0, 512, 32, 4, 4, 148480, kBackward},
      {384, 512, TFL_BFLOAT16, 0, 512, 32, 4, 12, 82944},
      {385, 512, TFL_BFLOAT16, 0, 0, 0, 0, 0, 0},
      {64, 520, TFL_FLOAT32, 0, 768, 32, 2, 2, 115712},
      {64, 520, TFL_FLOAT32, 0, 0, 0, 0, 0, 0, kBackward},
      {64, 1024, TFL_FLOAT32, 0, 1024, 32, 2, 2, 148480},
      {64, 1024, TFL_FLOAT64, 0, 0, 0, 0, 0, 0},
      {64, 1004, TFL_BFLOAT16, 0, 0, 0, 0, 0, 0},  // not in vectors of 8 units
      {64, 256, TFL_BFLOAT16, 0, 0, 0, 0, 0, 0},   // half of the smallest
      {64, 1024, TFL_BFLOAT16, 64, 1024, 32, 1, 2, 148480},
      {64, 1024, TFL_BFLOAT16, 62, 0, 0, 0, 0, 0},  // not one group fits
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(std::to_string(row.batch) + " x " + std::to_string(row.hidden));
    GridPlan plan;
    const bool supported = MakeGridPlan(Spec(row.batch, row.hidden, row.dtype), Hopper(),
                                        row.direction, row.resident_blocks, &plan);
    ASSERT_EQ(supported, row.padded_hidden != 0);
    if (!supported) continue;
    EXPECT_EQ(plan.padded_hidden, row.padded_hidden);
    EXPECT_EQ(plan.blocks_per_group, row.padded_hidden / 16);
    EXPECT_EQ(plan.rows, row.rows);
    EXPECT_EQ(plan.groups, row.groups);
    EXPECT_EQ(plan.slices, row.slices);
    EXPECT_EQ(plan.shared_bytes, row.shared_bytes);
  }
}

TEST(MakeGridPlan, OtherDevicesFunctionsAndFullPrecision) {
  GridPlan plan;
  EXPECT_FALSE(
      MakeGridPlan(Spec(64, 1024, TFL_BFLOAT16), Ampere(), GridDirection::kForward, 0, &plan));
  tfl_lstm_spec spec = Spec(64, 1024, TFL_BFLOAT16);
  spec.activation = TFL_RELU;
  EXPECT_FALSE(MakeGridPlan(spec, Hopper(), GridDirection::kForward, 0, &plan));
  spec = Spec(64, 512, TFL_FLOAT32);
  spec.allow_tf32 = 0;
  EXPECT_FALSE(MakeGridPlan(spec, Hopper(), GridDirection::kForward, 0, &plan));
}

TEST(MakeVectorPlan, Table) {
  const struct {
    int64_t batch, hidden;
    tfl_dtype dtype;
    DeviceLimits limits;
    int per_warp;  // 0: not supported
    int blocks_per_group, groups, rows;
  } rows[] = {
      {1, 1024, TFL_FLOAT32, Hopper(), 128, 128, 1, 1},
      {12, 1024, TFL_FLOAT32, Hopper(), 128, 128, 1, 12},
      {13, 1024, TFL_FLOAT32, Hopper(), 0, 0, 0, 0},  // backward's shared memory
      {1, 1025, TFL_FLOAT32, Hopper(), 0, 0, 0, 0},
      {16, 256, TFL_FLOAT16, Hopper(), 32, 32, 4, 4},
      {65, 256, TFL_BFLOAT16, Hopper(), 0, 0, 0, 0},  // 17 rows
      {5, 129, TFL_FLOAT32, Hopper(), 32, 17, 5, 1},
      {1, 1, TFL_FLOAT32, Hopper(), 16, 1, 1, 1},
      {1, 128, TFL_FLOAT64, Hopper(), 0, 0, 0, 0},
      {1, 864, TFL_FLOAT32, Ampere(), 128, 108, 1, 1},
      {1, 872, TFL_FLOAT32, Ampere(), 0, 0, 0, 0},
      {2, 160, TFL_FLOAT32, Pascal(), 32, 20, 1, 2},
      {1, 168, TFL_FLOAT32, Pascal(), 0, 0, 0, 0},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(std::to_string(row.batch) + " x " + std::to_string(row.hidden));
    VectorPlan plan;
    const bool supported =
        MakeVectorPlan(Spec(row.batch, row.hidden, row.dtype), row.limits, 1, &plan);
    ASSERT_EQ(supported, row.per_warp != 0);
    if (!supported) continue;
    EXPECT_EQ(plan.per_warp, row.per_warp);
    EXPECT_EQ(plan.blocks_per_group, row.blocks_per_group);
    EXPECT_EQ(plan.groups, row.groups);
    EXPECT_EQ(plan.rows, row.rows);
    EXPECT_LE(plan.backward_shared_bytes, row.limits.shared_bytes_per_block);
  }
  VectorPlan half;
  ASSERT_TRUE(MakeVectorPlan(Spec(16, 256, TFL_FLOAT16), Hopper(), 2, &half));
  EXPECT_EQ(half.groups, 2);
  EXPECT_EQ(half.rows, 8);
  EXPECT_FALSE(MakeVectorPlan(Spec(1, 1024, TFL_FLOAT32), Hopper(), 2, &half));
  tfl_lstm_spec alone = Spec(1, 128, TFL_FLOAT32);
  DeviceLimits old = Pascal();
  old.cooperative_launch = false;
  VectorPlan plan;
  EXPECT_FALSE(MakeVectorPlan(alone, old, 1, &plan));
}

}  // namespace
}  // namespace tfl::cuda
