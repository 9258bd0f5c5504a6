#include "cc/lstm/cuda/grid/sm90/backward.cuh"

namespace tfl::cuda {

const void* GridBackwardKernelFloat16(const GridPlan& plan) {
  return TFL_GRID_CHOOSE(BackwardKernel, __half, plan);
}

}  // namespace tfl::cuda
