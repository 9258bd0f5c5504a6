// How the tile recurrence is cut: a pure function of the call and the device.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_TILE_PLAN_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_TILE_PLAN_H_

#include <cstdint>

#include "cc/lstm/cuda/device_limits.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {

// Two teams of four warps; a team's warps split k.
constexpr int kTileTeams = 2;
constexpr int kTileWarps = 4;
constexpr int kTileStages = 4;       // of h on its way to such a warp, of either team
constexpr int kTileMaxFlights = 32;  // of a group

// A thread's tile is 8 rows by the four gates of thread_units units. Lanes are row_groups x
// col_groups of those tiles, and as many k side by side as fill the warp.
struct TileShape {
  int row_groups;
  int col_groups;
  int thread_units;
  constexpr int rows() const { return 8 * row_groups; }
  constexpr int units() const { return col_groups * thread_units; }
  constexpr int depth() const { return 32 / (row_groups * col_groups); }
};
constexpr TileShape kTileShapes[] = {{1, 8, 2}, {2, 8, 2}, {2, 4, 2}, {4, 4, 2}, {2, 4, 3}};
constexpr int kTileShapeCount = sizeof(kTileShapes) / sizeof(kTileShapes[0]);

// Where things lie in a block's shared memory, in bytes.
struct TileLayout {
  int stage;  // bytes of one
  int stages;
  int sums;
  int sums_bytes;  // of a warp
  int outgoing;    // h of the block's units, [flights][units][rows], as it is published
  int c;
  int h;
  int bytes;

  constexpr TileLayout(TileShape shape, int padded_hidden, int flights, int chunk_blocks)
      : stage(chunk_blocks * shape.units() * shape.rows() * 4),
        stages(padded_hidden * shape.units() * 16),
        sums(stages + kTileWarps * kTileStages * stage),
        sums_bytes((shape.rows() * shape.units() + shape.rows()) * 16),
        outgoing(sums + kTileTeams * kTileWarps * sums_bytes),
        c(outgoing + flights * shape.rows() * shape.units() * 4),
        h(c + flights * CellSlots(shape) * 4),
        bytes(h + flights * CellSlots(shape) * 4) {}
  // Cells of a flight, rounded up to the team's threads.
  static constexpr int CellSlots(TileShape shape) {
    constexpr int kThreads = kTileWarps * 32;
    return (shape.rows() * shape.units() + kThreads - 1) / kThreads * kThreads;
  }
};

struct TilePlan {
  int shape;             // in kTileShapes
  int blocks_per_group;  // together they hold the recurrent kernel once
  int groups;            // of a direction: replicas, each with other batch rows
  int64_t slices;        // of the shape's rows; group g computes slices g, g + groups, ...
  int flights;           // slices of a group at the most: they go through a step one by one
  int chunk_blocks;      // blocks whose units one copy brings in
  int warp_chunks;       // such copies a warp and flight at the most
  int shared_bytes;
  int64_t step_cycles;  // estimated
};

// For `directions` of the call's at once. False where the kernel cannot run them.
bool MakeTilePlan(const tfl_lstm_spec& spec, const DeviceLimits& limits, int directions,
                  TilePlan* plan);

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_TILE_PLAN_H_
