// cuBLASLt, looked up at run time so that the library loads on machines without CUDA and under
// either major version. The declarations below are those parts of cuBLASLt's binary interface that
// versions 12 and 13 share (NVIDIA, cuBLAS Library, "Using the cuBLASLt API").
#include <dlfcn.h>
#include <library_types.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include "cc/lstm/cuda/dtype.h"
#include "cc/lstm/cuda/gemm.h"
#include "cc/lstm/cuda/status.h"

namespace tfl::cuda {
namespace {

using Handle = void*;
using Object = void*;  // a matmul descriptor, matrix layout or preference
struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {
  Algorithm algorithm;
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

enum : int { kComputeFloat32 = 68, kComputeFloat64 = 70, kComputeTf32 = 77 };
enum : int { kLayoutBatchCount = 5, kLayoutBatchStride = 6 };
enum : int { kDescTransposeA = 3, kDescTransposeB = 4, kOperationTranspose = 1 };
enum : int {
  kPreferenceWorkspaceBytes = 1,
  kPreferenceReductionSchemes = 3,
  kPreferenceAlignmentA = 5,
  kPreferenceAlignmentB = 6,
  kPreferenceAlignmentC = 7,
  kPreferenceAlignmentD = 8
};
// Split-k sums in the accumulator's type only: in a fixed order and without extra rounding.
constexpr uint32_t kNoReduction = 0, kReductionInComputeType = 2;

struct Api {
  int (*create)(Handle*);
  int (*desc_create)(Object*, int compute_type, int scale_type);
  int (*desc_destroy)(Object);
  int (*desc_set)(Object, int, const void*, size_t);
  int (*layout_create)(Object*, int type, uint64_t rows, uint64_t columns, int64_t ld);
  int (*layout_destroy)(Object);
  int (*layout_set)(Object, int, const void*, size_t);
  int (*preference_create)(Object*);
  int (*preference_destroy)(Object);
  int (*preference_set)(Object, int, const void*, size_t);
  int (*heuristic)(Handle, Object, Object, Object, Object, Object, Object, int, Heuristic*, int*);
  int (*matmul)(Handle, Object, const void*, const void*, Object, const void*, Object, const void*,
                const void*, Object, void*, Object, const Algorithm*, void*, size_t, cudaStream_t);
};

const Api* LoadApi() {
  const char* choice = std::getenv("TF_FUSED_LSTM_CUDA_GEMM");
  if (choice != nullptr && std::strcmp(choice, "simple") == 0) return nullptr;
  for (const char* name : {"libcublasLt.so.12", "libcublasLt.so.13"}) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) continue;
    auto api = std::make_unique<Api>();
    bool complete = true;
    const auto find = [&](const char* symbol, auto* function) {
      *function =
          reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, symbol));
      complete = complete && *function != nullptr;
    };
    find("cublasLtCreate", &api->create);
    find("cublasLtMatmulDescCreate", &api->desc_create);
    find("cublasLtMatmulDescDestroy", &api->desc_destroy);
    find("cublasLtMatmulDescSetAttribute", &api->desc_set);
    find("cublasLtMatrixLayoutCreate", &api->layout_create);
    find("cublasLtMatrixLayoutDestroy", &api->layout_destroy);
    find("cublasLtMatrixLayoutSetAttribute", &api->layout_set);
    find("cublasLtMatmulPreferenceCreate", &api->preference_create);
    find("cublasLtMatmulPreferenceDestroy", &api->preference_destroy);
    find("cublasLtMatmulPreferenceSetAttribute", &api->preference_set);
    find("cublasLtMatmulAlgoGetHeuristic", &api->heuristic);
    find("cublasLtMatmul", &api->matmul);
    if (complete) return api.release();
    dlclose(library);
  }
  return nullptr;
}

// The one instance; null where cuBLASLt is missing.
const Api* GetApi() {
  static const Api* api = LoadApi();
  return api;
}

cudaDataType CudaType(tfl_dtype dtype) {
  switch (dtype) {
    case TFL_FLOAT64:
      return CUDA_R_64F;
    case TFL_FLOAT16:
      return CUDA_R_16F;
    case TFL_BFLOAT16:
      return CUDA_R_16BF;
    case TFL_FLOAT32:
      break;
  }
  return CUDA_R_32F;
}

// A product that cuBLASLt has agreed to, ready to run. `found` is false where it has not.
class Prepared {
 public:
  Prepared(const Api* api, Handle handle, const Gemm& gemm, const uint32_t (&alignment)[3])
      : api_(api) {
    // cuBLASLt counts column-major: compute the transposed product, with a and b exchanged.
    const int type = CudaType(gemm.input_dtype), out_type = CudaType(gemm.output_dtype);
    const int transpose = kOperationTranspose;
    const int32_t parts = static_cast<int32_t>(gemm.parts);
    const int64_t k = gemm.k / gemm.parts;
    const auto layout = [&](int element, int64_t rows, int64_t columns, int64_t ld,
                            int64_t part_stride) -> Object {
      Object object = nullptr;
      if (api->layout_create(&object, element, columns, rows, ld) != 0) return nullptr;
      if (parts > 1) {
        api->layout_set(object, kLayoutBatchCount, &parts, sizeof(parts));
        api->layout_set(object, kLayoutBatchStride, &part_stride, sizeof(part_stride));
      }
      return object;
    };
    const bool wide = gemm.input_dtype == TFL_FLOAT64;
    const bool tf32 = gemm.input_dtype == TFL_FLOAT32 && gemm.allow_tf32;
    Object preference = nullptr;
    if (api->desc_create(&desc_, wide ? kComputeFloat64 : (tf32 ? kComputeTf32 : kComputeFloat32),
                         wide ? CUDA_R_64F : CUDA_R_32F) != 0 ||
        api->preference_create(&preference) != 0) {
      return;
    }
    if (gemm.transpose_b) {
      api->desc_set(desc_, kDescTransposeA, &transpose, sizeof(transpose));
    }
    if (gemm.transpose_a) {
      api->desc_set(desc_, kDescTransposeB, &transpose, sizeof(transpose));
    }
    b_ = gemm.transpose_b ? layout(type, gemm.n, k, gemm.ldb, k)
                          : layout(type, k, gemm.n, gemm.ldb, k * gemm.ldb);
    a_ = gemm.transpose_a ? layout(type, k, gemm.m, gemm.lda, k * gemm.lda)
                          : layout(type, gemm.m, k, gemm.lda, k);
    c_ = layout(out_type, gemm.m, gemm.n, gemm.ldc, gemm.m * gemm.ldc);
    const size_t workspace_bytes = kGemmWorkspaceBytes;
    api->preference_set(preference, kPreferenceWorkspaceBytes, &workspace_bytes,
                        sizeof(workspace_bytes));
    const uint32_t reductions = gemm.one_kernel ? kNoReduction : kReductionInComputeType;
    api->preference_set(preference, kPreferenceReductionSchemes, &reductions, sizeof(reductions));
    const auto align = [&](int attribute, uint32_t bytes) {
      api->preference_set(preference, attribute, &bytes, sizeof(bytes));
    };
    align(kPreferenceAlignmentA, alignment[1]);
    align(kPreferenceAlignmentB, alignment[0]);
    align(kPreferenceAlignmentC, alignment[2]);
    align(kPreferenceAlignmentD, alignment[2]);
    int count = 0;
    if (a_ != nullptr && b_ != nullptr && c_ != nullptr) {
      found_ =
          api->heuristic(handle, desc_, b_, a_, c_, c_, preference, 1, &heuristic_, &count) == 0 &&
          count == 1 && heuristic_.state == 0;
    }
    api->preference_destroy(preference);
  }
  Prepared(const Prepared&) = delete;
  Prepared& operator=(const Prepared&) = delete;
  ~Prepared() {
    if (desc_ != nullptr) api_->desc_destroy(desc_);
    for (Object layout : {a_, b_, c_}) {
      if (layout != nullptr) api_->layout_destroy(layout);
    }
  }

  bool found() const { return found_; }

  int Run(Handle handle, const Gemm& gemm, void* workspace, cudaStream_t stream) const {
    const double ones[2] = {1.0, gemm.accumulate ? 1.0 : 0.0};
    const float narrow[2] = {1.0f, gemm.accumulate ? 1.0f : 0.0f};
    const bool wide = gemm.input_dtype == TFL_FLOAT64;
    const void* alpha = wide ? static_cast<const void*>(&ones[0]) : &narrow[0];
    const void* beta = wide ? static_cast<const void*>(&ones[1]) : &narrow[1];
    return api_->matmul(handle, desc_, alpha, gemm.b, b_, gemm.a, a_, beta, gemm.c, c_, gemm.c, c_,
                        &heuristic_.algorithm, workspace, kGemmWorkspaceBytes, stream);
  }

 private:
  const Api* api_;
  Object desc_ = nullptr;
  Object a_ = nullptr;
  Object b_ = nullptr;
  Object c_ = nullptr;
  Heuristic heuristic_ = {};
  bool found_ = false;
};

// The largest power of two up to 256 that divides the address.
uint32_t AlignmentOf(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer) | 256;
  return static_cast<uint32_t>(address & (~address + 1));
}

// A handle for each device and the products already prepared.
class Cache {
 public:
  std::shared_ptr<const Prepared> Find(const Api* api, const Gemm& gemm, int device,
                                       Handle* handle) {
    const uint32_t alignment[3] = {AlignmentOf(gemm.a), AlignmentOf(gemm.b), AlignmentOf(gemm.c)};
    const Key key = {device,
                     gemm.m,
                     gemm.n,
                     gemm.k,
                     gemm.lda,
                     gemm.ldb,
                     gemm.ldc,
                     gemm.transpose_a,
                     gemm.transpose_b,
                     gemm.input_dtype,
                     gemm.output_dtype,
                     gemm.allow_tf32,
                     gemm.parts,
                     gemm.one_kernel,
                     alignment[0],
                     alignment[1],
                     alignment[2]};
    std::lock_guard<std::mutex> lock(mutex_);
    Handle& kept = handles_[device];
    if (kept == nullptr && api->create(&kept) != 0) {
      kept = nullptr;
      return nullptr;
    }
    *handle = kept;
    const auto found = products_.find(key);
    if (found != products_.end()) return found->second;
    // Sizes may vary without end (sequence lengths); the cache may not.
    if (products_.size() >= kMaxProducts) products_.clear();
    auto prepared = std::make_shared<const Prepared>(api, kept, gemm, alignment);
    products_.emplace(key, prepared);
    return prepared;
  }

 private:
  using Key = std::tuple<int, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, bool, bool, int,
                         int, bool, int64_t, bool, uint32_t, uint32_t, uint32_t>;
  static constexpr size_t kMaxProducts = 4096;
  std::mutex mutex_;
  std::map<int, Handle> handles_;
  std::map<Key, std::shared_ptr<const Prepared>> products_;
};

}  // namespace

tfl_status TryCublasLt(const Gemm& gemm, int device, void* workspace, cudaStream_t stream,
                       bool* done) {
  *done = false;
  const Api* api = GetApi();
  if (api == nullptr) return Ok();
  static auto* cache = new Cache;  // never destroyed: the driver may be gone by then
  Handle handle = nullptr;
  const std::shared_ptr<const Prepared> prepared = cache->Find(api, gemm, device, &handle);
  if (prepared == nullptr || !prepared->found()) return Ok();
  const int code = prepared->Run(handle, gemm, workspace, stream);
  if (code != 0) {
    return Error(TFL_INTERNAL, "cublasLtMatmul of %lld x %lld x %lld failed with status %d",
                 static_cast<long long>(gemm.m), static_cast<long long>(gemm.n),
                 static_cast<long long>(gemm.k), code);
  }
  *done = true;
  return Ok();
}

}  // namespace tfl::cuda
