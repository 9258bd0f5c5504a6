// A recurrence call with fresh random inputs on the device, its float64 reference on the host, for
// the cluster kernels' test and benchmark.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_RECURRENCE_CASE_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_RECURRENCE_CASE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cc/lstm/cuda/recurrence.h"
#include "cc/lstm/cuda/testing/device_call.h"

namespace tfl::testing {

using Values = std::vector<double>;

struct RecurrenceCase {
  tfl_lstm_spec spec;
  tfl_dtype projection_dtype, grad_gates_dtype;
  Values projection, recurrent_kernel, bias, initial_h, initial_c, recurrent_dropout;
  Values grad_output, grad_final_h, grad_final_c;
  std::vector<uint8_t> mask;
  // Results. previous_h and grad_gates at rows of the layout of x.
  Values output, final_h, final_c, grad_gates, previous_h, grad_initial_h, grad_initial_c;

  RecurrenceCase(const tfl_lstm_spec& spec, tfl_dtype projection, tfl_dtype grad_gates,
                 uint64_t seed);
  // Fills the results in float64.
  void Reference();
};

// The buffers of both calls; every result, the reserve and the workspaces start as NaN.
class RecurrenceBuffers {
 public:
  explicit RecurrenceBuffers(const RecurrenceCase& of);
  cuda::ForwardRecurrence forward;
  cuda::BackwardRecurrence backward;
  RecurrenceCase Results(const RecurrenceCase& of) const;
  // The raw bytes of every result, to compare two runs bit by bit.
  std::vector<Values> Bits(const RecurrenceCase& of) const;
  std::string BrokenFence() const;
  void Poison();

 private:
  Buffer* Make(const Values& values, tfl_dtype dtype);
  Buffer* Make(int64_t bytes);
  std::vector<std::unique_ptr<Buffer>> buffers_;
  Buffer *output_, *final_h_, *final_c_, *reserve_, *grad_gates_, *previous_h_, *grad_initial_h_,
      *grad_initial_c_;
};

}  // namespace tfl::testing

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_SM90_RECURRENCE_CASE_H_
