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

template <class Job, int kJobs>
struct ForwardParamsOf : CommonParams {
  Job jobs[kJobs];
  bool projection_is_float;
  bool weights_are_float;
};
using ForwardParams = ForwardParamsOf<ForwardJob, kMaxJobs>;

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

template <class Job, int kJobs>
struct BackwardParamsOf : CommonParams {
  Job jobs[kJobs];
  bool grad_gates_are_float;
};
using BackwardParams = BackwardParamsOf<BackwardJob, kMaxJobs>;

// Layers of a stack that run at once, a job each, those that others wait for first. What a job
// reads of its neighbour comes row by row as that one's blocks publish it: their counts of steps
// whose rows are in memory, a word a block, kCountStride words a slice.
constexpr int kMaxStackLayers = TFL_MAX_STACK_LAYERS;
constexpr int kCountStride = 32;

struct StackPart {
  const void* source;  // the neighbour's rows, of `hidden` or 4 `hidden` elements; null for the
                       // job that has none
  const void* kernel;  // the input weights between the two layers
  const uint32_t* source_counts;
  uint32_t* counts;  // null where nothing waits for the job
  bool weights_are_float;
  bool layer_returns_sequences;
};

struct StackForwardJob : ForwardJob, StackPart {};
using StackForwardParams = ForwardParamsOf<StackForwardJob, kMaxStackLayers>;

struct StackBackwardJob : BackwardJob, StackPart {};
using StackBackwardParams = BackwardParamsOf<StackBackwardJob, kMaxStackLayers>;

}  // namespace tfl::cuda::sm90

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_PARAMS_H_
