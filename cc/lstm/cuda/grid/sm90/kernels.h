// The kernels behind GridForward and GridBackward.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_KERNELS_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/lstm/cuda/grid/plan.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {

constexpr int kGridCounters = 64;  // of a group: one a chunk of each flight
constexpr int kGridForwardThreads = 512;
constexpr int kGridBackwardThreads = 384;
constexpr int kGridCounterPitch = 32;  // uint32: each counter has a cache line of its own

// Void stands for the spec's dtype or, with wide_weights, float32 weights. Counters are
// [directions][groups][kGridCounters][kGridCounterPitch], and so are the buffers below. Strides
// count rows of x, mask and sequences.
struct GridCommon {
  bool wide_weights;  // weights are float32 whatever the dtype
  const uint8_t* mask;
  uint32_t* counters;
  int64_t batch;
  int steps;
  int hidden_size;
  int slices;
  int groups;  // of a direction
  int64_t batch_stride;
  int64_t step_stride;
  int64_t output_stride;  // elements
  bool return_sequences;
  bool zero_output_for_mask;
};

// What is one direction's own.
struct GridDirectionParams {
  const void* recurrent_kernel;
  const void* recurrent_dropout;  // [batch, hidden] or null
  const void* initial_c;
  bool go_backwards;
  bool output_reversed;
};

struct GridForwardDirection : GridDirectionParams {
  const float* projection;  // [rows, 4 hidden]
  const void* bias;         // or null
  const void* initial_h;
  void* output;
  void* final_h;
  void* final_c;
  void* gates;  // the reserve (reserve.h), or null
  float* cell;
  void* hidden;
};

struct GridForwardParams : GridCommon {
  void* exchange;  // two buffers of h a group
  GridForwardDirection directions[TFL_MAX_DIRECTIONS];
};

struct GridBackwardDirection : GridDirectionParams {
  const int64_t* first_valid;  // [batch], with mask
  const void* gates;           // the reserve
  const float* cell;
  const void* grad_output;  // or null
  const void* grad_final_h;
  const void* grad_final_c;
  void* grad_gates;      // [rows, 4 hidden]
  void* grad_initial_h;  // or null
  void* grad_initial_c;
};

struct GridBackwardParams : GridCommon {
  void* exchange;  // two buffers of gate gradients a group
  void* partials;  // two buffers of partial sums of the gradient of h a group, with their numbers
  GridBackwardDirection directions[TFL_MAX_DIRECTIONS];
};

// How many blocks of the plan's kernel the device holds at once.
tfl_status GridResidentBlocks(const GridPlan& plan, GridDirection direction, tfl_dtype dtype,
                              int device, int* blocks);
// params is GridForwardParams or GridBackwardParams; the first `directions` of its directions run.
tfl_status LaunchGrid(const GridPlan& plan, GridDirection direction, tfl_dtype dtype,
                      int directions, void* params, cudaStream_t stream);

// The kernels themselves; one file for each type and direction.
const void* GridForwardKernelTf32(const GridPlan& plan);
const void* GridBackwardKernelTf32(const GridPlan& plan);
const void* GridForwardKernelFloat16(const GridPlan& plan);
const void* GridForwardKernelBfloat16(const GridPlan& plan);
const void* GridBackwardKernelFloat16(const GridPlan& plan);
const void* GridBackwardKernelBfloat16(const GridPlan& plan);

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_KERNELS_H_
