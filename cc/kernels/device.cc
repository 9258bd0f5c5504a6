#include "cc/kernels/device.h"

#include "cc/kernels/lstm_call.h"
#include "xla/stream_executor/stream.h"
#include "xla/stream_executor/stream_executor.h"

namespace tf_fused_lstm {
namespace {

void Schedule(void* pool, void (*fn)(void* arg), void* arg) {
  static_cast<tensorflow::thread::ThreadPool*>(pool)->Schedule([fn, arg] { fn(arg); });
}

tfl_cpu_runtime CpuRuntime(tensorflow::OpKernelContext* ctx) {
  const auto* threads = ctx->device()->tensorflow_cpu_worker_threads();
  return {ThreadsOf(*threads), &Schedule, threads->workers};
}

tfl_cuda_runtime CudaRuntime(tensorflow::OpKernelContext* ctx) {
  auto* stream = ctx->op_device_context()->stream();
  return {stream->platform_specific_handle().stream, stream->parent()->device_ordinal()};
}

}  // namespace

CpuDevice::CpuDevice(tensorflow::OpKernelContext* ctx) : CpuCore(CpuRuntime(ctx)) {}

GpuDevice::GpuDevice(tensorflow::OpKernelContext* ctx) : CudaCore(CudaRuntime(ctx)) {}

}  // namespace tf_fused_lstm
