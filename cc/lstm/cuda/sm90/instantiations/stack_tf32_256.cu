#include "cc/lstm/cuda/sm90/instantiations/instantiate.cuh"

namespace tfl::cuda::sm90 {

KernelList Tf32Stacks256() {
  return StackList<ClusterConfig<Tf32, 256, 8, 1>, ClusterConfig<Tf32, 256, 8, 2>,
                   ClusterConfig<Tf32, 256, 8, 3>>();
}

}  // namespace tfl::cuda::sm90
