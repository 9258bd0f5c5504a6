// The devices of TensorFlow's ops.
#ifndef TF_FUSED_LSTM_CC_KERNELS_DEVICE_H_
#define TF_FUSED_LSTM_CC_KERNELS_DEVICE_H_

#include "cc/kernels/core_device.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace tf_fused_lstm {

// TensorFlow's intra-op thread pool.
class CpuDevice : public CpuCore {
 public:
  explicit CpuDevice(tensorflow::OpKernelContext* ctx);
};

// TensorFlow's stream.
class GpuDevice : public CudaCore {
 public:
  explicit GpuDevice(tensorflow::OpKernelContext* ctx);
};

}  // namespace tf_fused_lstm

#endif  // TF_FUSED_LSTM_CC_KERNELS_DEVICE_H_
