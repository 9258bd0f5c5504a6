// The recurrence kernel families, fastest first, as the plan and the entry points see them.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_FAMILY_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_FAMILY_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/lstm/cuda/device_limits.h"
#include "cc/lstm/cuda/recurrence.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {

// Families with the same layout of the reserve can read each other's. A cluster's reserve is always
// larger than one of the steps' layout, so that its size tells a caller whether forward ran with
// TF32's switch as it is now.
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
  // Both directions of a call at once, where the supported functions say so; all null for a family
  // that runs them one after the other. The workspace is that of calls[0].
  bool (*forward_both_supported)(const tfl_lstm_spec& spec, const DeviceLimits& limits) = nullptr;
  bool (*backward_both_supported)(const tfl_lstm_spec& spec, const DeviceLimits& limits) = nullptr;
  tfl_status (*forward_both)(const ForwardRecurrence (&calls)[2], cudaStream_t stream) = nullptr;
  tfl_status (*backward_both)(const BackwardRecurrence (&calls)[2], cudaStream_t stream) = nullptr;
  // Whether forward sums the projection's parts of k (ForwardRecurrence::projection_parts).
  bool sums_projection = false;
};

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_FAMILY_H_
