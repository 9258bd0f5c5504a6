// The CPU core against the float64 reference: every output and gradient, all scratch poisoned, with
// every instruction set that it was compiled for and this machine has.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <ostream>
#include <random>

#include "cc/lstm/cpu/targets.h"
#include "cc/lstm/cpu/test_pool.h"
#include "cc/lstm/lstm.h"
#include "cc/lstm/reference/reference.h"
#include "hwy/highway.h"

namespace tfl::cpu {
namespace {

using ::tfl::testing::TestPool;

// A tensor of any type in memory of exactly its size.
class Tensor {
 public:
  Tensor(tfl_dtype type, size_t count) : type_(type), bytes_(count * Size(), 0xFF), count_(count) {}
  Tensor(tfl_dtype type, const std::vector<double>& values) : Tensor(type, values.size()) {
    for (size_t i = 0; i < values.size(); ++i) Set(i, values[i]);
  }
  void* data() { return count_ == 0 ? nullptr : bytes_.data(); }
  std::vector<double> Values() const {
    std::vector<double> values;
    for (size_t i = 0; i < count_; ++i) values.push_back(Get(i));
    return values;
  }

 private:
  size_t Size() const { return type_ == TFL_FLOAT64 ? 8 : type_ == TFL_FLOAT32 ? 4 : 2; }
  static double FromHalf(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double magnitude =
        exponent == 31 ? (fraction ? std::nan("") : std::numeric_limits<double>::infinity())
        : exponent     ? std::ldexp(1024 + fraction, exponent - 25)
                       : std::ldexp(fraction, -24);
    return bits >> 15 ? -magnitude : magnitude;
  }
  // The nearest, by search over all values of the type.
  static uint16_t ToHalf(double value) {
    uint16_t low = 0, high = 0x7BFF;
    while (low < high) {
      const uint16_t middle = low + (high - low) / 2;
      FromHalf(middle) < std::abs(value) ? low = middle + 1 : high = middle;
    }
    if (low > 0 && std::abs(value) - FromHalf(low - 1) < FromHalf(low) - std::abs(value)) --low;
    return value < 0 ? low | 0x8000 : low;
  }
  void Set(size_t i, double value) {
    void* to = bytes_.data() + i * Size();
    if (type_ == TFL_FLOAT64) {
      std::memcpy(to, &value, 8);
    } else if (type_ == TFL_FLOAT16) {
      const uint16_t bits = ToHalf(value);
      std::memcpy(to, &bits, 2);
    } else {
      float single = static_cast<float>(value);
      if (type_ == TFL_FLOAT32) {
        std::memcpy(to, &single, 4);
      } else {
        uint32_t bits;
        std::memcpy(&bits, &single, 4);
        const uint16_t upper = static_cast<uint16_t>((bits + 0x8000) >> 16);
        std::memcpy(to, &upper, 2);
      }
    }
  }
  double Get(size_t i) const {
    const void* from = bytes_.data() + i * Size();
    if (type_ == TFL_FLOAT64) {
      double value;
      std::memcpy(&value, from, 8);
      return value;
    }
    if (type_ == TFL_FLOAT32) {
      float value;
      std::memcpy(&value, from, 4);
      return value;
    }
    uint16_t half;
    std::memcpy(&half, from, 2);
    if (type_ == TFL_FLOAT16) return FromHalf(half);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
  }

  tfl_dtype type_;
  std::vector<uint8_t> bytes_;
  size_t count_;
};

// 64-byte aligned bytes, all 0xFF (NaN in every type), with a guard behind.
class Scratch {
 public:
  explicit Scratch(int64_t bytes) : size_(bytes), memory_(bytes + 192, 0xFF) {}
  void* data() {
    return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory_.data()) + 63) &
                                   ~uintptr_t{63});
  }
  bool GuardIntact() {
    const uint8_t* end = static_cast<uint8_t*>(data()) + size_;
    for (int i = 0; i < 64; ++i) {
      if (end[i] != 0xFF) return false;
    }
    return true;
  }

 private:
  int64_t size_;
  std::vector<uint8_t> memory_;
};

// Of the whole tensor. Values are of order 1; a lone one near 0 by cancellation counts as 0.1.
double RelativeError(const std::vector<double>& got, const std::vector<double>& want) {
  EXPECT_EQ(got.size(), want.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += (got[i] - want[i]) * (got[i] - want[i]);
    norm += want[i] * want[i];
  }
  if (want.empty()) return 0;
  return std::sqrt(difference / std::max(norm, 0.01 * static_cast<double>(want.size())));
}

struct Results {
  std::vector<std::vector<double>> outputs;    // output, final_h, final_c
  std::vector<std::vector<double>> inference;  // the same, without training
  std::vector<std::vector<double>> gradients;  // in the order of tfl_lstm_gradients
};

struct Problem {
  tfl_lstm_spec spec;
  reference::Inputs in;
  reference::Outputs grad;
};

tfl_lstm_spec Spec(int64_t batch, int64_t steps, int64_t input, int64_t hidden) {
  tfl_lstm_spec s = {};
  s.batch = batch, s.steps = steps, s.input_size = input, s.hidden_size = hidden;
  s.dtype = s.weight_dtype = TFL_FLOAT32;
  s.activation = TFL_TANH, s.recurrent_activation = TFL_SIGMOID;
  s.num_directions = 1;
  s.return_sequences = s.has_bias = 1;
  return s;
}

Problem MakeProblem(const tfl_lstm_spec& s, unsigned seed, double x_scale = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  const auto values = [&](int64_t count, double scale, tfl_dtype type) {
    std::vector<double> v(count);
    for (double& value : v) value = normal(random) * scale;
    return Tensor(type, v).Values();
  };
  const double scale = 1 / std::sqrt(s.hidden_size + 1.0);
  Problem p;
  p.spec = s;
  p.in.x = values(s.batch * s.steps * s.input_size, x_scale, s.dtype);
  for (int d = 0; d < s.num_directions; ++d) {
    const int64_t state = s.batch * s.hidden_size;
    p.in.kernel[d] =
        values(s.input_size * 4 * s.hidden_size, 1 / std::sqrt(s.input_size + 1.0), s.weight_dtype);
    p.in.recurrent_kernel[d] = values(s.hidden_size * 4 * s.hidden_size, scale, s.weight_dtype);
    if (s.has_bias) p.in.bias[d] = values(4 * s.hidden_size, .5, s.weight_dtype);
    if (s.has_initial_h) p.in.initial_h[d] = values(state, 1, s.dtype);
    if (s.has_initial_c) p.in.initial_c[d] = values(state, 1, s.dtype);
    p.in.dropout_mask[d] = values(s.num_dropout_masks * s.batch * s.input_size, 1, s.dtype);
    p.in.recurrent_dropout_mask[d] = values(s.num_recurrent_dropout_masks * state, 1, s.dtype);
  }
  if (s.has_mask) {
    for (int64_t i = 0; i < s.batch * s.steps; ++i) p.in.mask.push_back(random() % 3 != 0);
  }
  p.grad.output = values(
      s.num_directions * s.batch * (s.return_sequences ? s.steps : 1) * s.hidden_size, 1, s.dtype);
  for (int d = 0; d < s.num_directions; ++d) {
    p.grad.final_h[d] = values(s.batch * s.hidden_size, 1, s.dtype);
    p.grad.final_c[d] = values(s.batch * s.hidden_size, 1, s.dtype);
  }
  return p;
}

// A tensor a direction.
class Tensors {
 public:
  Tensors(tfl_dtype type, size_t count) : tensors_{{type, count}, {type, count}} {}
  Tensors(tfl_dtype type, const reference::Pair& values)
      : tensors_{{type, values[0]}, {type, values[1]}} {}
  template <class Pointer>
  void Point(Pointer (&pointers)[TFL_MAX_DIRECTIONS]) {
    for (int d = 0; d < TFL_MAX_DIRECTIONS; ++d) pointers[d] = tensors_[d].data();
  }
  void Append(int directions, std::vector<std::vector<double>>* results) const {
    for (int d = 0; d < directions; ++d) results->push_back(tensors_[d].Values());
  }

 private:
  Tensor tensors_[TFL_MAX_DIRECTIONS];
};

// As RunCore's results: output, then final_h and final_c of each direction.
std::vector<std::vector<double>> Flat(const reference::Outputs& out, int directions) {
  std::vector<std::vector<double>> results = {out.output};
  for (const reference::Pair* pair : {&out.final_h, &out.final_c}) {
    for (int d = 0; d < directions; ++d) results.push_back((*pair)[d]);
  }
  return results;
}

Results RunCore(const Problem& p, const tfl_cpu_runtime& runtime) {
  tfl_lstm_spec s = p.spec;
  const int directions = s.num_directions;
  Tensor x(s.dtype, p.in.x);
  Tensors kernel(s.weight_dtype, p.in.kernel);
  Tensors recurrent_kernel(s.weight_dtype, p.in.recurrent_kernel), bias(s.weight_dtype, p.in.bias);
  Tensors initial_h(s.dtype, p.in.initial_h), initial_c(s.dtype, p.in.initial_c);
  Tensors dropout(s.dtype, p.in.dropout_mask);
  Tensors recurrent_dropout(s.dtype, p.in.recurrent_dropout_mask);
  std::vector<uint8_t> mask = p.in.mask;
  tfl_lstm_inputs inputs = {};
  inputs.x = x.data();
  inputs.mask = mask.data();
  kernel.Point(inputs.kernel);
  recurrent_kernel.Point(inputs.recurrent_kernel);
  bias.Point(inputs.bias);
  initial_h.Point(inputs.initial_h);
  initial_c.Point(inputs.initial_c);
  dropout.Point(inputs.dropout_mask);
  recurrent_dropout.Point(inputs.recurrent_dropout_mask);
  Results results;
  const size_t state = s.batch * s.hidden_size;
  for (int training = 0; training < 2; ++training) {
    s.training = training;
    tfl_lstm_sizes sizes;
    EXPECT_EQ(tfl_cpu_lstm_sizes(&s, runtime.num_threads, &sizes).code, TFL_OK);
    EXPECT_EQ(sizes.reserve_bytes > 0, training && state > 0);
    Scratch reserve(sizes.reserve_bytes), workspace(sizes.forward_workspace_bytes);
    Tensor output(s.dtype, p.grad.output.size());
    Tensors final_h(s.dtype, state), final_c(s.dtype, state);
    tfl_lstm_outputs outputs = {};
    outputs.output = output.data();
    final_h.Point(outputs.final_h);
    final_c.Point(outputs.final_c);
    outputs.reserve = training ? reserve.data() : nullptr;
    outputs.workspace = workspace.data();
    const tfl_status status = tfl_cpu_lstm_forward(&s, &inputs, &outputs, &runtime);
    EXPECT_EQ(status.code, TFL_OK) << status.message;
    EXPECT_TRUE(reserve.GuardIntact());
    EXPECT_TRUE(workspace.GuardIntact());
    std::vector<std::vector<double>>& values = training ? results.outputs : results.inference;
    values = {output.Values()};
    final_h.Append(directions, &values);
    final_c.Append(directions, &values);
    if (!training) continue;
    Tensor grad_output(s.dtype, p.grad.output);
    Tensors grad_final_h(s.dtype, p.grad.final_h), grad_final_c(s.dtype, p.grad.final_c);
    Tensor dx(s.dtype, p.in.x.size());
    Tensors dkernel(s.weight_dtype, p.in.kernel[0].size());
    Tensors drecurrent(s.weight_dtype, p.in.recurrent_kernel[0].size());
    Tensors dbias(s.weight_dtype, p.in.bias[0].size());
    Tensors dh(s.dtype, state), dc(s.dtype, state);
    Scratch backward_workspace(sizes.backward_workspace_bytes);
    tfl_lstm_saved saved = {};
    saved.output = output.data();
    saved.reserve = reserve.data();
    saved.grad_output = grad_output.data();
    grad_final_h.Point(saved.grad_final_h);
    grad_final_c.Point(saved.grad_final_c);
    tfl_lstm_gradients gradients = {};
    gradients.grad_x = dx.data();
    dkernel.Point(gradients.grad_kernel);
    drecurrent.Point(gradients.grad_recurrent_kernel);
    dbias.Point(gradients.grad_bias);
    dh.Point(gradients.grad_initial_h);
    dc.Point(gradients.grad_initial_c);
    gradients.workspace = backward_workspace.data();
    const tfl_status backward = tfl_cpu_lstm_backward(&s, &inputs, &saved, &gradients, &runtime);
    EXPECT_EQ(backward.code, TFL_OK) << backward.message;
    EXPECT_TRUE(backward_workspace.GuardIntact());
    results.gradients = {dx.Values()};
    for (const Tensors* tensors : {&dkernel, &drecurrent, &dbias, &dh, &dc}) {
      tensors->Append(directions, &results.gradients);
    }
  }
  return results;
}

void Check(const Problem& p, const tfl_cpu_runtime& runtime) {
  const tfl_lstm_spec& s = p.spec;
  const double tolerance = s.dtype == TFL_FLOAT64   ? 1e-13
                           : s.dtype == TFL_FLOAT32 ? 3e-6
                           : s.dtype == TFL_FLOAT16 ? 2e-3
                                                    : 1.5e-2;
  const Results got = RunCore(p, runtime);
  const auto outputs = Flat(reference::Forward(s, p.in), s.num_directions);
  reference::Gradients gradients = reference::Backward(s, p.in, p.grad);
  if (!s.has_bias) gradients.bias = {};
  ASSERT_EQ(got.outputs.size(), outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    EXPECT_LE(RelativeError(got.outputs[i], outputs[i]), tolerance) << "output " << i;
    EXPECT_LE(RelativeError(got.inference[i], outputs[i]), tolerance) << "inference output " << i;
  }
  size_t i = 0;
  const auto compare = [&](const std::vector<double>& wanted, const char* name, int direction) {
    EXPECT_LE(RelativeError(got.gradients.at(i++), wanted), 3 * tolerance)
        << "gradient of " << name << " of direction " << direction;
  };
  compare(gradients.x, "x", 0);
  const std::pair<const char*, reference::Pair*> pairs[] = {
      {"kernel", &gradients.kernel},
      {"recurrent_kernel", &gradients.recurrent_kernel},
      {"bias", &gradients.bias},
      {"initial_h", &gradients.initial_h},
      {"initial_c", &gradients.initial_c}};
  for (const auto& [name, pair] : pairs) {
    for (int d = 0; d < s.num_directions; ++d) compare((*pair)[d], name, d);
  }
}

// Runs with one instruction set, as on a machine that has no better one.
class LstmCpuTest : public ::testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override {
    if (hwy::GetChosenTarget().IsInitialized()) {  // by a kernel
      hwy::ChosenTarget wanted;
      wanted.Update(GetParam());
      EXPECT_EQ(hwy::GetChosenTarget().GetIndex(), wanted.GetIndex());
    }
    hwy::SetSupportedTargetsForTest(0);
  }
};

INSTANTIATE_TEST_SUITE_P(, LstmCpuTest, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& info) { return hwy::TargetName(info.param); });

TEST_P(LstmCpuTest, OddSizes) {
  TestPool pool(1);
  unsigned seed = 0;
  for (int64_t hidden : {1, 3, 7, 17, 33, 65, 129}) {
    for (int64_t input : {1, 5, 13, 64}) {
      for (int64_t batch : {1, 2, 3, 11}) {
        for (int64_t steps : {1, 2, 9}) {
          SCOPED_TRACE(::testing::Message()
                       << batch << "," << steps << "," << input << "," << hidden);
          Check(MakeProblem(Spec(batch, steps, input, hidden), ++seed), pool.Runtime(2));
        }
      }
    }
  }
}

// Sizes that need several blocks of every product, and several chunks of steps.
TEST_P(LstmCpuTest, LargeSizes) {
  TestPool pool(3);
  for (int64_t batch : {1, 70, 300}) {
    tfl_lstm_spec s = Spec(batch, batch == 1 ? 300 : 7, 300, 96);
    s.has_mask = 1;
    for (int threads : {1, 2, 4}) {
      SCOPED_TRACE(::testing::Message() << batch << " rows, " << threads << " threads");
      Check(MakeProblem(s, 7), pool.Runtime(threads));
    }
  }
  Check(MakeProblem(Spec(40, 5, 17, 272), 8), pool.Runtime(2));
}

TEST_P(LstmCpuTest, FlagsAndTypes) {
  TestPool pool(1);
  const struct {
    tfl_dtype dtype, weights;
  } types[] = {{TFL_FLOAT32, TFL_FLOAT32},   {TFL_FLOAT64, TFL_FLOAT64},
               {TFL_FLOAT16, TFL_FLOAT16},   {TFL_FLOAT16, TFL_FLOAT32},
               {TFL_BFLOAT16, TFL_BFLOAT16}, {TFL_BFLOAT16, TFL_FLOAT32}};
  for (const auto& type : types) {
    for (int flags = 0; flags < 256; ++flags) {
      tfl_lstm_spec s = Spec(flags % 3 == 0 ? 1 : 9, 6, 5, flags % 2 ? 32 : 19);
      s.dtype = type.dtype, s.weight_dtype = type.weights;
      s.time_major = flags & 1;
      s.go_backwards = flags >> 1 & 1;
      s.return_sequences = flags >> 2 & 1;
      s.zero_output_for_mask = flags >> 3 & 1;
      s.has_bias = flags >> 4 & 1;
      s.has_mask = flags >> 5 & 1;
      s.has_initial_h = flags >> 6 & 1;
      s.has_initial_c = flags >> 7 & 1;
      SCOPED_TRACE(::testing::Message() << "dtype " << type.dtype << " flags " << flags);
      Check(MakeProblem(s, flags), pool.Runtime(2));
    }
  }
}

// Both directions, and dropout masks, over the other flags.
TEST_P(LstmCpuTest, DirectionsAndDropout) {
  TestPool pool(3);
  unsigned seed = 0;
  for (int directions : {1, 2}) {
    for (int masks : {0, 1, 4}) {
      for (int recurrent_masks : {0, 1, 4}) {
        if (directions == 1 && masks == 0 && recurrent_masks == 0) continue;
        for (const auto& [type, weights] :
             {std::pair(TFL_FLOAT32, TFL_FLOAT32), std::pair(TFL_FLOAT64, TFL_FLOAT64),
              std::pair(TFL_FLOAT16, TFL_FLOAT16), std::pair(TFL_BFLOAT16, TFL_FLOAT32)}) {
          for (int flags = 0; flags < 16; ++flags) {
            tfl_lstm_spec s =
                Spec(flags % 3 == 0 ? 1 : 15, 6, flags % 5 < 2 ? 32 : 5, flags % 5 == 0 ? 64 : 35);
            s.dtype = type, s.weight_dtype = weights;
            s.num_directions = directions;
            s.num_dropout_masks = masks;
            s.num_recurrent_dropout_masks = recurrent_masks;
            s.time_major = flags & 1;
            s.return_sequences = flags >> 1 & 1;
            s.has_mask = s.zero_output_for_mask = flags >> 2 & 1;
            if (flags % 5 == 0) s.zero_output_for_mask = 0;
            s.has_initial_h = s.has_initial_c = flags >> 3 & 1;
            s.go_backwards = directions == 1 && flags % 2 == 0;
            SCOPED_TRACE(::testing::Message()
                         << directions << " directions, masks " << masks << " " << recurrent_masks
                         << ", dtype " << type << ", flags " << flags);
            Check(MakeProblem(s, ++seed), pool.Runtime(1 + flags % 4));
          }
        }
      }
    }
  }
}

// Sizes that need several chunks, panels and blocks, and every division of the work.
TEST_P(LstmCpuTest, LargeDirectionsAndDropout) {
  TestPool pool(3);
  for (int64_t batch : {1, 70}) {
    for (int masks : {0, 4}) {
      for (int threads : {1, 2, 3, 4}) {
        tfl_lstm_spec s = batch == 1 ? Spec(1, 530, 30, 104) : Spec(batch, 5, 80, 150);
        s.num_directions = 2;
        s.num_dropout_masks = s.num_recurrent_dropout_masks = masks;
        SCOPED_TRACE(::testing::Message() << batch << " rows, " << threads << " threads");
        Check(MakeProblem(s, threads), pool.Runtime(threads));
      }
    }
  }
}

// More units than a block of the depth, where z goes through memory between two blocks.
TEST_P(LstmCpuTest, UnitsOfSeveralBlocks) {
  TestPool pool(1);
  for (int64_t batch : {1, 13}) {
    for (int masks : {0, 1, 4}) {
      tfl_lstm_spec s = Spec(batch, 3, 5, 520);
      s.num_recurrent_dropout_masks = masks;
      SCOPED_TRACE(::testing::Message() << batch << " rows, masks " << masks);
      Check(MakeProblem(s, 7), pool.Runtime(2));
    }
  }
}

TEST_P(LstmCpuTest, Activations) {
  TestPool pool(1);
  for (int activation = TFL_TANH; activation <= TFL_LINEAR; ++activation) {
    for (int recurrent = TFL_TANH; recurrent <= TFL_LINEAR; ++recurrent) {
      for (tfl_dtype type : {TFL_FLOAT32, TFL_FLOAT64}) {
        tfl_lstm_spec s = Spec(5, 4, 3, 21);
        s.dtype = s.weight_dtype = type;
        s.activation = static_cast<tfl_activation>(activation);
        s.recurrent_activation = static_cast<tfl_activation>(recurrent);
        SCOPED_TRACE(::testing::Message() << activation << " " << recurrent << " " << type);
        Check(MakeProblem(s, 3), pool.Runtime(2));
      }
    }
  }
}

TEST_P(LstmCpuTest, Masks) {
  TestPool pool(1);
  tfl_lstm_spec s = Spec(7, 5, 4, 24);
  s.has_mask = s.has_initial_h = s.has_initial_c = 1;
  for (int zero = 0; zero < 2; ++zero) {
    for (int sequences = 0; sequences < 2; ++sequences) {
      s.zero_output_for_mask = zero, s.return_sequences = sequences;
      Problem p = MakeProblem(s, 5);
      const char* rows[] = {"11111", "00000", "11100", "00111", "10101", "01010", "00001"};
      for (int b = 0; b < 7; ++b) {
        for (int t = 0; t < 5; ++t) p.in.mask[b * 5 + t] = rows[b][t] == '1';
      }
      Check(p, pool.Runtime(2));
    }
  }
}

TEST_P(LstmCpuTest, HugeInputsSaturate) {
  TestPool pool(1);
  for (double scale : {1e4, 1e30}) {
    const Results r = RunCore(MakeProblem(Spec(3, 4, 5, 18), 2, scale), pool.Runtime(2));
    for (const auto& values : r.outputs) {
      for (double v : values) ASSERT_TRUE(std::isfinite(v));
    }
    for (const auto& values : r.gradients) {
      for (double v : values) ASSERT_TRUE(std::isfinite(v));
    }
  }
}

TEST_P(LstmCpuTest, NanPropagatesInItsRowOnly) {
  TestPool pool(1);
  Problem p = MakeProblem(Spec(3, 4, 5, 18), 2);
  p.in.x[1 * 4 * 5 + 2 * 5] = std::nan("");  // row 1, step 2
  const Results r = RunCore(p, pool.Runtime(2));
  for (int b = 0; b < 3; ++b) {
    for (int t = 0; t < 4; ++t) {
      for (int j = 0; j < 18; ++j) {
        EXPECT_EQ(std::isnan(r.outputs[0][(b * 4 + t) * 18 + j]), b == 1 && t >= 2);
      }
    }
  }
}

TEST_P(LstmCpuTest, NanAtMaskedStepsReachesNothing) {
  TestPool pool(1);
  tfl_lstm_spec s = Spec(3, 4, 5, 18);
  s.has_mask = s.training = 1;
  Problem p = MakeProblem(s, 2);
  std::fill(p.in.mask.begin(), p.in.mask.end(), 1);
  p.in.mask[1 * 4 + 2] = p.in.mask[2 * 4 + 3] = 0;
  const Results wanted = RunCore(p, pool.Runtime(2));
  for (const int row : {1 * 4 + 2, 2 * 4 + 3}) {
    for (int i = 0; i < 5; ++i) p.in.x[row * 5 + i] = std::nan("");
  }
  const Results r = RunCore(p, pool.Runtime(2));
  EXPECT_EQ(r.outputs, wanted.outputs);
  EXPECT_EQ(r.gradients, wanted.gradients);
}

TEST_P(LstmCpuTest, ZeroSizes) {
  TestPool pool(1);
  const int64_t sizes[][4] = {{0, 3, 4, 5}, {2, 0, 4, 5}, {2, 3, 0, 5}, {2, 3, 4, 0}, {0, 0, 0, 0}};
  for (const auto& size : sizes) {
    for (int sequences = 0; sequences < 2; ++sequences) {
      tfl_lstm_spec s = Spec(size[0], size[1], size[2], size[3]);
      s.has_initial_h = s.has_initial_c = s.has_mask = 1;
      s.return_sequences = sequences;
      SCOPED_TRACE(::testing::Message() << size[0] << size[1] << size[2] << size[3]);
      Check(MakeProblem(s, 1), pool.Runtime(2));
    }
  }
}

// Whoever comes, and whenever: the same bits.
TEST_P(LstmCpuTest, PoolsDoNotMatter) {
  for (const auto& spec : {Spec(1, 40, 32, 160), Spec(30, 6, 20, 48), Spec(20, 5, 20, 160)}) {
    const Problem p = MakeProblem(spec, 11);
    for (int threads : {2, 4}) {
      TestPool full(threads - 1), few(1), none(0);
      const Results expected = RunCore(p, full.Runtime(threads));
      // A busy pool: its threads sleep or spin when the call comes.
      TestPool busy(threads - 1);
      for (int i = 0; i < 3; ++i) {
        busy.Add([i] { std::this_thread::sleep_for(std::chrono::milliseconds(i)); });
      }
      for (TestPool* pool : {&full, &few, &none, &busy}) {
        for (int i = 0; i < 5; ++i) {
          const Results r = RunCore(p, pool->Runtime(threads));
          ASSERT_EQ(r.outputs, expected.outputs);
          ASSERT_EQ(r.inference, expected.inference);
          ASSERT_EQ(r.gradients, expected.gradients);
        }
      }
    }
    Check(p, {1, nullptr, nullptr});
    Check(p, {4, nullptr, nullptr});
  }
}

TEST_P(LstmCpuTest, NullGradientsAreZerosOrNotWanted) {
  const Problem p = MakeProblem(Spec(3, 4, 5, 18), 2);
  tfl_lstm_spec s = p.spec;
  s.training = 1;
  tfl_lstm_sizes sizes;
  ASSERT_EQ(tfl_cpu_lstm_sizes(&s, 1, &sizes).code, TFL_OK);
  Tensor x(s.dtype, p.in.x), w(s.dtype, p.in.kernel[0]);
  Tensor r(s.dtype, p.in.recurrent_kernel[0]);
  Tensor b(s.dtype, p.in.bias[0]), y(s.dtype, 3 * 4 * 18), h(s.dtype, 3 * 18), c(s.dtype, 3 * 18);
  Scratch reserve(sizes.reserve_bytes), workspace(sizes.forward_workspace_bytes);
  Scratch backward(sizes.backward_workspace_bytes);
  tfl_lstm_inputs in = {};
  in.x = x.data(), in.kernel[0] = w.data(), in.recurrent_kernel[0] = r.data();
  in.bias[0] = b.data();
  tfl_lstm_outputs out = {};
  out.output = y.data(), out.final_h[0] = h.data(), out.final_c[0] = c.data();
  out.reserve = reserve.data(), out.workspace = workspace.data();
  const tfl_cpu_runtime runtime = {1, nullptr, nullptr};
  ASSERT_EQ(tfl_cpu_lstm_forward(&s, &in, &out, &runtime).code, TFL_OK);
  Tensor dbias(s.dtype, 4 * 18), dc(s.dtype, p.grad.final_c[0]);
  tfl_lstm_saved saved = {};
  saved.output = y.data(), saved.reserve = reserve.data(), saved.grad_final_c[0] = dc.data();
  tfl_lstm_gradients only_bias = {};
  only_bias.grad_bias[0] = dbias.data(), only_bias.workspace = backward.data();
  ASSERT_EQ(tfl_cpu_lstm_backward(&s, &in, &saved, &only_bias, &runtime).code, TFL_OK);
  reference::Outputs grad = p.grad;
  std::fill(grad.output.begin(), grad.output.end(), 0.0);
  std::fill(grad.final_h[0].begin(), grad.final_h[0].end(), 0.0);
  EXPECT_LE(RelativeError(dbias.Values(), reference::Backward(s, p.in, grad).bias[0]), 3e-6);
}

TEST_P(LstmCpuTest, RefusesBadCalls) {
  const auto code = [](tfl_lstm_spec s, int threads, const char* word) {
    tfl_lstm_sizes sizes;
    const tfl_status status = tfl_cpu_lstm_sizes(&s, threads, &sizes);
    EXPECT_NE(std::strstr(status.message, word), nullptr) << status.message;
    return status.code;
  };
  tfl_lstm_spec s = Spec(1, 2, 3, 4);
  EXPECT_EQ(code(s, 0, "num_threads"), TFL_INVALID_ARGUMENT);
  s.batch = -1;
  EXPECT_EQ(code(s, 1, "batch"), TFL_INVALID_ARGUMENT);
  s = Spec(1, 2, 3, 4);
  s.weight_dtype = TFL_FLOAT64;
  EXPECT_EQ(code(s, 1, "weight_dtype"), TFL_INVALID_ARGUMENT);
  s = Spec(1, 2, 3, 4);
  s.dtype = static_cast<tfl_dtype>(9);
  EXPECT_EQ(code(s, 1, "dtype"), TFL_INVALID_ARGUMENT);
  s = Spec(1, 2, 3, 4);
  s.num_directions = 3;
  EXPECT_EQ(code(s, 1, "num_directions"), TFL_INVALID_ARGUMENT);
  s = Spec(1, 2, 3, 4);
  s.num_directions = 2, s.go_backwards = 1;
  EXPECT_EQ(code(s, 1, "go_backwards"), TFL_INVALID_ARGUMENT);
  s = Spec(1, 2, 3, 4);
  s.num_dropout_masks = 2;
  EXPECT_EQ(code(s, 1, "num_dropout_masks"), TFL_INVALID_ARGUMENT);
  const int64_t huge = int64_t{1} << 62;
  for (int i = 0; i < 4; ++i) {
    for (int64_t large : {huge, INT64_MAX, int64_t{1} << 40}) {
      int64_t sizes[4] = {1 << 20, 1 << 20, 1 << 20, 1 << 20};
      sizes[i] = large;
      s = Spec(sizes[0], sizes[1], sizes[2], sizes[3]);
      s.training = 1;
      EXPECT_EQ(code(s, 1, "x and recurrent_kernel must"), TFL_INVALID_ARGUMENT);
    }
  }
  s = Spec(1, 2, 3, 4);
  const tfl_lstm_inputs inputs = {};
  const tfl_lstm_outputs outputs = {};
  const tfl_cpu_runtime runtime = {1, nullptr, nullptr};
  const tfl_status status = tfl_cpu_lstm_forward(&s, &inputs, &outputs, &runtime);
  EXPECT_EQ(status.code, TFL_INVALID_ARGUMENT);
  EXPECT_STREQ(status.message, "x must point to a tensor, got null");
}

}  // namespace
}  // namespace tfl::cpu
