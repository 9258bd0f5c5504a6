// The pointwise part of a step: a cell is a policy that the loops over time are written against.
#if defined(TF_FUSED_LSTM_CC_LSTM_CPU_CELL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TF_FUSED_LSTM_CC_LSTM_CPU_CELL_INL_H_
#undef TF_FUSED_LSTM_CC_LSTM_CPU_CELL_INL_H_
#else
#define TF_FUSED_LSTM_CC_LSTM_CPU_CELL_INL_H_
#endif

#include "cc/lstm/cpu/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tfl::cpu {
namespace HWY_NAMESPACE {

// tanh and sigmoid, known at compile time.
struct StandardActivations {
  explicit StandardActivations(const tfl_lstm_spec&) {}
  static bool Fits(const tfl_lstm_spec& spec) {
    return spec.activation == TFL_TANH && spec.recurrent_activation == TFL_SIGMOID;
  }
  template <class D>
  HWY_INLINE hn::Vec<D> Gate(D d, hn::Vec<D> x) const {
    return Sigmoid(d, x);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> GateSlope(D d, hn::Vec<D> y) const {
    return SigmoidSlope(d, y);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> Value(D d, hn::Vec<D> x) const {
    return Tanh(d, x);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> ValueSlope(D d, hn::Vec<D> y) const {
    return TanhSlope(d, y);
  }
};

// Any pair, chosen at run time.
class AnyActivations {
 public:
  explicit AnyActivations(const tfl_lstm_spec& spec)
      : value_(spec.activation), gate_(spec.recurrent_activation) {}
  template <class D>
  HWY_INLINE hn::Vec<D> Gate(D d, hn::Vec<D> x) const {
    return Activate(gate_, d, x);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> GateSlope(D d, hn::Vec<D> y) const {
    return Slope(gate_, d, y);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> Value(D d, hn::Vec<D> x) const {
    return Activate(value_, d, x);
  }
  template <class D>
  HWY_INLINE hn::Vec<D> ValueSlope(D d, hn::Vec<D> y) const {
    return Slope(value_, d, y);
  }

 private:
  template <class D>
  static HWY_NOINLINE hn::Vec<D> Activate(tfl_activation kind, D d, hn::Vec<D> x) {
    switch (kind) {
      case TFL_TANH:
        return Tanh(d, x);
      case TFL_SIGMOID:
        return Sigmoid(d, x);
      case TFL_HARD_SIGMOID:
        return HardSigmoid(d, x);
      case TFL_RELU:
        return Relu(d, x);
      case TFL_LINEAR:
        break;
    }
    return x;
  }
  template <class D>
  static HWY_NOINLINE hn::Vec<D> Slope(tfl_activation kind, D d, hn::Vec<D> y) {
    using T = hn::TFromD<D>;
    const auto zero = hn::Zero(d);
    const auto one = hn::Set(d, T{1});
    switch (kind) {
      case TFL_TANH:
        return TanhSlope(d, y);
      case TFL_SIGMOID:
        return SigmoidSlope(d, y);
      case TFL_HARD_SIGMOID:
        return hn::IfThenElseZero(hn::And(hn::Gt(y, zero), hn::Lt(y, one)),
                                  hn::Set(d, T{1} / T{6}));
      case TFL_RELU:
        return hn::IfThenElseZero(hn::Gt(y, zero), one);
      case TFL_LINEAR:
        break;
    }
    return one;
  }

  tfl_activation value_;
  tfl_activation gate_;
};

// The LSTM of cc/lstm/lstm.h on one vector of units. Gates are in the order i, f, g, o.
template <class Activations>
struct LstmCell : Activations {
  using Activations::Activations;

  // Turns gates from z into their activations, c from that before the step into that after.
  template <class D>
  HWY_INLINE void Forward(D d, hn::Vec<D> (&gates)[4], hn::Vec<D>& c, hn::Vec<D>& h) const {
    const auto i = this->Gate(d, gates[0]);
    const auto f = this->Gate(d, gates[1]);
    const auto g = this->Value(d, gates[2]);
    const auto o = this->Gate(d, gates[3]);
    c = hn::MulAdd(f, c, hn::Mul(i, g));
    h = hn::Mul(o, this->Value(d, c));
    gates[0] = i;
    gates[1] = f;
    gates[2] = g;
    gates[3] = o;
  }

  // Turns gates from activations into the gradients of z, dc from the gradient of c after the step
  // into that of c before. dh is that of h after the step, c and c_before the states.
  template <class D>
  HWY_INLINE void Backward(D d, hn::Vec<D> (&gates)[4], hn::Vec<D> c_before, hn::Vec<D> c,
                           hn::Vec<D> dh, hn::Vec<D>& dc) const {
    const auto i = gates[0], f = gates[1], g = gates[2], o = gates[3];
    const auto y = this->Value(d, c);
    dc = hn::MulAdd(hn::Mul(dh, o), this->ValueSlope(d, y), dc);
    gates[0] = hn::Mul(hn::Mul(dc, g), this->GateSlope(d, i));
    gates[1] = hn::Mul(hn::Mul(dc, c_before), this->GateSlope(d, f));
    gates[2] = hn::Mul(hn::Mul(dc, i), this->ValueSlope(d, g));
    gates[3] = hn::Mul(hn::Mul(dh, y), this->GateSlope(d, o));
    dc = hn::Mul(dc, f);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace tfl::cpu
HWY_AFTER_NAMESPACE();

#endif  // TF_FUSED_LSTM_CC_LSTM_CPU_CELL_INL_H_
