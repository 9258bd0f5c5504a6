#include "cc/lstm/cuda/sm90/instantiations/instantiate.cuh"

namespace tfl::cuda::sm90 {

KernelList Bfloat16Stacks512() {
  return StackList<ClusterConfig<Bfloat16, 512, 16, 1>, ClusterConfig<Bfloat16, 512, 16, 2>>();
}

}  // namespace tfl::cuda::sm90
