// Times the cluster kernels alone: median of CUDA-event timings of graph replays.
//   cluster_benchmark [type [batch steps hidden]]
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>

#include "cc/lstm/cuda/device_limits.h"
#include "cc/lstm/cuda/sm90/cluster.h"
#include "cc/lstm/cuda/sm90/recurrence_case.h"

namespace tfl::testing {
namespace {

constexpr int kCalls = 10, kRuns = 15;

void Require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  exit(1);
}

// Microseconds of one call, the median.
double Time(const std::function<tfl_status(cudaStream_t)>& call) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaEvent_t begin, end;
  Require(cudaStreamCreate(&stream), "stream");
  Require(cudaEventCreate(&begin), "event");
  Require(cudaEventCreate(&end), "event");
  Require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < kCalls; ++i) {
    const tfl_status status = call(stream);
    if (status.code != TFL_OK) fprintf(stderr, "%s\n", status.message), exit(1);
  }
  Require(cudaStreamEndCapture(stream, &graph), "capture");
  Require(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  std::vector<double> times;
  for (int i = 0; i < kRuns + 3; ++i) {
    float ms = 0;
    Require(cudaEventRecord(begin, stream), "record");
    Require(cudaGraphLaunch(exec, stream), "launch");
    Require(cudaEventRecord(end, stream), "record");
    Require(cudaStreamSynchronize(stream), "synchronize");
    Require(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (i >= 3) times.push_back(1e3 * ms / kCalls);
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  std::nth_element(times.begin(), times.begin() + kRuns / 2, times.end());
  return times[kRuns / 2];
}

void Run(tfl_dtype dtype, const char* name, int64_t batch, int64_t steps, int64_t hidden) {
  tfl_lstm_spec spec = {};
  spec.num_directions = 1;
  spec.batch = batch;
  spec.steps = steps;
  spec.input_size = hidden;
  spec.hidden_size = hidden;
  spec.dtype = spec.weight_dtype = dtype;
  spec.activation = TFL_TANH;
  spec.recurrent_activation = TFL_SIGMOID;
  spec.return_sequences = spec.has_bias = 1;
  spec.allow_tf32 = dtype == TFL_FLOAT32;
  cuda::DeviceLimits limits;
  if (cuda::GetDeviceLimits(0, &limits).code != TFL_OK) exit(1);
  if (!cuda::ClusterForwardSupported(spec, limits)) return;
  const RecurrenceCase inference_case(spec, TFL_FLOAT32, dtype, 1);
  spec.training = 1;
  const RecurrenceCase training_case(spec, TFL_FLOAT32, dtype, 1);
  const RecurrenceBuffers inference(inference_case), training(training_case);
  const double forward =
      Time([&](cudaStream_t s) { return cuda::ClusterForward(inference.forward, s); });
  const double kept =
      Time([&](cudaStream_t s) { return cuda::ClusterForward(training.forward, s); });
  const double backward =
      Time([&](cudaStream_t s) { return cuda::ClusterBackward(training.backward, s); });
  printf(
      "%-8s B%-4lld T%-4lld H%-4lld  forward %7.1f us %.3f/step  keeping reserve %7.1f us "
      "%.3f/step  backward %7.1f us %.3f/step\n",
      name, static_cast<long long>(batch), static_cast<long long>(steps),
      static_cast<long long>(hidden), forward, forward / steps, kept, kept / steps, backward,
      backward / steps);
  fflush(stdout);
}

}  // namespace
}  // namespace tfl::testing

int main(int argc, char** argv) {
  using namespace tfl::testing;
  const struct {
    tfl_dtype dtype;
    const char* name;
  } types[] = {{TFL_BFLOAT16, "bfloat16"}, {TFL_FLOAT16, "float16"}, {TFL_FLOAT32, "tf32"}};
  for (const auto& type : types) {
    if (argc > 1 && strcmp(argv[1], type.name) != 0) continue;
    if (argc > 4) {
      Run(type.dtype, type.name, atoll(argv[2]), atoll(argv[3]), atoll(argv[4]));
      continue;
    }
    const int64_t shapes[][3] = {{1, 64, 128},  {1, 64, 256},   {16, 64, 256},  {64, 64, 256},
                                 {64, 64, 512}, {256, 64, 512}, {16, 512, 256}, {64, 512, 512},
                                 {32, 64, 384}, {16, 64, 512},  {256, 64, 256}, {16, 1, 256},
                                 {64, 1, 512},  {32, 64, 512}};
    for (const auto& s : shapes) Run(type.dtype, type.name, s[0], s[1], s[2]);
  }
  return 0;
}
