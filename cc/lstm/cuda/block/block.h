// Ampere and newer: the whole recurrence of a few batch rows in one thread block, with nothing
// exchanged between multiprocessors. R stays in a block's registers for the whole sequence.
//
// Up to 128 units of a 16-bit type; tanh and sigmoid; recurrent dropout with one mask for all
// gates. The reserve is that of the cluster family.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_BLOCK_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_BLOCK_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/lstm/cuda/device_limits.h"
#include "cc/lstm/cuda/recurrence.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {

bool BlockSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits);

int64_t BlockWorkspaceBytes(const tfl_lstm_spec& spec);

tfl_status BlockForward(const ForwardRecurrence& call, cudaStream_t stream);
tfl_status BlockBackward(const BackwardRecurrence& call, cudaStream_t stream);

// Both directions of a call in one launch.
tfl_status BlockForwardBoth(const ForwardRecurrence (&calls)[2], cudaStream_t stream);
tfl_status BlockBackwardBoth(const BackwardRecurrence (&calls)[2], cudaStream_t stream);

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_BLOCK_BLOCK_H_
