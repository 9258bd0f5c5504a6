// The LSTM in float64 and plain loops, forward and backward: what the kernels are compared with.
#ifndef TF_FUSED_LSTM_CC_LSTM_CUDA_TESTING_REFERENCE_H_
#define TF_FUSED_LSTM_CC_LSTM_CUDA_TESTING_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "cc/lstm/lstm.h"

namespace tfl::testing {

// The tensors of lstm.h by name, row-major in float64; those a spec lacks are empty. Of two
// directions' tensors that of direction 1 follows that of direction 0.
struct Tensors {
  std::vector<double> x, kernel, recurrent_kernel, bias, initial_h, initial_c;
  std::vector<double> dropout_mask, recurrent_dropout_mask;
  std::vector<uint8_t> mask;
  std::vector<double> output, final_h, final_c;
  std::vector<double> grad_output, grad_final_h, grad_final_c;
  std::vector<double> grad_x, grad_kernel, grad_recurrent_kernel, grad_bias, grad_initial_h,
      grad_initial_c;
};

// Fills output and the finals, and, if spec.training, the gradients with respect to all inputs.
void Reference(const tfl_lstm_spec& spec, Tensors* tensors);

}  // namespace tfl::testing

#endif  // TF_FUSED_LSTM_CC_LSTM_CUDA_TESTING_REFERENCE_H_
