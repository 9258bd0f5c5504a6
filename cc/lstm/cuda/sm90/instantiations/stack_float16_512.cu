#include "cc/lstm/cuda/sm90/instantiations/instantiate.cuh"

namespace tfl::cuda::sm90 {

KernelList Float16Stacks512() {
  return StackList<ClusterConfig<Float16, 512, 16, 1>, ClusterConfig<Float16, 512, 16, 2>>();
}

}  // namespace tfl::cuda::sm90
