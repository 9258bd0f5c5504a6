// The fast reference, whose loops suit sizes that GPUs are tested at, against the plain one.
#include "cc/lstm/cuda/testing/reference.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "cc/lstm/cuda/testing/device_call.h"
#include "cc/lstm/reference/reference.h"

namespace tfl::testing {
namespace {

double Difference(const std::vector<double>& a, const std::vector<double>& b) {
  if (a.size() != b.size()) return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

TEST(FastReference, AgreesWithThePlainOne) {
  std::mt19937 engine(3);
  for (int round = 0; round < 200; ++round) {
    const auto flip = [&] { return static_cast<uint8_t>(engine() >> 7 & 1); };
    tfl_lstm_spec spec = {};
    spec.batch = 1 + engine() % 4;
    spec.steps = 1 + engine() % 6;
    spec.input_size = 1 + engine() % 5;
    spec.hidden_size = 1 + engine() % 9;
    spec.dtype = spec.weight_dtype = TFL_FLOAT64;
    spec.activation = static_cast<tfl_activation>(engine() % 5);
    spec.recurrent_activation = static_cast<tfl_activation>(engine() % 5);
    spec.time_major = flip();
    spec.go_backwards = flip();
    spec.return_sequences = flip();
    spec.zero_output_for_mask = flip();
    spec.has_bias = flip();
    spec.has_mask = flip();
    spec.has_initial_h = flip();
    spec.has_initial_c = flip();
    spec.training = 1;
    Tensors fast = RandomTensors(spec, round);
    const reference::Inputs inputs = {fast.x,    fast.kernel,    fast.recurrent_kernel,
                                      fast.bias, fast.initial_h, fast.initial_c,
                                      fast.mask};
    const reference::Outputs out = reference::Forward(spec, inputs);
    const reference::Gradients grad =
        reference::Backward(spec, inputs, {fast.grad_output, fast.grad_final_h, fast.grad_final_c});
    Reference(spec, &fast);
    SCOPED_TRACE(round);
    EXPECT_LT(Difference(fast.output, out.output), 1e-12);
    EXPECT_LT(Difference(fast.final_h, out.final_h), 1e-12);
    EXPECT_LT(Difference(fast.final_c, out.final_c), 1e-12);
    EXPECT_LT(Difference(fast.grad_x, grad.x), 1e-11);
    EXPECT_LT(Difference(fast.grad_kernel, grad.kernel), 1e-11);
    EXPECT_LT(Difference(fast.grad_recurrent_kernel, grad.recurrent_kernel), 1e-11);
    if (spec.has_bias) {
      EXPECT_LT(Difference(fast.grad_bias, grad.bias), 1e-11);
    }
    if (spec.has_initial_h) {
      EXPECT_LT(Difference(fast.grad_initial_h, grad.initial_h), 1e-11);
    }
    if (spec.has_initial_c) {
      EXPECT_LT(Difference(fast.grad_initial_c, grad.initial_c), 1e-11);
    }
  }
}

}  // namespace
}  // namespace tfl::testing
