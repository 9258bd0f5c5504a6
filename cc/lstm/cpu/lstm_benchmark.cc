// Times the CPU core by itself: medians of warm calls on random data.
//
//   lstm_benchmark [--threads=2] [--dtype=float32|float64|float16|bfloat16] [--seconds=1]
//                  [--dropout_masks=0|1|4] [--recurrent_dropout_masks=0|1|4]
//                  [--json] [batch,steps,input,hidden ...]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cc/lstm/cpu/test_pool.h"
#include "cc/lstm/lstm.h"

namespace tfl::cpu {
namespace {

const char* const kTypes[] = {"float32", "float64", "float16", "bfloat16"};

// 64-byte aligned memory.
class Memory {
 public:
  explicit Memory(int64_t bytes)
      : data_(std::aligned_alloc(64, static_cast<size_t>(bytes + 64) / 64 * 64), std::free) {}
  void* data() const { return data_.get(); }

 private:
  std::unique_ptr<void, void (*)(void*)> data_;
};

// Uniform in [-scale, scale].
Memory RandomTensor(tfl_dtype type, int64_t count, float scale, std::mt19937* random) {
  const int64_t element = type == TFL_FLOAT64 ? 8 : type == TFL_FLOAT32 ? 4 : 2;
  Memory memory(count * element);
  std::uniform_real_distribution<float> uniform(-scale, scale);
  for (int64_t i = 0; i < count; ++i) {
    const float value = uniform(*random);
    if (type == TFL_FLOAT64) {
      static_cast<double*>(memory.data())[i] = value;
    } else if (type == TFL_FLOAT32) {
      static_cast<float*>(memory.data())[i] = value;
    } else {
      uint32_t bits;
      std::memcpy(&bits, &value, 4);
      if (type == TFL_FLOAT16) {
        // Small values only: rebias the exponent, drop fraction bits, flush what is tiny.
        const int exponent = static_cast<int>(bits >> 23 & 255) - 112;
        bits = (bits >> 16 & 0x8000) | (exponent > 0 ? exponent << 10 | (bits >> 13 & 1023) : 0);
      } else {
        bits >>= 16;
      }
      static_cast<uint16_t*>(memory.data())[i] = static_cast<uint16_t>(bits);
    }
  }
  return memory;
}

template <class F>
double MedianMilliseconds(double seconds, const F& call) {
  using Clock = std::chrono::steady_clock;
  for (int i = 0; i < 3; ++i) call();
  std::vector<double> times;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  while (times.size() < 5 || Clock::now() < end) {
    const auto start = Clock::now();
    call();
    times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

void Check(const tfl_status& status) {
  if (status.code == TFL_OK) return;
  std::fprintf(stderr, "%s\n", status.message);
  std::exit(1);
}

struct Options {
  int threads = 2;
  tfl_dtype dtype = TFL_FLOAT32;
  double seconds = 1;
  int dropout_masks = 0;
  int recurrent_dropout_masks = 0;
  bool json = false;
};

void Run(const Options& options, int64_t batch, int64_t steps, int64_t input, int64_t hidden) {
  tfl_lstm_spec spec = {};
  spec.batch = batch, spec.steps = steps, spec.input_size = input, spec.hidden_size = hidden;
  spec.dtype = spec.weight_dtype = options.dtype;
  spec.activation = TFL_TANH, spec.recurrent_activation = TFL_SIGMOID;
  spec.return_sequences = spec.has_bias = spec.num_directions = 1;
  spec.num_dropout_masks = options.dropout_masks;
  spec.num_recurrent_dropout_masks = options.recurrent_dropout_masks;
  std::mt19937 random(1);
  const auto tensor = [&](int64_t count, float scale) {
    return RandomTensor(options.dtype, count, scale, &random);
  };
  const int64_t rows = batch * steps, state = batch * hidden;
  const Memory x = tensor(rows * input, 1), kernel = tensor(input * 4 * hidden, .05f);
  const Memory recurrent_kernel = tensor(hidden * 4 * hidden, .05f), bias = tensor(4 * hidden, .1f);
  const Memory output = tensor(rows * hidden, 0), h = tensor(state, 0), c = tensor(state, 0);
  const Memory grad_output = tensor(rows * hidden, 1), grad_h = tensor(state, 1);
  const Memory grad_c = tensor(state, 1), dx = tensor(rows * input, 0);
  const Memory dkernel = tensor(input * 4 * hidden, 0), dbias = tensor(4 * hidden, 0);
  const Memory drecurrent = tensor(hidden * 4 * hidden, 0), dh = tensor(state, 0);
  const Memory dc = tensor(state, 0);
  const Memory dropout_mask = tensor(options.dropout_masks * batch * input, 2);
  const Memory recurrent_dropout_mask = tensor(options.recurrent_dropout_masks * state, 2);

  testing::TestPool pool(options.threads - 1);
  const tfl_cpu_runtime runtime = pool.Runtime(options.threads);
  tfl_lstm_sizes inference, training;
  Check(tfl_cpu_lstm_sizes(&spec, options.threads, &inference));
  tfl_lstm_spec training_spec = spec;
  training_spec.training = 1;
  Check(tfl_cpu_lstm_sizes(&training_spec, options.threads, &training));
  const Memory reserve(training.reserve_bytes);
  const Memory workspace(
      std::max(inference.forward_workspace_bytes, training.forward_workspace_bytes));
  const Memory backward_workspace(training.backward_workspace_bytes);
  tfl_lstm_inputs inputs = {};
  inputs.x = x.data();
  inputs.kernel[0] = kernel.data(), inputs.recurrent_kernel[0] = recurrent_kernel.data();
  inputs.bias[0] = bias.data();
  inputs.dropout_mask[0] = dropout_mask.data();
  inputs.recurrent_dropout_mask[0] = recurrent_dropout_mask.data();
  tfl_lstm_outputs outputs = {};
  outputs.output = output.data(), outputs.final_h[0] = h.data(), outputs.final_c[0] = c.data();
  outputs.reserve = reserve.data(), outputs.workspace = workspace.data();
  tfl_lstm_saved saved = {};
  saved.output = output.data(), saved.reserve = reserve.data();
  saved.grad_output = grad_output.data();
  saved.grad_final_h[0] = grad_h.data(), saved.grad_final_c[0] = grad_c.data();
  tfl_lstm_gradients gradients = {};
  gradients.grad_x = dx.data(), gradients.grad_kernel[0] = dkernel.data();
  gradients.grad_recurrent_kernel[0] = drecurrent.data(), gradients.grad_bias[0] = dbias.data();
  gradients.grad_initial_h[0] = dh.data(), gradients.grad_initial_c[0] = dc.data();
  gradients.workspace = backward_workspace.data();
  const double forward = MedianMilliseconds(
      options.seconds, [&] { Check(tfl_cpu_lstm_forward(&spec, &inputs, &outputs, &runtime)); });
  const double forward_training = MedianMilliseconds(options.seconds / 2, [&] {
    Check(tfl_cpu_lstm_forward(&training_spec, &inputs, &outputs, &runtime));
  });
  const double train = MedianMilliseconds(options.seconds, [&] {
    Check(tfl_cpu_lstm_forward(&training_spec, &inputs, &outputs, &runtime));
    Check(tfl_cpu_lstm_backward(&training_spec, &inputs, &saved, &gradients, &runtime));
  });
  std::printf(
      options.json
          ? "{\"batch\": %lld, \"steps\": %lld, \"input_size\": %lld, \"hidden_size\": %lld, "
            "\"dtype\": \"%s\", \"threads\": %d, \"forward_ms\": %.4f, "
            "\"forward_training_ms\": %.4f, \"train_ms\": %.4f}\n"
          : "%lld,%lld,%lld,%lld %s, %d threads: forward %.4f ms, with reserve %.4f ms, "
            "train %.4f ms\n",
      static_cast<long long>(batch), static_cast<long long>(steps), static_cast<long long>(input),
      static_cast<long long>(hidden), kTypes[options.dtype], options.threads, forward,
      forward_training, train);
  std::fflush(stdout);
}

int Main(int argc, char** argv) {
  Options options;
  std::vector<std::string> shapes;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::string value = argument.substr(argument.find('=') + 1);
    if (argument.rfind("--threads=", 0) == 0) {
      options.threads = std::max(1, std::atoi(value.c_str()));
    } else if (argument.rfind("--seconds=", 0) == 0) {
      options.seconds = std::atof(value.c_str());
    } else if (argument.rfind("--dropout_masks=", 0) == 0) {
      options.dropout_masks = std::atoi(value.c_str());
    } else if (argument.rfind("--recurrent_dropout_masks=", 0) == 0) {
      options.recurrent_dropout_masks = std::atoi(value.c_str());
    } else if (argument.rfind("--dtype=", 0) == 0) {
      const auto type = std::find(std::begin(kTypes), std::end(kTypes), value);
      if (type == std::end(kTypes)) return std::fprintf(stderr, "unknown dtype\n"), 1;
      options.dtype = static_cast<tfl_dtype>(type - std::begin(kTypes));
    } else if (argument == "--json") {
      options.json = true;
    } else {
      shapes.push_back(argument);
    }
  }
  if (shapes.empty()) {
    shapes = {"1,64,128,128",  "1,64,256,256",  "16,64,256,256",
              "32,64,512,512", "64,64,512,512", "1,64,1024,1024"};
  }
  for (const std::string& shape : shapes) {
    long long b, t, i, h;
    if (std::sscanf(shape.c_str(), "%lld,%lld,%lld,%lld", &b, &t, &i, &h) != 4) {
      return std::fprintf(stderr, "a shape is batch,steps,input,hidden; got %s\n", shape.c_str()),
             1;
    }
    Run(options, b, t, i, h);
  }
  return 0;
}

}  // namespace
}  // namespace tfl::cpu

int main(int argc, char** argv) { return tfl::cpu::Main(argc, argv); }
