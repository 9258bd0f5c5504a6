#include "cc/lstm/cuda/sm90/instantiations/instantiate.cuh"

namespace tfl::cuda::sm90 {

KernelList Float16Stacks384() {
  return StackList<ClusterConfig<Float16, 384, 12, 1>, ClusterConfig<Float16, 384, 12, 2>>();
}

}  // namespace tfl::cuda::sm90
