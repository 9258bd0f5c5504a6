// The tensor previous_h of a backward recurrence, for families with the reserve of reserve.h.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_PREVIOUS_HIDDEN_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_PREVIOUS_HIDDEN_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/lstm/cuda/elementwise.h"
#include "cc/lstm/cuda/recurrence.h"
#include "cc/lstm/cuda/reserve.h"
#include "cc/lstm/cuda/status.h"

namespace tfl::cuda {

// Writes call.previous_h where it is wanted. first_valid is FirstValidStep's, with a mask.
inline tfl_status WritePreviousHiddenFromReserve(const BackwardRecurrence& call,
                                                 const int64_t* first_valid, cudaStream_t stream) {
  if (call.previous_h == nullptr) return Ok();
  const tfl_lstm_spec& spec = call.spec;
  const Reserve reserve(spec, call.reserve);
  PreviousHidden previous = {};
  previous.initial_h = call.initial_h;
  previous.previous_h = call.previous_h;
  if (reserve.hidden != nullptr) {
    previous.hidden = reserve.hidden;
    previous.step_stride = spec.batch * spec.hidden_size;
    previous.batch_stride = spec.hidden_size;
  } else {
    previous.hidden = call.output;
    previous.step_stride = (spec.time_major ? spec.batch : 1) * call.output_stride;
    previous.batch_stride = (spec.time_major ? 1 : spec.steps) * call.output_stride;
    if (call.output_reversed) {
      previous.hidden = static_cast<const char*>(call.output) +
                        (spec.steps - 1) * previous.step_stride * SizeOf(spec.dtype);
      previous.step_stride = -previous.step_stride;
    }
    previous.first_valid = call.mask == nullptr ? nullptr : first_valid;
  }
  return WritePreviousHidden(spec, previous, stream);
}

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_PREVIOUS_HIDDEN_H_
