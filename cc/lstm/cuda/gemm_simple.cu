// A tiled product on the plain arithmetic units, for every size and type: what remains where
// cuBLASLt cannot be loaded. Full precision; every sum runs in one fixed order.
#include <algorithm>

#include "cc/lstm/cuda/dispatch.h"
#include "cc/lstm/cuda/dtype.h"
#include "cc/lstm/cuda/gemm.h"
#include "cc/lstm/cuda/scalar.cuh"
#include "cc/lstm/cuda/status.h"

namespace tfl::cuda {
namespace {

constexpr int kTile = 64;      // rows and columns of c a block computes
constexpr int kDepth = 16;     // k a block holds in shared memory
constexpr int kThreads = 256;  // as 16 x 16, each 4 x 4 elements
constexpr int kSub = 4;
static_assert(kTile / kSub * (kTile / kSub) == kThreads);

// Element (i, k) of an operand lies at pointer[i * outer + k * inner].
template <typename T>
struct Operand {
  const T* pointer;
  int64_t outer;
  int64_t inner;
};

template <typename T, typename A>
__device__ void LoadTile(const Operand<T>& operand, int64_t first, int64_t limit, int64_t k0,
                         int64_t k_limit, A (*tile)[kTile + 1]) {
#pragma unroll
  for (int part = 0; part < kTile * kDepth / kThreads; ++part) {
    const int id = part * kThreads + threadIdx.x;
    // Neighbouring threads read neighbouring addresses.
    const int k = operand.inner == 1 ? id % kDepth : id / kTile;
    const int i = operand.inner == 1 ? id / kDepth : id % kTile;
    A value = 0;
    if (first + i < limit && k0 + k < k_limit) {
      value =
          ToAccumulator(operand.pointer[(first + i) * operand.outer + (k0 + k) * operand.inner]);
    }
    tile[k][i] = value;
  }
}

template <typename T, typename Out>
__global__ void __launch_bounds__(kThreads)
    SimpleGemmKernel(Operand<T> a, Operand<T> b, Out* __restrict__ c, int64_t ldc, int64_t m,
                     int64_t n, int64_t k, bool accumulate) {
  using A = Accumulator<T>;
  __shared__ A a_tile[kDepth][kTile + 1];
  __shared__ A b_tile[kDepth][kTile + 1];
  a.pointer += blockIdx.y * k * a.inner;
  b.pointer += blockIdx.y * k * b.inner;
  c += blockIdx.y * m * ldc;
  const int64_t column_tiles = (n + kTile - 1) / kTile;
  const int64_t tiles = (m + kTile - 1) / kTile * column_tiles;
  const int row = threadIdx.x / 16, column = threadIdx.x % 16;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t i0 = tile / column_tiles * kTile, j0 = tile % column_tiles * kTile;
    A sums[kSub][kSub] = {};
    for (int64_t k0 = 0; k0 < k; k0 += kDepth) {
      __syncthreads();
      LoadTile(a, i0, m, k0, k, a_tile);
      LoadTile(b, j0, n, k0, k, b_tile);
      __syncthreads();
#pragma unroll
      for (int kk = 0; kk < kDepth; ++kk) {
        A left[kSub], right[kSub];
#pragma unroll
        for (int i = 0; i < kSub; ++i) left[i] = a_tile[kk][row + 16 * i];
#pragma unroll
        for (int j = 0; j < kSub; ++j) right[j] = b_tile[kk][column + 16 * j];
#pragma unroll
        for (int i = 0; i < kSub; ++i) {
#pragma unroll
          for (int j = 0; j < kSub; ++j) sums[i][j] += left[i] * right[j];
        }
      }
    }
#pragma unroll
    for (int i = 0; i < kSub; ++i) {
#pragma unroll
      for (int j = 0; j < kSub; ++j) {
        const int64_t r = i0 + row + 16 * i, s = j0 + column + 16 * j;
        if (r >= m || s >= n) continue;
        Out* element = c + r * ldc + s;
        A sum = sums[i][j];
        if (accumulate) sum += ToAccumulator(*element);
        *element = FromAccumulator<Out>(sum);
      }
    }
  }
}

template <typename T, typename Out>
void Launch(const Gemm& g, cudaStream_t stream) {
  const T* a_pointer = static_cast<const T*>(g.a);
  const T* b_pointer = static_cast<const T*>(g.b);
  const Operand<T> a = {a_pointer, g.transpose_a ? 1 : g.lda, g.transpose_a ? g.lda : 1};
  const Operand<T> b = {b_pointer, g.transpose_b ? g.ldb : 1, g.transpose_b ? 1 : g.ldb};
  const int64_t tiles = ((g.m + kTile - 1) / kTile) * ((g.n + kTile - 1) / kTile);
  const dim3 blocks(static_cast<unsigned>(std::min<int64_t>(tiles, int64_t{1} << 30)),
                    static_cast<unsigned>(g.parts));
  SimpleGemmKernel<T, Out><<<blocks, kThreads, 0, stream>>>(a, b, static_cast<Out*>(g.c), g.ldc,
                                                            g.m, g.n, g.k / g.parts, g.accumulate);
}

}  // namespace

tfl_status SimpleGemm(const Gemm& gemm, cudaStream_t stream) {
  DispatchType(gemm.input_dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if (gemm.output_dtype == gemm.input_dtype) {
      Launch<T, T>(gemm, stream);
    } else {
      Launch<T, Accumulator<T>>(gemm, stream);
    }
  });
  return LaunchStatus("SimpleGemmKernel");
}

}  // namespace tfl::cuda
