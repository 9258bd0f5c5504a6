// The reserve that the step and grid families share: every step of the recurrence in order, so that
// a training call may run either family in either direction.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_RESERVE_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_RESERVE_H_

#include <cstdint>

#include "cc/lstm/cuda/dtype.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {

// Whether backward cannot find h of every step in the output.
inline bool ReserveHoldsHidden(const tfl_lstm_spec& spec) {
  return !spec.return_sequences || (spec.has_mask && spec.zero_output_for_mask);
}

struct Reserve {
  void* gates;   // dtype [steps, batch, 4 hidden]: i, f, g, o; undefined at masked steps
  void* cell;    // accumulator type [steps, batch, hidden]: c after the step
  void* hidden;  // dtype [steps, batch, hidden]: h after the step; null unless ReserveHoldsHidden
  int64_t bytes;

  Reserve(const tfl_lstm_spec& spec, const void* base) {
    Arena arena(const_cast<void*>(base));
    const int64_t cells = spec.batch * spec.steps * spec.hidden_size;
    gates = arena.Take(4 * cells * SizeOf(spec.dtype));
    cell = arena.Take(cells * SizeOf(AccumulatorOf(spec.dtype)));
    hidden = ReserveHoldsHidden(spec) ? arena.Take(cells * SizeOf(spec.dtype)) : nullptr;
    bytes = arena.used();
  }
};

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_RESERVE_H_
