#include "cc/lstm/cuda/sm90/instantiations/instantiate.cuh"

namespace tfl::cuda::sm90 {

KernelList Bfloat16Stacks256() {
  return StackList<ClusterConfig<Bfloat16, 256, 8, 1>, ClusterConfig<Bfloat16, 256, 8, 2>,
                   ClusterConfig<Bfloat16, 256, 8, 4>>();
}

}  // namespace tfl::cuda::sm90
