#include "cc/lstm/cuda/sm90/instantiations/instantiate.cuh"

namespace tfl::cuda::sm90 {

KernelList Float16Stacks256() {
  return StackList<ClusterConfig<Float16, 256, 8, 1>, ClusterConfig<Float16, 256, 8, 2>,
                   ClusterConfig<Float16, 256, 8, 4>>();
}

}  // namespace tfl::cuda::sm90
