#include "cc/lstm/cuda/sm90/instantiations/instantiate.cuh"

namespace tfl::cuda::sm90 {

KernelList Bfloat16Kernels384() {
  return List<ClusterConfig<Bfloat16, 384, 8, 1>, ClusterConfig<Bfloat16, 384, 8, 2>>();
}

}  // namespace tfl::cuda::sm90
