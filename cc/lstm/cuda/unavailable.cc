// The CUDA half of the C interface in a library built without CUDA.
#include <cstdio>

#include "cc/lstm/lstm.h"

namespace {

tfl_status Unavailable() {
  tfl_status status;
  status.code = TFL_UNAVAILABLE;
  snprintf(status.message, sizeof(status.message), "this library was built without CUDA");
  return status;
}

}  // namespace

int32_t tfl_built_with_cuda(void) { return 0; }

tfl_status tfl_cuda_lstm_sizes(const tfl_lstm_spec*, int32_t, tfl_lstm_sizes*) {
  return Unavailable();
}

tfl_status tfl_cuda_lstm_forward(const tfl_lstm_spec*, const tfl_lstm_inputs*,
                                 const tfl_lstm_outputs*, const tfl_cuda_runtime*) {
  return Unavailable();
}

tfl_status tfl_cuda_lstm_stack_sizes(const tfl_lstm_spec*, int32_t, int32_t,
                                     tfl_lstm_stack_sizes*) {
  return Unavailable();
}

tfl_status tfl_cuda_lstm_stack_forward(const tfl_lstm_spec*, int32_t, const tfl_lstm_inputs*,
                                       const tfl_lstm_outputs*, const tfl_cuda_runtime*) {
  return Unavailable();
}

tfl_status tfl_cuda_lstm_stack_backward(const tfl_lstm_spec*, int32_t, const tfl_lstm_inputs*,
                                        const tfl_lstm_saved*, const tfl_lstm_gradients*,
                                        const tfl_cuda_runtime*) {
  return Unavailable();
}

tfl_status tfl_cuda_lstm_backward(const tfl_lstm_spec*, const tfl_lstm_inputs*,
                                  const tfl_lstm_saved*, const tfl_lstm_gradients*,
                                  const tfl_cuda_runtime*) {
  return Unavailable();
}
