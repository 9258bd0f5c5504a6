#include "cc/lstm/cuda/sm90/instantiations/instantiate.cuh"

namespace tfl::cuda::sm90 {

KernelList Bfloat16Kernels512() {
  return List<ClusterConfig<Bfloat16, 512, 16, 1>, ClusterConfig<Bfloat16, 512, 16, 2>,
              ClusterConfig<Bfloat16, 512, 16, 5>>();
}

}  // namespace tfl::cuda::sm90
