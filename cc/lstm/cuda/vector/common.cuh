// What the vector family's two kernels share.
//
// A group of blocks holds a direction's recurrent kernel once, 8 units a block, and computes `rows`
// batch rows. The 8 warps of a block split k; a thread's weights stay in its registers. What a step
// hands to the next goes through L2 in words of 8 bytes, a float and the number of its step,
// written and read whole: a reader polls the words themselves, so that one trip brings the signal
// and the data. Two buffers suffice: a block writes step s after it has read all of step s - 1,
// which all blocks wrote after they had read all of step s - 2.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_VECTOR_COMMON_CUH_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_VECTOR_COMMON_CUH_

#include <cooperative_groups.h>

#include <algorithm>

#include "cc/lstm/cuda/dispatch.h"
#include "cc/lstm/cuda/scalar.cuh"
#include "cc/lstm/cuda/status.h"
#include "cc/lstm/cuda/vector/kernels.h"

// Lets a kernel index its parameters where they lie; older devices copy them to do so.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 700
#define TFL_GRID_CONSTANT
#else
#define TFL_GRID_CONSTANT __grid_constant__
#endif

namespace tfl::cuda::vector {

constexpr int kThreads = kVectorWarps * 32;
constexpr int kRowsAWarp = kVectorMaxRows / kVectorWarps;

template <typename T>
__device__ __forceinline__ float Read(const void* tensor, int64_t at) {
  return ToAccumulator(static_cast<const T*>(tensor)[at]);
}
template <typename T>
__device__ __forceinline__ float ReadWeight(const VectorCommon& p, const void* weights,
                                            int64_t at) {
  return p.wide_weights ? static_cast<const float*>(weights)[at] : Read<T>(weights, at);
}
template <typename T>
__device__ __forceinline__ void Write(void* tensor, int64_t at, float value) {
  static_cast<T*>(tensor)[at] = FromAccumulator<T>(value);
}
template <typename T>
__device__ __forceinline__ float Round(float value) {
  return ToAccumulator(FromAccumulator<T>(value));
}

__device__ __forceinline__ void Publish(uint64_t* word, float value, uint32_t number) {
  const uint64_t both = uint64_t(number) << 32 | __float_as_uint(value);
  *const_cast<volatile uint64_t*>(word) = both;
}

// Makes this block's words, of `words` a row those from `first` on, carry no step's number, and
// says so to the grid. No block may collect before ExchangeIsClear.
__device__ __forceinline__ unsigned ClearExchange(uint64_t* exchange, int rows, int words,
                                                  int first, int count) {
  for (int i = threadIdx.x; i < 2 * rows * count; i += kThreads) {
    exchange[i / count * words + first + i % count] = 0;
  }
  return cooperative_groups::this_grid().barrier_arrive();
}
__device__ __forceinline__ void ExchangeIsClear(unsigned token) {
  cooperative_groups::this_grid().barrier_wait(std::move(token));
}

// Waits until all `count` words carry `number`, and leaves their floats in `to`.
__device__ __forceinline__ void Collect(const uint64_t* words, int count, uint32_t number,
                                        float* to) {
  constexpr int kAtOnce = 8;
  const volatile uint64_t* from = words;
  for (int base = threadIdx.x; base < count; base += kAtOnce * kThreads) {
    uint64_t got[kAtOnce];
    bool all;
    do {
      all = true;
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int at = base + i * kThreads;
        if (at < count) got[i] = from[at];
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (base + i * kThreads < count) all = all && uint32_t(got[i] >> 32) == number;
      }
    } while (!all);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = base + i * kThreads;
      if (at < count) to[at] = __uint_as_float(uint32_t(got[i]));
    }
  }
}

// The products of two rows of `in` with the thread's weights, whose k are at in[stride i + 0..3]
// for weight 4 i + 0..3.
template <int kPerWarp>
__device__ __forceinline__ float2 Dot(const float* first, const float* second, int stride,
                                      const float (&weights)[kPerWarp]) {
  float a[4] = {}, b[4] = {};
#pragma unroll
  for (int i = 0; i < kPerWarp / 4; ++i) {
    const float4 x = *reinterpret_cast<const float4*>(first + i * stride);
    const float4 y = *reinterpret_cast<const float4*>(second + i * stride);
    a[0] = fmaf(x.x, weights[4 * i], a[0]);
    a[1] = fmaf(x.y, weights[4 * i + 1], a[1]);
    a[2] = fmaf(x.z, weights[4 * i + 2], a[2]);
    a[3] = fmaf(x.w, weights[4 * i + 3], a[3]);
    b[0] = fmaf(y.x, weights[4 * i], b[0]);
    b[1] = fmaf(y.y, weights[4 * i + 1], b[1]);
    b[2] = fmaf(y.z, weights[4 * i + 2], b[2]);
    b[3] = fmaf(y.w, weights[4 * i + 3], b[3]);
  }
  return make_float2((a[0] + a[1]) + (a[2] + a[3]), (b[0] + b[1]) + (b[2] + b[3]));
}

// The row of the output, or of its gradient, of step `step` and batch element b, in elements.
__device__ __forceinline__ int64_t OutputAt(const VectorCommon& p, const VectorDirection& d,
                                            int64_t b, int step) {
  const int64_t row = d.output_reversed ? p.steps - 1 - step : step;
  return (p.return_sequences ? b * p.batch_stride + row * p.step_stride : b) * p.output_stride;
}

template <typename Params>
tfl_status Launch(const void* kernel, const VectorPlan& plan, int directions, int shared_bytes,
                  Params* params, cudaStream_t stream) {
  TFL_RETURN_IF_ERROR(AllowSharedBytes(kernel, shared_bytes));
  // Cooperative: the driver refuses the launch rather than start a part of it.
  void* arguments[] = {params};
  const dim3 blocks(directions * plan.groups * plan.blocks_per_group);
  return FromCuda(
      cudaLaunchCooperativeKernel(kernel, blocks, dim3(kThreads), arguments, shared_bytes, stream),
      "launching the vector kernel");
}

// Picks the instantiation of KERNEL<T, k of a warp>.
#define TFL_VECTOR_KERNEL(KERNEL, T, PER_WARP)                                                 \
  ((PER_WARP) == 16                                                                            \
       ? reinterpret_cast<const void*>(&KERNEL<T, 16>)                                         \
       : ((PER_WARP) == 32 ? reinterpret_cast<const void*>(&KERNEL<T, 32>)                     \
                           : ((PER_WARP) == 64 ? reinterpret_cast<const void*>(&KERNEL<T, 64>) \
                                               : reinterpret_cast<const void*>(&KERNEL<T, 128>))))

}  // namespace tfl::cuda::vector

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_VECTOR_COMMON_CUH_
