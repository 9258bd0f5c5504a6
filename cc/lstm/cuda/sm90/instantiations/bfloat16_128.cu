#include "cc/lstm/cuda/sm90/instantiations/instantiate.cuh"

namespace tfl::cuda::sm90 {

KernelList Bfloat16Kernels128() {
  return List<ClusterConfig<Bfloat16, 128, 8, 1, false>,
              ClusterConfig<Bfloat16, 128, 8, 4, true>>();
}

}  // namespace tfl::cuda::sm90
