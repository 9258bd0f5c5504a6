// Where the rows of a tensor over time lie: row r is batch row r % batch of step r / batch.
#ifndef TF_FUSED_LSTM_CC_LSTM_CPU_ROWS_H_
#define TF_FUSED_LSTM_CC_LSTM_CPU_ROWS_H_

#include <cstdint>

#include "cc/lstm/lstm.h"

namespace tfl::cpu {

struct RowStrides {
  int64_t first;  // the element where row 0 starts
  int64_t batch;
  int64_t step_stride;
  int64_t batch_stride;
  int64_t Start(int64_t step, int64_t row) const {
    return first + step * step_stride + row * batch_stride;
  }
};

// Rows of a caller's tensor of `width` elements a step, in the order of the recurrence.
inline RowStrides CallerRows(const tfl_lstm_spec& spec, int64_t width, bool go_backwards) {
  RowStrides rows;
  rows.batch = spec.batch;
  rows.step_stride = spec.time_major ? spec.batch * width : width;
  rows.batch_stride = spec.time_major ? width : spec.steps * width;
  rows.first = go_backwards && spec.steps > 0 ? (spec.steps - 1) * rows.step_stride : 0;
  if (go_backwards) rows.step_stride = -rows.step_stride;
  return rows;
}

// Rows of a buffer of ours, [steps, batch, width].
inline RowStrides DenseRows(int64_t batch, int64_t width) {
  return {0, batch, batch * width, width};
}

template <class T>
struct Rows {
  T* data;
  RowStrides strides;
  T* operator()(int64_t r) const {
    return data + strides.Start(r / strides.batch, r % strides.batch);
  }
};

}  // namespace tfl::cpu

#endif  // TF_FUSED_LSTM_CC_LSTM_CPU_ROWS_H_
