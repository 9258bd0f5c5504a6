// The core's functions on the device of an op, in one shape for CPU and GPU.
#ifndef TF_FUSED_LSTM_CC_KERNELS_DEVICE_H_
#define TF_FUSED_LSTM_CC_KERNELS_DEVICE_H_

#include "cc/lstm/lstm.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_fused_lstm {

// TensorFlow's intra-op thread pool.
class CpuDevice {
 public:
  explicit CpuDevice(tensorflow::OpKernelContext* ctx);
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

// TensorFlow's stream.
class GpuDevice {
 public:
  explicit GpuDevice(tensorflow::OpKernelContext* ctx);
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

 private:
  tfl_cuda_runtime runtime_;
};

}  // namespace tf_fused_lstm

#endif  // TF_FUSED_LSTM_CC_KERNELS_DEVICE_H_
