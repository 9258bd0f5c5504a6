// Vectors of the compute type, and their loads and stores from tensors of any type.
#if defined(TF_FUSED_LSTM_CC_LSTM_CPU_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TF_FUSED_LSTM_CC_LSTM_CPU_VECTOR_INL_H_
#undef TF_FUSED_LSTM_CC_LSTM_CPU_VECTOR_INL_H_
#else
#define TF_FUSED_LSTM_CC_LSTM_CPU_VECTOR_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "cc/lstm/lstm.h"
#include "hwy/highway.h"

#ifndef TFL_UNROLL
// Loops over the rows and vectors of a tile, which must become straight-line code.
#define TFL_UNROLL _Pragma("GCC unroll 8")
#endif

HWY_BEFORE_NAMESPACE();
namespace tfl::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using Tag = hn::ScalableTag<T>;

// Elements of a vector, and of a packed panel of columns (four vectors).
template <class T>
constexpr int64_t Width() {
  return static_cast<int64_t>(hn::MaxLanes(Tag<T>()));
}
template <class T>
constexpr int64_t PanelWidth() {
  return 4 * Width<T>();
}
// Rows of a full tile. Its accumulators, and those of a few rows x 4 vectors, leave registers for a
// row of a strip and a broadcast: a panel is packed as strips, one after the other, which a tile of
// more than kFewRows rows takes in turn.
constexpr int kTileRows = 6;
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SCALAR
constexpr int kStripVectors = 2;
constexpr int kFewRows = 3;
#else
constexpr int kStripVectors = 4;
constexpr int kFewRows = kTileRows;
#endif
template <class T>
constexpr int64_t StripWidth() {
  return kStripVectors * Width<T>();
}
// Where vector v of row p lies in a panel of this depth, or in several side by side.
template <class T>
constexpr int64_t PanelOffset(int64_t depth, int64_t p, int64_t v) {
  return (v / kStripVectors * depth + p) * StripWidth<T>() + v % kStripVectors * Width<T>();
}

inline size_t ElementBytes(tfl_dtype type) {
  return type == TFL_FLOAT64 ? 8 : type == TFL_FLOAT32 ? 4 : 2;
}

inline const void* At(const void* base, tfl_dtype type, int64_t index) {
  return static_cast<const char*>(base) + index * static_cast<int64_t>(ElementBytes(type));
}
inline void* At(void* base, tfl_dtype type, int64_t index) {
  return static_cast<char*>(base) + index * static_cast<int64_t>(ElementBytes(type));
}

template <class D>
HWY_INLINE hn::Vec<D> LoadFull(D d, tfl_dtype type, const void* from) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    return hn::LoadU(d, static_cast<const double*>(from));
  } else {
    if (type == TFL_FLOAT32) return hn::LoadU(d, static_cast<const float*>(from));
    if (type == TFL_FLOAT16) {
      const hn::Rebind<hwy::float16_t, D> d16;
      return hn::PromoteTo(d, hn::LoadU(d16, static_cast<const hwy::float16_t*>(from)));
    }
    const hn::Rebind<uint16_t, D> d16;
    const hn::RebindToUnsigned<D> du;
    const auto bits = hn::PromoteTo(du, hn::LoadU(d16, static_cast<const uint16_t*>(from)));
    return hn::BitCast(d, hn::ShiftLeft<16>(bits));
  }
}

template <class D>
HWY_INLINE void StoreFull(D d, hn::Vec<D> v, tfl_dtype type, void* to) {
  if constexpr (sizeof(hn::TFromD<D>) == 8) {
    hn::StoreU(v, d, static_cast<double*>(to));
  } else {
    if (type == TFL_FLOAT32) {
      hn::StoreU(v, d, static_cast<float*>(to));
    } else if (type == TFL_FLOAT16) {
      const hn::Rebind<hwy::float16_t, D> d16;
      hn::StoreU(hn::DemoteTo(d16, v), d16, static_cast<hwy::float16_t*>(to));
    } else {
      const hn::Rebind<uint16_t, D> d16;
      const hn::RebindToSigned<D> di;
      const hn::RebindToUnsigned<D> du;
      // To nearest, ties to even; a NaN keeps its sign and becomes quiet.
      const auto bits = hn::BitCast(du, v);
      const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1));
      const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFF)));
      const auto quiet = hn::Or(bits, hn::Set(du, 0x400000));
      const auto result = hn::IfThenElse(hn::RebindMask(du, hn::IsNaN(v)), quiet, rounded);
      hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, hn::ShiftRight<16>(result))), d16,
                 static_cast<uint16_t*>(to));
    }
  }
}

// `count` elements from `from`, fewer than a vector (or none) where a row ends; zeros beyond.
template <class D>
HWY_INLINE hn::Vec<D> LoadPart(D d, tfl_dtype type, const void* from, int64_t count) {
  constexpr int64_t kWidth = Width<hn::TFromD<D>>();
  if (HWY_LIKELY(count >= kWidth)) return LoadFull(d, type, from);
  alignas(64) char part[kWidth * sizeof(hn::TFromD<D>)] = {};
  if (count > 0) std::memcpy(part, from, static_cast<size_t>(count) * ElementBytes(type));
  return LoadFull(d, type, part);
}

template <class D>
HWY_INLINE void StorePart(D d, hn::Vec<D> v, tfl_dtype type, void* to, int64_t count) {
  constexpr int64_t kWidth = Width<hn::TFromD<D>>();
  if (HWY_LIKELY(count >= kWidth)) {
    StoreFull(d, v, type, to);
    return;
  }
  alignas(64) char part[kWidth * sizeof(hn::TFromD<D>)];
  StoreFull(d, v, type, part);
  if (count > 0) std::memcpy(to, part, static_cast<size_t>(count) * ElementBytes(type));
}

template <class T>
constexpr tfl_dtype ComputeType() {
  return sizeof(T) == 8 ? TFL_FLOAT64 : TFL_FLOAT32;
}

// Converts `count` elements of a tensor to the compute type, and back.
template <class T>
HWY_NOINLINE void ReadElements(tfl_dtype type, const void* from, int64_t count, T* to) {
  const Tag<T> d;
  for (int64_t i = 0; i < count; i += Width<T>()) {
    StorePart(d, LoadPart(d, type, At(from, type, i), count - i), ComputeType<T>(), to + i,
              count - i);
  }
}
template <class T>
HWY_NOINLINE void WriteElements(tfl_dtype type, const T* from, int64_t count, void* to) {
  const Tag<T> d;
  for (int64_t i = 0; i < count; i += Width<T>()) {
    StorePart(d, LoadPart(d, ComputeType<T>(), from + i, count - i), type, At(to, type, i),
              count - i);
  }
}

// Converts `count` elements times each of `masks` masks, which lie mask_stride apart, into as many
// copies, to_stride apart.
template <class T>
HWY_NOINLINE void ReadDropped(tfl_dtype type, const void* from, int64_t count, const void* mask,
                              int64_t mask_stride, int masks, T* to, int64_t to_stride) {
  const Tag<T> d;
  for (int64_t i = 0; i < count; i += Width<T>()) {
    const auto x = LoadPart(d, type, At(from, type, i), count - i);
    for (int m = 0; m < masks; ++m) {
      const auto factor = LoadPart(d, type, At(mask, type, m * mask_stride + i), count - i);
      StorePart(d, hn::Mul(x, factor), ComputeType<T>(), to + m * to_stride + i, count - i);
    }
  }
}

// Row `row` of dropout masks [masks, batch, width] into [masks, batch, padded].
template <class T>
void ReadMasks(const tfl_lstm_spec& spec, int masks, const void* from, int64_t width,
               int64_t padded, int64_t row, T* to) {
  for (int64_t mask = 0; mask < masks; ++mask) {
    const int64_t r = mask * spec.batch + row;
    std::fill(to + r * padded + width, to + (r + 1) * padded, T{0});
    ReadElements(spec.dtype, At(from, spec.dtype, r * width), width, to + r * padded);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tfl::cpu
HWY_AFTER_NAMESPACE();

#endif  // TF_FUSED_LSTM_CC_LSTM_CPU_VECTOR_INL_H_
