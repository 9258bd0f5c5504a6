// The small passes around the recurrence and the products.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_ELEMENTWISE_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_ELEMENTWISE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/lstm/lstm.h"

namespace tfl::cuda {

// to[i] = from[i], rounded to nearest even.
tfl_status Convert(const void* from, tfl_dtype from_dtype, void* to, tfl_dtype to_dtype,
                   int64_t count, cudaStream_t stream);

// to[row] = from[row], width elements, or zeros where mask[row] is 0, whatever lies there.
tfl_status CopyUnmaskedRows(const void* from, const uint8_t* mask, int64_t rows, int64_t width,
                            tfl_dtype dtype, void* to, cudaStream_t stream);

// first[b] = the first step of the recurrence that the mask lets through, steps if none. first is
// int64 [batch].
tfl_status FirstValidStep(const tfl_lstm_spec& spec, const uint8_t* mask, int64_t* first,
                          cudaStream_t stream);

// previous_h of BackwardRecurrence: h before every step, in the row layout of x. h after step s of
// batch element b is hidden[s * step_stride + b * batch_stride + unit], but initial_h (null: zeros)
// before step first_valid[b] has run (null: step 0). Rows of masked steps hold something finite.
struct PreviousHidden {
  const void* hidden;
  int64_t step_stride;
  int64_t batch_stride;
  const void* initial_h;
  const int64_t* first_valid;
  void* previous_h;
};
tfl_status WritePreviousHidden(const tfl_lstm_spec& spec, const PreviousHidden& arguments,
                               cudaStream_t stream);

// Dropout: row r of [rows, width] has the factors of batch element r / rows_a_batch % batch in
// mask, dtype [batch, width]. Drop: to = from * mask, all of dtype. AddDropped: sum = (sum +) part
// * mask, both of dtype's accumulator type.
struct DropoutRows {
  tfl_dtype dtype;
  int64_t rows;
  int64_t width;
  int64_t batch;
  int64_t rows_a_batch;  // steps, or 1 where the batch is the inner dimension
};
tfl_status Drop(const DropoutRows& shape, const void* from, const void* mask, void* to,
                cudaStream_t stream);
tfl_status AddDropped(const DropoutRows& shape, const void* part, const void* mask, bool accumulate,
                      void* sum, cudaStream_t stream);

// sums[column] = the sum of matrix[rows, columns] over its rows, in an order that does not depend
// on timing.
int64_t ColumnSumWorkspaceBytes(int64_t rows, int64_t columns, tfl_dtype dtype);
tfl_status ColumnSum(const void* matrix, tfl_dtype dtype, int64_t rows, int64_t columns, void* sums,
                     tfl_dtype sums_dtype, void* workspace, cudaStream_t stream);

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_ELEMENTWISE_H_
