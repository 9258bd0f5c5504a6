#include "cc/lstm/cuda/sm90/instantiations/instantiate.cuh"

namespace tfl::cuda::sm90 {

KernelList Float16Kernels512() {
  return List<ClusterConfig<Float16, 512, 16, 1>, ClusterConfig<Float16, 512, 16, 2>,
              ClusterConfig<Float16, 512, 16, 5>>();
}

}  // namespace tfl::cuda::sm90
