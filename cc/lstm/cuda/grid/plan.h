// How the whole-grid recurrence is cut: a pure function of the call and the device.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_PLAN_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_PLAN_H_

#include <cstdint>

#include "cc/lstm/cuda/device_limits.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {

// Units of h that one block computes, and blocks whose units one copy brings in.
constexpr int kGridUnits = 16;
constexpr int kGridChunkBlocks = 8;
constexpr int kGridChunkUnits = kGridUnits * kGridChunkBlocks;
constexpr int kGridClusterBlocks = 2;
// Batch rows that travel together: 32 rows are two flights, one on its way while the other
// computes.
constexpr int kGridFlightRows = 16;

enum class GridDirection { kForward, kBackward };

// Shared memory a batch row takes beside the two buffers: forward 544 bytes of sums; backward 256
// of sums and 64 gate gradients, padded by 16 bytes.
constexpr int kGridRowBytes = 544;

struct GridPlan {
  int padded_hidden;     // 512, 768 or 1024: the kernel's hidden size, the rest zeros
  int rows;              // 16 or 32: batch rows a group computes at once
  int blocks_per_group;  // together they hold all of the recurrent kernel, in registers
  int groups;            // replicas of the recurrent kernel, each with other batch rows
  int64_t slices;        // of `rows` batch rows; group g computes slices g, g + groups, ...
  int shared_bytes;      // a block
};

// For one direction of the call. False where the kernel cannot run it. resident_blocks, if not 0,
// lowers what the limits promise: to what the driver said fits at once, or to a direction's share.
bool MakeGridPlan(const tfl_lstm_spec& spec, const DeviceLimits& limits, GridDirection direction,
                  int resident_blocks, GridPlan* plan);

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_PLAN_H_
