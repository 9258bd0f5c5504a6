#include "cc/lstm/cuda/sm90/instantiations/instantiate.cuh"

namespace tfl::cuda::sm90 {

KernelList Float16Stacks128() {
  return StackList<ClusterConfig<Float16, 128, 4, 1>, ClusterConfig<Float16, 128, 4, 4>>();
}

}  // namespace tfl::cuda::sm90
