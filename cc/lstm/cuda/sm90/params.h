// What the cluster kernels take: a call of recurrence.h with its strides worked out.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_PARAMS_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_PARAMS_H_

#include <cstdint>

namespace tfl::cuda::sm90 {

// How R can be read: 4 elements at once where rows and base are aligned for it.
enum class WeightLoad : int32_t { kNativeVector, kFloatVector, kNative, kFloat };

// Element (b, s) of a [rows, width] tensor in the layout of x is row b * batch_stride + first +
// s * step_stride, where s counts the steps of the recurrence.
struct Rows {
  int64_t batch_stride;
  int64_t first;
  int64_t step_stride;
};

struct CommonParams {
  const void* recurrent_kernel;
  const uint8_t* mask;
  int32_t batch;
  int32_t steps;
  int32_t hidden;
  int32_t rows;  // of a slice: even, at most kRows
  WeightLoad weight_load;
  Rows input_rows;   // x, mask, gradients of the gates
  Rows output_rows;  // output and its gradient
  bool zero_output_for_mask;
  bool return_sequences;
  bool vector_rows;  // rows of 16-bit tensors can be written 16 bytes at a time
};

struct ForwardParams : CommonParams {
  const void* projection;
  const void* bias;
  const void* initial_h;
  const void* initial_c;
  void* output;
  void* final_h;
  void* final_c;
  void* reserve;
  bool projection_is_float;
  bool weights_are_float;
};

struct BackwardParams : CommonParams {
  const void* reserve;
  const void* grad_output;
  const void* grad_final_h;
  const void* grad_final_c;
  void* grad_gates;
  void* previous_h;
  void* grad_initial_h;
  void* grad_initial_c;
  bool grad_gates_are_float;
};

}  // namespace tfl::cuda::sm90

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_PARAMS_H_
