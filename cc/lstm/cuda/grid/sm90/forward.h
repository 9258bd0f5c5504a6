// The kernel behind GridForward.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_FORWARD_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_FORWARD_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/lstm/cuda/grid/plan.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {

constexpr int kGridMaxChunks = 8;
constexpr int kGridCounterPitch = 32;  // uint32: each counter has a cache line of its own

// 16-bit tensors are passed as bits; those of the weights' type, and initial_c and final_c, as
// void.
struct GridForwardParams {
  const float* projection;  // [rows, 4 hidden]
  const void* recurrent_kernel;
  const void* bias;   // or null
  bool wide_weights;  // weights are float32, not the 16-bit type
  const uint16_t* initial_h;
  const void* initial_c;
  const uint8_t* mask;
  uint16_t* output;
  uint16_t* final_h;
  void* final_c;
  uint16_t* gates;  // the reserve (reserve.h), or null
  float* cell;
  uint16_t* hidden;
  void* exchange;      // [groups][2] buffers of h, see forward.cuh
  uint32_t* counters;  // [groups][kGridMaxChunks][kGridCounterPitch], zeros
  int64_t batch;
  int steps;
  int hidden_size;
  int slices;
  int groups;
  int64_t batch_stride;  // rows, of x, mask and a sequence output
  int64_t step_stride;
  bool go_backwards;
  bool return_sequences;
  bool zero_output_for_mask;
};

// How many blocks of the plan's kernel the device holds at once.
tfl_status GridResidentBlocks(const GridPlan& plan, tfl_dtype dtype, int device, int* blocks);
tfl_status LaunchGridForward(const GridPlan& plan, tfl_dtype dtype, const GridForwardParams& params,
                             cudaStream_t stream);

// One file for each type defines these two.
template <typename T>
const void* GridForwardKernelFor(const GridPlan& plan);

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_GRID_SM90_FORWARD_H_
