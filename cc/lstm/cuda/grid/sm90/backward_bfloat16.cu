#include "cc/lstm/cuda/grid/sm90/backward.cuh"

namespace tfl::cuda {

const void* GridBackwardKernelBfloat16(const GridPlan& plan) {
  return TFL_GRID_CHOOSE(BackwardKernel, __nv_bfloat16, plan);
}

}  // namespace tfl::cuda
