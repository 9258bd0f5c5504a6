// What of a device decides which kernels can run there and how they are cut.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_DEVICE_LIMITS_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_DEVICE_LIMITS_H_

#include <cstdint>

#include "cc/lstm/lstm.h"

namespace tfl::cuda {

struct DeviceLimits {
  int compute_capability = 0;  // 10 * major + minor: 90 for Hopper
  int multiprocessors = 0;
  int64_t shared_bytes_per_block = 0;  // after opting in
  int64_t shared_bytes_per_multiprocessor = 0;
  int64_t registers_per_multiprocessor = 0;
  int64_t l2_bytes = 0;
  bool cooperative_launch = false;
};

// The limits of CUDA device `device`; asked of the driver once and kept.
tfl_status GetDeviceLimits(int device, DeviceLimits* limits);

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_DEVICE_LIMITS_H_
