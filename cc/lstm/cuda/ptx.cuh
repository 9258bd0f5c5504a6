// Instructions that several kernel families use, one function each.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_PTX_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_PTX_CUH_

#include <cstdint>

namespace tfl::cuda::ptx {

// Subnormal numbers count as zeros: without their cases, many of these run side by side.
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

// Between accesses by ordinary instructions and by the copy engine.
__device__ __forceinline__ void FenceAsyncGlobal() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

__device__ __forceinline__ void AddRelease(uint32_t* address, uint32_t value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(address), "r"(value) : "memory");
}

}  // namespace tfl::cuda::ptx

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_PTX_CUH_
