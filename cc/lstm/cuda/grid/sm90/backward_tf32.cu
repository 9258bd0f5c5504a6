#include "cc/lstm/cuda/grid/sm90/backward.cuh"

namespace tfl::cuda {

const void* GridBackwardKernelTf32(const GridPlan& plan) {
  return TFL_GRID_CHOOSE_ROWS(BackwardKernel, float, 512, plan);
}

}  // namespace tfl::cuda
