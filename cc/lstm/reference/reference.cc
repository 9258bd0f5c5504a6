#include "cc/lstm/reference/reference.h"

#include <algorithm>
#include <cmath>

namespace tfl::reference {
namespace {

double Activate(tfl_activation kind, double x) {
  switch (kind) {
    case TFL_TANH:
      return std::tanh(x);
    case TFL_SIGMOID:
      return 1 / (1 + std::exp(-x));
    case TFL_HARD_SIGMOID:
      return std::min(std::max(x / 6 + 0.5, 0.0), 1.0);
    case TFL_RELU:
      return std::max(x, 0.0);
    case TFL_LINEAR:
      break;
  }
  return x;
}

// The derivative at x.
double Slope(tfl_activation kind, double x) {
  const double y = Activate(kind, x);
  switch (kind) {
    case TFL_TANH:
      return 1 - y * y;
    case TFL_SIGMOID:
      return y * (1 - y);
    case TFL_HARD_SIGMOID:
      return y > 0 && y < 1 ? 1.0 / 6 : 0;
    case TFL_RELU:
      return x > 0 ? 1 : 0;
    case TFL_LINEAR:
      break;
  }
  return 1;
}

// The history of one row of the batch.
struct Step {
  bool valid;
  std::vector<double> z, h_before, c_before, c;
};

// A direction of a call: where it reads and writes, and its dropout masks.
struct Direction {
  Direction(const tfl_lstm_spec& spec, const Inputs& inputs, int index)
      : s(spec), in(inputs), d(index) {}
  int64_t Row(int64_t b, int64_t t) const {
    return s.time_major ? t * s.batch + b : b * s.steps + t;
  }
  int64_t In(int64_t b, int64_t step) const {
    return Row(b, s.go_backwards || d == 1 ? s.steps - 1 - step : step);
  }
  // The element of the output, or of its gradient, that unit j has at a step.
  int64_t Out(int64_t b, int64_t step, int64_t j) const {
    const int64_t row = s.return_sequences ? Row(b, d == 1 ? s.steps - 1 - step : step) : b;
    return (row * s.num_directions + d) * s.hidden_size + j;
  }
  // The factor of x[b, i] or h[b, k] in column n of z.
  double InputFactor(int64_t b, int64_t i, int64_t n) const {
    return Factor(in.dropout_mask[d], s.num_dropout_masks, s.input_size, b, i, n);
  }
  double HiddenFactor(int64_t b, int64_t k, int64_t n) const {
    return Factor(in.recurrent_dropout_mask[d], s.num_recurrent_dropout_masks, s.hidden_size, b, k,
                  n);
  }
  double Factor(const std::vector<double>& masks, int count, int64_t width, int64_t b, int64_t k,
                int64_t n) const {
    if (count == 0) return 1;
    const int64_t mask = count == 1 ? 0 : n / s.hidden_size;
    return masks[(mask * s.batch + b) * width + k];
  }
  const tfl_lstm_spec& s;
  const Inputs& in;
  const int d;
};

// Runs row b and, if asked, tells its history; returns its final h and c and fills its outputs.
void RunRow(const Direction& at, int64_t b, Outputs* out, std::vector<Step>* history) {
  const tfl_lstm_spec& s = at.s;
  const Inputs& in = at.in;
  const int d = at.d;
  const int64_t H = s.hidden_size, I = s.input_size;
  std::vector<double> h(H, 0.0), c(H, 0.0), y(H, 0.0);
  for (int64_t j = 0; j < H; ++j) {
    if (s.has_initial_h) h[j] = in.initial_h[d][b * H + j];
    if (s.has_initial_c) c[j] = in.initial_c[d][b * H + j];
  }
  for (int64_t step = 0; step < s.steps; ++step) {
    Step now;
    now.valid = !s.has_mask || in.mask[at.In(b, step)] != 0;
    now.h_before = h;
    now.c_before = c;
    now.z.assign(4 * H, 0.0);
    for (int64_t n = 0; n < 4 * H; ++n) {
      double z = s.has_bias ? in.bias[d][n] : 0;
      for (int64_t i = 0; i < I; ++i) {
        z += in.x[at.In(b, step) * I + i] * at.InputFactor(b, i, n) * in.kernel[d][i * 4 * H + n];
      }
      for (int64_t k = 0; k < H; ++k) {
        z += h[k] * at.HiddenFactor(b, k, n) * in.recurrent_kernel[d][k * 4 * H + n];
      }
      now.z[n] = z;
    }
    if (now.valid) {
      for (int64_t j = 0; j < H; ++j) {
        const double i = Activate(s.recurrent_activation, now.z[j]);
        const double f = Activate(s.recurrent_activation, now.z[H + j]);
        const double g = Activate(s.activation, now.z[2 * H + j]);
        const double o = Activate(s.recurrent_activation, now.z[3 * H + j]);
        c[j] = f * c[j] + i * g;
        h[j] = o * Activate(s.activation, c[j]);
      }
      y = h;
    }
    now.c = c;
    const bool zero = !now.valid && s.zero_output_for_mask;
    for (int64_t j = 0; j < H; ++j) {
      const double value = zero ? 0 : y[j];
      if (s.return_sequences || step + 1 == s.steps) out->output[at.Out(b, step, j)] = value;
    }
    if (history != nullptr) history->push_back(now);
  }
  for (int64_t j = 0; j < H; ++j) {
    out->final_h[d][b * H + j] = h[j];
    out->final_c[d][b * H + j] = c[j];
  }
}

Outputs EmptyOutputs(const tfl_lstm_spec& s) {
  Outputs out;
  out.output.assign(s.num_directions * s.batch * (s.return_sequences ? s.steps : 1) * s.hidden_size,
                    0.0);
  for (int d = 0; d < s.num_directions; ++d) {
    out.final_h[d].assign(s.batch * s.hidden_size, 0.0);
    out.final_c[d] = out.final_h[d];
  }
  return out;
}

}  // namespace

Outputs Forward(const tfl_lstm_spec& spec, const Inputs& inputs) {
  Outputs out = EmptyOutputs(spec);
  for (int d = 0; d < spec.num_directions; ++d) {
    for (int64_t b = 0; b < spec.batch; ++b) RunRow({spec, inputs, d}, b, &out, nullptr);
  }
  return out;
}

namespace {

// Adds one direction's share of the gradients.
void AddDirection(const Direction& at, const Outputs& grad, Gradients* out) {
  const tfl_lstm_spec& s = at.s;
  const Inputs& in = at.in;
  const int d = at.d;
  const int64_t H = s.hidden_size, I = s.input_size;
  out->kernel[d].assign(I * 4 * H, 0.0);
  out->recurrent_kernel[d].assign(H * 4 * H, 0.0);
  out->bias[d].assign(4 * H, 0.0);
  out->initial_h[d].assign(s.batch * H, 0.0);
  out->initial_c[d] = out->initial_h[d];
  Outputs unused = EmptyOutputs(s);
  for (int64_t b = 0; b < s.batch; ++b) {
    std::vector<Step> history;
    RunRow(at, b, &unused, &history);
    const auto row = [&](const std::vector<double>& from) {
      return std::vector<double>(from.begin() + b * H, from.begin() + (b + 1) * H);
    };
    std::vector<double> dh = row(grad.final_h[d]), dc = row(grad.final_c[d]);
    std::vector<double> dy(H, 0.0);  // of the output that masked steps repeat
    for (int64_t step = s.steps - 1; step >= 0; --step) {
      const Step& now = history[step];
      const bool zero = !now.valid && s.zero_output_for_mask;
      for (int64_t j = 0; j < H && !zero; ++j) {
        if (s.return_sequences || step + 1 == s.steps) dy[j] += grad.output[at.Out(b, step, j)];
      }
      if (!now.valid) continue;
      std::vector<double> dz(4 * H), dh_before(H, 0.0);
      for (int64_t j = 0; j < H; ++j) {
        dh[j] += dy[j];
        dy[j] = 0;
        const auto z = [&](int gate) { return now.z[gate * H + j]; };
        const double i = Activate(s.recurrent_activation, z(0));
        const double f = Activate(s.recurrent_activation, z(1));
        const double g = Activate(s.activation, z(2));
        const double o = Activate(s.recurrent_activation, z(3));
        const double y = Activate(s.activation, now.c[j]);
        dc[j] += dh[j] * o * Slope(s.activation, now.c[j]);
        dz[j] = dc[j] * g * Slope(s.recurrent_activation, z(0));
        dz[H + j] = dc[j] * now.c_before[j] * Slope(s.recurrent_activation, z(1));
        dz[2 * H + j] = dc[j] * i * Slope(s.activation, z(2));
        dz[3 * H + j] = dh[j] * y * Slope(s.recurrent_activation, z(3));
        dc[j] *= f;
      }
      for (int64_t n = 0; n < 4 * H; ++n) {
        out->bias[d][n] += dz[n];
        for (int64_t i = 0; i < I; ++i) {
          const double share = at.InputFactor(b, i, n) * dz[n];
          out->kernel[d][i * 4 * H + n] += in.x[at.In(b, step) * I + i] * share;
          out->x[at.In(b, step) * I + i] += in.kernel[d][i * 4 * H + n] * share;
        }
        for (int64_t k = 0; k < H; ++k) {
          const double share = at.HiddenFactor(b, k, n) * dz[n];
          out->recurrent_kernel[d][k * 4 * H + n] += now.h_before[k] * share;
          dh_before[k] += in.recurrent_kernel[d][k * 4 * H + n] * share;
        }
      }
      dh = dh_before;
    }
    std::copy(dh.begin(), dh.end(), out->initial_h[d].begin() + b * H);
    std::copy(dc.begin(), dc.end(), out->initial_c[d].begin() + b * H);
  }
}

}  // namespace

Gradients Backward(const tfl_lstm_spec& s, const Inputs& in, const Outputs& grad) {
  Gradients out;
  out.x.assign(s.batch * s.steps * s.input_size, 0.0);
  for (int d = 0; d < s.num_directions; ++d) AddDirection({s, in, d}, grad, &out);
  return out;
}

}  // namespace tfl::reference
