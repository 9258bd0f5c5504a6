#include "cc/lstm/cuda/sm90/instantiations/instantiate.cuh"

namespace tfl::cuda::sm90 {

KernelList Float16Kernels128() {
  return List<ClusterConfig<Float16, 128, 8, 1, false>, ClusterConfig<Float16, 128, 8, 4, true>>();
}

}  // namespace tfl::cuda::sm90
