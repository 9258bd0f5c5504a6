#include "cc/lstm/cuda/grid/sm90/forward.cuh"

namespace tfl::cuda {

const void* GridForwardKernelTf32(const GridPlan& plan) {
  return TFL_GRID_CHOOSE(ForwardKernel, float, plan);
}

}  // namespace tfl::cuda
