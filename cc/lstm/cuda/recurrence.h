// What every recurrence kernel family takes: the steps alone, between the input projection before
// them and the weight-gradient products after them.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_RECURRENCE_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_RECURRENCE_H_

#include <cuda_runtime_api.h>

#include "cc/lstm/lstm.h"

namespace tfl::cuda {

// Rows are (batch, step) pairs; row r of step t (in the layout of x) and batch element b is
// b * steps + t, or t * batch + b if time_major. Step s of the recurrence reads input row
// t = go_backwards ? steps - 1 - s : s and writes output row s, or with output_reversed row
// steps - 1 - s. A call is one direction's; its spec has go_backwards as that direction reads, and
// num_directions as the caller has it.
struct ForwardRecurrence {
  tfl_lstm_spec spec;
  // x kernel, without the bias: [projection_parts][rows, 4 hidden], to be summed; more than one
  // part only for a family with sums_projection.
  const void* projection;
  int projection_parts = 1;
  tfl_dtype projection_dtype;    // float32, or spec.dtype
  const void* recurrent_kernel;  // spec.weight_dtype [hidden, 4 hidden], as it lies
  const void* bias;              // spec.weight_dtype [4 hidden] or null
  const void* initial_h;         // spec.dtype [batch, hidden] or null
  const void* initial_c;
  const uint8_t* mask;                 // in the layout of x, or null
  const void* recurrent_dropout_mask;  // [num_recurrent_dropout_masks, batch, hidden] or null
  void* output;                        // the direction's first element
  int64_t output_stride;               // elements from one row of the output to the next
  bool output_reversed;
  void* final_h;
  void* final_c;
  void* reserve;    // the direction's; null unless spec.training; its layout belongs to the kernel
                    // family
  void* workspace;  // the family's own scratch; contents undefined at entry
  int device;       // CUDA ordinal
  // Whether the last kernel queued, which makes the projection, lets the next one begin while it
  // runs; all before it has ended by then.
  bool may_begin_early;
};

struct BackwardRecurrence {
  tfl_lstm_spec spec;
  const void* recurrent_kernel;
  const void* initial_h;
  const void* initial_c;
  const uint8_t* mask;
  const void* recurrent_dropout_mask;
  const void* output;       // the direction's first element, its rows as in forward
  const void* reserve;      // the direction's
  const void* grad_output;  // null: zeros; lies as output does
  int64_t output_stride;
  bool output_reversed;
  const void* grad_final_h;  // null: zeros
  const void* grad_final_c;  // null: zeros
  // The gradient with respect to z = x W + h R + b: [rows, 4 hidden] in the layout of x (row t, not
  // s), zeros at masked steps.
  void* grad_gates;
  tfl_dtype grad_gates_dtype;  // spec.dtype, or float32 for the float32 and 16-bit types
  // h before every step, without dropout, in the row layout of grad_gates, for the product that
  // gives grad_recurrent_kernel; finite, whatever its value, at masked steps.
  void* previous_h;      // spec.dtype [rows, hidden] or null: not wanted
  void* grad_initial_h;  // spec.dtype or null: not wanted
  void* grad_initial_c;
  void* workspace;
  int device;
};

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_RECURRENCE_H_
