// The family for few batch rows, on every device that can launch a cooperative grid: one kernel for
// all steps, matrix times vector on the plain float32 units, all weights in registers.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_VECTOR_VECTOR_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_VECTOR_VECTOR_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/lstm/cuda/device_limits.h"
#include "cc/lstm/cuda/recurrence.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {

// Forward and backward; the reserve is that of reserve.h.
bool VectorSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits);
// Whether it is also faster than a tensor-core family or a product a step.
bool VectorPreferred(const tfl_lstm_spec& spec, const DeviceLimits& limits);
int64_t VectorForwardWorkspaceBytes(const tfl_lstm_spec& spec);
int64_t VectorBackwardWorkspaceBytes(const tfl_lstm_spec& spec);
tfl_status VectorForward(const ForwardRecurrence& call, cudaStream_t stream);
tfl_status VectorBackward(const BackwardRecurrence& call, cudaStream_t stream);
// Two directions at once, where half of the device is enough for one.
bool VectorBothSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits);
tfl_status VectorForwardBoth(const ForwardRecurrence (&calls)[2], cudaStream_t stream);
tfl_status VectorBackwardBoth(const BackwardRecurrence (&calls)[2], cudaStream_t stream);

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_VECTOR_VECTOR_H_
