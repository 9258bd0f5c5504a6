#include "cc/lstm/cuda/sm90/instantiations/instantiate.cuh"

namespace tfl::cuda::sm90 {

KernelList Tf32Stacks128() {
  return StackList<ClusterConfig<Tf32, 128, 4, 1>, ClusterConfig<Tf32, 128, 4, 4>>();
}

}  // namespace tfl::cuda::sm90
