#include "cc/lstm/cuda/gemm.h"

#include <algorithm>

#include "cc/lstm/cuda/dtype.h"
#include "cc/lstm/cuda/status.h"

namespace tfl::cuda {
namespace {

// Longest side of one product handed on: BLAS libraries count in 32 bits somewhere.
constexpr int64_t kMaxSide = int64_t{1} << 24;

tfl_status RunPart(const Gemm& gemm, int device, void* workspace, cudaStream_t stream) {
  if (SmallGemmSuits(gemm)) return SmallGemm(gemm, stream);
  bool done = false;
  TFL_RETURN_IF_ERROR(TryCublasLt(gemm, device, workspace, stream, &done));
  return done ? Ok() : SimpleGemm(gemm, stream);
}

const void* Offset(const void* base, int64_t elements, tfl_dtype dtype) {
  return static_cast<const char*>(base) + elements * SizeOf(dtype);
}

}  // namespace

int PartsFor(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kTile = 128, kFewRowsTile = 64, kBlocks = 128, kLeastDepth = 128;
  const int64_t tile = m <= kFewRowsTile ? kFewRowsTile : kTile;
  const int64_t tiles = (m + tile - 1) / tile * ((n + tile - 1) / tile);
  int parts = 1;
  while (parts < kMostParts && tiles * parts * 2 <= kBlocks && k % (parts * 2 * 32) == 0 &&
         k / (parts * 2) >= kLeastDepth) {
    parts *= 2;
  }
  return parts;
}

tfl_status RunGemm(const Gemm& gemm, int device, void* workspace, cudaStream_t stream) {
  if (gemm.m == 0 || gemm.n == 0) return Ok();
  if (gemm.k == 0) {
    if (gemm.accumulate) return Ok();
    const int64_t size = SizeOf(gemm.output_dtype);
    return FromCuda(cudaMemset2DAsync(gemm.c, gemm.ldc * size, 0, gemm.n * size, gemm.m, stream),
                    "clearing a product");
  }
  if (gemm.parts > 1 || (gemm.m <= kMaxSide && gemm.k <= kMaxSide))
    return RunPart(gemm, device, workspace, stream);
  for (int64_t m = 0; m < gemm.m; m += kMaxSide) {
    for (int64_t k = 0; k < gemm.k; k += kMaxSide) {
      Gemm part = gemm;
      part.m = std::min(kMaxSide, gemm.m - m);
      part.k = std::min(kMaxSide, gemm.k - k);
      part.a =
          Offset(gemm.a, gemm.transpose_a ? k * gemm.lda + m : m * gemm.lda + k, gemm.input_dtype);
      part.b = Offset(gemm.b, gemm.transpose_b ? k : k * gemm.ldb, gemm.input_dtype);
      part.c = const_cast<void*>(Offset(gemm.c, m * gemm.ldc, gemm.output_dtype));
      part.accumulate = gemm.accumulate || k > 0;
      TFL_RETURN_IF_ERROR(RunPart(part, device, workspace, stream));
    }
  }
  return Ok();
}

}  // namespace tfl::cuda
