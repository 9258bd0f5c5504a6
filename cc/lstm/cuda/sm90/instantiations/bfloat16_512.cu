#include "cc/lstm/cuda/sm90/instantiations/instantiate.cuh"

namespace tfl::cuda::sm90 {

KernelList Bfloat16Kernels512() {
  return List<ClusterConfig<Bfloat16, 512, 16, 1, false>, ClusterConfig<Bfloat16, 512, 16, 2, true>,
              ClusterConfig<Bfloat16, 512, 16, 5, true>>();
}

}  // namespace tfl::cuda::sm90
