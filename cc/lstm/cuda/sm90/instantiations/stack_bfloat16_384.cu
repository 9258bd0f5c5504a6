#include "cc/lstm/cuda/sm90/instantiations/instantiate.cuh"

namespace tfl::cuda::sm90 {

KernelList Bfloat16Stacks384() {
  return StackList<ClusterConfig<Bfloat16, 384, 12, 1>, ClusterConfig<Bfloat16, 384, 12, 2>>();
}

}  // namespace tfl::cuda::sm90
