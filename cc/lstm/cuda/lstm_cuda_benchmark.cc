// Times the CUDA core without a framework around it: a call is captured in a CUDA graph and
// replayed. Prints one JSON record a line.
//   lstm_cuda_benchmark [--shape B,T,I,H]... [--dtype float32|tf32|float16|bfloat16]...
//                       [--family step|vector|grid|tile|cluster|block|wavefront]...
//                       [--directions 1|2] [--layers N]... [--replays N]
// "forward" keeps no reserve; "train" is forward with reserve and backward to all weights and x.
// Several layers of hidden_size units are a stack of one direction, layer after layer with a family
// that is not "wavefront", and with none as the plan says.
// host_us is the caller's time until such a call returns, not captured and with the device behind
// by at most a few calls; kernels, memsets and copies count what the call queues.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "cc/lstm/cuda/plan.h"
#include "cc/lstm/cuda/testing/device_call.h"
#include "cc/lstm/cuda/testing/stack_call.h"
#include "cc/lstm/lstm.h"

namespace tfl::testing {
namespace {

using Shape = std::array<long long, 4>;

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

struct Timing {
  double median;
  double fastest;
  double host_us;
  int kernels, memsets, copies;
};

// Microseconds until `work` returns; the median.
template <typename Work>
double HostMicroseconds(cudaStream_t stream, Work&& work) {
  constexpr int kCalls = 60, kCallsInFlight = 4;
  std::vector<double> times;
  for (int i = 0; i < kCalls; ++i) {
    if (i % kCallsInFlight == 0) Check(cudaStreamSynchronize(stream), "synchronize");
    const auto begin = std::chrono::steady_clock::now();
    work();
    times.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
            .count());
  }
  Check(cudaStreamSynchronize(stream), "synchronize");
  std::nth_element(times.begin(), times.begin() + kCalls / 2, times.end());
  return times[kCalls / 2];
}

void CountNodes(cudaGraph_t graph, Timing* timing) {
  size_t count = 0;
  Check(cudaGraphGetNodes(graph, nullptr, &count), "nodes");
  std::vector<cudaGraphNode_t> nodes(count);
  Check(cudaGraphGetNodes(graph, nodes.data(), &count), "nodes");
  for (cudaGraphNode_t node : nodes) {
    cudaGraphNodeType type;
    Check(cudaGraphNodeGetType(node, &type), "node type");
    timing->kernels += type == cudaGraphNodeTypeKernel;
    timing->memsets += type == cudaGraphNodeTypeMemset;
    timing->copies += type == cudaGraphNodeTypeMemcpy;
  }
}

// Milliseconds of one replay of what `work` queues.
template <typename Work>
Timing TimeReplays(cudaStream_t stream, int replays, Work&& work) {
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  Check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  work();
  Check(cudaStreamEndCapture(stream, &graph), "capture");
  Check(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  Timing timing = {};
  CountNodes(graph, &timing);
  cudaEvent_t begin, end;
  Check(cudaEventCreate(&begin), "event");
  Check(cudaEventCreate(&end), "event");
  for (int i = 0; i < 5; ++i) Check(cudaGraphLaunch(executable, stream), "warm-up");
  std::vector<double> times;
  constexpr int kCallsPerSample = 4;
  for (int i = 0; i < replays; ++i) {
    Check(cudaEventRecord(begin, stream), "event");
    for (int j = 0; j < kCallsPerSample; ++j) Check(cudaGraphLaunch(executable, stream), "replay");
    Check(cudaEventRecord(end, stream), "event");
    Check(cudaEventSynchronize(end), "replay");
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begin, end), "event");
    times.push_back(milliseconds / kCallsPerSample);
  }
  Check(cudaEventDestroy(begin), "event");
  Check(cudaEventDestroy(end), "event");
  Check(cudaGraphExecDestroy(executable), "graph");
  Check(cudaGraphDestroy(graph), "graph");
  std::sort(times.begin(), times.end());
  timing.median = times[times.size() / 2];
  timing.fastest = times[0];
  timing.host_us = HostMicroseconds(stream, work);
  return timing;
}

// Random bits would give NaN and Inf, zeros would flatter: random values from a short list.
Tensors FastRandomTensors(const tfl_lstm_spec& spec) {
  tfl_lstm_spec small = spec;
  small.batch = small.steps = 1;
  Tensors t = RandomTensors(small, 1);
  const auto repeat = [](std::vector<double>* values, int64_t count) {
    const size_t period = values->size();
    values->resize(period * count);
    for (size_t i = period; i < values->size(); ++i) (*values)[i] = (*values)[(i * 7 + 3) % period];
  };
  repeat(&t.x, spec.batch * spec.steps);
  repeat(&t.grad_output, spec.batch * spec.steps);
  repeat(&t.grad_final_h, spec.batch);
  repeat(&t.grad_final_c, spec.batch);
  return t;
}

void Print(const tfl_lstm_spec& spec, size_t layers, const std::string& dtype, const char* what,
           const std::string& family, const Timing& timing) {
  std::printf(
      "{\"directions\": %d, \"layers\": %zu, \"batch\": %lld, \"steps\": %lld, \"input_size\": "
      "%lld, "
      "\"hidden_size\": %lld, \"dtype\": \"%s\", \"what\": \"%s\", \"family\": \"%s\", \"ms\": "
      "%.4f, "
      "\"fastest_ms\": %.4f, \"us_per_step\": %.3f, \"host_us\": %.1f, \"kernels\": %d, "
      "\"memsets\": %d, \"copies\": %d}\n",
      spec.num_directions, layers, static_cast<long long>(spec.batch),
      static_cast<long long>(spec.steps), static_cast<long long>(spec.input_size),
      static_cast<long long>(spec.hidden_size), dtype.c_str(), what, family.c_str(), timing.median,
      timing.fastest, 1e3 * timing.median / static_cast<double>(spec.steps), timing.host_us,
      timing.kernels, timing.memsets, timing.copies);
  std::fflush(stdout);
}

void RunStack(const tfl_lstm_spec& first, int layers, const std::string& dtype, int replays) {
  StackSpecs specs(layers, first);
  StackTensors tensors;
  for (int l = 0; l < layers; ++l) {
    if (l > 0) specs[l].input_size = first.hidden_size;
    tensors.push_back(FastRandomTensors(specs[l]));
  }
  StackCall call(specs, tensors);
  const tfl_status status = call.Run();  // also the warm-up
  if (status.code != TFL_OK) {
    std::fprintf(stderr, "%s\n", status.message);
    return;
  }
  const std::string forward_name = call.forward_at_once ? "at once" : "layers";
  const auto forward = [&] { call.RunForward(); };
  if (!first.training) {
    Print(first, layers, dtype, "forward", forward_name,
          TimeReplays(call.stream(), replays, forward));
    return;
  }
  Print(first, layers, dtype, "forward with reserve", forward_name,
        TimeReplays(call.stream(), replays, forward));
  const auto both = [&] {
    call.RunForward();
    call.RunBackward();
  };
  Print(first, layers, dtype, "train",
        forward_name + "/" + (call.backward_at_once ? "at once" : "layers"),
        TimeReplays(call.stream(), replays, both));
}

void Run(const Shape& shape, const std::string& dtype, const std::string& family, int directions,
         int layers, int replays) {
  tfl_lstm_spec spec = {};
  spec.num_directions = static_cast<uint8_t>(directions);
  spec.batch = shape[0];
  spec.steps = shape[1];
  spec.input_size = shape[2];
  spec.hidden_size = shape[3];
  spec.dtype =
      dtype == "float16" ? TFL_FLOAT16 : (dtype == "bfloat16" ? TFL_BFLOAT16 : TFL_FLOAT32);
  spec.weight_dtype = spec.dtype;
  spec.allow_tf32 = dtype == "tf32";
  spec.recurrent_activation = TFL_SIGMOID;
  spec.return_sequences = spec.has_bias = 1;
  if (family.empty()) {
    unsetenv(cuda::kForcePlanVariable);
  } else {
    setenv(cuda::kForcePlanVariable, family.c_str(), 1);
  }
  for (bool training : {false, true}) {
    spec.training = training;
    if (layers > 1) {
      RunStack(spec, layers, dtype, replays);
      continue;
    }
    cuda::DeviceLimits limits;
    cuda::Plan plan = {};
    cuda::GetDeviceLimits(0, &limits);
    if (cuda::MakePlan(spec, limits, cuda::Families(), family.empty() ? nullptr : family.c_str(),
                       &plan)
            .code != TFL_OK) {
      continue;
    }
    DeviceCall call(spec, FastRandomTensors(spec));
    const tfl_status status = call.Run();  // also the warm-up
    if (status.code != TFL_OK) {
      std::fprintf(stderr, "%s\n", status.message);
      continue;
    }
    const auto forward = [&] { call.RunForward(); };
    const auto both = [&] {
      call.RunForward();
      call.RunBackward();
    };
    if (!training) {
      Print(spec, 1, dtype, "forward", plan.forward->name,
            TimeReplays(call.stream(), replays, forward));
    } else {
      Print(spec, 1, dtype, "forward with reserve", plan.forward->name,
            TimeReplays(call.stream(), replays, forward));
      const std::string names = std::string(plan.forward->name) + "/" + plan.backward->name;
      Print(spec, 1, dtype, "train", names, TimeReplays(call.stream(), replays, both));
    }
  }
}

int Main(int argc, char** argv) {
  std::vector<Shape> shapes;
  std::vector<std::string> dtypes, families;
  std::vector<int> layer_counts;
  int replays = 20, directions = 1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i], value = argv[i + 1];
    if (flag == "--shape") {
      Shape shape;
      if (std::sscanf(value.c_str(), "%lld,%lld,%lld,%lld", &shape[0], &shape[1], &shape[2],
                      &shape[3]) != 4) {
        std::fprintf(stderr, "--shape must be B,T,I,H; got %s\n", value.c_str());
        return 2;
      }
      shapes.push_back(shape);
    } else if (flag == "--dtype") {
      dtypes.push_back(value);
    } else if (flag == "--family") {
      families.push_back(value);
    } else if (flag == "--directions") {
      directions = std::atoi(value.c_str());
    } else if (flag == "--layers") {
      layer_counts.push_back(std::atoi(value.c_str()));
    } else if (flag == "--replays") {
      replays = std::atoi(value.c_str());
    } else {
      std::fprintf(stderr, "unknown option %s\n", flag.c_str());
      return 2;
    }
  }
  if (shapes.empty()) {
    shapes = {{1, 64, 128, 128},  {1, 64, 256, 256},   {16, 64, 256, 256},    {64, 64, 256, 256},
              {64, 64, 512, 512}, {256, 64, 512, 512}, {64, 128, 1024, 1024}, {1, 64, 1024, 1024}};
  }
  if (dtypes.empty()) dtypes = {"float32", "tf32", "float16", "bfloat16"};
  if (families.empty()) families = {""};
  if (layer_counts.empty()) layer_counts = {1};
  for (const Shape& shape : shapes) {
    for (const std::string& dtype : dtypes) {
      for (const int layers : layer_counts) {
        for (const std::string& family : families) {
          Run(shape, dtype, family, directions, layers, replays);
        }
      }
    }
  }
  return 0;
}

}  // namespace
}  // namespace tfl::testing

int main(int argc, char** argv) { return tfl::testing::Main(argc, argv); }
