// Sigmoid and tanh without branches, so that the chains of several cells run side by side.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_TILE_SM90_ACTIVATION_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_TILE_SM90_ACTIVATION_CUH_

namespace tfl::cuda::tile {

// exp2 flushes subnormal numbers, which count for nothing beside the 1 that is added.
__device__ __forceinline__ float Exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
__device__ __forceinline__ float Reciprocal(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

constexpr float kLog2E = 1.44269504f;

__device__ __forceinline__ float StraightSigmoid(float x) {
  return Reciprocal(1.f + Exp2(-kLog2E * x));
}

// Near 0, where 1 - 2 / (exp(2 x) + 1) loses digits, a polynomial.
__device__ __forceinline__ float StraightTanh(float x) {
  const float large = copysignf(fmaf(-2.f, Reciprocal(1.f + Exp2(2 * kLog2E * fabsf(x))), 1.f), x);
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
