// The kernels of functions that XLA compiles, which need TensorFlow's compiler: from a library of
// their own beside this one, loaded when XLA first asks for one of them.
#include "cc/kernels/xla_on_demand.h"

#include <dlfcn.h>
#include <link.h>

#include <filesystem>
#include <string>
#include <system_error>

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

// The folder of the op library, with a slash; empty for ops that are linked into a program. Where
// the library's path is relative, it is so to the working directory of the load, which may change
// later.
std::string FolderHere() {
  Dl_info unused;
  void* here = nullptr;
  if (dladdr1(kLibrary, &unused, &here, RTLD_DL_LINKMAP) == 0) return "";
  const std::string path = static_cast<const link_map*>(here)->l_name;
  std::error_code error;
  const auto absolute = std::filesystem::absolute(path, error);
  return path.empty() || error ? "" : (absolute.parent_path() / "").string();
}

absl::StatusOr<MakeXlaKernel*> Load(const std::string& folder) {
  if (folder.empty()) return absl::NotFoundError("no library beside the ops");
  tensorflow::Env* env = tensorflow::Env::Default();
  void *library = nullptr, *symbol = nullptr;
  TF_RETURN_IF_ERROR(env->LoadDynamicLibrary(absl::StrCat(folder, kLibrary).c_str(), &library));
  TF_RETURN_IF_ERROR(env->GetSymbolFromLibrary(library, kMakeXlaKernel, &symbol));
  return reinterpret_cast<MakeXlaKernel*>(symbol);
}

const std::string* folder_at_load = nullptr;

OpKernel* Make(OpKernelConstruction* ctx) {
  static const absl::StatusOr<MakeXlaKernel*> make = Load(*folder_at_load);
  if (make.ok()) return (*make)(ctx);
  // Unimplemented: what XLA clusters by itself (auto-clustering) TensorFlow then runs without it.
  ctx->CtxFailure(absl::UnimplementedError(absl::StrCat(
      ctx->def().op(),
      " cannot run in a function compiled by XLA (jit_compile=True): ", make.status().message())));
  return nullptr;
}

void Register(const char* device) {
  for (const char* op : {"FusedLSTM", "FusedLSTMGrad"}) {
    new tensorflow::kernel_factory::OpKernelRegistrar(
        tensorflow::KernelDefBuilder(op).Device(device).Build(), op, &Make);
  }
}

// Straight into the table of kernels: XLA copies its own registry there at its first compilation
// in a process, and a library loaded later would be left out. A core without CUDA code offers
// nothing to XLA's GPU backend.
[[maybe_unused]] const bool registered = [] {
  folder_at_load = new std::string(FolderHere());
  Register("XLA_CPU_JIT");
  if (tfl_built_with_cuda() != 0) Register("XLA_GPU_JIT");
  return true;
}();

}  // namespace
}  // namespace tf_fused_lstm
