// The CUDA core against the float64 reference: every type, flag, activation and family, odd sizes,
// forward and backward. TF_FUSED_LSTM_CUDA_PLAN is set by the tests themselves.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "cc/lstm/cuda/gemm.h"
#include "cc/lstm/cuda/plan.h"
#include "cc/lstm/cuda/testing/device_call.h"
#include "cc/lstm/cuda/testing/reference.h"
#include "cc/lstm/lstm.h"

namespace tfl::testing {
namespace {

bool HasGpu() {
  int count = 0;
  const bool found = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  cudaGetLastError();
  return found;
}

#define SKIP_WITHOUT_GPU() \
  if (!HasGpu()) GTEST_SKIP() << "no CUDA device"

class ForcedPlan {
 public:
  explicit ForcedPlan(const std::string& family) {
    if (!family.empty()) setenv(cuda::kForcePlanVariable, family.c_str(), 1);
  }
  ~ForcedPlan() { unsetenv(cuda::kForcePlanVariable); }
};

const char* Name(tfl_dtype dtype) {
  static const char* const names[] = {"float32", "float64", "float16", "bfloat16"};
  return names[dtype];
}

tfl_lstm_spec Spec(int64_t batch, int64_t steps, int64_t input, int64_t hidden, tfl_dtype dtype) {
  tfl_lstm_spec spec = {};
  spec.num_directions = 1;
  spec.batch = batch;
  spec.steps = steps;
  spec.input_size = input;
  spec.hidden_size = hidden;
  spec.dtype = spec.weight_dtype = dtype;
  spec.activation = TFL_TANH;
  spec.recurrent_activation = TFL_SIGMOID;
  spec.return_sequences = spec.has_bias = spec.training = 1;
  return spec;
}

std::string Describe(const tfl_lstm_spec& s) {
  char text[384];
  std::snprintf(
      text, sizeof(text),
      "B%lld T%lld I%lld H%lld %s weights %s act %d %d time_major %d backwards %d "
      "sequences %d zero %d bias %d mask %d h0 %d c0 %d training %d tf32 %d directions %d "
      "dropout masks %d recurrent %d",
      static_cast<long long>(s.batch), static_cast<long long>(s.steps),
      static_cast<long long>(s.input_size), static_cast<long long>(s.hidden_size), Name(s.dtype),
      Name(s.weight_dtype), s.activation, s.recurrent_activation, s.time_major, s.go_backwards,
      s.return_sequences, s.zero_output_for_mask, s.has_bias, s.has_mask, s.has_initial_h,
      s.has_initial_c, s.training, s.allow_tf32, s.num_directions, s.num_dropout_masks,
      s.num_recurrent_dropout_masks);
  return text;
}

double Tolerance(const tfl_lstm_spec& spec) {
  // A single cell's gradient is one difference of rounded terms, with no others to average it.
  if (spec.hidden_size == 1) {
    tfl_lstm_spec more = spec;
    more.hidden_size = 2;
    return 3 * Tolerance(more);
  }
  const bool kinks = spec.activation == TFL_HARD_SIGMOID || spec.activation == TFL_RELU ||
                     spec.recurrent_activation == TFL_HARD_SIGMOID ||
                     spec.recurrent_activation == TFL_RELU;
  switch (spec.dtype) {
    case TFL_FLOAT64:
      return 1e-12;
    case TFL_FLOAT32:
      return spec.allow_tf32 ? (kinks ? 1e-2 : 3e-3) : (kinks ? 1e-4 : 1e-5);
    case TFL_FLOAT16:
      return kinks ? 5e-2 : 5e-3;
    case TFL_BFLOAT16:
      return kinks ? 1.2e-1 : 3e-2;
  }
  return 0;
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
constexpr Field kBackwardFields[] = {{"grad_x", &Tensors::grad_x},
                                     {"grad_kernel", &Tensors::grad_kernel},
                                     {"grad_recurrent_kernel", &Tensors::grad_recurrent_kernel},
                                     {"grad_bias", &Tensors::grad_bias},
                                     {"grad_initial_h", &Tensors::grad_initial_h},
                                     {"grad_initial_c", &Tensors::grad_initial_c}};

// The largest error seen of each type, printed at the end as a record.
double worst[4] = {};

void ExpectClose(const tfl_lstm_spec& spec, const Tensors& out, const Tensors& reference,
                 double tolerance) {
  const auto compare = [&](const Field& field) {
    const double error = RelativeError(out.*field.values, reference.*field.values);
    EXPECT_TRUE(error <= tolerance) << field.name << ": relative error " << error << " > "
                                    << tolerance << "; " << Describe(spec);
    if (!(error <= worst[spec.dtype])) worst[spec.dtype] = error;
  };
  for (const Field& field : kForwardFields) compare(field);
  if (!spec.training) return;
  for (const Field& field : kBackwardFields) compare(field);
}

// Runs the spec on fresh inputs. False if a forced family cannot run it.
bool RunAndCompare(const tfl_lstm_spec& spec, uint64_t seed, const std::string& family,
                   const CallOptions& options = {}) {
  const ForcedPlan forced(family);
  Tensors reference = RandomTensors(spec, seed);
  DeviceCall call(spec, reference, options);
  if (!family.empty() && call.status().code == TFL_INVALID_ARGUMENT) return false;
  const tfl_status status = call.Run();
  EXPECT_EQ(status.code, TFL_OK) << status.message << "; " << Describe(spec);
  if (status.code != TFL_OK) return true;
  EXPECT_EQ(call.BrokenFence(), "") << Describe(spec);
  if (options.null_gradients) {
    std::fill(reference.grad_output.begin(), reference.grad_output.end(), 0.0);
    std::fill(reference.grad_final_h.begin(), reference.grad_final_h.end(), 0.0);
    std::fill(reference.grad_final_c.begin(), reference.grad_final_c.end(), 0.0);
  }
  Reference(spec, &reference);
  ExpectClose(spec, call.Results(), reference, Tolerance(spec));
  return true;
}

// Every dtype with every family; "" is the plan's own choice.
class AllFamilies : public ::testing::TestWithParam<std::tuple<tfl_dtype, const char*>> {
 protected:
  static void TearDownTestSuite() {
    for (tfl_dtype dtype : {TFL_FLOAT32, TFL_FLOAT64, TFL_FLOAT16, TFL_BFLOAT16}) {
      std::printf("largest relative error, %s: %.2e\n", Name(dtype), worst[dtype]);
    }
  }
  tfl_dtype dtype() const { return std::get<0>(GetParam()); }
  std::string family() const { return std::get<1>(GetParam()); }
};

tfl_lstm_spec RandomFlags(tfl_lstm_spec spec, std::mt19937* engine) {
  const auto flip = [&] { return static_cast<uint8_t>((*engine)() >> 7 & 1); };
  spec.time_major = flip();
  spec.go_backwards = flip();
  spec.return_sequences = flip() | flip();
  spec.zero_output_for_mask = flip();
  spec.has_bias = flip() | flip();
  spec.has_mask = flip();
  spec.has_initial_h = flip();
  spec.has_initial_c = flip();
  spec.training = flip() | flip();
  spec.allow_tf32 = flip();
  if (flip() && (spec.dtype == TFL_FLOAT16 || spec.dtype == TFL_BFLOAT16)) {
    spec.weight_dtype = TFL_FLOAT32;
  }
  return spec;
}

TEST_P(AllFamilies, OddSizesAndRandomFlags) {
  SKIP_WITHOUT_GPU();
  std::mt19937 engine(20261202);
  const int64_t hidden[] = {1,  3,   7,   8,   16,  17,  32,  33,  64,
                            65, 100, 128, 129, 200, 256, 384, 512, 640};
  const int64_t batches[] = {1, 2, 3, 8, 11, 16, 17, 33, 64};
  const int64_t inputs[] = {1, 5, 13, 32, 64};
  const int64_t steps[] = {1, 2, 3, 9, 14};
  int ran = 0;
  for (int round = 0; round < 5; ++round) {
    for (int64_t h : hidden) {
      tfl_lstm_spec spec =
          Spec(batches[engine() % 9], steps[engine() % 5], inputs[engine() % 5], h, dtype());
      spec = RandomFlags(spec, &engine);
      if (h * spec.batch > 8000) spec.batch = 3 + engine() % 9;
      ran += RunAndCompare(spec, engine(), family());
      if (HasFailure()) return;
    }
  }
  if (ran == 0) GTEST_SKIP() << "no size for " << family();
}

// Both directions and dropout masks, of x and of h.
TEST_P(AllFamilies, DirectionsAndDropout) {
  SKIP_WITHOUT_GPU();
  std::mt19937 engine(20261203);
  const uint8_t masks[] = {0, 1, 4};
  const int64_t hidden[] = {1, 17, 64, 100, 256, 264, 520};
  int ran = 0;
  for (int directions : {1, 2}) {
    for (uint8_t x_masks : masks) {
      for (uint8_t h_masks : masks) {
        for (int64_t h : hidden) {
          tfl_lstm_spec spec = RandomFlags(
              Spec(1 + engine() % 9, 1 + engine() % 9, 1 + engine() % 20, h, dtype()), &engine);
          spec.num_directions = directions;
          if (directions == 2) spec.go_backwards = 0;
          spec.num_dropout_masks = x_masks;
          spec.num_recurrent_dropout_masks = h_masks;
          ran += RunAndCompare(spec, engine(), family());
          if (HasFailure()) return;
        }
      }
    }
  }
  if (ran == 0) GTEST_SKIP() << "no size for " << family();
}

TEST_P(AllFamilies, Activations) {
  SKIP_WITHOUT_GPU();
  int ran = 0;
  for (int activation = TFL_TANH; activation <= TFL_LINEAR; ++activation) {
    for (int gate = TFL_TANH; gate <= TFL_LINEAR; ++gate) {
      tfl_lstm_spec spec = Spec(5, 4, 6, 32, dtype());
      spec.activation = static_cast<tfl_activation>(activation);
      spec.recurrent_activation = static_cast<tfl_activation>(gate);
      spec.has_initial_h = spec.has_initial_c = 1;
      ran += RunAndCompare(spec, 7 + activation * 5 + gate, family());
    }
  }
  if (ran == 0) GTEST_SKIP() << "no size for " << family();
}

TEST_P(AllFamilies, LargerSizes) {
  SKIP_WITHOUT_GPU();
  int ran = 0;
  uint64_t seed = 99;
  const int64_t sizes[][4] = {{64, 5, 64, 1024}, {1, 6, 40, 1024}, {37, 4, 24, 512},
                              {130, 3, 16, 256}, {150, 4, 9, 440}, {9, 3, 8, 1536},
                              {20, 70, 12, 128}, {3, 2, 8, 2056},  {100, 4, 3, 1000},
                              {33, 7, 5, 768},   {200, 5, 6, 648}, {66, 9, 8, 400}};
  for (const auto& size : sizes) {
    for (int mask = 0; mask < 2; ++mask) {
      tfl_lstm_spec spec = Spec(size[0], size[1], size[2], size[3], dtype());
      spec.time_major = mask;
      spec.has_mask = mask;
      spec.has_initial_h = spec.has_initial_c = 1 - mask;
      spec.allow_tf32 = 1;
      ran += RunAndCompare(spec, ++seed, family());
    }
  }
  if (ran == 0) GTEST_SKIP() << "no size for " << family();
}

// More rows than multiprocessors, of few units.
TEST_P(AllFamilies, ManyRowsOfFewUnits) {
  SKIP_WITHOUT_GPU();
  std::mt19937 engine(20261204);
  int ran = 0;
  const int64_t batches[] = {131, 133, 265, 300, 529, 1057, 1500};
  const int64_t hidden[] = {128, 64, 100, 33};
  for (int64_t batch : batches) {
    for (int64_t h : hidden) {
      tfl_lstm_spec spec =
          RandomFlags(Spec(batch, 1 + engine() % 5, 1 + engine() % 9, h, dtype()), &engine);
      spec.num_directions = 1 + engine() % 2;
      if (spec.num_directions == 2) spec.go_backwards = 0;
      spec.num_recurrent_dropout_masks = engine() % 2;
      ran += RunAndCompare(spec, engine(), family());
      if (HasFailure()) return;
    }
  }
  if (ran == 0) GTEST_SKIP() << "no size for " << family();
}

// Projections of few elements and a deep k, which fall into parts where the family sums them.
TEST_P(AllFamilies, DeepProjections) {
  SKIP_WITHOUT_GPU();
  std::mt19937 engine(20261205);
  int ran = 0;
  const int64_t sizes[][4] = {{3, 43, 512, 256}, {1, 40, 1024, 520}, {2, 19, 1000, 512}};
  EXPECT_EQ(cuda::PartsFor(3 * 43, 4 * 256, 512), 4);
  EXPECT_GT(cuda::PartsFor(40, 4 * 520, 1024), 1);
  EXPECT_EQ(cuda::PartsFor(2 * 19, 4 * 512, 1000), 1);
  for (const auto& size : sizes) {
    for (int directions : {1, 2}) {
      tfl_lstm_spec spec = RandomFlags(Spec(size[0], size[1], size[2], size[3], dtype()), &engine);
      spec.num_directions = directions;
      if (directions == 2) spec.go_backwards = 0;
      ran += RunAndCompare(spec, engine(), family());
    }
  }
  if (ran == 0) GTEST_SKIP() << "no size for " << family();
}

TEST_P(AllFamilies, GraphReplayAndRepeatAreBitEqual) {
  SKIP_WITHOUT_GPU();
  const ForcedPlan forced(family());
  int major = 0;
  ASSERT_EQ(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0), cudaSuccess);
  int ran = 0;
  // Of 32 inputs the projection is the small product, and kernels of some families begin early.
  const int64_t sizes[][2] = {{33, 48}, {33, 256}, {33, 400}, {33, 1024},
                              {32, 48}, {32, 128}, {32, 256}};
  for (const auto& [input, hidden] : sizes) {
    tfl_lstm_spec spec = Spec(24, 12, input, hidden, dtype());
    spec.has_mask = 1;
    spec.has_initial_h = 1;
    spec.allow_tf32 = 1;
    const Tensors inputs = RandomTensors(spec, 5);
    CallOptions options;
    DeviceCall direct(spec, inputs, options);
    if (direct.status().code == TFL_INVALID_ARGUMENT) continue;
    ++ran;
    options.replays = 3;
    DeviceCall replayed(spec, inputs, options);
    const tfl_status first = direct.Run(), second = replayed.Run();
    ASSERT_EQ(first.code, TFL_OK) << first.message;
    ASSERT_EQ(second.code, TFL_OK) << second.message;
    const bool early = input == 32 && major >= 9 && (family() == "block" || family() == "cluster");
    if (replayed.early_launches() >= 0 && !family().empty()) {
      EXPECT_EQ(replayed.early_launches(), early ? 1 : 0) << Describe(spec);
    }
    const Tensors a = direct.Results(), b = replayed.Results();
    for (const Field& field : kForwardFields) {
      EXPECT_EQ(a.*field.values, b.*field.values) << field.name << "; " << Describe(spec);
    }
    for (const Field& field : kBackwardFields) {
      EXPECT_EQ(a.*field.values, b.*field.values) << field.name << "; " << Describe(spec);
    }
  }
  if (ran == 0) GTEST_SKIP() << "no size for " << family();
}

// Few and small, for a run under a memory or race checker.
TEST_P(AllFamilies, SmallSizes) {
  SKIP_WITHOUT_GPU();
  int ran = 0;
  // More rows where there are kernels for more rows a multiprocessor; of 8 inputs the projection is
  // the small product.
  std::vector<std::pair<int64_t, int64_t>> sizes = {{18, 24}, {18, 264}};
  if (dtype() == TFL_FLOAT16 || dtype() == TFL_BFLOAT16) {
    sizes.insert(sizes.end(), {{300, 24}, {600, 24}, {18, 100}, {300, 100}, {600, 100}});
  }
  for (const auto& [rows, hidden] : sizes) {
    for (int mask = 0; mask < 2; ++mask) {
      tfl_lstm_spec spec = Spec(rows / (1 + mask), 3, hidden == 100 ? 8 : 5, hidden, dtype());
      spec.has_mask = spec.has_initial_h = spec.num_recurrent_dropout_masks = mask;
      spec.num_directions = 1 + mask;
      spec.allow_tf32 = family() != "step" && family() != "vector" && family() != "tile";
      ran += RunAndCompare(spec, 40 + mask, family());
    }
  }
  if (ran == 0) GTEST_SKIP() << "no size for " << family();
}

// 0 times what lies in x at masked steps must be 0 in every gradient.
TEST_P(AllFamilies, NonFiniteInputsAtMaskedSteps) {
  SKIP_WITHOUT_GPU();
  const ForcedPlan forced(family());
  int ran = 0;
  for (int64_t hidden : {40, 512}) {
    for (int time_major = 0; time_major < 2; ++time_major) {
      tfl_lstm_spec spec = Spec(5, 6, 7, hidden, dtype());
      spec.has_mask = 1;
      spec.time_major = time_major;
      spec.allow_tf32 = 1;
      Tensors reference = RandomTensors(spec, 50 + time_major), given = reference;
      for (size_t i = 0; i < reference.x.size(); ++i) {
        if (reference.mask[i / spec.input_size] != 0) continue;
        reference.x[i] = 0;
        given.x[i] = i % 2 == 0 ? NAN : INFINITY;
      }
      DeviceCall call(spec, given);
      if (call.status().code == TFL_INVALID_ARGUMENT) continue;
      ++ran;
      const tfl_status status = call.Run();
      ASSERT_EQ(status.code, TFL_OK) << status.message;
      EXPECT_EQ(call.BrokenFence(), "") << Describe(spec);
      Reference(spec, &reference);
      ExpectClose(spec, call.Results(), reference, Tolerance(spec));
    }
  }
  if (ran == 0) GTEST_SKIP() << "no size for " << family();
}

INSTANTIATE_TEST_SUITE_P(
    Cuda, AllFamilies,
    ::testing::Combine(::testing::Values(TFL_FLOAT32, TFL_FLOAT64, TFL_FLOAT16, TFL_BFLOAT16),
                       ::testing::Values("", "step", "vector", "grid", "tile", "cluster", "block")),
    [](const auto& info) {
      const std::string family = std::get<1>(info.param);
      return std::string(Name(std::get<0>(info.param))) + "_" +
             (family.empty() ? "planned" : family);
    });

TEST(LstmCuda, NullGradientsStandForZerosAndUnwantedOnesAreLeftOut) {
  SKIP_WITHOUT_GPU();
  for (const char* family : {"step", "vector", "grid", "cluster", "block", ""}) {
    for (int64_t hidden : {40, 256, 1024}) {
      tfl_lstm_spec spec = Spec(3, 4, 5, hidden, TFL_BFLOAT16);
      CallOptions nulls;
      nulls.null_gradients = true;
      RunAndCompare(spec, 1, family, nulls);

      const ForcedPlan forced(family);
      Tensors reference = RandomTensors(spec, 2);
      CallOptions unwanted;
      unwanted.unwanted = true;
      DeviceCall call(spec, reference, unwanted);
      if (call.status().code == TFL_INVALID_ARGUMENT) continue;
      const tfl_status status = call.Run();
      ASSERT_EQ(status.code, TFL_OK) << status.message;
      Reference(spec, &reference);
      EXPECT_LE(RelativeError(call.Results().grad_x, reference.grad_x), 3e-2) << family;
    }
  }
}

TEST(LstmCuda, SizesOfZero) {
  SKIP_WITHOUT_GPU();
  for (int which = 0; which < 4; ++which) {
    for (int sequences = 0; sequences < 2; ++sequences) {
      tfl_lstm_spec spec = Spec(which == 0 ? 0 : 3, which == 1 ? 0 : 4, which == 2 ? 0 : 5,
                                which == 3 ? 0 : 6, TFL_FLOAT32);
      spec.return_sequences = sequences;
      spec.has_initial_h = spec.has_initial_c = 1;
      RunAndCompare(spec, 3, "");
      spec.num_directions = 2;
      spec.num_dropout_masks = spec.num_recurrent_dropout_masks = 4;
      RunAndCompare(spec, 4, "");
    }
  }
}

// Inputs beyond 16 bits and 2^31: some rows of the batch are checked, and only they get gradients,
// so that the weights' gradients are theirs too.
void RunLarge(tfl_lstm_spec spec, const std::vector<int64_t>& rows) {
  size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  tfl_lstm_sizes sizes;
  ASSERT_EQ(tfl_cuda_lstm_sizes(&spec, 0, &sizes).code, TFL_OK);
  const double needed =
      double(sizes.reserve_bytes) + sizes.forward_workspace_bytes + sizes.backward_workspace_bytes +
      3.0 * SizeOf(spec.dtype) * spec.batch * spec.steps * (spec.hidden_size + spec.input_size);
  if (needed > 0.95 * free) GTEST_SKIP() << "needs " << needed / 1e9 << " GB";
  Tensors all = RandomTensors(spec, 11);
  tfl_lstm_spec few = spec;
  few.batch = static_cast<int64_t>(rows.size());
  Tensors some = RandomTensors(few, 12);
  std::fill(all.grad_output.begin(), all.grad_output.end(), 0.0);
  std::fill(all.grad_final_h.begin(), all.grad_final_h.end(), 0.0);
  std::fill(all.grad_final_c.begin(), all.grad_final_c.end(), 0.0);
  some.kernel = all.kernel;
  some.recurrent_kernel = all.recurrent_kernel;
  some.bias = all.bias;
  const int64_t hidden = spec.hidden_size, steps = spec.steps;
  const int64_t outputs = spec.return_sequences ? steps : 1;
  const auto copy = [](const std::vector<double>& from, int64_t from_row, std::vector<double>* to,
                       int64_t to_row, int64_t width) {
    std::copy_n(from.begin() + from_row * width, width, to->begin() + to_row * width);
  };
  for (size_t i = 0; i < rows.size(); ++i) {
    copy(all.x, rows[i], &some.x, i, steps * spec.input_size);
    copy(some.grad_output, i, &all.grad_output, rows[i], outputs * hidden);
    copy(some.grad_final_h, i, &all.grad_final_h, rows[i], hidden);
    copy(some.grad_final_c, i, &all.grad_final_c, rows[i], hidden);
  }
  Reference(few, &some);
  Tensors picked = some;
  {
    DeviceCall call(spec, all);
    all = Tensors();
    const tfl_status status = call.Run();
    ASSERT_EQ(status.code, TFL_OK) << status.message;
    EXPECT_EQ(call.BrokenFence(), "");
    all = call.Results();
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    copy(all.output, rows[i], &picked.output, i, outputs * hidden);
    copy(all.final_h, rows[i], &picked.final_h, i, hidden);
    copy(all.final_c, rows[i], &picked.final_c, i, hidden);
    copy(all.grad_x, rows[i], &picked.grad_x, i, steps * spec.input_size);
  }
  picked.grad_kernel = all.grad_kernel;
  picked.grad_recurrent_kernel = all.grad_recurrent_kernel;
  picked.grad_bias = all.grad_bias;
  ExpectClose(few, picked, some, Tolerance(few));
}

TEST(LstmCudaLarge, Batch70000) {
  SKIP_WITHOUT_GPU();
  RunLarge(Spec(70000, 1, 1, 2, TFL_FLOAT32), {0, 65535, 65536, 69999});
  RunLarge(Spec(70000, 2, 3, 65, TFL_FLOAT16), {0, 65535, 65536, 69999});
}
TEST(LstmCudaLarge, Steps70000) {
  SKIP_WITHOUT_GPU();
  RunLarge(Spec(1, 70000, 1, 2, TFL_FLOAT32), {0});
  RunLarge(Spec(1, 70000, 1, 2, TFL_BFLOAT16), {0});
}
TEST(LstmCudaLarge, Hidden8192) {
  SKIP_WITHOUT_GPU();
  RunLarge(Spec(1, 2, 3, 8192, TFL_BFLOAT16), {0});
}
TEST(LstmCudaLarge, MoreThan2To31Elements) {
  SKIP_WITHOUT_GPU();
  tfl_lstm_spec spec = Spec(4096, 257, 1, 512, TFL_BFLOAT16);
  spec.return_sequences = 0;
  RunLarge(spec, {0, 2048, 4095});
  spec = Spec(40000, 257, 1, 64, TFL_FLOAT16);
  spec.return_sequences = 0;
  RunLarge(spec, {0, 20000, 39999});
}

TEST(LstmCudaErrors, BadCallsAreNamed) {
  tfl_lstm_spec spec = Spec(2, 3, 4, 5, TFL_FLOAT32);
  tfl_lstm_sizes sizes;
  spec.batch = -1;
  tfl_status status = tfl_cuda_lstm_sizes(&spec, 0, &sizes);
  EXPECT_EQ(status.code, TFL_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(status.message, "batch"), nullptr) << status.message;
  spec = Spec(2, 3, 4, 5, TFL_FLOAT32);
  spec.weight_dtype = TFL_BFLOAT16;
  status = tfl_cuda_lstm_sizes(&spec, 0, &sizes);
  EXPECT_EQ(status.code, TFL_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(status.message, "weight_dtype"), nullptr) << status.message;
  spec = Spec(int64_t{1} << 40, int64_t{1} << 40, 4, 5, TFL_FLOAT32);
  EXPECT_EQ(tfl_cuda_lstm_sizes(&spec, 0, &sizes).code, TFL_INVALID_ARGUMENT);
  EXPECT_STREQ(tfl_cuda_lstm_sizes(nullptr, 0, &sizes).message, "spec must not be null");
  EXPECT_STREQ(tfl_cuda_lstm_forward(&spec, nullptr, nullptr, nullptr).message,
               "inputs must not be null");
  EXPECT_STREQ(tfl_cuda_lstm_backward(&spec, nullptr, nullptr, nullptr, nullptr).message,
               "inputs must not be null");
  SKIP_WITHOUT_GPU();
  spec = Spec(2, 3, 4, 5, TFL_FLOAT32);
  status = tfl_cuda_lstm_sizes(&spec, 4096, &sizes);
  EXPECT_EQ(status.code, TFL_UNAVAILABLE) << status.message;
  tfl_lstm_inputs inputs = {};
  tfl_lstm_outputs outputs = {};
  tfl_cuda_runtime runtime = {};
  status = tfl_cuda_lstm_forward(&spec, &inputs, &outputs, &runtime);
  EXPECT_EQ(status.code, TFL_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(status.message, "x must not be null"), nullptr) << status.message;
  const ForcedPlan forced("nonsense");
  status = tfl_cuda_lstm_sizes(&spec, 0, &sizes);
  EXPECT_EQ(status.code, TFL_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(status.message, "nonsense"), nullptr) << status.message;
}

}  // namespace
}  // namespace tfl::testing
