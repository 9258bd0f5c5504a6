// The family for full float32 beyond few batch rows, on Hopper: one kernel for all steps, register
// tiles of multiply-adds, the recurrent kernel spread over the shared memory of the whole grid.
// Forward only; backward is another family's.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_TILE_TILE_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_TILE_TILE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/lstm/cuda/device_limits.h"
#include "cc/lstm/cuda/recurrence.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {

// The reserve is that of reserve.h.
bool TileForwardSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits);
// Whether it is also faster than other families.
bool TilePreferred(const tfl_lstm_spec& spec, const DeviceLimits& limits);
int64_t TileForwardWorkspaceBytes(const tfl_lstm_spec& spec);
tfl_status TileForward(const ForwardRecurrence& call, cudaStream_t stream);
// Two directions at once, where half of the device is enough for one.
bool TileForwardBothSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits);
tfl_status TileForwardBoth(const ForwardRecurrence (&calls)[2], cudaStream_t stream);

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_TILE_TILE_H_
