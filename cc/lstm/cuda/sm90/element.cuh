// The arithmetic types of the cluster kernels: how values lie in memory, and their matrix products.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_ELEMENT_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_ELEMENT_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cc/lstm/cuda/sm90/ptx.cuh"

namespace tfl::cuda::sm90 {

// 16-bit types: tanh.approx errs by 2^-11 at most, half a unit in the last place of float16.
struct FastActivations {
  __device__ static float Tanh(float x) { return TanhApprox(x); }
  __device__ static float Sigmoid(float x) { return fmaf(0.5f, TanhApprox(0.5f * x), 0.5f); }
};

// Within some 1e-6 of the true value; exp may overflow to infinity, which gives the right limit.
struct CarefulActivations {
  __device__ static float Sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
  __device__ static float Tanh(float x) {
    return 1.0f - __fdividef(2.0f, 1.0f + __expf(fminf(2.0f * x, 80.0f)));
  }
};

struct Bfloat16 : FastActivations {
  using Storage = __nv_bfloat16;
  using Partial = __nv_bfloat16;  // of the sums that travel in backward
  // By the instruction that packs two: that for one takes several times as long.
  __device__ static Storage From(float x) { return __low2bfloat16(__floats2bfloat162_rn(x, 0.0f)); }
  __device__ static float To(Storage x) { return __bfloat162float(x); }
  __device__ static uint32_t Pack(float low, float high) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&v);
  }
  __device__ static float2 Unpack(uint32_t v) {
    return make_float2(__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u));
  }
  __device__ static void Mma(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
    MmaBf16(d, a, b0, b1);
  }
  template <int N>
  __device__ static void Wgmma(float* d, const uint32_t* a, uint64_t b) {
    WgmmaBf16<N>(d, a, b);
  }
  template <int N>
  __device__ static void WgmmaShared(float* d, uint64_t a, uint64_t b) {
    WgmmaSharedBf16<N>(d, a, b);
  }
};

struct Float16 : FastActivations {
  using Storage = __half;
  using Partial = __half;
  __device__ static Storage From(float x) { return __low2half(__floats2half2_rn(x, 0.0f)); }
  __device__ static float To(Storage x) { return __half2float(x); }
  __device__ static uint32_t Pack(float low, float high) {
    const __half2 v = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&v);
  }
  __device__ static float2 Unpack(uint32_t v) {
    return __half22float2(*reinterpret_cast<const __half2*>(&v));
  }
  __device__ static void Mma(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
    MmaF16(d, a, b0, b1);
  }
  template <int N>
  __device__ static void Wgmma(float* d, const uint32_t* a, uint64_t b) {
    WgmmaF16<N>(d, a, b);
  }
  template <int N>
  __device__ static void WgmmaShared(float* d, uint64_t a, uint64_t b) {
    WgmmaSharedF16<N>(d, a, b);
  }
};

// float32 whose products round their factors to TF32.
struct Tf32 : CarefulActivations {
  using Storage = float;
  using Partial = float;
  __device__ static Storage From(float x) { return x; }
  __device__ static float To(Storage x) { return x; }
  __device__ static void Mma(float* d, const uint32_t* a, uint32_t b0, uint32_t b1) {
    MmaTf32(d, a, b0, b1);
  }
  template <int N>
  __device__ static void Wgmma(float* d, const uint32_t* a, uint64_t b) {
    WgmmaTf32<N>(d, a, b);
  }
  template <int N>
  __device__ static void WgmmaShared(float* d, uint64_t a, uint64_t b) {
    WgmmaSharedTf32<N>(d, a, b);
  }
};

// As a factor of a product: TF32 drops its low bits, so round them first.
template <class E>
__device__ __forceinline__ typename E::Storage Factor(float x) {
  if constexpr (sizeof(typename E::Storage) == 4) {
    return CvtRnaTf32(x);
  } else {
    return E::From(x);
  }
}

}  // namespace tfl::cuda::sm90

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_ELEMENT_CUH_
