// The LSTM of cc/lstm/lstm.h in float64, written plainly from its equations. For tests only.
#ifndef TF_FUSED_LSTM_CC_LSTM_REFERENCE_REFERENCE_H_
#define TF_FUSED_LSTM_CC_LSTM_REFERENCE_REFERENCE_H_

#include <array>
#include <cstdint>
#include <vector>

#include "cc/lstm/lstm.h"

namespace tfl::reference {

// Tensors in the shapes of the C interface; empty where absent. Arrays hold one a direction.
using Pair = std::array<std::vector<double>, TFL_MAX_DIRECTIONS>;

struct Inputs {
  std::vector<double> x;
  Pair kernel, recurrent_kernel, bias, initial_h, initial_c;
  std::vector<uint8_t> mask;
  Pair dropout_mask, recurrent_dropout_mask;
};

struct Outputs {
  std::vector<double> output;
  Pair final_h, final_c;
};

struct Gradients {
  std::vector<double> x;
  Pair kernel, recurrent_kernel, bias, initial_h, initial_c;
};

Outputs Forward(const tfl_lstm_spec& spec, const Inputs& inputs);

// The gradients of sum(grad.output * output + grad.final_h * final_h + grad.final_c * final_c).
Gradients Backward(const tfl_lstm_spec& spec, const Inputs& inputs, const Outputs& grad);

}  // namespace tfl::reference

#endif  // TF_FUSED_LSTM_CC_LSTM_REFERENCE_REFERENCE_H_
