// The recurrence kernel families, fastest first, as the plan and the entry points see them.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_FAMILY_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_FAMILY_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/lstm/cuda/device_limits.h"
#include "cc/lstm/cuda/recurrence.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {

// Families with the same layout of the reserve can read each other's.
enum class ReserveLayout { kSteps, kCluster };

// A family's supported functions are pure: sizes, types, flags and device limits decide. A plan
// that is not forced asks preferred as well, which is null for a family that is always worth its
// place.
struct Family {
  const char* name;
  ReserveLayout reserve_layout;
  bool (*forward_supported)(const tfl_lstm_spec& spec, const DeviceLimits& limits);
  bool (*backward_supported)(const tfl_lstm_spec& spec, const DeviceLimits& limits);
  bool (*preferred)(const tfl_lstm_spec& spec, const DeviceLimits& limits);
  int64_t (*reserve_bytes)(const tfl_lstm_spec& spec);
  int64_t (*forward_workspace_bytes)(const tfl_lstm_spec& spec);
  int64_t (*backward_workspace_bytes)(const tfl_lstm_spec& spec);
  tfl_status (*forward)(const ForwardRecurrence& call, cudaStream_t stream);
  tfl_status (*backward)(const BackwardRecurrence& call, cudaStream_t stream);
};

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_FAMILY_H_
