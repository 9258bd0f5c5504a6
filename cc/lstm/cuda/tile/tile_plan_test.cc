// How the tile recurrence is cut, on devices that need not be there.
#include <gtest/gtest.h>

#include <string>

#include "cc/lstm/cuda/tile/plan.h"

namespace tfl::cuda {
namespace {

DeviceLimits Ampere() { return {80, 108, 163 << 10, 164 << 10, 65536, 40 << 20, true}; }
DeviceLimits Hopper() { return {90, 132, 227 << 10, 228 << 10, 65536, 60 << 20, true}; }

tfl_lstm_spec Spec(int64_t batch, int64_t hidden, tfl_dtype dtype = TFL_FLOAT32) {
  tfl_lstm_spec spec = {};
  spec.num_directions = 1;
  spec.batch = batch;
  spec.steps = 10;
  spec.hidden_size = hidden;
  spec.dtype = spec.weight_dtype = dtype;
  return spec;
}

TEST(MakeTilePlan, Table) {
  const struct {
    int64_t batch, hidden;
    int directions;
    int rows, units;  // 0: not supported
    int blocks_per_group, groups;
    int64_t slices;
    int flights, chunk_blocks;
  } rows[] = {
      {64, 512, 1, 8, 16, 32, 4, 8, 2, 4},    {64, 512, 2, 16, 16, 32, 2, 4, 2, 3},
      {256, 512, 1, 16, 16, 32, 4, 16, 4, 3}, {130, 440, 1, 16, 12, 37, 3, 9, 3, 5},
      {64, 768, 1, 16, 12, 64, 2, 4, 2, 4},   {64, 1024, 1, 16, 8, 128, 1, 4, 4, 9},
      {32, 1024, 1, 16, 8, 128, 1, 2, 2, 9},  {64, 1024, 2, 0, 0, 0, 0, 0, 0, 0},
      {64, 1280, 1, 0, 0, 0, 0, 0, 0, 0},     {5000, 512, 1, 0, 0, 0, 0, 0, 0, 0},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(std::to_string(row.batch) + " x " + std::to_string(row.hidden));
    TilePlan plan;
    const bool supported =
        MakeTilePlan(Spec(row.batch, row.hidden), Hopper(), row.directions, &plan);
    ASSERT_EQ(supported, row.rows != 0);
    if (!supported) continue;
    EXPECT_EQ(kTileShapes[plan.shape].rows(), row.rows);
    EXPECT_EQ(kTileShapes[plan.shape].units(), row.units);
    EXPECT_EQ(plan.blocks_per_group, row.blocks_per_group);
    EXPECT_EQ(plan.groups, row.groups);
    EXPECT_EQ(plan.slices, row.slices);
    EXPECT_EQ(plan.flights, row.flights);
    EXPECT_EQ(plan.chunk_blocks, row.chunk_blocks);
  }
}

TEST(MakeTilePlan, EveryCutHoldsTheCallAndFits) {
  int supported = 0;
  for (int64_t batch : {1, 7, 8, 9, 63, 64, 130, 256, 1000, 5000}) {
    for (int64_t hidden :
         {1, 3, 16, 17, 100, 256, 400, 512, 520, 640, 768, 1000, 1024, 1056, 2048}) {
      for (int directions : {1, 2}) {
        TilePlan plan;
        if (!MakeTilePlan(Spec(batch, hidden), Hopper(), directions, &plan)) continue;
        ++supported;
        const TileShape& shape = kTileShapes[plan.shape];
        SCOPED_TRACE(std::to_string(batch) + " x " + std::to_string(hidden));
        EXPECT_GE(plan.blocks_per_group * shape.units(), hidden);
        EXPECT_GE(plan.slices * shape.rows(), batch);
        EXPECT_LE(plan.groups, plan.slices);
        EXPECT_GE(int64_t{plan.groups} * plan.flights, plan.slices);
        EXPECT_LE(plan.flights, kTileMaxFlights);
        EXPECT_LE(directions * plan.groups * plan.blocks_per_group, Hopper().multiprocessors);
        EXPECT_LT(plan.shared_bytes, Hopper().shared_bytes_per_block);
        EXPECT_GE(plan.chunk_blocks * plan.warp_chunks * kTileWarps, plan.blocks_per_group);
      }
    }
  }
  EXPECT_GT(supported, 200);
}

TEST(MakeTilePlan, OtherDevicesTypesAndSizes) {
  TilePlan plan;
  EXPECT_TRUE(MakeTilePlan(Spec(64, 512), Hopper(), 1, &plan));
  EXPECT_FALSE(MakeTilePlan(Spec(64, 512), Ampere(), 1, &plan));
  EXPECT_FALSE(MakeTilePlan(Spec(64, 512, TFL_FLOAT64), Hopper(), 1, &plan));
  EXPECT_FALSE(MakeTilePlan(Spec(64, 512, TFL_BFLOAT16), Hopper(), 1, &plan));
  tfl_lstm_spec spec = Spec(64, 512);
  spec.num_recurrent_dropout_masks = 4;
  EXPECT_FALSE(MakeTilePlan(spec, Hopper(), 1, &plan));
  EXPECT_FALSE(MakeTilePlan(Spec(64, 8192), Hopper(), 1, &plan));
  EXPECT_FALSE(MakeTilePlan(Spec(70000, 512), Hopper(), 1, &plan));
}

}  // namespace
}  // namespace tfl::cuda
