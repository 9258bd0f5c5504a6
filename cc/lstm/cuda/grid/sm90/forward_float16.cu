#include "cc/lstm/cuda/grid/sm90/forward.cuh"

namespace tfl::cuda {

template <>
const void* GridForwardKernelFor<__half>(const GridPlan& plan) {
  return grid::KernelFor<__half>(plan);
}

}  // namespace tfl::cuda
