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
  s.go_backwards = flags >> 3 & 1;
  s.time_major = flags >> 4 & 1;
  const auto fill = [&](std::vector<double>* v, int64_t n) {
    v->resize(n);
    for (double& value : *v) value = normal(random);
  };
  Inputs in;
  fill(&in.x, s.batch * s.steps * s.input_size);
  fill(&in.kernel, s.input_size * 4 * s.hidden_size);
  fill(&in.recurrent_kernel, s.hidden_size * 4 * s.hidden_size);
  fill(&in.bias, 4 * s.hidden_size);
  fill(&in.initial_h, s.batch * s.hidden_size);
  fill(&in.initial_c, s.batch * s.hidden_size);
  for (int i = 0; i < s.batch * s.steps; ++i) in.mask.push_back(random() % 2);
  Outputs grad;
  fill(&grad.output, s.batch * (s.return_sequences ? s.steps : 1) * s.hidden_size);
  fill(&grad.final_h, s.batch * s.hidden_size);
  fill(&grad.final_c, s.batch * s.hidden_size);

  const auto loss = [&] {
    const Outputs out = Forward(s, in);
    double sum = 0;
    const auto add = [&](const std::vector<double>& a, const std::vector<double>& b) {
      for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    };
    add(out.output, grad.output), add(out.final_h, grad.final_h), add(out.final_c, grad.final_c);
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
  compare(&in.kernel, gradients.kernel, "kernel");
  compare(&in.recurrent_kernel, gradients.recurrent_kernel, "recurrent_kernel");
  compare(&in.bias, gradients.bias, "bias");
  compare(&in.initial_h, gradients.initial_h, "initial_h");
  compare(&in.initial_c, gradients.initial_c, "initial_c");
}

INSTANTIATE_TEST_SUITE_P(Flags, ReferenceTest, ::testing::Range(0, 32));

}  // namespace
}  // namespace tfl::reference
