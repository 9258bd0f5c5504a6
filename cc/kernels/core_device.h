// The core's functions on a device, in one shape for CPU and GPU, as lstm_stack.h takes them.
#ifndef TF_FUSED_LSTM_CC_KERNELS_CORE_DEVICE_H_
#define TF_FUSED_LSTM_CC_KERNELS_CORE_DEVICE_H_

#include <cstdint>
#include <vector>

#include "cc/kernels/lstm_stack.h"
#include "cc/lstm/lstm.h"

namespace tf_fused_lstm {

class CpuCore : public LayersInTurn {
 public:
  explicit CpuCore(const tfl_cpu_runtime& runtime) : runtime_(runtime) {}
  tfl_status Sizes(const tfl_lstm_spec& spec, tfl_lstm_sizes* sizes) const {
    return tfl_cpu_lstm_sizes(&spec, runtime_.num_threads, sizes);
  }
  tfl_status Forward(const tfl_lstm_spec& spec, const tfl_lstm_inputs& inputs,
                     const tfl_lstm_outputs& outputs) const {
    return tfl_cpu_lstm_forward(&spec, &inputs, &outputs, &runtime_);
  }
  tfl_status Backward(const tfl_lstm_spec& spec, const tfl_lstm_inputs& inputs,
                      const tfl_lstm_saved& saved, const tfl_lstm_gradients& gradients) const {
    return tfl_cpu_lstm_backward(&spec, &inputs, &saved, &gradients, &runtime_);
  }

 private:
  tfl_cpu_runtime runtime_;
};

class CudaCore {
 public:
  explicit CudaCore(const tfl_cuda_runtime& runtime) : runtime_(runtime) {}
  tfl_status Sizes(const tfl_lstm_spec& spec, tfl_lstm_sizes* sizes) const {
    return tfl_cuda_lstm_sizes(&spec, runtime_.device, sizes);
  }
  tfl_status Forward(const tfl_lstm_spec& spec, const tfl_lstm_inputs& inputs,
                     const tfl_lstm_outputs& outputs) const {
    return tfl_cuda_lstm_forward(&spec, &inputs, &outputs, &runtime_);
  }
  tfl_status Backward(const tfl_lstm_spec& spec, const tfl_lstm_inputs& inputs,
                      const tfl_lstm_saved& saved, const tfl_lstm_gradients& gradients) const {
    return tfl_cuda_lstm_backward(&spec, &inputs, &saved, &gradients, &runtime_);
  }
  tfl_status StackSizes(const StackSpec& spec, tfl_lstm_stack_sizes* sizes) const {
    return tfl_cuda_lstm_stack_sizes(spec.data(), static_cast<int32_t>(spec.size()),
                                     runtime_.device, sizes);
  }
  tfl_status StackForward(const StackSpec& spec, const std::vector<tfl_lstm_inputs>& inputs,
                          const std::vector<tfl_lstm_outputs>& outputs) const {
    return tfl_cuda_lstm_stack_forward(spec.data(), static_cast<int32_t>(spec.size()),
                                       inputs.data(), outputs.data(), &runtime_);
  }
  tfl_status StackBackward(const StackSpec& spec, const std::vector<tfl_lstm_inputs>& inputs,
                           const std::vector<tfl_lstm_saved>& saved,
                           const std::vector<tfl_lstm_gradients>& gradients) const {
    return tfl_cuda_lstm_stack_backward(spec.data(), static_cast<int32_t>(spec.size()),
                                        inputs.data(), saved.data(), gradients.data(), &runtime_);
  }

 private:
  tfl_cuda_runtime runtime_;
};

}  // namespace tf_fused_lstm

#endif  // TF_FUSED_LSTM_CC_KERNELS_CORE_DEVICE_H_
