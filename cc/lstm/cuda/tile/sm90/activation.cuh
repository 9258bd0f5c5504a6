// Sigmoid and tanh without branches, so that the chains of several cells run side by side.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_TILE_SM90_ACTIVATION_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_TILE_SM90_ACTIVATION_CUH_

#include "cc/lstm/cuda/ptx.cuh"

namespace tfl::cuda::tile {

constexpr float kLog2E = 1.44269504f;

__device__ __forceinline__ float StraightSigmoid(float x) {
  return ptx::Reciprocal(1.f + ptx::Exp2(-kLog2E * x));
}

// Near 0, where 1 - 2 / (exp(2 x) + 1) loses digits, a polynomial.
__device__ __forceinline__ float StraightTanh(float x) {
  const float large =
      copysignf(fmaf(-2.f, ptx::Reciprocal(1.f + ptx::Exp2(2 * kLog2E * fabsf(x))), 1.f), x);
  const float s = x * x;
  float p = 1.57394409e-2f;
  p = fmaf(p, s, -5.23025580e-2f);
  p = fmaf(p, s, 1.33152470e-1f);
  p = fmaf(p, s, -3.33327681e-1f);
  const float small = fmaf(p * s, x, x);
  return fabsf(x) < .55f ? small : large;
}

}  // namespace tfl::cuda::tile

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_TILE_SM90_ACTIVATION_CUH_
