// Stacks whose layers run at once against the float64 reference, in every mixture with layers one
// after the other; and the plan that decides.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "cc/lstm/cuda/device_limits.h"
#include "cc/lstm/cuda/plan.h"
#include "cc/lstm/cuda/sm90/stack.h"
#include "cc/lstm/cuda/testing/reference.h"
#include "cc/lstm/cuda/testing/stack_call.h"
#include "cc/lstm/lstm.h"

namespace tfl::testing {
namespace {

class ForcedPlan {
 public:
  explicit ForcedPlan(const char* plan) { setenv(cuda::kForcePlanVariable, plan, 1); }
  ~ForcedPlan() { unsetenv(cuda::kForcePlanVariable); }
};

StackSpecs Specs(int layers, int64_t batch, int64_t steps, int64_t input, int64_t hidden,
                 tfl_dtype dtype) {
  tfl_lstm_spec spec = {};
  spec.num_directions = 1;
  spec.batch = batch;
  spec.steps = steps;
  spec.hidden_size = hidden;
  spec.dtype = spec.weight_dtype = dtype;
  spec.allow_tf32 = dtype == TFL_FLOAT32;
  spec.activation = TFL_TANH;
  spec.recurrent_activation = TFL_SIGMOID;
  spec.return_sequences = spec.has_bias = spec.training = 1;
  StackSpecs specs(layers, spec);
  for (int l = 0; l < layers; ++l) specs[l].input_size = l == 0 ? input : hidden;
  return specs;
}

std::string Describe(const StackSpecs& specs) {
  const tfl_lstm_spec& s = specs.back();
  char text[320];
  std::snprintf(text, sizeof(text),
                "layers %zu B%lld T%lld I%lld H%lld dtype %d weights %d time_major %d sequences %d "
                "zero %d bias %d mask %d h0 %d c0 %d training %d recurrent dropout %d",
                specs.size(), static_cast<long long>(s.batch), static_cast<long long>(s.steps),
                static_cast<long long>(specs[0].input_size), static_cast<long long>(s.hidden_size),
                s.dtype, s.weight_dtype, s.time_major, s.return_sequences, s.zero_output_for_mask,
                s.has_bias, s.has_mask, s.has_initial_h, s.has_initial_c, s.training,
                s.num_recurrent_dropout_masks);
  return text;
}

// Rounding to the type in each layer, as one after the other.
double Tolerance(const StackSpecs& specs) {
  const tfl_dtype dtype = specs[0].dtype;
  const double one = dtype == TFL_BFLOAT16 ? 3e-2 : dtype == TFL_FLOAT16 ? 5e-3 : 3e-3;
  return one * (1 + 0.25 * static_cast<double>(specs.size() - 1));
}

double RelativeError(const std::vector<double>& out, const std::vector<double>& reference) {
  if (out.size() != reference.size()) return INFINITY;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    difference += (out[i] - reference[i]) * (out[i] - reference[i]);
    norm += reference[i] * reference[i];
  }
  if (norm == 0) return difference == 0 ? 0 : INFINITY;
  return std::sqrt(difference / norm);
}

struct Field {
  const char* name;
  std::vector<double> Tensors::*values;
};
constexpr Field kForwardFields[] = {
    {"output", &Tensors::output}, {"final_h", &Tensors::final_h}, {"final_c", &Tensors::final_c}};
constexpr Field kBackwardFields[] = {{"grad_kernel", &Tensors::grad_kernel},
                                     {"grad_recurrent_kernel", &Tensors::grad_recurrent_kernel},
                                     {"grad_bias", &Tensors::grad_bias},
                                     {"grad_initial_h", &Tensors::grad_initial_h},
                                     {"grad_initial_c", &Tensors::grad_initial_c}};

// The largest error of any result.
double Compare(const StackSpecs& specs, const StackTensors& out, const StackTensors& reference,
               const char* what) {
  double worst = 0;
  const double tolerance = Tolerance(specs);
  for (size_t l = 0; l < specs.size(); ++l) {
    const auto compare = [&](const Field& field) {
      const double error = RelativeError(out[l].*field.values, reference[l].*field.values);
      EXPECT_TRUE(error <= tolerance) << what << ", layer " << l << " " << field.name
                                      << ": relative error " << error << "; " << Describe(specs);
      if (!(error <= worst)) worst = error;
    };
    for (const Field& field : kForwardFields) compare(field);
    if (!specs[l].training) continue;
    for (const Field& field : kBackwardFields) compare(field);
    if (l == 0) compare({"grad_x", &Tensors::grad_x});
  }
  return worst;
}

class StackTest : public ::testing::TestWithParam<tfl_dtype> {
 protected:
  void SetUp() override {
    cuda::DeviceLimits limits;
    if (cuda::GetDeviceLimits(0, &limits).code != TFL_OK || limits.compute_capability != 90) {
      GTEST_SKIP() << "no Hopper device";
    }
  }

  static bool Is16Bit() { return GetParam() != TFL_FLOAT32; }
  // The most units whose input weights have room in registers, and the most of all.
  static int64_t NarrowUnits() { return Is16Bit() ? 256 : 128; }
  static int64_t MostUnits() { return Is16Bit() ? 512 : 256; }
  // Units of the type whose weights take as many bytes as those of `units` of a 16-bit type.
  static int64_t Units(int64_t units) { return Is16Bit() ? units : units / 2; }
  // Whether a device with 7 clusters of 12 or 16 blocks, or 15 of 8, has room for backward at once
  // of layers whose input weights have no room in registers: slices of 8 rows.
  static bool WideBackwardFits(int layers, int64_t batch) {
    return batch <= (Is16Bit() ? 7 : 15) / layers * 8;
  }

  // Forward and backward each at once and layer after layer, in every mixture; backward at once
  // wherever it is `backward`.
  void Check(const StackSpecs& specs, uint64_t seed, bool backward = true) {
    StackTensors reference = RandomStackTensors(specs, seed);
    const ForcedPlan forced("wavefront");
    StackCall call(specs, reference);
    ASSERT_EQ(call.status().code, TFL_OK) << call.status().message;
    ASSERT_TRUE(call.forward_at_once) << Describe(specs);
    const bool training = specs[0].training;
    backward &= training;
    ASSERT_EQ(call.backward_at_once, backward) << Describe(specs);
    StackReference(specs, &reference);
    for (int mixture = 0; mixture < (training ? 4 : 2); ++mixture) {
      if (!backward && (mixture & 2) != 0) continue;
      call.forward_at_once = (mixture & 1) == 0;
      call.backward_at_once = backward && (mixture & 2) == 0;
      call.PoisonAll();
      const tfl_status status = call.Run();
      ASSERT_EQ(status.code, TFL_OK) << status.message << "; " << Describe(specs);
      EXPECT_EQ(call.BrokenFence(), "") << Describe(specs);
      static const char* const names[] = {"both at once", "forward by layers", "backward by layers",
                                          "both by layers"};
      const double error = Compare(specs, call.Results(), reference, names[mixture]);
      worst_[mixture] = std::max(worst_[mixture], error);
      if (HasFailure()) return;
    }
  }
  void TearDown() override {
    if (IsSkipped()) return;
    std::printf(
        "largest relative errors: at once %.2e, forward by layers %.2e, backward by layers "
        "%.2e, both %.2e\n",
        worst_[0], worst_[1], worst_[2], worst_[3]);
  }

  double worst_[4] = {};
};

TEST_P(StackTest, SizesAndLayers) {
  const struct {
    int layers;
    int64_t batch, steps, input, hidden;
  } cases[] = {{2, 1, 1, 5, 128},    {2, 3, 2, 40, 72},    {3, 16, 7, 33, 256},
               {4, 16, 64, 16, 128}, {2, 50, 17, 7, 256},  {4, 3, 130, 12, 200},
               {2, 1, 64, 256, 256}, {3, 50, 7, 9, 136},   {8, 16, 7, 3, 128},
               {4, 64, 9, 20, 256},  {2, 100, 5, 64, 256}, {2, 200, 5, 8, 104},
               {3, 300, 4, 8, 64}};
  for (const auto& c : cases) {
    Check(Specs(c.layers, c.batch, c.steps, c.input, Units(c.hidden), GetParam()),
          c.layers + c.hidden);
    if (HasFailure()) return;
  }
}

// Where the input weights have no room in registers.
TEST_P(StackTest, WideLayers) {
  const struct {
    int layers;
    int64_t batch, steps, input, hidden;
  } cases[] = {{2, 1, 1, 5, 512},     {3, 3, 3, 40, 392},  {2, 13, 7, 33, 512},
               {2, 8, 64, 16, 504},   {3, 16, 17, 7, 456}, {6, 6, 40, 12, 512},
               {2, 40, 20, 512, 512}, {2, 45, 9, 20, 512}, {3, 30, 11, 64, 440},
               {5, 15, 19, 8, 488},   {2, 1, 130, 9, 408}};
  for (const auto& c : cases) {
    Check(Specs(c.layers, c.batch, c.steps, c.input, Units(c.hidden), GetParam()),
          c.layers + c.hidden, WideBackwardFits(c.layers, c.batch));
    if (HasFailure()) return;
  }
  if (!Is16Bit()) {
    Check(Specs(2, 150, 5, 20, 256, GetParam()), 1, false);
    Check(Specs(4, 64, 9, 20, 244, GetParam()), 2, false);
    return;
  }
  for (const int64_t hidden : {264, 384}) {
    Check(Specs(2, 7, 20, 10, hidden, GetParam()), hidden);
    Check(Specs(2, 33, 20, 10, hidden, GetParam()), hidden, false);
  }
}

TEST_P(StackTest, RandomFlags) {
  std::mt19937 random(11);
  const int groups = static_cast<int>(MostUnits() / 8);
  const auto flag = [&] { return static_cast<uint8_t>(random() % 2); };
  for (int i = 0; i < 40; ++i) {  // the reference takes most of the time
    StackSpecs specs = Specs(2 + random() % 3, 1 + random() % 20, 1 + random() % 12,
                             1 + random() % 70, 8 + random() % groups * 8, GetParam());
    if (specs[0].hidden_size > NarrowUnits()) specs.resize(2);  // have room in all batches
    tfl_lstm_spec flags = specs[0];
    flags.time_major = flag();
    flags.has_mask = random() % 3 != 0;
    flags.zero_output_for_mask = flag();
    flags.has_bias = flag();
    flags.num_recurrent_dropout_masks = random() % 3 == 0;
    flags.has_initial_h = flag();
    flags.has_initial_c = flag();
    flags.training = random() % 4 != 0;
    if (flag()) flags.weight_dtype = TFL_FLOAT32;
    for (tfl_lstm_spec& spec : specs) {
      flags.input_size = spec.input_size;
      spec = flags;
    }
    specs[0].num_dropout_masks = random() % 3 == 0;
    specs.back().return_sequences = random() % 3 != 0;
    Check(specs, i);
    if (HasFailure()) return;
  }
}

TEST_P(StackTest, RunsAreBitEqualAlsoFromAGraph) {
  StackSpecs specs = Specs(4, 37, 33, 50, NarrowUnits() - 8, GetParam());
  for (tfl_lstm_spec& spec : specs) spec.has_mask = 1;
  const ForcedPlan forced("wavefront");
  StackCall call(specs, RandomStackTensors(specs, 3));
  ASSERT_TRUE(call.forward_at_once && call.backward_at_once);
  ASSERT_EQ(call.Run().code, TFL_OK);
  const StackTensors first = call.Results();
  for (int replays = 1; replays <= 20; ++replays) {
    ASSERT_EQ(call.Run(1).code, TFL_OK);
    const StackTensors again = call.Results();
    for (size_t l = 0; l < specs.size(); ++l) {
      for (const Field& field : kForwardFields) {
        EXPECT_EQ(again[l].*field.values, first[l].*field.values) << field.name << " " << l;
      }
      for (const Field& field : kBackwardFields) {
        EXPECT_EQ(again[l].*field.values, first[l].*field.values) << field.name << " " << l;
      }
    }
    EXPECT_EQ(again[0].grad_x, first[0].grad_x);
    if (HasFailure()) return;
  }
}

// Every kernel in a few steps: short enough for compute-sanitizer.
TEST_P(StackTest, Short) {
  for (int64_t hidden : {40, 104, 256, 512}) {
    const bool wide = hidden > 256;
    for (int64_t batch : {3, 40, wide ? 46 : 150}) {
      StackSpecs specs = Specs(2, batch, 3, 8, Units(hidden), GetParam());
      for (tfl_lstm_spec& spec : specs) spec.has_mask = spec.num_recurrent_dropout_masks = 1;
      Check(specs, batch, !wide || WideBackwardFits(2, batch));
      if (HasFailure()) return;
    }
  }
}

TEST_P(StackTest, OnlyWhatCanRunAtOnceDoes) {
  const ForcedPlan forced("wavefront");
  const auto at_once = [](const StackSpecs& specs) {
    tfl_lstm_stack_sizes sizes;
    EXPECT_EQ(
        tfl_cuda_lstm_stack_sizes(specs.data(), static_cast<int32_t>(specs.size()), 0, &sizes).code,
        TFL_OK);
    return sizes.forward_at_once && sizes.backward_at_once;
  };
  const int64_t units = NarrowUnits();
  const StackSpecs good = Specs(3, 16, 64, 100, units, GetParam());
  EXPECT_TRUE(at_once(good));
  EXPECT_FALSE(at_once(StackSpecs(1, good[0])));
  EXPECT_FALSE(at_once(StackSpecs(9, good[1])));
  EXPECT_EQ(at_once(Specs(3, 16, 64, 100, 100, GetParam())), !Is16Bit());
  for (int64_t hidden : {33, 65, 102, 250}) {
    EXPECT_FALSE(at_once(Specs(3, 16, 64, 100, hidden, GetParam()))) << hidden;
  }
  EXPECT_FALSE(at_once(Specs(8, 1000, 64, 256, units, GetParam())));
  EXPECT_FALSE(at_once(Specs(2, 16, 0, 256, units, GetParam())));
  const auto changed = [&](size_t layer, const auto& change) {
    StackSpecs specs = good;
    change(&specs[layer]);
    return specs;
  };
  EXPECT_FALSE(at_once(changed(1, [](tfl_lstm_spec* s) { s->num_dropout_masks = 1; })));
  EXPECT_TRUE(at_once(changed(0, [](tfl_lstm_spec* s) { s->num_dropout_masks = 4; })));
  EXPECT_FALSE(at_once(changed(2, [](tfl_lstm_spec* s) { s->hidden_size = 64; })));
  StackSpecs backwards = good;
  for (tfl_lstm_spec& spec : backwards) spec.go_backwards = 1;
  EXPECT_FALSE(at_once(backwards));
  setenv(cuda::kForcePlanVariable, "cluster", 1);
  EXPECT_FALSE(at_once(good));
  if (Is16Bit()) return;
  unsetenv(cuda::kForcePlanVariable);
  EXPECT_TRUE(at_once(good));
  StackSpecs exact = good;
  for (tfl_lstm_spec& spec : exact) spec.allow_tf32 = 0;
  EXPECT_FALSE(at_once(exact));
}

INSTANTIATE_TEST_SUITE_P(Types, StackTest,
                         ::testing::Values(TFL_BFLOAT16, TFL_FLOAT16, TFL_FLOAT32),
                         [](const auto& info) {
                           return info.param == TFL_BFLOAT16  ? "bfloat16"
                                  : info.param == TFL_FLOAT16 ? "float16"
                                                              : "tf32";
                         });

// Kernels of at most 8, 16 and 32 rows of 256 units.
cuda::sm90::KernelList SetsOf256() {
  static cuda::sm90::KernelSet sets[3] = {};
  for (int i = 0; i < 3; ++i) {
    sets[i].hidden = 256;
    sets[i].cluster_size = 8;
    sets[i].rows = 8 << i;
  }
  return {sets, 3};
}

TEST(StackSlices, LetAllLayersRunAtOnce) {
  const struct {
    int64_t batch;
    int layers, clusters;
    bool forward;
    int set;
    int64_t rows, slices;
  } rows[] = {
      {16, 2, 15, true, 0, 4, 4},   {16, 4, 15, true, 0, 6, 3},   {16, 7, 15, true, 0, 8, 2},
      {64, 2, 15, true, 1, 10, 7},  {64, 4, 15, true, 2, 22, 3},  {64, 8, 15, true, -1, 0, 0},
      {1, 8, 15, true, 0, 2, 1},    {1, 8, 7, true, -1, 0, 0},    {32, 8, 15, true, 2, 32, 1},
      {34, 8, 15, true, -1, 0, 0},  {224, 2, 15, true, 2, 32, 7}, {225, 2, 15, true, -1, 0, 0},
      {8, 2, 0, true, -1, 0, 0},    {16, 4, 15, false, 0, 6, 3},  {64, 2, 15, false, 1, 10, 7},
      {64, 4, 15, false, 2, 22, 3}, {64, 8, 15, false, -1, 0, 0},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(std::to_string(row.batch) + " " + std::to_string(row.layers));
    const int clusters[] = {row.clusters, row.clusters, row.clusters};
    const cuda::sm90::StackSlices slices =
        cuda::sm90::ChooseStackSlices(SetsOf256(), clusters, row.batch, row.layers, row.forward);
    EXPECT_EQ(slices.set, row.set);
    EXPECT_EQ(slices.rows, row.rows);
    EXPECT_EQ(slices.slices, row.slices);
  }
}

// By measurement: docs/performance/clusters.md. The times of single layers are those of the
// cluster's plan.
TEST(StackPays, WhereItWasFaster) {
  const struct {
    int64_t batch, steps;
    int layers;
    int64_t forward_ns, backward_ns;
    bool forward, backward;
  } rows[] = {
      {16, 64, 2, 620, 868, true, true},
      {16, 64, 4, 620, 868, true, true},
      {64, 64, 2, 578, 809, true, false},
      {64, 64, 4, 578, 809, true, false},
  };
  const int clusters[] = {15, 15, 15};
  for (const auto& row : rows) {
    SCOPED_TRACE(std::to_string(row.batch) + " " + std::to_string(row.layers));
    for (bool forward : {false, true}) {
      const cuda::sm90::StackSlices slices =
          cuda::sm90::ChooseStackSlices(SetsOf256(), clusters, row.batch, row.layers, forward);
      EXPECT_EQ(cuda::sm90::StackPays(row.steps, row.layers, slices.step_ns,
                                      forward ? row.forward_ns : row.backward_ns),
                forward ? row.forward : row.backward);
    }
  }
}

// The same of TF32 and of layers whose input weights have no room in registers; ns is what the
// cluster's plan says of a step. Where a direction does not fit it is false.
TEST(StackPays, WhereItWasFasterOfTf32AndWideLayers) {
  const struct {
    int element_bytes, hidden;
    std::vector<int> set_rows;
    int clusters;
    int64_t batch, steps;
    int layers;
    int64_t ns;
    bool forward, backward;
  } rows[] = {
      {4, 64, {8, 32}, 30, 16, 64, 2, 460, true, true},
      {4, 64, {8, 32}, 30, 16, 64, 4, 460, true, true},
      {4, 128, {8, 32}, 30, 16, 64, 2, 471, true, true},
      {4, 128, {8, 32}, 30, 1, 512, 4, 471, true, true},
      {4, 128, {8, 32}, 30, 64, 64, 2, 492, true, true},
      {4, 128, {8, 32}, 30, 64, 64, 4, 492, true, false},
      {4, 128, {8, 32}, 30, 256, 64, 2, 685, false, false},
      {4, 256, {8, 16, 24}, 15, 16, 64, 2, 492, true, false},
      {4, 256, {8, 16, 24}, 15, 16, 64, 3, 492, true, true},
      {4, 256, {8, 16, 24}, 15, 16, 64, 4, 492, true, true},
      {4, 256, {8, 16, 24}, 15, 1, 64, 2, 492, true, false},
      {4, 256, {8, 16, 24}, 15, 64, 64, 2, 578, true, false},
      {4, 256, {8, 16, 24}, 15, 64, 64, 4, 578, true, false},
      {2, 384, {8, 16}, 7, 16, 64, 2, 514, true, true},
      {2, 384, {8, 16}, 7, 16, 64, 4, 514, true, false},
      {2, 384, {8, 16}, 7, 1, 64, 4, 514, true, true},
      {2, 512, {8, 16}, 7, 16, 64, 2, 620, false, false},
      {2, 512, {8, 16}, 7, 16, 64, 3, 620, true, true},
      {2, 512, {8, 16}, 7, 16, 64, 4, 620, true, false},
      {2, 512, {8, 16}, 7, 1, 64, 2, 535, false, false},
      {2, 512, {8, 16}, 7, 1, 64, 4, 535, true, true},
      {2, 512, {8, 16}, 7, 32, 64, 2, 706, false, false},
      {2, 512, {8, 16}, 7, 64, 64, 2, 1133, false, false},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(std::to_string(row.element_bytes) + " " + std::to_string(row.hidden) + " " +
                 std::to_string(row.batch) + " " + std::to_string(row.layers));
    const bool wide = row.hidden * row.element_bytes > 512;
    cuda::sm90::KernelSet sets[3] = {};
    int clusters[2][3] = {};
    const int count = static_cast<int>(row.set_rows.size());
    for (int i = 0; i < count; ++i) {
      sets[i].hidden = row.hidden;
      sets[i].element_bytes = row.element_bytes;
      sets[i].rows = row.set_rows[i];
      clusters[1][i] = row.clusters;
      clusters[0][i] = wide && i > 0 ? 0 : row.clusters;  // no kernels
    }
    for (bool forward : {false, true}) {
      const cuda::sm90::StackSlices slices = cuda::sm90::ChooseStackSlices(
          {sets, count}, clusters[forward], row.batch, row.layers, forward);
      const bool pays =
          slices.set >= 0 &&
          cuda::sm90::StackPays(row.steps, row.layers, slices.step_ns,
                                cuda::sm90::SingleStepCost(sets[slices.set], row.ns, forward));
      EXPECT_EQ(pays, forward ? row.forward : row.backward) << (forward ? "forward" : "backward");
    }
  }
}

TEST(StackForce, ComesFromTheVariable) {
  EXPECT_EQ(cuda::StackForceOf(nullptr), cuda::StackForce::kWhereFaster);
  EXPECT_EQ(cuda::StackForceOf("wavefront"), cuda::StackForce::kAlways);
  EXPECT_EQ(cuda::StackForceOf("cluster"), cuda::StackForce::kNever);
}

}  // namespace
}  // namespace tfl::testing
