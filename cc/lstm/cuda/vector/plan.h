// How the vector recurrence is cut: a pure function of the call and the device.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_VECTOR_PLAN_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_VECTOR_PLAN_H_

#include <cstdint>

#include "cc/lstm/cuda/device_limits.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {

constexpr int kVectorUnits = 8;     // of h that a block computes: 32 gates, one a lane
constexpr int kVectorWarps = 8;     // that split k
constexpr int kVectorMaxRows = 16;  // two for each warp to finish

struct VectorPlan {
  int per_warp;          // k of a warp: 16, 32, 64 or 128; a thread keeps as many weights
  int blocks_per_group;  // together they hold the recurrent kernel once
  int groups;            // of a direction: replicas, each with other batch rows
  int rows;              // of a group
  int forward_shared_bytes;
  int backward_shared_bytes;
};

// For `directions` of the call's at once. False where the kernels cannot run them.
bool MakeVectorPlan(const tfl_lstm_spec& spec, const DeviceLimits& limits, int directions,
                    VectorPlan* plan);

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_VECTOR_PLAN_H_
