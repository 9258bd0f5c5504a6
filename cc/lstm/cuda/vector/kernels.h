// The kernels behind VectorForward and VectorBackward.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_VECTOR_KERNELS_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_VECTOR_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/lstm/cuda/gemm.h"
#include "cc/lstm/cuda/vector/plan.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {

// T is the spec's dtype, W its weight_dtype. Strides count rows of x, mask and sequences.
struct VectorCommon {
  bool wide_weights;  // W is float32, not T
  const uint8_t* mask;
  // [directions][groups][2][rows][words]; a word is a float and its step's number
  uint64_t* exchange;
  int64_t batch;
  int steps;
  int hidden_size;
  int groups;
  int rows;
  int blocks_per_group;
  int64_t batch_stride;
  int64_t step_stride;
  int64_t output_stride;  // elements
  bool return_sequences;
  bool zero_output_for_mask;
  tfl_activation activation;
  tfl_activation recurrent_activation;
};

// What is one direction's own.
struct VectorDirection {
  const void* recurrent_kernel;   // W
  const void* recurrent_dropout;  // T [batch, hidden] or null
  const void* initial_c;          // T or null
  bool go_backwards;
  bool output_reversed;
};

struct VectorForwardDirection : VectorDirection {
  const float* projection;  // [projection_parts][rows of x][4 hidden]
  const void* bias;         // W or null
  const void* initial_h;    // T or null
  void* output;
  void* final_h;
  void* final_c;
  void* gates;  // the reserve (reserve.h), or null
  float* cell;
  void* hidden;
};

struct VectorForwardParams : VectorCommon {
  int projection_parts;  // at most kMostParts
  VectorForwardDirection directions[TFL_MAX_DIRECTIONS];
};

struct VectorBackwardDirection : VectorDirection {
  const void* gates;
  const float* cell;
  const void* grad_output;  // or null
  const void* grad_final_h;
  const void* grad_final_c;
  void* grad_gates;
  void* grad_initial_h;  // or null
  void* grad_initial_c;
  const int64_t* first_valid;  // [batch], with mask
};

struct VectorBackwardParams : VectorCommon {
  VectorBackwardDirection directions[TFL_MAX_DIRECTIONS];
};

// Allows the kernel so much dynamic shared memory on the current device. Never takes back what was
// allowed before: another thread may be about to launch the same kernel with more.
tfl_status AllowSharedBytes(const void* kernel, int bytes);

// The first `directions` of the params' directions at once.
tfl_status LaunchVectorForward(const VectorPlan& plan, tfl_dtype dtype, int directions,
                               VectorForwardParams params, cudaStream_t stream);
tfl_status LaunchVectorBackward(const VectorPlan& plan, tfl_dtype dtype, int directions,
                                VectorBackwardParams params, cudaStream_t stream);

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_VECTOR_KERNELS_H_
