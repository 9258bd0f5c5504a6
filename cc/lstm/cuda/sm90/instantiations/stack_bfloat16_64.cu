#include "cc/lstm/cuda/sm90/instantiations/instantiate.cuh"

namespace tfl::cuda::sm90 {

KernelList Bfloat16Stacks64() {
  return StackList<ClusterConfig<Bfloat16, 64, 4, 1>, ClusterConfig<Bfloat16, 64, 4, 4>>();
}

}  // namespace tfl::cuda::sm90
