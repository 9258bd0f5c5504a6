#include "cc/lstm/cuda/sm90/instantiations/instantiate.cuh"

namespace tfl::cuda::sm90 {

KernelList Float16Kernels64() {
  return List<ClusterConfig<Float16, 64, 4, 1>, ClusterConfig<Float16, 64, 4, 4>>();
}

}  // namespace tfl::cuda::sm90
