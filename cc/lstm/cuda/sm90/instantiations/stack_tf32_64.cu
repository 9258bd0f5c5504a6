#include "cc/lstm/cuda/sm90/instantiations/instantiate.cuh"

namespace tfl::cuda::sm90 {

KernelList Tf32Stacks64() {
  return StackList<ClusterConfig<Tf32, 64, 4, 1>, ClusterConfig<Tf32, 64, 4, 4>>();
}

}  // namespace tfl::cuda::sm90
