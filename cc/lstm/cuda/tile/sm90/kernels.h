// The kernels behind TileForward.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_TILE_SM90_KERNELS_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_TILE_SM90_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/lstm/cuda/tile/plan.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {

constexpr int kTileCounterPitch = 8;  // uint32: each counter has a sector of its own

// What is one direction's own.
struct TileForwardDirection {
  const float* projection;         // [rows of x][4 hidden]
  const float* recurrent_kernel;   // [hidden][4 hidden]
  const float* recurrent_dropout;  // [batch, hidden] or null, as all down to initial_c
  const float* bias;
  const float* initial_h;
  const float* initial_c;
  float* output;
  float* final_h;
  float* final_c;
  float* gates;  // the reserve (reserve.h), or null
  float* cell;
  float* hidden;
  bool go_backwards;
  bool output_reversed;
};

// Strides count rows of x, mask and sequences.
struct TileForwardParams {
  const uint8_t* mask;
  float* exchange;     // [directions][slices][2][padded hidden][rows]
  uint32_t* counters;  // [directions][slices][kTileWarps][warp_chunks][kTileCounterPitch]
  int64_t batch;
  int steps;
  int hidden_size;
  int blocks_per_group;
  int groups;
  int slices;
  int flights;
  int chunk_blocks;
  int warp_chunks;
  int64_t batch_stride;
  int64_t step_stride;
  int64_t output_stride;  // elements
  bool return_sequences;
  bool zero_output_for_mask;
  tfl_activation activation;
  tfl_activation recurrent_activation;
  TileForwardDirection directions[TFL_MAX_DIRECTIONS];
};

// The first `directions` of the params' directions at once.
tfl_status LaunchTileForward(const TilePlan& plan, int directions, TileForwardParams params,
                             cudaStream_t stream);

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_TILE_SM90_KERNELS_H_
