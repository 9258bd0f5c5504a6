// One step's work on every (batch, unit) apart from the matrix product.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_STEP_POINTWISE_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_STEP_POINTWISE_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/lstm/lstm.h"

namespace tfl::cuda {

// A is the accumulator type, T the spec's dtype. [batch, 4 hidden] is dense; a row of a tensor that
// lies as x does starts batch_stride rows after that of the batch element before it.
struct ForwardStep {
  const void* product;  // A [product_parts][batch, 4 hidden], whose sum is h R; null: zeros
  int product_parts;
  const void* projection;      // A, this step's first row of 4 hidden
  int64_t batch_stride;        // rows, of projection and mask
  const void* bias;            // A [4 hidden] or null
  const uint8_t* mask;         // this step's first element, or null
  const int64_t* first_valid;  // [batch], with mask
  int64_t step;
  bool zero_output_for_mask;
  tfl_activation activation;
  tfl_activation recurrent_activation;
  int64_t batch;
  int64_t hidden_size;
  const void* previous_h;       // T [batch, hidden] or null: zeros
  const void* previous_c;       // A [batch, hidden] or null: zeros
  void* h;                      // T [batch, hidden]; may be previous_h
  void* c;                      // A [batch, hidden]; may be previous_c
  void* output;                 // T, this step's first row of hidden, or null
  int64_t output_batch_stride;  // elements
  void* gates;                  // T [batch, 4 hidden] or null, i, f, g, o for backward
  void* hidden_copy;            // T [batch, hidden] or null, h for backward
  const void* dropout_mask;     // T [dropout_masks, batch, hidden] or null
  int dropout_masks;
  void* dropped;  // T likewise: h * dropout_mask, for the next step's product
  void* final_h;  // T [batch, hidden], at the last step, else null
  void* final_c;  // T
};
tfl_status RunForwardStep(const ForwardStep& step, tfl_dtype dtype, cudaStream_t stream);

struct BackwardStep {
  const void* gates;       // T [batch, 4 hidden]
  const void* cell;        // A [batch, hidden], c after the step
  const void* previous_c;  // A [batch, hidden] or null: zeros
  const uint8_t* mask;     // this step's first element, or null
  int64_t batch_stride;    // rows, of mask and grad_gates
  const int64_t* first_valid;
  int64_t step;
  bool zero_output_for_mask;
  tfl_activation activation;
  tfl_activation recurrent_activation;
  int64_t batch;
  int64_t hidden_size;
  const void* grad_output;           // T, this step's first row of hidden, or null: zeros
  int64_t grad_output_batch_stride;  // elements
  // The gradient of h after the step is the sum of product, A [product_parts][batch, hidden], and
  // with a mask grad_h, A [batch, hidden]; where product is null it is grad_h. With a mask grad_h
  // is overwritten by what passes the step by.
  const void* product;
  int product_parts;
  void* grad_h;
  void* grad_c;            // A [batch, hidden]: of c after the step, then of c before it
  void* grad_gates;        // T, this step's first row of 4 hidden
  void* grad_gates_dense;  // T [batch, 4 hidden] or null: the same once more, dense
};
tfl_status RunBackwardStep(const BackwardStep& step, tfl_dtype dtype, cudaStream_t stream);

// to[i], of dtype, = more[i] (null: 0) + the sum of product[parts][count] over its parts, both of
// the accumulator type.
tfl_status SumParts(const void* product, int parts, int64_t count, const void* more, void* to,
                    tfl_dtype dtype, cudaStream_t stream);

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_STEP_POINTWISE_H_
