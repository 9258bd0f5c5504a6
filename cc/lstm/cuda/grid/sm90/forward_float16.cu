#include "cc/lstm/cuda/grid/sm90/forward.cuh"

namespace tfl::cuda {

const void* GridForwardKernelFloat16(const GridPlan& plan) {
  return TFL_GRID_CHOOSE(ForwardKernel, __half, plan);
}

}  // namespace tfl::cuda
