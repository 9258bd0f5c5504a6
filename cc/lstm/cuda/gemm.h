// Matrix products: cuBLASLt where the process can load it, a plain kernel of ours where not, and
// another of ours for the smallest.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_GEMM_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_GEMM_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cc/lstm/lstm.h"

namespace tfl::cuda {

// c = op(a) op(b), or c += op(a) op(b). All row-major; ld* counts elements between rows.
struct Gemm {
  int64_t m;
  int64_t n;
  int64_t k;
  const void* a;  // [m, k], or [k, m] if transpose_a
  int64_t lda;
  bool transpose_a;
  const void* b;  // [k, n], or [n, k] if transpose_b
  int64_t ldb;
  bool transpose_b;
  void* c;  // [m, n]
  int64_t ldc;
  tfl_dtype input_dtype;
  tfl_dtype output_dtype;  // input_dtype, or float32 for 16-bit inputs
  bool accumulate;
  bool allow_tf32;
  // k falls into so many equal parts, each with a product of its own: c is [parts][m, n], densely.
  int64_t parts = 1;
  bool one_kernel = false;  // cuBLASLt may not divide k, which takes a kernel that sums
};

// Scratch that serves every product; products on one stream may share it.
constexpr int64_t kGemmWorkspaceBytes = int64_t{32} << 20;

// `workspace` holds kGemmWorkspaceBytes.
tfl_status RunGemm(const Gemm& gemm, int device, void* workspace, cudaStream_t stream);

constexpr int kMostParts = 4;
// In how many parts of k a product [m, n] of few elements fills the device best, where the next
// kernel sums them at no cost.
int PartsFor(int64_t m, int64_t n, int64_t k);

// What RunGemm is made of. TryCublasLt leaves *done false where cuBLASLt is missing or has no
// algorithm; TF_FUSED_LSTM_CUDA_GEMM=simple in the environment makes it always so, for tests.
tfl_status TryCublasLt(const Gemm& gemm, int device, void* workspace, cudaStream_t stream,
                       bool* done);
tfl_status SimpleGemm(const Gemm& gemm, cudaStream_t stream);
// Where it suits, RunGemm takes it. Its kernel lets the next one begin while it runs (from compute
// capability 9.0 on).
constexpr int64_t kSmallGemmMostProducts = int64_t{1} << 25;  // m n k
bool SmallGemmSuits(const Gemm& gemm);
tfl_status SmallGemm(const Gemm& gemm, cudaStream_t stream);

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_GEMM_H_
