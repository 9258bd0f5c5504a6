// The reference's gradients against central differences of its forward pass.
#include "cc/lstm/reference/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tfl::reference {
namespace {

class ReferenceTest : public ::testing::TestWithParam<int> {};

TEST_P(ReferenceTest, BackwardMatchesCentralDifferences) {
  const int flags = GetParam();
  std::mt19937 random(flags + 1);
  std::normal_distribution<double> normal;
  tfl_lstm_spec s = {};
  s.batch = 3, s.steps = 5, s.input_size = 2, s.hidden_size = 3;
  s.dtype = s.weight_dtype = TFL_FLOAT64;
  s.activation = TFL_TANH, s.recurrent_activation = TFL_SIGMOID;
  s.has_bias = s.has_initial_h = s.has_initial_c = 1;
  s.has_mask = flags & 1;
  s.return_sequences = flags >> 1 & 1;
  s.zero_output_for_mask = flags >> 2 & 1;
  s.num_directions = 1 + (flags >> 5 & 1);
  s.go_backwards = s.num_directions == 1 && flags >> 3 & 1;
  s.time_major = flags >> 4 & 1;
  s.num_dropout_masks = flags >> 5 & 1 ? (flags & 1 ? 4 : 1) : 0;
  s.num_recurrent_dropout_masks = flags >> 5 & 1 ? (flags & 2 ? 4 : 1) : 0;
  const auto fill = [&](std::vector<double>* v, int64_t n) {
    v->resize(n);
    for (double& value : *v) value = normal(random);
  };
  Inputs in;
  fill(&in.x, s.batch * s.steps * s.input_size);
  Outputs grad;
  for (int d = 0; d < s.num_directions; ++d) {
    fill(&in.kernel[d], s.input_size * 4 * s.hidden_size);
    fill(&in.recurrent_kernel[d], s.hidden_size * 4 * s.hidden_size);
    fill(&in.bias[d], 4 * s.hidden_size);
    fill(&in.initial_h[d], s.batch * s.hidden_size);
    fill(&in.initial_c[d], s.batch * s.hidden_size);
    fill(&in.dropout_mask[d], s.num_dropout_masks * s.batch * s.input_size);
    fill(&in.recurrent_dropout_mask[d], s.num_recurrent_dropout_masks * s.batch * s.hidden_size);
    fill(&grad.final_h[d], s.batch * s.hidden_size);
    fill(&grad.final_c[d], s.batch * s.hidden_size);
  }
  for (int i = 0; i < s.batch * s.steps; ++i) in.mask.push_back(random() % 2);
  fill(&grad.output,
       s.num_directions * s.batch * (s.return_sequences ? s.steps : 1) * s.hidden_size);

  const auto loss = [&] {
    const Outputs out = Forward(s, in);
    double sum = 0;
    const auto add = [&](const std::vector<double>& a, const std::vector<double>& b) {
      for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    };
    add(out.output, grad.output);
    for (int d = 0; d < s.num_directions; ++d) {
      add(out.final_h[d], grad.final_h[d]);
      add(out.final_c[d], grad.final_c[d]);
    }
    return sum;
  };
  const Gradients gradients = Backward(s, in, grad);
  const auto compare = [&](std::vector<double>* values, const std::vector<double>& gradient,
                           const char* name) {
    ASSERT_EQ(values->size(), gradient.size());
    for (size_t i = 0; i < values->size(); ++i) {
      const double value = (*values)[i], step = 1e-5;
      (*values)[i] = value + step;
      const double above = loss();
      (*values)[i] = value - step;
      const double below = loss();
      (*values)[i] = value;
      EXPECT_NEAR(gradient[i], (above - below) / (2 * step), 1e-7) << name << "[" << i << "]";
    }
  };
  compare(&in.x, gradients.x, "x");
  for (int d = 0; d < s.num_directions; ++d) {
    compare(&in.kernel[d], gradients.kernel[d], "kernel");
    compare(&in.recurrent_kernel[d], gradients.recurrent_kernel[d], "recurrent_kernel");
    compare(&in.bias[d], gradients.bias[d], "bias");
    compare(&in.initial_h[d], gradients.initial_h[d], "initial_h");
    compare(&in.initial_c[d], gradients.initial_c[d], "initial_c");
  }
}

INSTANTIATE_TEST_SUITE_P(Flags, ReferenceTest, ::testing::Range(0, 64));

}  // namespace
}  // namespace tfl::reference
