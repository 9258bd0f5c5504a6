#include "cc/lstm/cuda/grid/sm90/forward.cuh"

namespace tfl::cuda {

const void* GridForwardKernelBfloat16(const GridPlan& plan) {
  return TFL_GRID_CHOOSE(ForwardKernel, __nv_bfloat16, plan);
}

}  // namespace tfl::cuda
