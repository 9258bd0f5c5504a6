#include "cc/lstm/cuda/testing/stack_call.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace tfl::testing {
namespace {

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::abort();
}
#define CHECK_CUDA(call) Check(call, #call)

}  // namespace

StackTensors RandomStackTensors(const StackSpecs& specs, uint64_t seed) {
  StackTensors tensors;
  for (size_t l = 0; l < specs.size(); ++l) {
    tensors.push_back(RandomTensors(specs[l], seed * 16 + l));
    if (l > 0) tensors[l].mask = tensors[0].mask;
    if (l > 0) tensors[l].x.clear();
    if (l + 1 < specs.size()) tensors[l].grad_output.clear();
  }
  return tensors;
}

// Reference fills in outputs and gradients together, so that the layers' outputs come first.
void StackReference(const StackSpecs& specs, StackTensors* tensors) {
  const size_t layers = specs.size();
  for (size_t l = 0; l < layers; ++l) {
    tfl_lstm_spec inference = specs[l];
    inference.training = 0;
    if (l > 0) (*tensors)[l].x = (*tensors)[l - 1].output;
    Reference(inference, &(*tensors)[l]);
  }
  if (!specs[0].training) return;
  for (size_t l = layers; l-- > 0;) {
    if (l + 1 < layers) (*tensors)[l].grad_output = (*tensors)[l + 1].grad_x;
    Reference(specs[l], &(*tensors)[l]);
  }
}

Buffer* StackCall::Make(const std::string& name, int64_t bytes) {
  buffers_.emplace_back(name, std::make_unique<Buffer>(bytes));
  written_.push_back(buffers_.back().second.get());
  return written_.back();
}

const void* StackCall::Given(const std::string& name, const std::vector<double>& values,
                             tfl_dtype dtype) {
  Buffer* buffer = Make(name, static_cast<int64_t>(values.size()) * SizeOf(dtype));
  written_.pop_back();
  Upload(values, dtype, *buffer);
  return buffer->data();
}

StackCall::StackCall(const StackSpecs& specs, const StackTensors& tensors) : specs_(specs) {
  const size_t layers = specs.size();
  CHECK_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  runtime_.stream = stream_;
  status_ = tfl_cuda_lstm_stack_sizes(specs_.data(), static_cast<int32_t>(layers), runtime_.device,
                                      &sizes_);
  if (status_.code != TFL_OK) return;
  forward_at_once = sizes_.forward_at_once;
  backward_at_once = sizes_.backward_at_once;
  inputs_.assign(layers, {});
  outputs_.assign(layers, {});
  saved_.assign(layers, {});
  gradients_.assign(layers, {});
  layers_.assign(layers, {});
  for (size_t l = 0; l < layers; ++l) {
    const tfl_lstm_spec& spec = specs_[l];
    const Tensors& t = tensors[l];
    Layer& layer = layers_[l];
    status_ = tfl_cuda_lstm_sizes(&spec, runtime_.device, &layer.sizes);
    if (status_.code != TFL_OK) return;
    const auto named = [&](const char* name) { return name + std::to_string(l); };
    const tfl_dtype type = spec.dtype, weight = spec.weight_dtype;
    const int64_t size = SizeOf(type), weight_size = SizeOf(weight);
    tfl_lstm_inputs& inputs = inputs_[l];
    inputs.x = l == 0 ? Given("x", t.x, type) : outputs_[l - 1].output;
    inputs.kernel[0] = Given(named("kernel"), t.kernel, weight);
    inputs.recurrent_kernel[0] = Given(named("recurrent_kernel"), t.recurrent_kernel, weight);
    if (spec.has_bias) inputs.bias[0] = Given(named("bias"), t.bias, weight);
    if (spec.has_initial_h) inputs.initial_h[0] = Given(named("initial_h"), t.initial_h, type);
    if (spec.has_initial_c) inputs.initial_c[0] = Given(named("initial_c"), t.initial_c, type);
    inputs.recurrent_dropout_mask[0] =
        Given(named("recurrent_dropout_mask"), t.recurrent_dropout_mask, type);
    inputs.dropout_mask[0] = Given(named("dropout_mask"), t.dropout_mask, type);
    if (spec.has_mask) {
      Buffer* mask = Make(named("mask"), static_cast<int64_t>(t.mask.size()));
      written_.pop_back();
      CHECK_CUDA(cudaMemcpy(mask->data(), t.mask.data(), t.mask.size(), cudaMemcpyHostToDevice));
      inputs.mask = static_cast<const uint8_t*>(mask->data());
    }
    const int64_t state = spec.batch * spec.hidden_size * size;
    layer.output = Make(named("output"), spec.return_sequences ? state * spec.steps : state);
    layer.final_h = Make(named("final_h"), state);
    layer.final_c = Make(named("final_c"), state);
    outputs_[l].output = layer.output->data();
    outputs_[l].final_h[0] = layer.final_h->data();
    outputs_[l].final_c[0] = layer.final_c->data();
    outputs_[l].reserve = Make(named("reserve"), layer.sizes.reserve_bytes)->data();
    outputs_[l].workspace =
        Make(named("forward workspace"), layer.sizes.forward_workspace_bytes)->data();
    if (!spec.training) continue;
    saved_[l].output = outputs_[l].output;
    saved_[l].reserve = outputs_[l].reserve;
    saved_[l].grad_final_h[0] = Given(named("grad_final_h"), t.grad_final_h, type);
    saved_[l].grad_final_c[0] = Given(named("grad_final_c"), t.grad_final_c, type);
    const auto make = [&](const char* name, const std::vector<double>& of, int64_t element) {
      return Make(named(name), static_cast<int64_t>(of.size()) * element);
    };
    layer.grad_x = Make(named("grad_x"), spec.batch * spec.steps * spec.input_size * size);
    layer.grad_kernel = make("grad_kernel", t.kernel, weight_size);
    layer.grad_recurrent_kernel = make("grad_recurrent_kernel", t.recurrent_kernel, weight_size);
    layer.grad_bias = make("grad_bias", t.bias, weight_size);
    layer.grad_initial_h = make("grad_initial_h", t.initial_h, size);
    layer.grad_initial_c = make("grad_initial_c", t.initial_c, size);
    tfl_lstm_gradients& gradients = gradients_[l];
    gradients.grad_x = layer.grad_x->data();
    gradients.grad_kernel[0] = layer.grad_kernel->data();
    gradients.grad_recurrent_kernel[0] = layer.grad_recurrent_kernel->data();
    gradients.grad_bias[0] = layer.grad_bias->data();
    gradients.grad_initial_h[0] = layer.grad_initial_h->data();
    gradients.grad_initial_c[0] = layer.grad_initial_c->data();
    gradients.workspace =
        Make(named("backward workspace"), layer.sizes.backward_workspace_bytes)->data();
  }
  forward_workspace_ = Make("stack forward workspace", sizes_.forward_workspace_bytes)->data();
  backward_workspace_ = Make("stack backward workspace", sizes_.backward_workspace_bytes)->data();
  if (!specs_[0].training) return;
  for (size_t l = 0; l + 1 < layers; ++l) saved_[l].grad_output = gradients_[l + 1].grad_x;
  saved_.back().grad_output = Given("grad_output", tensors.back().grad_output, specs_.back().dtype);
}

StackCall::~StackCall() { cudaStreamDestroy(stream_); }

tfl_status StackCall::RunForward() {
  const auto layers = static_cast<int32_t>(specs_.size());
  if (forward_at_once) {
    std::vector<tfl_lstm_outputs> outputs = outputs_;
    for (tfl_lstm_outputs& of_layer : outputs) of_layer.workspace = nullptr;
    outputs[0].workspace = forward_workspace_;
    return tfl_cuda_lstm_stack_forward(specs_.data(), layers, inputs_.data(), outputs.data(),
                                       &runtime_);
  }
  tfl_status status = {};
  for (int32_t l = 0; l < layers && status.code == TFL_OK; ++l) {
    status = tfl_cuda_lstm_forward(&specs_[l], &inputs_[l], &outputs_[l], &runtime_);
  }
  return status;
}

tfl_status StackCall::RunBackward() {
  const auto layers = static_cast<int32_t>(specs_.size());
  if (backward_at_once) {
    std::vector<tfl_lstm_saved> saved = saved_;
    std::vector<tfl_lstm_gradients> gradients = gradients_;
    for (int32_t l = 0; l < layers; ++l) {
      gradients[l].workspace = l == 0 ? backward_workspace_ : nullptr;
      if (l > 0) gradients[l].grad_x = nullptr;
      if (l + 1 < layers) saved[l].grad_output = nullptr;
    }
    return tfl_cuda_lstm_stack_backward(specs_.data(), layers, inputs_.data(), saved.data(),
                                        gradients.data(), &runtime_);
  }
  tfl_status status = {};
  for (int32_t l = layers; l-- > 0 && status.code == TFL_OK;) {
    status = tfl_cuda_lstm_backward(&specs_[l], &inputs_[l], &saved_[l], &gradients_[l], &runtime_);
  }
  return status;
}

tfl_status StackCall::Run(int replays) {
  if (status_.code != TFL_OK) return status_;
  CHECK_CUDA(cudaDeviceSynchronize());
  const auto both = [&] {
    tfl_status status = RunForward();
    if (status.code == TFL_OK && specs_[0].training) status = RunBackward();
    return status;
  };
  tfl_status status = both();
  CHECK_CUDA(cudaStreamSynchronize(stream_));
  if (status.code != TFL_OK || replays == 0) return status;
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
  status = both();
  CHECK_CUDA(cudaStreamEndCapture(stream_, &graph));
  CHECK_CUDA(cudaGraphInstantiate(&executable, graph, 0));
  for (int i = 0; i < replays; ++i) {
    PoisonAll();
    CHECK_CUDA(cudaGraphLaunch(executable, stream_));
    CHECK_CUDA(cudaStreamSynchronize(stream_));
  }
  CHECK_CUDA(cudaGraphExecDestroy(executable));
  CHECK_CUDA(cudaGraphDestroy(graph));
  return status;
}

void StackCall::PoisonAll() {
  for (Buffer* buffer : written_) buffer->Poison();
  CHECK_CUDA(cudaDeviceSynchronize());
}

StackTensors StackCall::Results() const {
  StackTensors all;
  for (size_t l = 0; l < specs_.size(); ++l) {
    const Layer& layer = layers_[l];
    const tfl_dtype type = specs_[l].dtype, weight = specs_[l].weight_dtype;
    Tensors t;
    t.output = Download(*layer.output, type);
    t.final_h = Download(*layer.final_h, type);
    t.final_c = Download(*layer.final_c, type);
    if (specs_[l].training) {
      if (l == 0) t.grad_x = Download(*layer.grad_x, type);
      t.grad_kernel = Download(*layer.grad_kernel, weight);
      t.grad_recurrent_kernel = Download(*layer.grad_recurrent_kernel, weight);
      t.grad_bias = Download(*layer.grad_bias, weight);
      t.grad_initial_h = Download(*layer.grad_initial_h, type);
      t.grad_initial_c = Download(*layer.grad_initial_c, type);
    }
    all.push_back(std::move(t));
  }
  return all;
}

std::string StackCall::BrokenFence() const {
  for (const auto& [name, buffer] : buffers_) {
    if (!buffer->FencesHold()) return name;
  }
  return "";
}

}  // namespace tfl::testing
