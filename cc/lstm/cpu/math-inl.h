// Activations on vectors: accurate to a few units in the last place, without overflow, NaN in gives
// NaN out.
#if defined(TF_FUSED_LSTM_CC_LSTM_CPU_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TF_FUSED_LSTM_CC_LSTM_CPU_MATH_INL_H_
#undef TF_FUSED_LSTM_CC_LSTM_CPU_MATH_INL_H_
#else
#define TF_FUSED_LSTM_CC_LSTM_CPU_MATH_INL_H_
#endif

#include <cmath>

#include "cc/lstm/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tfl::cpu {
namespace HWY_NAMESPACE {

// f of every lane, for the types that have no vector code.
template <class D, class F>
HWY_INLINE hn::Vec<D> EachLane(D d, hn::Vec<D> x, F f) {
  using T = hn::TFromD<D>;
  alignas(64) T lanes[Width<T>()];
  hn::Store(x, d, lanes);
  for (T& lane : lanes) lane = f(lane);
  return hn::Load(d, lanes);
}

template <class D>
HWY_INLINE hn::Vec<D> Sigmoid(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, 1);
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return EachLane(d, x, [](double v) { return 1 / (1 + std::exp(-v)); });
  } else {
    // 1 / (1 + e^-x), e^-x = 2^n e^r with |r| <= ln 2 / 2. Within the bounds 2^n is a normal
    // number; beyond them the result is 1, or what flushes to 0.
    const auto y = hn::Max(hn::Min(hn::Neg(x), hn::Set(d, 87.5f)), hn::Set(d, -87.0f));
    // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits of the sum.
    const auto magic = hn::Set(d, 12582912.0f);
    const auto shifted = hn::MulAdd(y, hn::Set(d, 1.44269504f), magic);
    const auto n = hn::Sub(shifted, magic);
    auto r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), y);
    r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
    // Minimax on that interval, relative error 3e-9; tools: weighted least squares.
    auto p = hn::MulAdd(r, hn::Set(d, 0.00138145400f), hn::Set(d, 0.00836874511f));
    p = hn::MulAdd(r, p, hn::Set(d, 0.0416683908f));
    p = hn::MulAdd(r, p, hn::Set(d, 0.166665204f));
    p = hn::MulAdd(r, p, hn::Set(d, 0.499999934f));
    p = hn::MulAdd(hn::Mul(r, r), p, hn::Add(r, one));
    const hn::RebindToSigned<D> di;
    const auto scaled =
        hn::BitCast(d, hn::Add(hn::BitCast(di, p), hn::ShiftLeft<23>(hn::BitCast(di, shifted))));
    return hn::IfThenElse(hn::IsNaN(x), x, hn::Div(one, hn::Add(one, scaled)));
  }
}

template <class D>
HWY_INLINE hn::Vec<D> Tanh(D d, hn::Vec<D> x) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return EachLane(d, x, [](double v) { return std::tanh(v); });
  } else {
    // x P(x^2) / Q(x^2) on the interval where tanh is not yet 1 in float32, relative error 7e-9
    // (minimax by weighted least squares).
    const auto limit = hn::Set(d, 9.02f);
    const auto y = hn::Max(hn::Min(x, limit), hn::Neg(limit));
    const auto u = hn::Mul(y, y);
    auto p = hn::MulAdd(u, hn::Set(d, -8.43566456e-14f), hn::Set(d, 5.26125131e-11f));
    p = hn::MulAdd(u, p, hn::Set(d, -2.01837552e-8f));
    p = hn::MulAdd(u, p, hn::Set(d, 1.11442174e-5f));
    p = hn::MulAdd(u, p, hn::Set(d, 0.00310299870f));
    p = hn::MulAdd(u, p, hn::Set(d, 0.130831549f));
    p = hn::Mul(y, hn::MulAdd(u, p, hn::Set(d, 0.999999993f)));
    auto q = hn::MulAdd(u, hn::Set(d, 2.54474665e-4f), hn::Set(d, 0.0244913717f));
    q = hn::MulAdd(u, q, hn::Set(d, 0.464164819f));
    q = hn::MulAdd(u, q, hn::Set(d, 1.0f));
    const auto one = hn::Set(d, 1.0f);
    const auto t = hn::Max(hn::Min(hn::Div(p, q), one), hn::Neg(one));
    return hn::IfThenElse(hn::IsNaN(x), x, t);
  }
}

template <class D>
HWY_INLINE hn::Vec<D> HardSigmoid(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  const auto y = hn::MulAdd(x, hn::Set(d, T{1} / T{6}), hn::Set(d, T{0.5}));
  const auto clipped = hn::Max(hn::Min(y, hn::Set(d, T{1})), hn::Zero(d));
  return hn::IfThenElse(hn::IsNaN(x), x, clipped);
}

template <class D>
HWY_INLINE hn::Vec<D> Relu(D d, hn::Vec<D> x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Max(x, hn::Zero(d)));
}

// The derivative of an activation, from its value y.
template <class D>
HWY_INLINE hn::Vec<D> TanhSlope(D d, hn::Vec<D> y) {
  return hn::NegMulAdd(y, y, hn::Set(d, 1));
}
template <class D>
HWY_INLINE hn::Vec<D> SigmoidSlope(D, hn::Vec<D> y) {
  return hn::NegMulAdd(y, y, y);
}

}  // namespace HWY_NAMESPACE
}  // namespace tfl::cpu
HWY_AFTER_NAMESPACE();

#endif  // TF_FUSED_LSTM_CC_LSTM_CPU_MATH_INL_H_
