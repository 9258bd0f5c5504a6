#include <cuda_runtime_api.h>

#include "cc/lstm/cuda/block/kernels.h"

namespace tfl::cuda::block {
namespace {

bool HasCodeFrom([[maybe_unused]] int least) {
#ifdef __CUDA_ARCH_LIST__
  for (int architecture : {__CUDA_ARCH_LIST__}) {
    if (architecture >= least) return true;
  }
#endif
  return false;
}

}  // namespace

bool HasKernels() { return HasCodeFrom(800); }
bool KernelsCanWait() { return HasCodeFrom(900); }

}  // namespace tfl::cuda::block
