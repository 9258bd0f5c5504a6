#include <cuda_runtime_api.h>

#include "cc/lstm/cuda/block/kernels.h"

namespace tfl::cuda::block {

bool HasKernels() {
#ifdef __CUDA_ARCH_LIST__
  for (int architecture : {__CUDA_ARCH_LIST__}) {
    if (architecture >= 800) return true;
  }
#endif
  return false;
}

}  // namespace tfl::cuda::block
