// A stack of layers on a device from float64 tensors, like DeviceCall: at once or layer after
// layer.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_TESTING_STACK_CALL_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_TESTING_STACK_CALL_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/lstm/cuda/testing/device_call.h"
#include "cc/lstm/cuda/testing/reference.h"
#include "cc/lstm/lstm.h"

namespace tfl::testing {

using StackSpecs = std::vector<tfl_lstm_spec>;  // one direction, the first layer at the bottom
using StackTensors = std::vector<Tensors>;      // a layer each

// Fresh inputs: x is the first layer's, grad_output the last layer's, the mask the same in all.
StackTensors RandomStackTensors(const StackSpecs& specs, uint64_t seed);

// Every layer's results in float64; x of the layers above the first is filled in too.
void StackReference(const StackSpecs& specs, StackTensors* tensors);

// Buffers, pointers and runtime. Asks the core which directions run at once; those that do not, or
// are not wanted to, run layer after layer.
class StackCall {
 public:
  StackCall(const StackSpecs& specs, const StackTensors& tensors);
  ~StackCall();
  bool forward_at_once = false, backward_at_once = false;  // may be cleared before a run
  tfl_status status() const { return status_; }
  tfl_status RunForward();
  tfl_status RunBackward();
  // Both with training, then waits. With replays, once more from a CUDA graph and all that is
  // written poisoned before each.
  tfl_status Run(int replays = 0);
  StackTensors Results() const;
  std::string BrokenFence() const;
  void PoisonAll();
  cudaStream_t stream() const { return stream_; }

 private:
  struct Layer {
    tfl_lstm_sizes sizes;
    Buffer *output, *final_h, *final_c, *grad_x, *grad_kernel, *grad_recurrent_kernel, *grad_bias,
        *grad_initial_h, *grad_initial_c;
  };
  Buffer* Make(const std::string& name, int64_t bytes);
  const void* Given(const std::string& name, const std::vector<double>& values, tfl_dtype dtype);

  StackSpecs specs_;
  cudaStream_t stream_ = nullptr;
  tfl_status status_ = {};
  tfl_lstm_stack_sizes sizes_ = {};
  std::vector<std::pair<std::string, std::unique_ptr<Buffer>>> buffers_;
  std::vector<Buffer*> written_;
  std::vector<Layer> layers_;
  std::vector<tfl_lstm_inputs> inputs_;
  std::vector<tfl_lstm_outputs> outputs_;
  std::vector<tfl_lstm_saved> saved_;
  std::vector<tfl_lstm_gradients> gradients_;
  void *forward_workspace_, *backward_workspace_;  // of the layers at once
  tfl_cuda_runtime runtime_ = {};
};

}  // namespace tfl::testing

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_TESTING_STACK_CALL_H_
