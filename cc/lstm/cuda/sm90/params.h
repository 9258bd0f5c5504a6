// What the cluster kernels take: calls of recurrence.h with their strides worked out.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_PARAMS_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_PARAMS_H_

#include <cstdint>

#include "cc/lstm/lstm.h"

namespace tfl::cuda::sm90 {

// How R can be read: 16 bytes at once, or 4 elements, where rows and base are aligned for it.
enum class WeightLoad : int32_t { kNativeWide, kNativeVector, kFloatVector, kNative, kFloat };

// Element (b, s) of a tensor of rows is at b * batch_stride + first + s * step_stride, where s
// counts the steps of the recurrence.
struct Rows {
  int64_t batch_stride;
  int64_t first;
  int64_t step_stride;
};

// A launch runs up to kMaxJobs recurrences that need nothing of each other, each with its own
// weights and states: blocks of one y run one job.
constexpr int kMaxJobs = TFL_MAX_DIRECTIONS;

struct CommonParams {
  const uint8_t* mask;
  int32_t batch;
  int32_t steps;
  int32_t hidden;
  int32_t rows;  // of a slice: even, at most kRows
  WeightLoad weight_load;
  bool zero_output_for_mask;
  bool return_sequences;
  bool vector_rows;  // rows of 16-bit tensors can be written 16 bytes at a time
};

struct CommonJob {
  const void* recurrent_kernel;
  const void* recurrent_dropout;  // [batch, hidden], or null: factors of h where it meets R
  Rows input_rows;                // in rows: of projection, mask, gradients of the gates
  Rows output_rows;               // in elements: of output and its gradient
};

struct ForwardJob : CommonJob {
  const void* projection;
  const void* bias;
  const void* initial_h;
  const void* initial_c;
  void* output;
  void* final_h;
  void* final_c;
  void* reserve;
};

struct ForwardParams : CommonParams {
  ForwardJob jobs[kMaxJobs];
  bool projection_is_float;
  bool weights_are_float;
};

struct BackwardJob : CommonJob {
  const void* reserve;
  const void* grad_output;
  const void* grad_final_h;
  const void* grad_final_c;
  void* grad_gates;
  void* previous_h;
  void* grad_initial_h;
  void* grad_initial_c;
};

struct BackwardParams : CommonParams {
  BackwardJob jobs[kMaxJobs];
  bool grad_gates_are_float;
};

}  // namespace tfl::cuda::sm90

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_PARAMS_H_
