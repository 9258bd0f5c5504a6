// Makes the status values of the C interface.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_STATUS_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_STATUS_H_

#include <cuda_runtime_api.h>

#include <cstdarg>
#include <cstdio>

#include "cc/lstm/lstm.h"

namespace tfl::cuda {

inline tfl_status Ok() {
  tfl_status status;
  status.code = TFL_OK;
  status.message[0] = '\0';
  return status;
}

__attribute__((format(printf, 2, 3))) inline tfl_status Error(tfl_code code, const char* format,
                                                              ...) {
  tfl_status status;
  status.code = code;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(status.message, sizeof(status.message), format, arguments);
  va_end(arguments);
  return status;
}

inline tfl_status FromCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return Ok();
  return Error(error == cudaErrorMemoryAllocation ? TFL_RESOURCE_EXHAUSTED : TFL_INTERNAL,
               "CUDA error %s (%s) in %s", cudaGetErrorName(error), cudaGetErrorString(error),
               what);
}

// The outcome of the kernel launch just made.
inline tfl_status LaunchStatus(const char* kernel) { return FromCuda(cudaGetLastError(), kernel); }

}  // namespace tfl::cuda

#define TFL_RETURN_IF_ERROR(expression)         \
  do {                                          \
    const tfl_status status_ = (expression);    \
    if (status_.code != TFL_OK) return status_; \
  } while (0)

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_STATUS_H_
