#include "cc/lstm/cuda/sm90/instantiations/instantiate.cuh"

namespace tfl::cuda::sm90 {

KernelList Float16Kernels384() {
  return List<ClusterConfig<Float16, 384, 8, 1>, ClusterConfig<Float16, 384, 8, 2>>();
}

}  // namespace tfl::cuda::sm90
