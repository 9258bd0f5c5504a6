#include "cc/lstm/cuda/grid/sm90/kernels.h"

#include <map>
#include <mutex>
#include <utility>

#include "cc/lstm/cuda/status.h"

namespace tfl::cuda {
namespace {

const void* Kernel(const GridPlan& plan, GridDirection direction, tfl_dtype dtype) {
  const bool forward = direction == GridDirection::kForward;
  switch (dtype) {
    case TFL_FLOAT16:
      return forward ? GridForwardKernelFloat16(plan) : GridBackwardKernelFloat16(plan);
    case TFL_BFLOAT16:
      return forward ? GridForwardKernelBfloat16(plan) : GridBackwardKernelBfloat16(plan);
    default:
      return forward ? GridForwardKernelTf32(plan) : GridBackwardKernelTf32(plan);
  }
}

int Threads(GridDirection direction) {
  return direction == GridDirection::kForward ? kGridForwardThreads : kGridBackwardThreads;
}

}  // namespace

tfl_status GridResidentBlocks(const GridPlan& plan, GridDirection direction, tfl_dtype dtype,
                              int device, int* blocks) {
  static std::mutex mutex;
  static auto* known = new std::map<std::pair<const void*, int>, int>;
  const void* kernel = Kernel(plan, direction, dtype);
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = known->find({kernel, device});
  if (found != known->end()) {
    *blocks = found->second;
    return Ok();
  }
  TFL_RETURN_IF_ERROR(FromCuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.shared_bytes),
      "asking for the grid kernel's shared memory"));
  cudaLaunchConfig_t config = {};
  config.gridDim = plan.blocks_per_group;
  config.blockDim = Threads(direction);
  config.dynamicSmemBytes = plan.shared_bytes;
  cudaLaunchAttribute cluster;
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kGridClusterBlocks, 1, 1};
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  TFL_RETURN_IF_ERROR(FromCuda(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config),
                               "asking how many clusters fit"));
  *blocks = clusters * kGridClusterBlocks;
  known->emplace(std::make_pair(kernel, device), *blocks);
  return Ok();
}

tfl_status LaunchGrid(const GridPlan& plan, GridDirection direction, tfl_dtype dtype,
                      int directions, void* params, cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = directions * plan.groups * plan.blocks_per_group;
  config.blockDim = Threads(direction);
  config.dynamicSmemBytes = plan.shared_bytes;
  config.stream = stream;
  // Cooperative: the driver refuses the launch rather than start a part of it.
  cudaLaunchAttribute cooperative;
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  config.attrs = &cooperative;
  config.numAttrs = 1;
  void* arguments[] = {params};
  return FromCuda(cudaLaunchKernelExC(&config, Kernel(plan, direction, dtype), arguments),
                  "launching the grid kernel");
}

}  // namespace tfl::cuda
