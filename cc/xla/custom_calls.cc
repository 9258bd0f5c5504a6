// What XLA's executables run: the core's functions as custom calls for XLA's CPU and GPU.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/log/log.h"
#include "cc/kernels/core_device.h"
#include "cc/kernels/lstm_stack.h"
#include "cc/lstm/lstm.h"
#include "cc/xla/lstm_attributes.h"
#include "xla/ffi/api/c_api.h"
#include "xla/ffi/api/ffi.h"

namespace xla::ffi {
// What XLA_FFI_GetApi returns. That one tensorflow exports, but tensorflow-cpu does not; and the
// header of this one does not go with the public ones above.
const XLA_FFI_Api* GetXlaFfiApi();
}  // namespace xla::ffi

namespace tf_fused_lstm {
namespace {

namespace ffi = xla::ffi;

ffi::Error ToError(const tfl_status& status) {
  switch (status.code) {
    case TFL_OK:
      return ffi::Error::Success();
    case TFL_INVALID_ARGUMENT:
      return ffi::Error(ffi::ErrorCode::kInvalidArgument, status.message);
    case TFL_UNAVAILABLE:
      return ffi::Error(ffi::ErrorCode::kUnimplemented, status.message);
    case TFL_RESOURCE_EXHAUSTED:
      return ffi::Error(ffi::ErrorCode::kResourceExhausted, status.message);
    case TFL_INTERNAL:
      break;
  }
  return ffi::Error(ffi::ErrorCode::kInternal, status.message);
}

// The operands or the results of a call, one after the other.
template <typename Buffers>
class Reader {
 public:
  explicit Reader(const Buffers& buffers) : buffers_(buffers) {}

  void* Next(bool present = true) {
    return present && index_ < buffers_.size() ? Buffer(index_++).untyped_data() : nullptr;
  }

  // The last of them, at the workspace's alignment, and the bytes from there on.
  void* Workspace(int64_t* bytes) {
    const ffi::AnyBuffer buffer = Buffer(buffers_.size() - 1);
    const auto begin = reinterpret_cast<uintptr_t>(buffer.untyped_data());
    const uintptr_t aligned = (begin + kWorkspaceAlignment - 1) & -kWorkspaceAlignment;
    *bytes = static_cast<int64_t>(buffer.size_bytes() - (aligned - begin));
    return reinterpret_cast<void*>(aligned);
  }

 private:
  ffi::AnyBuffer Buffer(size_t index) const {
    if constexpr (std::is_same_v<Buffers, ffi::RemainingRets>) {
      return **buffers_.template get<ffi::AnyBuffer>(index);
    } else {
      return *buffers_.template get<ffi::AnyBuffer>(index);
    }
  }

  const Buffers& buffers_;
  size_t index_ = 0;
};

// Cell by cell of each of the op's lists, `pointer(layer, direction)` being where a tensor goes.
template <typename Buffers, typename Pointer>
void ReadCells(const StackSpec& spec, bool present, Reader<Buffers>& reader,
               const Pointer& pointer) {
  for (size_t layer = 0; layer < spec.size(); ++layer) {
    for (int d = 0; d < spec[layer].num_directions; ++d) pointer(layer, d) = reader.Next(present);
  }
}

size_t Cells(const StackSpec& spec) { return spec.size() * spec[0].num_directions; }

// The order of the op's inputs.
std::vector<tfl_lstm_inputs> ReadInputs(const LstmAttributes& attributes,
                                        Reader<ffi::RemainingArgs>& operands) {
  const StackSpec& spec = attributes.spec;
  std::vector<tfl_lstm_inputs> inputs(spec.size());
  const tfl_lstm_spec& common = spec[0];
  const auto read = [&](bool present, auto member) {
    ReadCells(
        spec, present,
        operands, [&](size_t layer, int d) -> auto& { return (inputs[layer].*member)[d]; });
  };
  inputs[0].x = operands.Next();
  read(true, &tfl_lstm_inputs::kernel);
  read(true, &tfl_lstm_inputs::recurrent_kernel);
  read(common.has_bias, &tfl_lstm_inputs::bias);
  read(common.has_initial_h, &tfl_lstm_inputs::initial_h);
  read(common.has_initial_c, &tfl_lstm_inputs::initial_c);
  const auto* mask = static_cast<const uint8_t*>(operands.Next(common.has_mask));
  for (tfl_lstm_inputs& layer : inputs) layer.mask = mask;
  read(attributes.has_dropout_mask, &tfl_lstm_inputs::dropout_mask);
  read(attributes.has_recurrent_dropout_mask, &tfl_lstm_inputs::recurrent_dropout_mask);
  return inputs;
}

ffi::Error CheckCounts(const LstmAttributes& attributes, size_t operands, size_t more_operands,
                       size_t results, size_t wanted_results) {
  const StackSpec& spec = attributes.spec;
  const tfl_lstm_spec& common = spec[0];
  const size_t lists = 2 + common.has_bias + common.has_initial_h + common.has_initial_c +
                       attributes.has_dropout_mask + attributes.has_recurrent_dropout_mask;
  const size_t wanted = 1 + lists * Cells(spec) + common.has_mask + more_operands;
  if (operands == wanted && results == wanted_results) return ffi::Error::Success();
  return ffi::Error(ffi::ErrorCode::kInvalidArgument,
                    "a custom call of tf_fused_lstm has a wrong number of operands or results");
}

// What was asked of the core when the function was compiled must still hold where it runs.
ffi::Error CheckWorkspace(int64_t has, int64_t needs) {
  if (has >= needs) return ffi::Error::Success();
  return ffi::Error(ffi::ErrorCode::kInternal,
                    "a function with FusedLSTM was compiled for another device: its workspace is " +
                        std::to_string(has) + " bytes, " + std::to_string(needs) + " are needed");
}

template <typename Device>
ffi::Error Forward(const Device& device, const ffi::RemainingArgs& args,
                   const ffi::RemainingRets& rets, const LstmAttributes& attributes) {
  const StackSpec& spec = attributes.spec;
  if (ffi::Error error = CheckCounts(attributes, args.size(), 0, rets.size(), 3 + 2 * Cells(spec));
      error.failure()) {
    return error;
  }
  StackPlan plan;
  if (ffi::Error error = ToError(PlanStack(device, spec, &plan)); error.failure()) return error;
  Reader operands(args);
  Reader results(rets);
  StackForward call;
  call.inputs = ReadInputs(attributes, operands);
  call.outputs.resize(spec.size());
  call.outputs.back().output = results.Next();
  for (auto state : {&tfl_lstm_outputs::final_h, &tfl_lstm_outputs::final_c}) {
    ReadCells(spec, true, results,
              [&](size_t layer, int d) -> void*& { return (call.outputs[layer].*state)[d]; });
  }
  call.reserve = results.Next();
  int64_t workspace_bytes = 0;
  call.workspace = results.Workspace(&workspace_bytes);
  if (ffi::Error error = CheckWorkspace(workspace_bytes, plan.forward_workspace_bytes);
      error.failure()) {
    return error;
  }
  return ToError(RunStackForward(device, spec, plan, call));
}

template <typename Device>
ffi::Error Backward(const Device& device, const ffi::RemainingArgs& args,
                    const ffi::RemainingRets& rets, const LstmAttributes& attributes) {
  const StackSpec& spec = attributes.spec;
  const tfl_lstm_spec& common = spec[0];
  const size_t cells = Cells(spec);
  const size_t lists = 2 + common.has_bias + common.has_initial_h + common.has_initial_c;
  if (ffi::Error error =
          CheckCounts(attributes, args.size(), 3 + 2 * cells, rets.size(), 2 + lists * cells);
      error.failure()) {
    return error;
  }
  StackPlan plan;
  if (ffi::Error error = ToError(PlanStack(device, spec, &plan)); error.failure()) return error;
  Reader operands(args);
  Reader results(rets);
  StackBackward call;
  call.inputs = ReadInputs(attributes, operands);
  call.saved.resize(spec.size());
  call.saved.back().output = operands.Next();
  call.reserve = operands.Next();
  call.saved.back().grad_output = operands.Next();
  for (auto state : {&tfl_lstm_saved::grad_final_h, &tfl_lstm_saved::grad_final_c}) {
    ReadCells(spec, true, operands,
              [&](size_t layer, int d) -> const void*& { return (call.saved[layer].*state)[d]; });
  }
  call.gradients.resize(spec.size());
  call.gradients[0].grad_x = results.Next();
  const auto read = [&](bool present, auto member) {
    ReadCells(spec, present, results,
              [&](size_t layer, int d) -> void*& { return (call.gradients[layer].*member)[d]; });
  };
  read(true, &tfl_lstm_gradients::grad_kernel);
  read(true, &tfl_lstm_gradients::grad_recurrent_kernel);
  read(common.has_bias, &tfl_lstm_gradients::grad_bias);
  read(common.has_initial_h, &tfl_lstm_gradients::grad_initial_h);
  read(common.has_initial_c, &tfl_lstm_gradients::grad_initial_c);
  int64_t workspace_bytes = 0;
  call.workspace = results.Workspace(&workspace_bytes);
  if (ffi::Error error = CheckWorkspace(workspace_bytes, plan.backward_workspace_bytes);
      error.failure()) {
    return error;
  }
  return ToError(RunStackBackward(device, spec, plan, call));
}

void Schedule(void* pool, void (*fn)(void* arg), void* arg) {
  static_cast<ffi::ThreadPool*>(pool)->Schedule([fn, arg] { fn(arg); });
}

enum class Direction { kForward, kBackward };

template <Direction direction, typename Device>
ffi::Error Run(const Device& device, const ffi::RemainingArgs& args, const ffi::RemainingRets& rets,
               const LstmAttributes& attributes) {
  if constexpr (direction == Direction::kForward) {
    return Forward(device, args, rets, attributes);
  } else {
    return Backward(device, args, rets, attributes);
  }
}

template <Direction direction>
ffi::Error OnCpu(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                 ffi::Dictionary dictionary) {
  LstmAttributes attributes;
  if (ffi::Error error = FromDictionary(dictionary, &attributes); error.failure()) return error;
  // XLA's intra-op pool, which is TensorFlow's. A run without one has the calling thread alone.
  const int32_t threads = pool.num_threads() > 0 ? attributes.num_threads : 1;
  return Run<direction>(CpuCore({threads, &Schedule, &pool}), args, rets, attributes);
}

template <Direction direction>
ffi::Error OnGpu(void* stream, int32_t device, ffi::RemainingArgs args, ffi::RemainingRets rets,
                 ffi::Dictionary dictionary) {
  LstmAttributes attributes;
  if (ffi::Error error = FromDictionary(dictionary, &attributes); error.failure()) return error;
  return Run<direction>(CudaCore({stream, device}), args, rets, attributes);
}

template <Direction direction>
XLA_FFI_Error* CpuHandler(XLA_FFI_CallFrame* call_frame) {
  static const auto* handler = ffi::Ffi::Bind()
                                   .Ctx<ffi::ThreadPool>()
                                   .RemainingArgs()
                                   .RemainingRets()
                                   .Attrs()
                                   .To(OnCpu<direction>)
                                   .release();
  return handler->Call(call_frame);
}

template <Direction direction>
XLA_FFI_Error* GpuHandler(XLA_FFI_CallFrame* call_frame) {
  static const auto* handler = ffi::Ffi::Bind()
                                   .Ctx<ffi::PlatformStream<void*>>()
                                   .Ctx<ffi::DeviceOrdinal>()
                                   .RemainingArgs()
                                   .RemainingRets()
                                   .Attrs()
                                   .To(OnGpu<direction>)
                                   .release();
  return handler->Call(call_frame);
}

bool Register(const char* target, const char* platform, XLA_FFI_Handler* handler) {
  XLA_FFI_Error* error =
      ffi::Ffi::RegisterStaticHandler(ffi::GetXlaFfiApi(), target, platform, handler);
  if (error != nullptr)
    LOG(ERROR) << "XLA refuses the custom call " << target << " on " << platform;
  return error == nullptr;
}

[[maybe_unused]] const bool registered = [] {
  Register(kForwardTarget, "Host", CpuHandler<Direction::kForward>);
  Register(kBackwardTarget, "Host", CpuHandler<Direction::kBackward>);
  if (tfl_built_with_cuda() == 0) return true;
  Register(kForwardTarget, "CUDA", GpuHandler<Direction::kForward>);
  Register(kBackwardTarget, "CUDA", GpuHandler<Direction::kBackward>);
  return true;
}();

}  // namespace
}  // namespace tf_fused_lstm
