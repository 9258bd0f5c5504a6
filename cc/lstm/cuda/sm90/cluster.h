// Hopper: the whole recurrence in one launch of thread-block clusters. A cluster keeps R in
// registers for the whole sequence, and what a step hands to the next travels through distributed
// shared memory. See docs/performance/clusters.md.
//
// Up to 512 units of a 16-bit type, 256 of float32 with TF32 products; tanh and sigmoid; recurrent
// dropout with one mask for all gates.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CLUSTER_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CLUSTER_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/lstm/cuda/device_limits.h"
#include "cc/lstm/cuda/recurrence.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {

bool ClusterForwardSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits);
bool ClusterBackwardSupported(const tfl_lstm_spec& spec, const DeviceLimits& limits);

// The estimate of a forward step's time by which slices are chosen, where a call is supported;
// with those of either direction of the gradient.
int64_t ClusterStepNanoseconds(const tfl_lstm_spec& spec, bool forward);

// The units that the kernels of a call work with, and its reserve has room for; 0 where there are
// none.
int ClusterPaddedHidden(const tfl_lstm_spec& spec);

int64_t ClusterReserveBytes(const tfl_lstm_spec& spec);
int64_t ClusterForwardWorkspaceBytes(const tfl_lstm_spec& spec);
int64_t ClusterBackwardWorkspaceBytes(const tfl_lstm_spec& spec);

tfl_status ClusterForward(const ForwardRecurrence& call, cudaStream_t stream);
tfl_status ClusterBackward(const BackwardRecurrence& call, cudaStream_t stream);

// Both directions of a call in one launch.
tfl_status ClusterForwardBoth(const ForwardRecurrence (&calls)[2], cudaStream_t stream);
tfl_status ClusterBackwardBoth(const BackwardRecurrence (&calls)[2], cudaStream_t stream);

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_CLUSTER_H_
