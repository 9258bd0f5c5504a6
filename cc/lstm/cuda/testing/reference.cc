#include "cc/lstm/cuda/testing/reference.h"

#include <algorithm>
#include <cmath>
#include <thread>

namespace tfl::testing {
namespace {

double Activate(tfl_activation activation, double x) {
  switch (activation) {
    case TFL_TANH:
      return std::tanh(x);
    case TFL_SIGMOID:
      return 1 / (1 + std::exp(-x));
    case TFL_HARD_SIGMOID:
      return std::min(1.0, std::max(0.0, x / 6 + 0.5));
    case TFL_RELU:
      return std::max(0.0, x);
    case TFL_LINEAR:
      return x;
  }
  return x;
}

// The derivative at x.
double Slope(tfl_activation activation, double x) {
  const double y = Activate(activation, x);
  switch (activation) {
    case TFL_TANH:
      return 1 - y * y;
    case TFL_SIGMOID:
      return y * (1 - y);
    case TFL_HARD_SIGMOID:
      return x > -3 && x < 3 ? 1.0 / 6 : 0;
    case TFL_RELU:
      return x > 0 ? 1 : 0;
    case TFL_LINEAR:
      return 1;
  }
  return 1;
}

// What backward needs of one step of one batch element.
struct Step {
  std::vector<double> z;  // [4 hidden], before the activations
  std::vector<double> previous_h, previous_c, c;
  bool valid;
  bool output_is_h;
};

// The factor of element k in column j of z: values[k], or times one of its dropout masks.
class Factors {
 public:
  Factors(const std::vector<double>& values, const double* masks, int count, int64_t plane)
      : values_(values.data()), masks_(masks), count_(count), plane_(plane) {}
  Factors(const double* values, const double* masks, int count, int64_t plane)
      : values_(values), masks_(masks), count_(count), plane_(plane) {}
  double Value(int64_t k, int64_t gate) const { return values_[k] * Mask(k, gate); }
  double Mask(int64_t k, int64_t gate) const {
    return count_ == 0 ? 1 : masks_[(count_ == 1 ? 0 : gate) * plane_ + k];
  }

 private:
  const double* values_;
  const double* masks_;
  const int count_;
  const int64_t plane_;
};

// One batch element of direction d through time. Sums over the batch (weight gradients) go to
// `sums`.
void RunElement(const tfl_lstm_spec& spec, int d, int64_t b, Tensors* t, Tensors* sums) {
  const int64_t steps = spec.steps, input = spec.input_size, hidden = spec.hidden_size;
  const int64_t gates = 4 * hidden, state = (d * spec.batch + b) * hidden;
  const bool backwards = spec.go_backwards || d == 1;
  const double* kernel = t->kernel.data() + d * input * gates;
  const double* recurrent_kernel = t->recurrent_kernel.data() + d * hidden * gates;
  const double* bias = t->bias.data() + d * gates;
  const auto output_at = [&](int64_t s) {
    const int64_t step = d == 1 ? steps - 1 - s : s;
    const int64_t row = !spec.return_sequences ? b
                        : spec.time_major      ? step * spec.batch + b
                                               : b * steps + step;
    return (row * spec.num_directions + d) * hidden;
  };
  const auto inputs = [&](int64_t row) {
    const int count = spec.num_dropout_masks;
    return Factors(t->x.data() + row * input,
                   t->dropout_mask.data() + (d * count * spec.batch + b) * input, count,
                   spec.batch * input);
  };
  const auto states = [&](const std::vector<double>& h) {
    const int count = spec.num_recurrent_dropout_masks;
    return Factors(h, t->recurrent_dropout_mask.data() + (d * count * spec.batch + b) * hidden,
                   count, spec.batch * hidden);
  };
  const auto row = [&](int64_t step) {
    return spec.time_major ? step * spec.batch + b : b * steps + step;
  };
  std::vector<double> h(hidden, 0.0), c(hidden, 0.0);
  if (spec.has_initial_h) std::copy_n(&t->initial_h[state], hidden, h.begin());
  if (spec.has_initial_c) std::copy_n(&t->initial_c[state], hidden, c.begin());
  std::vector<Step> trace(steps);
  bool seen = false;
  for (int64_t s = 0; s < steps; ++s) {
    const int64_t in = row(backwards ? steps - 1 - s : s);
    Step& step = trace[s];
    step.valid = !spec.has_mask || t->mask[in] != 0;
    step.previous_h = h;
    step.previous_c = c;
    if (step.valid) {
      seen = true;
      step.z.assign(gates, 0.0);
      if (spec.has_bias) step.z.assign(bias, bias + gates);
      for (int64_t k = 0; k < input; ++k) {
        const double* weights = &kernel[k * gates];
        for (int64_t gate = 0; gate < 4; ++gate) {
          const double factor = inputs(in).Value(k, gate);
          for (int64_t j = gate * hidden; j < (gate + 1) * hidden; ++j) {
            step.z[j] += factor * weights[j];
          }
        }
      }
      for (int64_t k = 0; k < hidden; ++k) {
        const double* weights = &recurrent_kernel[k * gates];
        for (int64_t gate = 0; gate < 4; ++gate) {
          const double factor = states(step.previous_h).Value(k, gate);
          for (int64_t j = gate * hidden; j < (gate + 1) * hidden; ++j) {
            step.z[j] += factor * weights[j];
          }
        }
      }
      for (int64_t u = 0; u < hidden; ++u) {
        const double i = Activate(spec.recurrent_activation, step.z[u]);
        const double f = Activate(spec.recurrent_activation, step.z[hidden + u]);
        const double g = Activate(spec.activation, step.z[2 * hidden + u]);
        const double o = Activate(spec.recurrent_activation, step.z[3 * hidden + u]);
        c[u] = f * c[u] + i * g;
        h[u] = o * Activate(spec.activation, c[u]);
      }
    }
    step.c = c;
    step.output_is_h = step.valid || (seen && !spec.zero_output_for_mask);
    if (spec.return_sequences || s == steps - 1) {
      double* out = &t->output[output_at(s)];
      for (int64_t u = 0; u < hidden; ++u) out[u] = step.output_is_h ? h[u] : 0;
    }
  }
  std::copy(h.begin(), h.end(), &t->final_h[state]);
  std::copy(c.begin(), c.end(), &t->final_c[state]);
  if (!spec.training) return;

  std::vector<double> dh(&t->grad_final_h[state], &t->grad_final_h[state] + hidden);
  std::vector<double> dc(&t->grad_final_c[state], &t->grad_final_c[state] + hidden);
  std::vector<double> dz(gates);
  for (int64_t s = steps - 1; s >= 0; --s) {
    const int64_t in = row(backwards ? steps - 1 - s : s);
    const Step& step = trace[s];
    if (step.output_is_h && (spec.return_sequences || s == steps - 1)) {
      const double* grad = &t->grad_output[output_at(s)];
      for (int64_t u = 0; u < hidden; ++u) dh[u] += grad[u];
    }
    if (!step.valid) continue;
    for (int64_t u = 0; u < hidden; ++u) {
      const double zi = step.z[u], zf = step.z[hidden + u], zg = step.z[2 * hidden + u],
                   zo = step.z[3 * hidden + u];
      const tfl_activation gate = spec.recurrent_activation;
      const double o = Activate(gate, zo);
      dc[u] += dh[u] * o * Slope(spec.activation, step.c[u]);
      dz[u] = dc[u] * Activate(spec.activation, zg) * Slope(gate, zi);
      dz[hidden + u] = dc[u] * step.previous_c[u] * Slope(gate, zf);
      dz[2 * hidden + u] = dc[u] * Activate(gate, zi) * Slope(spec.activation, zg);
      dz[3 * hidden + u] = dh[u] * Activate(spec.activation, step.c[u]) * Slope(gate, zo);
      dc[u] *= Activate(gate, zf);
    }
    // Element k's share of the gradients: returns its own, adds that of its row of weights.
    const auto back = [&](const Factors& factors, int64_t k, const double* weights, double* grads) {
      weights += k * gates;
      grads += k * gates;
      double sum = 0;
      for (int64_t gate = 0; gate < 4; ++gate) {
        double product = 0;
        for (int64_t j = gate * hidden; j < (gate + 1) * hidden; ++j) product += weights[j] * dz[j];
        sum += product * factors.Mask(k, gate);
        const double factor = factors.Value(k, gate);
        for (int64_t j = gate * hidden; j < (gate + 1) * hidden; ++j) grads[j] += factor * dz[j];
      }
      return sum;
    };
    for (int64_t k = 0; k < input; ++k) {
      t->grad_x[in * input + k] +=
          back(inputs(in), k, kernel, &sums->grad_kernel[d * input * gates]);
    }
    for (int64_t k = 0; k < hidden; ++k) {
      dh[k] = back(states(step.previous_h), k, recurrent_kernel,
                   &sums->grad_recurrent_kernel[d * hidden * gates]);
    }
    if (spec.has_bias) {
      for (int64_t j = 0; j < gates; ++j) sums->grad_bias[d * gates + j] += dz[j];
    }
  }
  if (spec.has_initial_h) std::copy(dh.begin(), dh.end(), &t->grad_initial_h[state]);
  if (spec.has_initial_c) std::copy(dc.begin(), dc.end(), &t->grad_initial_c[state]);
}

void AddTo(const std::vector<double>& from, std::vector<double>* to) {
  for (size_t i = 0; i < from.size(); ++i) (*to)[i] += from[i];
}

}  // namespace

void Reference(const tfl_lstm_spec& spec, Tensors* t) {
  const int64_t directions = spec.num_directions;
  const int64_t states = directions * spec.batch * spec.hidden_size;
  const int64_t gates = directions * 4 * spec.hidden_size;
  t->output.assign(spec.return_sequences ? states * spec.steps : states, 0.0);
  t->final_h.assign(states, 0.0);
  t->final_c.assign(states, 0.0);
  const auto clear_sums = [&](Tensors* sums) {
    sums->grad_kernel.assign(spec.input_size * gates, 0.0);
    sums->grad_recurrent_kernel.assign(spec.hidden_size * gates, 0.0);
    sums->grad_bias.assign(spec.has_bias ? gates : 0, 0.0);
  };
  if (spec.training) {
    t->grad_x.assign(t->x.size(), 0.0);
    t->grad_initial_h.assign(t->initial_h.size(), 0.0);
    t->grad_initial_c.assign(t->initial_c.size(), 0.0);
    clear_sums(t);
  }
  const int64_t threads =
      std::max<int64_t>(1, std::min<int64_t>(spec.batch, std::thread::hardware_concurrency()));
  std::vector<Tensors> sums(threads);
  std::vector<std::thread> pool;
  for (int64_t i = 0; i < threads; ++i) {
    pool.emplace_back([&, i] {
      if (spec.training) clear_sums(&sums[i]);
      for (int64_t b = i; b < spec.batch; b += threads) {
        for (int d = 0; d < directions; ++d) RunElement(spec, d, b, t, &sums[i]);
      }
    });
  }
  for (std::thread& thread : pool) thread.join();
  if (!spec.training) return;
  for (const Tensors& part : sums) {
    AddTo(part.grad_kernel, &t->grad_kernel);
    AddTo(part.grad_recurrent_kernel, &t->grad_recurrent_kernel);
    AddTo(part.grad_bias, &t->grad_bias);
  }
}

}  // namespace tfl::testing
