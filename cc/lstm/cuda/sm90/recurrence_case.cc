#include "cc/lstm/cuda/sm90/recurrence_case.h"

#include <cmath>
#include <random>

#include "cc/lstm/cuda/sm90/cluster.h"

namespace tfl::testing {
namespace {

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

RecurrenceCase::RecurrenceCase(const tfl_lstm_spec& s, tfl_dtype projection_type,
                               tfl_dtype grad_gates_type, uint64_t seed)
    : spec(s), projection_dtype(projection_type), grad_gates_dtype(grad_gates_type) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(-1, 1);
  const auto fill = [&](Values* v, int64_t count, double scale, tfl_dtype dtype) {
    v->resize(count);
    for (double& x : *v) x = Rounded(scale * uniform(random), dtype);
  };
  const int64_t rows = s.batch * s.steps, states = s.batch * s.hidden_size;
  fill(&projection, rows * 4 * s.hidden_size, 2, projection_dtype);
  fill(&recurrent_kernel, 4 * s.hidden_size * s.hidden_size,
       1.5 / std::sqrt(static_cast<double>(s.hidden_size)), s.weight_dtype);
  fill(&bias, s.has_bias ? 4 * s.hidden_size : 0, 1, s.weight_dtype);
  fill(&initial_h, s.has_initial_h ? states : 0, 1, s.dtype);
  fill(&initial_c, s.has_initial_c ? states : 0, 1, s.dtype);
  fill(&recurrent_dropout, s.num_recurrent_dropout_masks * states, 1, s.dtype);
  for (double& factor : recurrent_dropout) factor = factor < -0.5 ? 0 : Rounded(4.0 / 3, s.dtype);
  fill(&grad_output, s.return_sequences ? rows * s.hidden_size : states, 1, s.dtype);
  fill(&grad_final_h, states, 1, s.dtype);
  fill(&grad_final_c, states, 1, s.dtype);
  if (s.has_mask) {
    mask.resize(rows);
    for (uint8_t& m : mask) m = random() % 3 != 0;
  }
}

void RecurrenceCase::Reference() {
  const int64_t batch = spec.batch, steps = spec.steps, hidden = spec.hidden_size;
  output.assign((spec.return_sequences ? steps : 1) * batch * hidden, 0);
  final_h.assign(batch * hidden, 0);
  final_c = grad_initial_h = grad_initial_c = final_h;
  grad_gates.assign(batch * steps * 4 * hidden, 0);
  previous_h.assign(batch * steps * hidden, 0);
  const auto row = [&](int64_t b, int64_t t) {
    return spec.time_major ? t * batch + b : b * steps + t;
  };
  const auto kept = [&](int64_t b, int64_t k) {
    return recurrent_dropout.empty() ? 1.0 : recurrent_dropout[b * hidden + k];
  };
  for (int64_t b = 0; b < batch; ++b) {
    std::vector<Values> hs, cs, gates;
    Values h(hidden, 0), c(hidden, 0);
    if (spec.has_initial_h) h.assign(&initial_h[b * hidden], &initial_h[b * hidden] + hidden);
    if (spec.has_initial_c) c.assign(&initial_c[b * hidden], &initial_c[b * hidden] + hidden);
    std::vector<bool> output_is_h(steps), valid(steps);
    bool seen = false;
    for (int64_t s = 0; s < steps; ++s) {
      const int64_t in = row(b, spec.go_backwards ? steps - 1 - s : s);
      hs.push_back(h);
      cs.push_back(c);
      for (int64_t u = 0; u < hidden; ++u) previous_h[in * hidden + u] = h[u];
      valid[s] = !spec.has_mask || mask[in] != 0;
      Values z(4 * hidden, 0);
      if (valid[s]) {
        seen = true;
        for (int64_t j = 0; j < 4 * hidden; ++j) {
          z[j] = projection[in * 4 * hidden + j] + (spec.has_bias ? bias[j] : 0);
        }
        for (int64_t k = 0; k < hidden; ++k) {
          const double* r = &recurrent_kernel[k * 4 * hidden];
          const double met = h[k] * kept(b, k);
          for (int64_t j = 0; j < 4 * hidden; ++j) z[j] += met * r[j];
        }
        for (int64_t j = 0; j < 4 * hidden; ++j) {
          z[j] = j / hidden == 2 ? std::tanh(z[j]) : Sigmoid(z[j]);
        }
        for (int64_t u = 0; u < hidden; ++u) {
          c[u] = z[hidden + u] * c[u] + z[u] * z[2 * hidden + u];
          h[u] = z[3 * hidden + u] * std::tanh(c[u]);
        }
      }
      gates.push_back(z);
      output_is_h[s] = valid[s] || (!spec.zero_output_for_mask && seen);
      if (!spec.return_sequences && s + 1 < steps) continue;
      const int64_t out = spec.return_sequences ? row(b, s) : b;
      for (int64_t u = 0; u < hidden; ++u) output[out * hidden + u] = output_is_h[s] ? h[u] : 0;
    }
    cs.push_back(c);
    Values dh(&grad_final_h[b * hidden], &grad_final_h[b * hidden] + hidden);
    Values dc(&grad_final_c[b * hidden], &grad_final_c[b * hidden] + hidden);
    for (int64_t u = 0; u < hidden; ++u) {
      final_h[b * hidden + u] = h[u];
      final_c[b * hidden + u] = c[u];
    }
    for (int64_t s = steps - 1; s >= 0; --s) {
      const int64_t in = row(b, spec.go_backwards ? steps - 1 - s : s);
      if (output_is_h[s] && (spec.return_sequences || s + 1 == steps)) {
        const int64_t out = spec.return_sequences ? row(b, s) : b;
        for (int64_t u = 0; u < hidden; ++u) dh[u] += grad_output[out * hidden + u];
      }
      if (!valid[s]) continue;
      double* d = &grad_gates[in * 4 * hidden];
      for (int64_t u = 0; u < hidden; ++u) {
        const double i = gates[s][u], f = gates[s][hidden + u], g = gates[s][2 * hidden + u],
                     o = gates[s][3 * hidden + u], t = std::tanh(cs[s + 1][u]);
        const double all = dc[u] + dh[u] * o * (1 - t * t);
        d[u] = all * g * i * (1 - i);
        d[hidden + u] = all * cs[s][u] * f * (1 - f);
        d[2 * hidden + u] = all * i * (1 - g * g);
        d[3 * hidden + u] = dh[u] * t * o * (1 - o);
        dc[u] = all * f;
      }
      for (int64_t k = 0; k < hidden; ++k) {
        const double* r = &recurrent_kernel[k * 4 * hidden];
        double sum = 0;
        for (int64_t j = 0; j < 4 * hidden; ++j) sum += d[j] * r[j];
        dh[k] = sum * kept(b, k);
      }
    }
    for (int64_t u = 0; u < hidden; ++u) {
      grad_initial_h[b * hidden + u] = dh[u];
      grad_initial_c[b * hidden + u] = dc[u];
    }
  }
}

Buffer* RecurrenceBuffers::Make(int64_t bytes) {
  buffers_.push_back(std::make_unique<Buffer>(bytes));
  return buffers_.back().get();
}

Buffer* RecurrenceBuffers::Make(const Values& values, tfl_dtype dtype) {
  Buffer* buffer = Make(static_cast<int64_t>(values.size()) * SizeOf(dtype));
  Upload(values, dtype, *buffer);
  return buffer;
}

RecurrenceBuffers::RecurrenceBuffers(const RecurrenceCase& of) : forward{}, backward{} {
  const tfl_lstm_spec& s = of.spec;
  const int64_t rows = s.batch * s.steps, size = SizeOf(s.dtype);
  forward.spec = backward.spec = s;
  forward.projection = Make(of.projection, of.projection_dtype)->data();
  forward.projection_dtype = of.projection_dtype;
  forward.recurrent_kernel = backward.recurrent_kernel =
      Make(of.recurrent_kernel, s.weight_dtype)->data();
  forward.bias = Make(of.bias, s.weight_dtype)->data();
  forward.initial_h = backward.initial_h = Make(of.initial_h, s.dtype)->data();
  forward.initial_c = backward.initial_c = Make(of.initial_c, s.dtype)->data();
  forward.recurrent_dropout_mask = backward.recurrent_dropout_mask =
      Make(of.recurrent_dropout, s.dtype)->data();
  Buffer* mask = Make(static_cast<int64_t>(of.mask.size()));
  if (!of.mask.empty()) {
    cudaMemcpy(mask->data(), of.mask.data(), of.mask.size(), cudaMemcpyHostToDevice);
  }
  forward.mask = backward.mask = static_cast<const uint8_t*>(mask->data());
  const int64_t states = s.batch * s.hidden_size;
  output_ = Make((s.return_sequences ? rows * s.hidden_size : states) * size);
  final_h_ = Make(states * size);
  final_c_ = Make(states * size);
  reserve_ = Make(s.training ? cuda::ClusterReserveBytes(s) : 0);
  forward.output = output_->data();
  forward.output_stride = backward.output_stride = s.hidden_size;
  forward.final_h = final_h_->data();
  forward.final_c = final_c_->data();
  forward.reserve = reserve_->data();
  backward.output = forward.output;
  backward.reserve = forward.reserve;
  backward.grad_output = Make(of.grad_output, s.dtype)->data();
  backward.grad_final_h = Make(of.grad_final_h, s.dtype)->data();
  backward.grad_final_c = Make(of.grad_final_c, s.dtype)->data();
  backward.grad_gates_dtype = of.grad_gates_dtype;
  grad_gates_ = Make(rows * 4 * s.hidden_size * SizeOf(of.grad_gates_dtype));
  previous_h_ = Make(rows * s.hidden_size * size);
  grad_initial_h_ = Make(states * size);
  grad_initial_c_ = Make(states * size);
  backward.grad_gates = grad_gates_->data();
  backward.previous_h = previous_h_->data();
  backward.grad_initial_h = grad_initial_h_->data();
  backward.grad_initial_c = grad_initial_c_->data();
}

RecurrenceCase RecurrenceBuffers::Results(const RecurrenceCase& of) const {
  RecurrenceCase out = of;
  const tfl_dtype dtype = of.spec.dtype;
  out.output = Download(*output_, dtype);
  out.final_h = Download(*final_h_, dtype);
  out.final_c = Download(*final_c_, dtype);
  out.grad_gates = Download(*grad_gates_, of.grad_gates_dtype);
  out.previous_h = Download(*previous_h_, dtype);
  out.grad_initial_h = Download(*grad_initial_h_, dtype);
  out.grad_initial_c = Download(*grad_initial_c_, dtype);
  return out;
}

std::vector<Values> RecurrenceBuffers::Bits(const RecurrenceCase& of) const {
  const RecurrenceCase r = Results(of);
  return {r.output,     r.final_h,        r.final_c,       r.grad_gates,
          r.previous_h, r.grad_initial_h, r.grad_initial_c};
}

std::string RecurrenceBuffers::BrokenFence() const {
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (!buffers_[i]->FencesHold()) return "buffer " + std::to_string(i);
  }
  return "";
}

void RecurrenceBuffers::Poison() {
  for (Buffer* buffer : {output_, final_h_, final_c_, reserve_, grad_gates_, previous_h_,
                         grad_initial_h_, grad_initial_c_}) {
    buffer->Poison();
  }
}

}  // namespace tfl::testing
