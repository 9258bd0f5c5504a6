#include "cc/lstm/cuda/sm90/instantiations/instantiate.cuh"

namespace tfl::cuda::sm90 {

KernelList Float16Stacks64() {
  return StackList<ClusterConfig<Float16, 64, 4, 1>, ClusterConfig<Float16, 64, 4, 4>>();
}

}  // namespace tfl::cuda::sm90
