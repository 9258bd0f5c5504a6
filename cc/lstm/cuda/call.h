// The parts of a call around the recurrence, which single layers and stacks share: the input
// projection before it, the weight and input gradients after it, the division of the workspace, and
// the recurrence's own description.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_CALL_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_CALL_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <initializer_list>
#include <utility>

#include "cc/lstm/cuda/plan.h"
#include "cc/lstm/cuda/recurrence.h"
#include "cc/lstm/cuda/status.h"
#include "cc/lstm/lstm.h"

namespace tfl::cuda {

inline int64_t Rows(const tfl_lstm_spec& spec) { return spec.batch * spec.steps; }
inline bool NothingRuns(const tfl_lstm_spec& spec) {
  return Rows(spec) == 0 || spec.hidden_size == 0;
}

// The products and the recurrence run one after the other, so their scratch shares one place.
struct ForwardWorkspace {
  void* projection[TFL_MAX_DIRECTIONS];  // the same where directions run one after the other
  int projection_parts;                  // of k, each in a place of its own
  void* recurrence;
  void* gemm;
  void* kernel;
  void* dropped;  // x times a dropout mask
  int64_t bytes;

  ForwardWorkspace(const tfl_lstm_spec& spec, const Plan& plan, void* base);
};

struct BackwardWorkspace {
  void* grad_gates[TFL_MAX_DIRECTIONS];
  void* previous_h[TFL_MAX_DIRECTIONS];
  void* recurrence;
  void* gemm;
  void* kernel;
  void* column_sum;
  void* grad_x;      // accumulator type, if it is a sum of several products
  void* dropped;     // x or h times a dropout mask; a product that one awaits
  void* unmasked_x;  // x with zeros at masked steps
  int64_t bytes;

  BackwardWorkspace(const tfl_lstm_spec& spec, const Plan& plan, void* base);
};

// The caller aligns to 64 bytes; the parts want kAlignment.
void* AlignedBase(void* workspace);

// Kernels, and what the driver says of them, belong to the current device: makes it the call's, and
// puts the caller's back after.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    if (cudaGetDevice(&before_) == cudaSuccess && before_ != device) {
      changed_ = true;
      error_ = cudaSetDevice(device);
    }
  }
  ~DeviceScope() {
    if (changed_) cudaSetDevice(before_);
  }
  tfl_status status() const { return FromCuda(error_, "choosing the device"); }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t error_ = cudaSuccess;
};

tfl_status PlanFor(const tfl_lstm_spec& spec, int device, Plan* plan);

// x kernel of direction d. Whether the next kernel may begin early is told where that is asked.
tfl_status Project(const tfl_lstm_spec& spec, int d, const tfl_lstm_inputs& inputs,
                   const ForwardWorkspace& workspace, const tfl_cuda_runtime& runtime,
                   bool* next_may_begin_early = nullptr);

ForwardRecurrence DescribeForward(const tfl_lstm_spec& spec, int d, const Plan& plan,
                                  const tfl_lstm_inputs& inputs, const tfl_lstm_outputs& outputs,
                                  const ForwardWorkspace& workspace, int device);

BackwardRecurrence DescribeBackward(const tfl_lstm_spec& spec, int d, const Plan& plan,
                                    const tfl_lstm_inputs& inputs, const tfl_lstm_saved& saved,
                                    const tfl_lstm_gradients& gradients,
                                    const BackwardWorkspace& workspace, int device);

// grad_kernel, grad_recurrent_kernel, grad_bias and grad_x from the gate gradients.
tfl_status WeightAndInputGradients(const tfl_lstm_spec& spec, int d, const tfl_lstm_inputs& inputs,
                                   const tfl_lstm_gradients& gradients,
                                   const BackwardWorkspace& workspace, int device,
                                   cudaStream_t stream);

tfl_status DemandAll(std::initializer_list<std::pair<const char*, const void*>> arguments);

}  // namespace tfl::cuda

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_CALL_H_
