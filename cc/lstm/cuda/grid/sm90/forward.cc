#include "cc/lstm/cuda/grid/sm90/forward.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <map>
#include <mutex>
#include <utility>

#include "cc/lstm/cuda/status.h"

namespace tfl::cuda {

template <>
const void* GridForwardKernelFor<__half>(const GridPlan& plan);
template <>
const void* GridForwardKernelFor<__nv_bfloat16>(const GridPlan& plan);

namespace {

constexpr int kThreads = 384;

const void* Kernel(const GridPlan& plan, tfl_dtype dtype) {
  return dtype == TFL_FLOAT16 ? GridForwardKernelFor<__half>(plan)
                              : GridForwardKernelFor<__nv_bfloat16>(plan);
}

}  // namespace

tfl_status GridResidentBlocks(const GridPlan& plan, tfl_dtype dtype, int device, int* blocks) {
  static std::mutex mutex;
  static auto* known = new std::map<std::pair<const void*, int>, int>;
  const void* kernel = Kernel(plan, dtype);
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
  config.blockDim = kThreads;
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

tfl_status LaunchGridForward(const GridPlan& plan, tfl_dtype dtype, const GridForwardParams& params,
                             cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = plan.groups * plan.blocks_per_group;
  config.blockDim = kThreads;
  config.dynamicSmemBytes = plan.shared_bytes;
  config.stream = stream;
  // Cooperative: the driver refuses the launch rather than start a part of it.
  cudaLaunchAttribute cooperative;
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  config.attrs = &cooperative;
  config.numAttrs = 1;
  GridForwardParams copy = params;
  void* arguments[] = {&copy};
  return FromCuda(cudaLaunchKernelExC(&config, Kernel(plan, dtype), arguments),
                  "launching the grid kernel");
}

}  // namespace tfl::cuda
