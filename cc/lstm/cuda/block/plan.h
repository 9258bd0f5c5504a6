// How the block recurrence is cut: a pure function of the call and the device.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_PLAN_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_PLAN_H_

#include <cstdint>

#include "cc/lstm/cuda/device_limits.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {

constexpr int kBlockMaxHidden = 128;

struct BlockPlan {
  int padded_hidden;  // 64 or 128
  int kernel_rows;    // that the kernel has room for: 2, 4 or 8
  int rows;           // of a block
  int blocks;         // of a direction
  int waves;          // one block a multiprocessor
  int slots;          // of the stage for R
};

// For all directions of the call at once. False where the kernels cannot run it.
bool MakeBlockPlan(const tfl_lstm_spec& spec, const DeviceLimits& limits, BlockPlan* plan);

// An estimate of a step's time, of all waves.
int64_t BlockStepNanoseconds(const BlockPlan& plan, bool forward);

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_PLAN_H_
