#include "cc/lstm/cuda/grid/sm90/forward.cuh"

namespace tfl::cuda {

template <>
const void* GridForwardKernelFor<__nv_bfloat16>(const GridPlan& plan) {
  return grid::KernelFor<__nv_bfloat16>(plan);
}

}  // namespace tfl::cuda
