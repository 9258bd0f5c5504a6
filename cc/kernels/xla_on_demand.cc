// The kernels of functions that XLA compiles, which need TensorFlow's compiler: from a library of
// their own beside this one, loaded when XLA first asks for one of them.
#include "cc/kernels/xla_on_demand.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "cc/lstm/lstm.h"
#include "tensorflow/core/framework/kernel_def_builder.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/env.h"

namespace tf_fused_lstm {
namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;

constexpr char kLibrary[] = "_tf_fused_lstm_xla.so";

absl::StatusOr<MakeXlaKernel*> Load() {
  Dl_info here;
  if (dladdr(kLibrary, &here) == 0 || here.dli_fname == nullptr) {
    return absl::NotFoundError("the folder of the op library is not known");
  }
  const std::string path = here.dli_fname;
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  tensorflow::Env* env = tensorflow::Env::Default();
  void *library = nullptr, *symbol = nullptr;
  TF_RETURN_IF_ERROR(env->LoadDynamicLibrary(absl::StrCat(folder, kLibrary).c_str(), &library));
  TF_RETURN_IF_ERROR(env->GetSymbolFromLibrary(library, kMakeXlaKernel, &symbol));
  return reinterpret_cast<MakeXlaKernel*>(symbol);
}

OpKernel* Make(OpKernelConstruction* ctx) {
  static const absl::StatusOr<MakeXlaKernel*> make = Load();
  if (make.ok()) return (*make)(ctx);
  ctx->CtxFailure(absl::FailedPreconditionError(absl::StrCat(
      ctx->def().op(),
      " cannot run in a function compiled by XLA (jit_compile=True): ", make.status().message())));
  return nullptr;
}

// Straight into the table of kernels: XLA copies its own registry there at its first compilation
// in a process, and a library loaded later would be left out. A core without CUDA code offers
// nothing to XLA's GPU backend.
[[maybe_unused]] const bool registered = [] {
  for (const char* device : {"XLA_CPU_JIT", "XLA_GPU_JIT"}) {
    if (device[4] == 'G' && tfl_built_with_cuda() == 0) continue;
    for (const char* op : {"FusedLSTM", "FusedLSTMGrad"}) {
      new tensorflow::kernel_factory::OpKernelRegistrar(
          tensorflow::KernelDefBuilder(op).Device(device).Build(), op, &Make);
    }
  }
  return true;
}();

}  // namespace
}  // namespace tf_fused_lstm
