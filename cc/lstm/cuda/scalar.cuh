// Conversions and activations on the device, the same for every kernel family.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_SCALAR_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_SCALAR_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cc/lstm/lstm.h"

namespace tfl::cuda {

template <typename T>
struct AccumulatorType {
  using type = float;
};
template <>
struct AccumulatorType<double> {
  using type = double;
};
template <typename T>
using Accumulator = typename AccumulatorType<T>::type;

__device__ __forceinline__ float ToAccumulator(float x) { return x; }
__device__ __forceinline__ double ToAccumulator(double x) { return x; }
__device__ __forceinline__ float ToAccumulator(__half x) { return __half2float(x); }
__device__ __forceinline__ float ToAccumulator(__nv_bfloat16 x) { return __bfloat162float(x); }

template <typename T>
__device__ __forceinline__ T FromAccumulator(Accumulator<T> x) {
  return x;
}
template <>
__device__ __forceinline__ __half FromAccumulator<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 FromAccumulator<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// exp(-x) may overflow to infinity, which gives 0 as it should; the accurate expf keeps full
// float32 precision.
template <typename A>
__device__ __forceinline__ A Sigmoid(A x) {
  return A(1) / (A(1) + exp(-x));
}

template <typename A>
__device__ __forceinline__ A Activate(tfl_activation activation, A x) {
  switch (activation) {
    case TFL_TANH:
      return tanh(x);
    case TFL_SIGMOID:
      return Sigmoid(x);
    case TFL_HARD_SIGMOID: {
      const A y = x * A(1.0 / 6.0) + A(0.5);
      // Not fmin/fmax: they would turn NaN into a number.
      return y < A(0) ? A(0) : (y > A(1) ? A(1) : y);
    }
    case TFL_RELU:
      return x < A(0) ? A(0) : x;
    case TFL_LINEAR:
      return x;
  }
  return x;
}

// The derivative where the activation's value is y.
template <typename A>
__device__ __forceinline__ A ActivationSlope(tfl_activation activation, A y) {
  switch (activation) {
    case TFL_TANH:
      return A(1) - y * y;
    case TFL_SIGMOID:
      return y * (A(1) - y);
    case TFL_HARD_SIGMOID:
      return y > A(0) && y < A(1) ? A(1.0 / 6.0) : A(0);
    case TFL_RELU:
      return y > A(0) ? A(1) : A(0);
    case TFL_LINEAR:
      return A(1);
  }
  return A(1);
}

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_SCALAR_CUH_
