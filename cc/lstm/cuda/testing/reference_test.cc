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
    spec.num_directions = 1 + engine() % 2;
    spec.batch = 1 + engine() % 4;
    spec.steps = 1 + engine() % 6;
    spec.input_size = 1 + engine() % 5;
    spec.hidden_size = 1 + engine() % 9;
    spec.dtype = spec.weight_dtype = TFL_FLOAT64;
    spec.activation = static_cast<tfl_activation>(engine() % 5);
    spec.recurrent_activation = static_cast<tfl_activation>(engine() % 5);
    spec.time_major = flip();
    spec.go_backwards = spec.num_directions == 1 && flip();
    spec.return_sequences = flip();
    spec.zero_output_for_mask = flip();
    spec.has_bias = flip();
    spec.has_mask = flip();
    spec.has_initial_h = flip();
    spec.has_initial_c = flip();
    const uint8_t masks[] = {0, 1, 4};
    spec.num_dropout_masks = masks[engine() % 3];
    spec.num_recurrent_dropout_masks = masks[engine() % 3];
    spec.training = 1;
    Tensors fast = RandomTensors(spec, round);
    // Ours holds the directions' tensors one after the other.
    const auto split = [&](const std::vector<double>& all) {
      reference::Pair pair;
      const size_t each = all.size() / spec.num_directions;
      for (int d = 0; d < spec.num_directions; ++d) {
        pair[d].assign(all.begin() + d * each, all.begin() + (d + 1) * each);
      }
      return pair;
    };
    const auto joined = [&](const reference::Pair& pair) {
      std::vector<double> all = pair[0];
      all.insert(all.end(), pair[1].begin(), pair[1].end());
      return all;
    };
    reference::Inputs inputs;
    inputs.x = fast.x;
    inputs.mask = fast.mask;
    inputs.kernel = split(fast.kernel);
    inputs.recurrent_kernel = split(fast.recurrent_kernel);
    inputs.bias = split(fast.bias);
    inputs.initial_h = split(fast.initial_h);
    inputs.initial_c = split(fast.initial_c);
    inputs.dropout_mask = split(fast.dropout_mask);
    inputs.recurrent_dropout_mask = split(fast.recurrent_dropout_mask);
    const reference::Outputs out = reference::Forward(spec, inputs);
    const reference::Gradients grad = reference::Backward(
        spec, inputs, {fast.grad_output, split(fast.grad_final_h), split(fast.grad_final_c)});
    Reference(spec, &fast);
    SCOPED_TRACE(round);
    EXPECT_LT(Difference(fast.output, out.output), 1e-12);
    EXPECT_LT(Difference(fast.final_h, joined(out.final_h)), 1e-12);
    EXPECT_LT(Difference(fast.final_c, joined(out.final_c)), 1e-12);
    EXPECT_LT(Difference(fast.grad_x, grad.x), 1e-11);
    EXPECT_LT(Difference(fast.grad_kernel, joined(grad.kernel)), 1e-11);
    EXPECT_LT(Difference(fast.grad_recurrent_kernel, joined(grad.recurrent_kernel)), 1e-11);
    if (spec.has_bias) {
      EXPECT_LT(Difference(fast.grad_bias, joined(grad.bias)), 1e-11);
    }
    if (spec.has_initial_h) {
      EXPECT_LT(Difference(fast.grad_initial_h, joined(grad.initial_h)), 1e-11);
    }
    if (spec.has_initial_c) {
      EXPECT_LT(Difference(fast.grad_initial_c, joined(grad.initial_c)), 1e-11);
    }
  }
}

}  // namespace
}  // namespace tfl::testing
