// The family for hidden sizes that no cluster holds: one kernel for all steps, the recurrent kernel
// spread over the registers of the whole grid, what the steps pass on travelling through L2.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_GRID_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_GRID_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/lstm/cuda/device_limits.h"
#include "cc/lstm/cuda/recurrence.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {

// The reserve is that of reserve.h.
bool GridForwardSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits);
bool GridBackwardSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits);
int64_t GridForwardWorkspaceBytes(const tfl_lstm_spec& spec);
int64_t GridBackwardWorkspaceBytes(const tfl_lstm_spec& spec);
tfl_status GridForward(const ForwardRecurrence& call, cudaStream_t stream);
tfl_status GridBackward(const BackwardRecurrence& call, cudaStream_t stream);
// Two directions at once, where half of the device is enough for one.
bool GridForwardBothSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits);
bool GridBackwardBothSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits);
tfl_status GridForwardBoth(const ForwardRecurrence (&calls)[2], cudaStream_t stream);
tfl_status GridBackwardBoth(const BackwardRecurrence (&calls)[2], cudaStream_t stream);

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_GRID_H_
