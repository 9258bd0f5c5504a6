// A product of so few operations that queueing one of a library's takes the caller longer than the
// device computes: the input projection of a short sequence. float32 sums, by tensor cores of
// 16-bit factors where there are any (compute capability 8.0), else by plain units.
//
// A block computes 32 x 32 elements; its eight warps split k. A lane has rows r, r + 8, ... and 8
// neighbouring columns; what the warp reads twice comes from the first-level cache.
#include <type_traits>

#include "cc/lstm/cuda/dispatch.h"
#include "cc/lstm/cuda/dtype.h"
#include "cc/lstm/cuda/early_launch.cuh"
#include "cc/lstm/cuda/gemm.h"
#include "cc/lstm/cuda/scalar.cuh"
#include "cc/lstm/cuda/sm90/element.cuh"
#include "cc/lstm/cuda/status.h"

namespace tfl::cuda {
namespace {

constexpr int kTile = 32;
constexpr int kWarps = 8;
constexpr int kThreads = 32 * kWarps;
constexpr int kDepth = 4;  // k at once

template <typename T, int N>
struct alignas(N * sizeof(T)) Vector {
  T values[N];
};
template <typename T, int N>
__device__ __forceinline__ void Read(const T* from, float (&to)[N]) {
  constexpr int kMost = 16 / sizeof(T), kAtOnce = N < kMost ? N : kMost;
#pragma unroll
  for (int i = 0; i < N; i += kAtOnce) {
    const auto some = *reinterpret_cast<const Vector<T, kAtOnce>*>(from + i);
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) to[i + j] = ToAccumulator(some.values[j]);
  }
}

// The warp's share of the sums by plain units.
template <typename T>
__device__ __forceinline__ void MultiplyPlain(const T* (&left)[4], const T* right, int64_t ldb,
                                              int warp, int k, float (&d)[4][8]) {
  const int share = (k / kDepth + kWarps - 1) / kWarps * kDepth;
  const int end = min(k, (warp + 1) * share);
#pragma unroll 2
  for (int at = warp * share; at < end; at += kDepth) {
    float x[4][kDepth], y[kDepth][8];
#pragma unroll
    for (int i = 0; i < 4; ++i) Read(left[i] + at, x[i]);
#pragma unroll
    for (int kk = 0; kk < kDepth; ++kk) Read(right + (at + kk) * ldb, y[kk]);
#pragma unroll
    for (int kk = 0; kk < kDepth; ++kk) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 8; ++j) d[i][j] = fmaf(x[i][kk], y[kk][j], d[i][j]);
      }
    }
  }
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
// The same by m16n8k16. A lane's slots of K are four neighbours, and column n of tile j is column
// 4 n + j of the block's, so that every factor comes by loads of 8 bytes and the sums end up where
// plain units leave them.
template <typename T>
__device__ __forceinline__ void MultiplyTensor(const T* (&left)[4], const T* right, int64_t ldb,
                                               int warp, int k, float (&d)[4][8]) {
  using E = std::conditional_t<std::is_same_v<T, __half>, sm90::Float16, sm90::Bfloat16>;
  constexpr int kStep = 16;
  const int quad = threadIdx.x % 4 * 4;
  const int share = (k / kDepth + kWarps * 4 - 1) / (kWarps * 4) * kStep;
  const int end = min(k, (warp + 1) * share);
#pragma unroll 2
  for (int begin = warp * share; begin < end; begin += kStep) {
    const int at = begin + quad;
    const bool lives = at < end;
    uint2 x[4], y[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      x[i] = *reinterpret_cast<const uint2*>(left[i] + (lives ? at : 0));
      y[i] = *reinterpret_cast<const uint2*>(right + (lives ? at + i : 0) * ldb);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (!lives) x[i] = y[i] = make_uint2(0, 0);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint32_t half = j % 2 == 0 ? 0x5410 : 0x7632;
      const auto word = [j](const uint2& row) { return j < 2 ? row.x : row.y; };
      const uint32_t b0 = __byte_perm(word(y[0]), word(y[1]), half);
      const uint32_t b1 = __byte_perm(word(y[2]), word(y[3]), half);
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        const uint32_t a[4] = {x[i].x, x[i + 1].x, x[i].y, x[i + 1].y};
        float sums[4] = {d[i][j], d[i][j + 4], d[i + 1][j], d[i + 1][j + 4]};
        E::Mma(sums, a, b0, b1);
        d[i][j] = sums[0], d[i][j + 4] = sums[1];
        d[i + 1][j] = sums[2], d[i + 1][j + 4] = sums[3];
      }
    }
  }
}
#endif

template <typename T, typename Out>
__global__ void __launch_bounds__(kThreads)
    SmallGemmKernel(const T* __restrict__ a, int64_t lda, const T* __restrict__ b, int64_t ldb,
                    Out* __restrict__ c, int64_t ldc, int m, int n, int k) {
  LetNextKernelBegin();
  __shared__ float sums[kWarps][kTile][kTile + 1];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = blockIdx.y * kTile + lane / 4, column = blockIdx.x * kTile + lane % 4 * 8;
  float d[4][8] = {};
  // Rows and columns beyond the end are computed like the last, and stored nowhere.
  const T* left[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) left[i] = a + min(row + i * 8, m - 1) * lda;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  constexpr bool kTensor = sizeof(T) == 2;
#else
  constexpr bool kTensor = false;
#endif
  if constexpr (kTensor) {
    const int first = blockIdx.x * kTile + lane / 4 * 4;
    MultiplyTensor(left, b + min(first, n - 4), ldb, warp, k, d);
  } else {
    MultiplyPlain(left, b + min(column, n - 8), ldb, warp, k, d);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) sums[warp][lane / 4 + i * 8][lane % 4 * 8 + j] = d[i][j];
  }
  __syncthreads();
  const int to_column = blockIdx.x * kTile + lane;
  if (to_column >= n) return;
#pragma unroll
  for (int i = warp; i < kTile; i += kWarps) {
    const int to_row = blockIdx.y * kTile + i;
    if (to_row >= m) break;
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; w += 2) sum += sums[w][i][lane] + sums[w + 1][i][lane];
    c[to_row * ldc + to_column] = FromAccumulator<Out>(sum);
  }
}

template <typename T, typename Out>
void Launch(const Gemm& g, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>((g.n + kTile - 1) / kTile),
                    static_cast<unsigned>((g.m + kTile - 1) / kTile));
  SmallGemmKernel<T, Out><<<blocks, kThreads, 0, stream>>>(
      static_cast<const T*>(g.a), g.lda, static_cast<const T*>(g.b), g.ldb, static_cast<Out*>(g.c),
      g.ldc, static_cast<int>(g.m), static_cast<int>(g.n), static_cast<int>(g.k));
}

}  // namespace

bool SmallGemmSuits(const Gemm& gemm) {
  constexpr int64_t kMostSide = 1 << 15;
  const int64_t size = SizeOf(gemm.input_dtype);
  const auto aligned = [](const void* pointer, int64_t row_bytes, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(pointer) % bytes == 0 && row_bytes % bytes == 0;
  };
  return gemm.input_dtype != TFL_FLOAT64 && !gemm.transpose_a && !gemm.transpose_b &&
         !gemm.accumulate && gemm.parts == 1 && gemm.m <= kMostSide && gemm.n <= kMostSide &&
         gemm.k <= kMostSide && gemm.m * gemm.n * gemm.k <= kSmallGemmMostProducts &&
         gemm.n % 8 == 0 && gemm.k % kDepth == 0 &&
         aligned(gemm.a, gemm.lda * size, kDepth * size) && aligned(gemm.b, gemm.ldb * size, 16);
}

tfl_status SmallGemm(const Gemm& gemm, cudaStream_t stream) {
  const bool same = gemm.output_dtype == gemm.input_dtype;
  switch (gemm.input_dtype) {
    case TFL_FLOAT16:
      same ? Launch<__half, __half>(gemm, stream) : Launch<__half, float>(gemm, stream);
      break;
    case TFL_BFLOAT16:
      same ? Launch<__nv_bfloat16, __nv_bfloat16>(gemm, stream)
           : Launch<__nv_bfloat16, float>(gemm, stream);
      break;
    default:
      Launch<float, float>(gemm, stream);
  }
  return LaunchStatus("SmallGemmKernel");
}

}  // namespace tfl::cuda
