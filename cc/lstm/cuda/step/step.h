// The family for every size, type and device: a matrix product and one pointwise kernel a step.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_STEP_STEP_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_STEP_STEP_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/lstm/cuda/recurrence.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {

int64_t StepReserveBytes(const tfl_lstm_spec& spec);
int64_t StepForwardWorkspaceBytes(const tfl_lstm_spec& spec);
int64_t StepBackwardWorkspaceBytes(const tfl_lstm_spec& spec);
tfl_status StepForward(const ForwardRecurrence& call, cudaStream_t stream);
tfl_status StepBackward(const BackwardRecurrence& call, cudaStream_t stream);

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_STEP_STEP_H_
