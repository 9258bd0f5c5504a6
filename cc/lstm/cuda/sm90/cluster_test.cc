// The cluster kernels alone against the float64 recurrence: every instantiated size and type, odd
// sizes and batches, masks and flags, outputs and gradients.
#include "cc/lstm/cuda/sm90/cluster.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <tuple>

#include "cc/lstm/cuda/device_limits.h"
#include "cc/lstm/cuda/sm90/recurrence_case.h"

namespace tfl::testing {
namespace {

double RelativeError(const Values& out, const Values& reference) {
  if (out.size() != reference.size()) return INFINITY;
  double difference = 0, norm = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    difference += (out[i] - reference[i]) * (out[i] - reference[i]);
    norm += reference[i] * reference[i];
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

// Rounding of h each step to the type, and of the partial sums of its gradient.
double Tolerance(tfl_dtype dtype) {
  return dtype == TFL_BFLOAT16 ? 2.5e-2 : dtype == TFL_FLOAT16 ? 4e-3 : 2e-3;
}

tfl_lstm_spec Spec(int64_t batch, int64_t steps, int64_t hidden, tfl_dtype dtype) {
  tfl_lstm_spec spec = {};
  spec.num_directions = 1;
  spec.batch = batch;
  spec.steps = steps;
  spec.input_size = 1;
  spec.hidden_size = hidden;
  spec.dtype = spec.weight_dtype = dtype;
  spec.activation = TFL_TANH;
  spec.recurrent_activation = TFL_SIGMOID;
  spec.return_sequences = spec.has_bias = spec.training = 1;
  spec.has_initial_h = spec.has_initial_c = 1;
  spec.allow_tf32 = dtype == TFL_FLOAT32;
  return spec;
}

template <class Param>
class ClusterTestOf : public ::testing::TestWithParam<Param> {
 protected:
  void SetUp() override {
    if (cuda::GetDeviceLimits(0, &limits_).code != TFL_OK || limits_.compute_capability != 90) {
      GTEST_SKIP() << "no Hopper device";
    }
  }
  void Check(const tfl_lstm_spec& spec, tfl_dtype projection, tfl_dtype grad_gates, uint64_t seed) {
    SCOPED_TRACE(::testing::Message()
                 << "B" << spec.batch << " T" << spec.steps << " H" << spec.hidden_size
                 << " time_major " << int{spec.time_major} << " backwards "
                 << int{spec.go_backwards} << " sequences " << int{spec.return_sequences}
                 << " zero " << int{spec.zero_output_for_mask} << " mask " << int{spec.has_mask}
                 << " bias " << int{spec.has_bias} << " h0 " << int{spec.has_initial_h} << " c0 "
                 << int{spec.has_initial_c} << " float weights "
                 << int{spec.weight_dtype == TFL_FLOAT32} << " dropout "
                 << int{spec.num_recurrent_dropout_masks} << " projection " << projection
                 << " grad_gates " << grad_gates);
    ASSERT_TRUE(cuda::ClusterForwardSupported(spec, limits_));
    ASSERT_TRUE(cuda::ClusterBackwardSupported(spec, limits_));
    RecurrenceCase reference(spec, projection, grad_gates, seed);
    reference.Reference();
    RecurrenceBuffers buffers(reference);
    tfl_status status = cuda::ClusterForward(buffers.forward, nullptr);
    ASSERT_EQ(status.code, TFL_OK) << status.message;
    if (spec.training) status = cuda::ClusterBackward(buffers.backward, nullptr);
    ASSERT_EQ(status.code, TFL_OK) << status.message;
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(buffers.BrokenFence(), "");
    const RecurrenceCase out = buffers.Results(reference);
    const double tolerance = Tolerance(spec.dtype);
    const auto compare = [&](const char* name, Values RecurrenceCase::*field) {
      const double error = RelativeError(out.*field, reference.*field);
      EXPECT_TRUE(error <= tolerance) << name << " " << error;
      if (!(error <= worst_)) worst_ = error;
    };
    compare("output", &RecurrenceCase::output);
    compare("final_h", &RecurrenceCase::final_h);
    compare("final_c", &RecurrenceCase::final_c);
    if (!spec.training) return;
    compare("grad_gates", &RecurrenceCase::grad_gates);
    compare("previous_h", &RecurrenceCase::previous_h);
    compare("grad_initial_h", &RecurrenceCase::grad_initial_h);
    compare("grad_initial_c", &RecurrenceCase::grad_initial_c);
  }
  ~ClusterTestOf() override {
    if (worst_ > 0) printf("largest relative error %.2e\n", worst_);
  }

  cuda::DeviceLimits limits_;
  double worst_ = 0;
};

class ClusterTest : public ClusterTestOf<tfl_dtype> {};

TEST_P(ClusterTest, EverySizeAndSliceWidth) {
  const tfl_dtype dtype = GetParam();
  for (int64_t hidden : {64, 128, 256, 384, 512}) {
    if (dtype == TFL_FLOAT32 && hidden > 256) break;
    // Batches for which the plan takes each slice width, one of them with more slices than fit.
    for (int64_t batch : {1, 8, 64, 150, 300}) {
      Check(Spec(batch, batch > 64 ? 3 : 7, hidden, dtype), TFL_FLOAT32, dtype, batch + hidden);
    }
  }
}

// Every kernel with everything that it can be asked for, in a few steps: short enough for
// compute-sanitizer.
class ClusterShortTest : public ClusterTestOf<std::tuple<tfl_dtype, int>> {};

TEST_P(ClusterShortTest, EverySliceWidth) {
  const auto [dtype, hidden] = GetParam();
  for (int64_t batch : {3, 150, 300}) {
    tfl_lstm_spec spec = Spec(batch, 3, hidden, dtype);
    spec.has_mask = spec.num_recurrent_dropout_masks = 1;
    Check(spec, TFL_FLOAT32, dtype, batch + hidden);
  }
}

TEST_P(ClusterTest, OddSizesAndRandomFlags) {
  const tfl_dtype dtype = GetParam();
  std::mt19937 random(7);
  const auto flag = [&] { return static_cast<uint8_t>(random() % 2); };
  for (int i = 0; i < 80; ++i) {
    const int64_t most = dtype == TFL_FLOAT32 ? 256 : i % 4 == 0 ? 512 : 130;
    tfl_lstm_spec spec =
        Spec(1 + random() % (i % 5 == 0 ? 90 : 19), 1 + random() % 9, 1 + random() % most, dtype);
    if (i % 3 == 0) spec.hidden_size = (spec.hidden_size + 7) / 8 * 8;
    spec.time_major = flag();
    spec.go_backwards = flag();
    spec.return_sequences = random() % 3 != 0;
    spec.has_mask = random() % 3 != 0;
    spec.zero_output_for_mask = flag();
    spec.has_bias = flag();
    spec.num_recurrent_dropout_masks = random() % 3 == 0;
    spec.has_initial_h = flag();
    spec.has_initial_c = flag();
    spec.training = random() % 4 != 0;
    if (flag()) spec.weight_dtype = TFL_FLOAT32;
    Check(spec, flag() ? TFL_FLOAT32 : dtype, flag() ? TFL_FLOAT32 : dtype, i);
  }
}

TEST_P(ClusterTest, LongSequence) {
  const tfl_dtype dtype = GetParam();
  Check(Spec(9, 200, dtype == TFL_FLOAT32 ? 256 : 384, dtype), TFL_FLOAT32, dtype, 5);
}

TEST_P(ClusterTest, RunsAreBitEqualAlsoFromAGraph) {
  const tfl_dtype dtype = GetParam();
  tfl_lstm_spec spec = Spec(37, 33, 250, dtype);
  spec.has_mask = 1;
  const RecurrenceCase call(spec, TFL_FLOAT32, dtype, 3);
  RecurrenceBuffers buffers(call);
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cuda::ClusterForward(buffers.forward, stream).code, TFL_OK);
  ASSERT_EQ(cuda::ClusterBackward(buffers.backward, stream).code, TFL_OK);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  const std::vector<Values> first = buffers.Bits(call);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_EQ(cuda::ClusterForward(buffers.forward, stream).code, TFL_OK);
  EXPECT_EQ(cuda::ClusterBackward(buffers.backward, stream).code, TFL_OK);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph, 0), cudaSuccess);
  for (int i = 0; i < 20; ++i) {
    buffers.Poison();
    ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(buffers.Bits(call), first) << "replay " << i;
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

const char* Name(tfl_dtype dtype) {
  return dtype == TFL_BFLOAT16 ? "bfloat16" : dtype == TFL_FLOAT16 ? "float16" : "tf32";
}
std::string ShortName(const ::testing::TestParamInfo<std::tuple<tfl_dtype, int>>& info) {
  return std::string(Name(std::get<0>(info.param))) + "_" + std::to_string(std::get<1>(info.param));
}

INSTANTIATE_TEST_SUITE_P(Types, ClusterTest,
                         ::testing::Values(TFL_BFLOAT16, TFL_FLOAT16, TFL_FLOAT32),
                         [](const auto& info) { return Name(info.param); });
INSTANTIATE_TEST_SUITE_P(Types16, ClusterShortTest,
                         ::testing::Combine(::testing::Values(TFL_BFLOAT16, TFL_FLOAT16),
                                            ::testing::Values(60, 128, 250, 384, 512)),
                         ShortName);
INSTANTIATE_TEST_SUITE_P(Tf32, ClusterShortTest,
                         ::testing::Combine(::testing::Values(TFL_FLOAT32),
                                            ::testing::Values(60, 128, 250)),
                         ShortName);

TEST(ClusterSupport, RefusesWhatNoClusterHolds) {
  cuda::DeviceLimits hopper;
  hopper.compute_capability = 90;
  hopper.multiprocessors = 132;
  hopper.shared_bytes_per_block = 232448;
  tfl_lstm_spec spec = Spec(16, 64, 513, TFL_BFLOAT16);
  EXPECT_FALSE(cuda::ClusterForwardSupported(spec, hopper));
  spec = Spec(16, 64, 256, TFL_FLOAT32);
  spec.allow_tf32 = 0;
  EXPECT_FALSE(cuda::ClusterForwardSupported(spec, hopper));
  spec = Spec(16, 64, 256, TFL_FLOAT64);
  EXPECT_FALSE(cuda::ClusterForwardSupported(spec, hopper));
  spec = Spec(16, 64, 256, TFL_FLOAT16);
  spec.recurrent_activation = TFL_HARD_SIGMOID;
  EXPECT_FALSE(cuda::ClusterBackwardSupported(spec, hopper));
  spec = Spec(16, 64, 256, TFL_FLOAT16);
  hopper.compute_capability = 80;
  EXPECT_FALSE(cuda::ClusterForwardSupported(spec, hopper));
  spec = Spec(0, 64, 256, TFL_FLOAT16);
  hopper.compute_capability = 90;
  EXPECT_FALSE(cuda::ClusterForwardSupported(spec, hopper));
}

}  // namespace
}  // namespace tfl::testing
