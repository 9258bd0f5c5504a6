// Runs the C interface on a device from float64 tensors, the way a careless allocator would: every
// output, reserve and workspace starts as NaN, and is fenced by bytes that must not change.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_TESTING_DEVICE_CALL_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_TESTING_DEVICE_CALL_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/lstm/cuda/testing/reference.h"
#include "cc/lstm/lstm.h"

namespace tfl::testing {

int64_t SizeOf(tfl_dtype dtype);
// The nearest value of dtype.
double Rounded(double value, tfl_dtype dtype);

// Fresh inputs and output gradients for a spec, already of its dtypes' values.
Tensors RandomTensors(const tfl_lstm_spec& spec, uint64_t seed);

// A device array between two fences, filled with NaN.
class Buffer {
 public:
  explicit Buffer(int64_t bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data() const { return bytes_ == 0 ? nullptr : base_ + kFence; }
  int64_t bytes() const { return bytes_; }
  void Poison();
  bool FencesHold() const;

 private:
  static constexpr int64_t kFence = 1024;
  unsigned char* base_ = nullptr;
  int64_t bytes_;
};

void Upload(const std::vector<double>& values, tfl_dtype dtype, const Buffer& buffer);
std::vector<double> Download(const Buffer& buffer, tfl_dtype dtype);

struct CallOptions {
  bool null_gradients = false;  // pass null instead of zeros for absent output gradients
  bool unwanted = false;        // ask for grad_x only
  int replays = 0;              // capture the calls in a CUDA graph and replay it so often
};

// All of one call on the device: buffers, pointers and runtime. Run gives the first failing status.
class DeviceCall {
 public:
  DeviceCall(const tfl_lstm_spec& spec, const Tensors& tensors, const CallOptions& options = {});
  ~DeviceCall();
  tfl_status Run();
  tfl_status RunForward();
  tfl_status RunBackward();
  // Outputs and gradients, after Run.
  Tensors Results() const;
  // Null, or which buffer was written outside its bounds.
  std::string BrokenFence() const;
  // Kernels of the captured graph that may begin while the one before runs; -1 if unknown.
  int early_launches() const { return early_launches_; }
  void PoisonAll();
  cudaStream_t stream() const { return stream_; }
  const tfl_lstm_sizes& sizes() const { return sizes_; }
  tfl_status status() const { return status_; }

 private:
  Buffer* Make(const char* name, int64_t bytes);
  Buffer* Make(const char* name, const std::vector<double>& values, tfl_dtype dtype);
  // The directions' tensors in a buffer that holds them one after the other.
  template <typename Pointer>
  void Split(const Buffer* buffer, Pointer (&pointers)[TFL_MAX_DIRECTIONS]) const;

  tfl_lstm_spec spec_;
  CallOptions options_;
  cudaStream_t stream_ = nullptr;
  tfl_status status_;
  int early_launches_ = -1;
  tfl_lstm_sizes sizes_ = {};
  std::vector<std::pair<std::string, std::unique_ptr<Buffer>>> buffers_;
  std::vector<Buffer*> written_;
  tfl_lstm_inputs inputs_ = {};
  tfl_lstm_outputs outputs_ = {};
  tfl_lstm_saved saved_ = {};
  tfl_lstm_gradients gradients_ = {};
  tfl_cuda_runtime runtime_ = {};
  Buffer *output_, *final_h_, *final_c_, *grad_x_, *grad_kernel_, *grad_recurrent_kernel_,
      *grad_bias_, *grad_initial_h_, *grad_initial_c_;
};

}  // namespace tfl::testing

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_TESTING_DEVICE_CALL_H_
