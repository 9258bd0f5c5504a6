#include "cc/lstm/cuda/testing/device_call.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace tfl::testing {
namespace {

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::abort();
}
#define CHECK_CUDA(call) Check(call, #call)

uint16_t ToBits(double value, tfl_dtype dtype) {
  uint16_t bits;
  if (dtype == TFL_FLOAT16) {
    const __half half = __double2half(value);
    std::memcpy(&bits, &half, 2);
  } else {
    const __nv_bfloat16 brain = __double2bfloat16(value);
    std::memcpy(&bits, &brain, 2);
  }
  return bits;
}

double FromBits(uint16_t bits, tfl_dtype dtype) {
  if (dtype == TFL_FLOAT16) {
    __half_raw half;
    half.x = bits;
    return __half2float(__half(half));
  }
  __nv_bfloat16_raw brain;
  brain.x = bits;
  return __bfloat162float(__nv_bfloat16(brain));
}

void Store(double value, tfl_dtype dtype, void* array, size_t i) {
  switch (dtype) {
    case TFL_FLOAT64:
      static_cast<double*>(array)[i] = value;
      break;
    case TFL_FLOAT32:
      static_cast<float*>(array)[i] = static_cast<float>(value);
      break;
    default:
      static_cast<uint16_t*>(array)[i] = ToBits(value, dtype);
  }
}

double Load(const void* array, tfl_dtype dtype, size_t i) {
  switch (dtype) {
    case TFL_FLOAT64:
      return static_cast<const double*>(array)[i];
    case TFL_FLOAT32:
      return static_cast<const float*>(array)[i];
    default:
      return FromBits(static_cast<const uint16_t*>(array)[i], dtype);
  }
}

}  // namespace

int64_t SizeOf(tfl_dtype dtype) {
  return dtype == TFL_FLOAT64 ? 8 : (dtype == TFL_FLOAT32 ? 4 : 2);
}

double Rounded(double value, tfl_dtype dtype) {
  double storage = 0;
  Store(value, dtype, &storage, 0);
  return Load(&storage, dtype, 0);
}

namespace {

// fn(begin, end) over [0, count), on all cores.
template <typename Function>
void ParallelFor(int64_t count, Function&& fn) {
  const int64_t threads =
      std::max<int64_t>(1, std::min<int64_t>(std::thread::hardware_concurrency(), count >> 16));
  std::vector<std::thread> pool;
  for (int64_t i = 0; i < threads; ++i) {
    pool.emplace_back([&, i] { fn(count * i / threads, count * (i + 1) / threads); });
  }
  for (std::thread& thread : pool) thread.join();
}

// In [-1, 1): splitmix64 of the seed and the index (G. Steele et al., 2014).
double Uniform(uint64_t seed, uint64_t index) {
  uint64_t z = seed * 0xd1342543de82ef95u + (index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return static_cast<double>((z ^ z >> 31) >> 11) * 0x1p-52 - 1;
}

}  // namespace

Tensors RandomTensors(const tfl_lstm_spec& spec, uint64_t seed) {
  uint64_t stream = seed << 8;
  const auto fill = [&](std::vector<double>* tensor, int64_t count, double scale, tfl_dtype dtype) {
    tensor->resize(count);
    ++stream;
    ParallelFor(count, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        (*tensor)[i] = Rounded(scale * Uniform(stream, i), dtype);
      }
    });
  };
  // Without a bound on the cell, ordinary weights take it beyond float16 within a few steps.
  const bool unbounded = spec.activation >= TFL_RELU || spec.recurrent_activation >= TFL_RELU;
  const double size = unbounded ? 0.4 : 1.0;
  const int64_t directions = spec.num_directions, rows = spec.batch * spec.steps;
  const int64_t states = directions * spec.batch * spec.hidden_size;
  const int64_t gates = directions * 4 * spec.hidden_size;
  Tensors t;
  fill(&t.x, rows * spec.input_size, 1.7, spec.dtype);
  fill(&t.kernel, spec.input_size * gates,
       size * 1.7 / std::sqrt(std::max<int64_t>(1, spec.input_size)), spec.weight_dtype);
  fill(&t.recurrent_kernel, spec.hidden_size * gates,
       size * 1.5 / std::sqrt(std::max<int64_t>(1, spec.hidden_size)), spec.weight_dtype);
  if (spec.has_bias) fill(&t.bias, gates, 1, spec.weight_dtype);
  if (spec.has_initial_h) fill(&t.initial_h, states, 1, spec.dtype);
  if (spec.has_initial_c) fill(&t.initial_c, states, 1, spec.dtype);
  fill(&t.dropout_mask, directions * spec.num_dropout_masks * spec.batch * spec.input_size, 1.5,
       spec.dtype);
  fill(&t.recurrent_dropout_mask, spec.num_recurrent_dropout_masks * states, 1.5, spec.dtype);
  if (spec.has_mask) {
    t.mask.resize(rows);
    ++stream;
    for (int64_t i = 0; i < rows; ++i) t.mask[i] = Uniform(stream, i) < 0.4;
    // One element without any valid step, and one with a masked beginning.
    for (int64_t step = 0; step < spec.steps; ++step) {
      const auto at = [&](int64_t b) -> uint8_t& {
        return t.mask[spec.time_major ? step * spec.batch + b : b * spec.steps + step];
      };
      if (spec.batch > 1) at(spec.batch - 1) = 0;
      if (spec.batch > 2) at(0) = spec.go_backwards ? step < spec.steps / 2 : step > spec.steps / 2;
    }
  }
  fill(&t.grad_output, spec.return_sequences ? states * spec.steps : states, 1, spec.dtype);
  fill(&t.grad_final_h, states, 1, spec.dtype);
  fill(&t.grad_final_c, states, 1, spec.dtype);
  return t;
}

Buffer::Buffer(int64_t bytes) : bytes_(bytes) {
  CHECK_CUDA(cudaMalloc(reinterpret_cast<void**>(&base_), bytes + 2 * kFence));
  Poison();
}

Buffer::~Buffer() { cudaFree(base_); }

// 0xff in every byte is NaN in all four types.
void Buffer::Poison() { CHECK_CUDA(cudaMemset(base_, 0xff, bytes_ + 2 * kFence)); }

bool Buffer::FencesHold() const {
  std::vector<unsigned char> fences(2 * kFence);
  CHECK_CUDA(cudaMemcpy(fences.data(), base_, kFence, cudaMemcpyDeviceToHost));
  CHECK_CUDA(
      cudaMemcpy(fences.data() + kFence, base_ + kFence + bytes_, kFence, cudaMemcpyDeviceToHost));
  for (unsigned char byte : fences) {
    if (byte != 0xff) return false;
  }
  return true;
}

void Upload(const std::vector<double>& values, tfl_dtype dtype, const Buffer& buffer) {
  if (values.empty()) return;
  std::vector<char> host(values.size() * SizeOf(dtype));
  ParallelFor(static_cast<int64_t>(values.size()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) Store(values[i], dtype, host.data(), i);
  });
  CHECK_CUDA(cudaMemcpy(buffer.data(), host.data(), host.size(), cudaMemcpyHostToDevice));
}

std::vector<double> Download(const Buffer& buffer, tfl_dtype dtype) {
  std::vector<char> host(buffer.bytes());
  if (!host.empty()) {
    CHECK_CUDA(cudaMemcpy(host.data(), buffer.data(), host.size(), cudaMemcpyDeviceToHost));
  }
  std::vector<double> values(host.size() / SizeOf(dtype));
  ParallelFor(static_cast<int64_t>(values.size()), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) values[i] = Load(host.data(), dtype, i);
  });
  return values;
}

Buffer* DeviceCall::Make(const char* name, int64_t bytes) {
  buffers_.emplace_back(name, std::make_unique<Buffer>(bytes));
  written_.push_back(buffers_.back().second.get());
  return written_.back();
}

Buffer* DeviceCall::Make(const char* name, const std::vector<double>& values, tfl_dtype dtype) {
  Buffer* buffer = Make(name, static_cast<int64_t>(values.size()) * SizeOf(dtype));
  written_.pop_back();
  Upload(values, dtype, *buffer);
  return buffer;
}

template <typename Pointer>
void DeviceCall::Split(const Buffer* buffer, Pointer (&pointers)[TFL_MAX_DIRECTIONS]) const {
  for (int d = 0; d < spec_.num_directions; ++d) {
    if (buffer->data() == nullptr) continue;
    pointers[d] = static_cast<char*>(buffer->data()) + d * (buffer->bytes() / spec_.num_directions);
  }
}

DeviceCall::DeviceCall(const tfl_lstm_spec& spec, const Tensors& t, const CallOptions& options)
    : spec_(spec), options_(options) {
  CHECK_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  runtime_.stream = stream_;
  status_ = tfl_cuda_lstm_sizes(&spec_, runtime_.device, &sizes_);
  if (status_.code != TFL_OK) return;
  const tfl_dtype type = spec.dtype, weight = spec.weight_dtype;
  inputs_.x = Make("x", t.x, type)->data();
  Split(Make("kernel", t.kernel, weight), inputs_.kernel);
  Split(Make("recurrent_kernel", t.recurrent_kernel, weight), inputs_.recurrent_kernel);
  if (spec.has_bias) Split(Make("bias", t.bias, weight), inputs_.bias);
  if (spec.has_initial_h) Split(Make("initial_h", t.initial_h, type), inputs_.initial_h);
  if (spec.has_initial_c) Split(Make("initial_c", t.initial_c, type), inputs_.initial_c);
  Split(Make("dropout_mask", t.dropout_mask, type), inputs_.dropout_mask);
  Split(Make("recurrent_dropout_mask", t.recurrent_dropout_mask, type),
        inputs_.recurrent_dropout_mask);
  if (spec.has_mask) {
    Buffer* mask = Make("mask", static_cast<int64_t>(t.mask.size()));
    written_.pop_back();
    if (!t.mask.empty()) {
      CHECK_CUDA(cudaMemcpy(mask->data(), t.mask.data(), t.mask.size(), cudaMemcpyHostToDevice));
    }
    inputs_.mask = static_cast<const uint8_t*>(mask->data());
  }
  const int64_t state = spec.num_directions * spec.batch * spec.hidden_size * SizeOf(type);
  output_ = Make("output", spec.return_sequences ? state * spec.steps : state);
  final_h_ = Make("final_h", state);
  final_c_ = Make("final_c", state);
  outputs_.output = output_->data();
  Split(final_h_, outputs_.final_h);
  Split(final_c_, outputs_.final_c);
  outputs_.reserve = Make("reserve", sizes_.reserve_bytes)->data();
  outputs_.workspace = Make("forward workspace", sizes_.forward_workspace_bytes)->data();
  if (!spec.training) return;
  saved_.output = outputs_.output;
  saved_.reserve = outputs_.reserve;
  if (!options.null_gradients) {
    saved_.grad_output = Make("grad_output", t.grad_output, type)->data();
    Split(Make("grad_final_h", t.grad_final_h, type), saved_.grad_final_h);
    Split(Make("grad_final_c", t.grad_final_c, type), saved_.grad_final_c);
  }
  const int64_t size = SizeOf(type), weight_size = SizeOf(weight);
  grad_x_ = Make("grad_x", static_cast<int64_t>(t.x.size()) * size);
  gradients_.grad_x = grad_x_->data();
  gradients_.workspace = Make("backward workspace", sizes_.backward_workspace_bytes)->data();
  if (options.unwanted) return;
  grad_kernel_ = Make("grad_kernel", static_cast<int64_t>(t.kernel.size()) * weight_size);
  grad_recurrent_kernel_ =
      Make("grad_recurrent_kernel", static_cast<int64_t>(t.recurrent_kernel.size()) * weight_size);
  grad_bias_ = Make("grad_bias", static_cast<int64_t>(t.bias.size()) * weight_size);
  grad_initial_h_ = Make("grad_initial_h", static_cast<int64_t>(t.initial_h.size()) * size);
  grad_initial_c_ = Make("grad_initial_c", static_cast<int64_t>(t.initial_c.size()) * size);
  Split(grad_kernel_, gradients_.grad_kernel);
  Split(grad_recurrent_kernel_, gradients_.grad_recurrent_kernel);
  Split(grad_bias_, gradients_.grad_bias);
  Split(grad_initial_h_, gradients_.grad_initial_h);
  Split(grad_initial_c_, gradients_.grad_initial_c);
}

DeviceCall::~DeviceCall() { cudaStreamDestroy(stream_); }

tfl_status DeviceCall::RunForward() {
  return tfl_cuda_lstm_forward(&spec_, &inputs_, &outputs_, &runtime_);
}

tfl_status DeviceCall::RunBackward() {
  return tfl_cuda_lstm_backward(&spec_, &inputs_, &saved_, &gradients_, &runtime_);
}

void DeviceCall::PoisonAll() {
  for (Buffer* buffer : written_) buffer->Poison();
  CHECK_CUDA(cudaDeviceSynchronize());
}

namespace {

// How many kernels of the graph may begin while the one before runs; -1 where CUDA does not tell.
int EarlyLaunches([[maybe_unused]] cudaGraph_t graph) {
#if CUDART_VERSION >= 13000
  size_t count = 0;
  CHECK_CUDA(cudaGraphGetEdges(graph, nullptr, nullptr, nullptr, &count));
  std::vector<cudaGraphNode_t> from(count), to(count);
  std::vector<cudaGraphEdgeData> edges(count);
  CHECK_CUDA(cudaGraphGetEdges(graph, from.data(), to.data(), edges.data(), &count));
  return static_cast<int>(std::count_if(edges.begin(), edges.end(), [](const auto& edge) {
    return edge.type == cudaGraphDependencyTypeProgrammatic;
  }));
#else
  return -1;
#endif
}

}  // namespace

tfl_status DeviceCall::Run() {
  if (status_.code != TFL_OK) return status_;
  CHECK_CUDA(cudaDeviceSynchronize());
  const auto both = [&] {
    tfl_status status = RunForward();
    if (status.code == TFL_OK && spec_.training) status = RunBackward();
    return status;
  };
  tfl_status status = both();
  CHECK_CUDA(cudaStreamSynchronize(stream_));
  if (status.code != TFL_OK || options_.replays == 0) return status;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  status = both();
  CHECK_CUDA(cudaStreamEndCapture(stream_, &graph));
  early_launches_ = EarlyLaunches(graph);
  CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < options_.replays; ++i) {
    PoisonAll();
    CHECK_CUDA(cudaGraphLaunch(executable, stream_));
    CHECK_CUDA(cudaStreamSynchronize(stream_));
  }
  CHECK_CUDA(cudaGraphExecDestroy(executable));
  CHECK_CUDA(cudaGraphDestroy(graph));
  return status;
}

Tensors DeviceCall::Results() const {
  Tensors t;
  t.output = Download(*output_, spec_.dtype);
  t.final_h = Download(*final_h_, spec_.dtype);
  t.final_c = Download(*final_c_, spec_.dtype);
  if (!spec_.training) return t;
  t.grad_x = Download(*grad_x_, spec_.dtype);
  if (options_.unwanted) return t;
  t.grad_kernel = Download(*grad_kernel_, spec_.weight_dtype);
  t.grad_recurrent_kernel = Download(*grad_recurrent_kernel_, spec_.weight_dtype);
  t.grad_bias = Download(*grad_bias_, spec_.weight_dtype);
  t.grad_initial_h = Download(*grad_initial_h_, spec_.dtype);
  t.grad_initial_c = Download(*grad_initial_c_, spec_.dtype);
  return t;
}

std::string DeviceCall::BrokenFence() const {
  for (const auto& [name, buffer] : buffers_) {
    if (!buffer->FencesHold()) return name;
  }
  return "";
}

}  // namespace tfl::testing
