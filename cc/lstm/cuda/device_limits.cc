#include "cc/lstm/cuda/device_limits.h"

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>

#include "cc/lstm/cuda/status.h"

namespace tfl::cuda {
namespace {

tfl_status Query(int device, DeviceLimits* limits) {
  const auto get = [device](cudaDeviceAttr attribute, auto* value) {
    int read = 0;
    const cudaError_t error = cudaDeviceGetAttribute(&read, attribute, device);
    *value = read;
    return error;
  };
  int major = 0, minor = 0, cooperative = 0;
  cudaError_t error = get(cudaDevAttrComputeCapabilityMajor, &major);
  if (error == cudaSuccess) error = get(cudaDevAttrComputeCapabilityMinor, &minor);
  if (error == cudaSuccess) error = get(cudaDevAttrMultiProcessorCount, &limits->multiprocessors);
  if (error == cudaSuccess)
    error = get(cudaDevAttrMaxSharedMemoryPerBlockOptin, &limits->shared_bytes_per_block);
  if (error == cudaSuccess)
    error =
        get(cudaDevAttrMaxSharedMemoryPerMultiprocessor, &limits->shared_bytes_per_multiprocessor);
  if (error == cudaSuccess)
    error = get(cudaDevAttrMaxRegistersPerMultiprocessor, &limits->registers_per_multiprocessor);
  if (error == cudaSuccess) error = get(cudaDevAttrL2CacheSize, &limits->l2_bytes);
  if (error == cudaSuccess) error = get(cudaDevAttrCooperativeLaunch, &cooperative);
  if (error != cudaSuccess) {
    cudaGetLastError();  // leave no sticky error behind for the caller's next check
    return Error(TFL_UNAVAILABLE, "CUDA device %d cannot be used: %s (%s)", device,
                 cudaGetErrorName(error), cudaGetErrorString(error));
  }
  limits->compute_capability = 10 * major + minor;
  limits->cooperative_launch = cooperative != 0;
  return Ok();
}

}  // namespace

tfl_status GetDeviceLimits(int device, DeviceLimits* limits) {
  static std::mutex mutex;
  static auto* known = new std::map<int, DeviceLimits>;
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = known->find(device);
  if (found != known->end()) {
    *limits = found->second;
    return Ok();
  }
  TFL_RETURN_IF_ERROR(Query(device, limits));
  known->emplace(device, *limits);
  return Ok();
}

}  // namespace tfl::cuda
