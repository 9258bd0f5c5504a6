// The one inner loop of all products: a tile of rows by a panel of columns.
#if defined(TF_FUSED_LSTM_CC_LSTM_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TF_FUSED_LSTM_CC_LSTM_CPU_TILE_INL_H_
#undef TF_FUSED_LSTM_CC_LSTM_CPU_TILE_INL_H_
#else
#define TF_FUSED_LSTM_CC_LSTM_CPU_TILE_INL_H_
#endif

#include <type_traits>

#include "cc/lstm/cpu/vector-inl.h"
#include "hwy/cache_control.h"

HWY_BEFORE_NAMESPACE();
namespace tfl::cpu {
namespace HWY_NAMESPACE {

// acc[r][v] += sum over p below depth of a[r][p * a_stride] * panel[p][v], vectors of a panel from
// its first strip on, which lie `strip` apart. A row of them stays in registers for all rows of the
// tile, or, where there are more of them than rows, an element of each row for all vectors.
// Every row of the panel also fetches what the first kFetches of `next` point at, and moves them by
// next_step.
template <int kRows, int kVectors, int kFetches, class D, class T = hn::TFromD<D>>
HWY_INLINE void MultiplyTile(D d, const T* const* HWY_RESTRICT a, int64_t a_stride,
                             const T* HWY_RESTRICT panel, int64_t strip, int64_t depth,
                             const T* const* next, int64_t next_step,
                             hn::Vec<D> (&acc)[kRows][kVectors]) {
  constexpr int64_t kWidth = Width<T>();
  const T* HWY_RESTRICT row[kRows];
  TFL_UNROLL
  for (int r = 0; r < kRows; ++r) row[r] = a[r];
  const T* next0 = kFetches > 0 ? next[0] : nullptr;
  const T* next1 = kFetches > 1 ? next[1] : nullptr;
  const auto load = [&](int v) {
    return hn::LoadU(d, panel + v / kStripVectors * strip + v % kStripVectors * kWidth);
  };
  const int64_t end = depth * a_stride;
  for (int64_t p = 0; p != end; p += a_stride) {
    if constexpr (kStripVectors < kVectors) {
      hn::Vec<D> x[kRows];
      TFL_UNROLL
      for (int r = 0; r < kRows; ++r) x[r] = hn::Set(d, row[r][p]);
      TFL_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        const auto b = load(v);
        TFL_UNROLL
        for (int r = 0; r < kRows; ++r) acc[r][v] = hn::MulAdd(x[r], b, acc[r][v]);
      }
    } else {
      hn::Vec<D> b[kVectors];
      TFL_UNROLL
      for (int v = 0; v < kVectors; ++v) b[v] = load(v);
      TFL_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const auto x = hn::Set(d, row[r][p]);
        TFL_UNROLL
        for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::MulAdd(x, b[v], acc[r][v]);
      }
    }
    panel += StripWidth<T>();
    if constexpr (kFetches > 0) {
      hwy::Prefetch(next0);
      next0 += next_step;
    }
    if constexpr (kFetches > 1) {
      hwy::Prefetch(next1);
      next1 += next_step;
    }
  }
}

// Calls f(std::integral_constant<int, n>()) for a number n from 1 to kMost known at run time.
template <int kMost, class F>
HWY_INLINE void WithConstant(int n, const F& f) {
  if constexpr (kMost > 1) {
    if (n < kMost) {
      WithConstant<kMost - 1>(n, f);
      return;
    }
  }
  f(std::integral_constant<int, kMost>());
}

// A tile: to[r][v] = from[r][v] + a panel, from and to being rows of vectors that lie from_stride
// and to_stride apart; null: zeros. Or, factored: from[r][v] + factor[r][v] * (a panel). Not
// inlined: the only code that every use of a product shares.
template <class T>
struct Tile {
  const T* a[kTileRows] = {};
  int64_t a_stride = 1;
  const T* panel = nullptr;
  int64_t strip = 0;  // between the panel's strips
  int64_t depth = 0;
  const T* next[2] = {};  // what a later tile reads, fetched as in MultiplyTile; null: nothing
  int64_t next_step = 0;
  const T* from[kTileRows] = {};
  int64_t from_stride = Width<T>();
  T* to[kTileRows] = {};
  int64_t to_stride = Width<T>();
  const T* factor[kTileRows] = {};  // vectors side by side
};

// Lets a tile fetch quarter `turn` of the rows after its own, of its panel or the next one: half a
// vector with each of its rows twice.
template <class T>
HWY_INLINE void FetchQuarter(bool next_panel, int64_t turn, Tile<T>* tile) {
  const int64_t depth = tile->depth, strips = turn / kStripVectors;
  const T* panel = tile->panel + depth * StripWidth<T>();
  if (next_panel) panel += (4 / kStripVectors - 1) * tile->strip;
  tile->next_step = Width<T>() / 2;
  tile->next[0] = panel + strips * tile->strip + turn % kStripVectors * depth * Width<T>();
  tile->next[1] = tile->next[0] + depth * tile->next_step;
}

// Vectors [kFirst, kFirst + kVectors) of a tile, from the start of a strip. If they are not all of
// it, half of what it fetches.
template <int kRows, int kFirst, int kVectors, bool kWhole, bool kFactored, class T>
HWY_INLINE void RunVectors(const Tile<T>& tile) {
  const Tag<T> d;
  hn::Vec<Tag<T>> acc[kRows][kVectors];
  if (!kFactored && tile.from[0] != nullptr) {
    TFL_UNROLL
    for (int r = 0; r < kRows; ++r) {
      TFL_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        acc[r][v] = hn::LoadU(d, tile.from[r] + (kFirst + v) * tile.from_stride);
      }
    }
  } else {
    TFL_UNROLL
    for (int r = 0; r < kRows; ++r) {
      TFL_UNROLL
      for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::Zero(d);
    }
  }
  const T* panel = tile.panel + kFirst / kStripVectors * tile.strip;
  // A single row only waits for its panel: fetching another one at the same time gains nothing.
  constexpr int kFetches = kRows == 1 ? 0 : kWhole ? 2 : 1;
  if (kRows > 1 && tile.next[0] != nullptr) {
    MultiplyTile<kRows, kVectors, kFetches>(d, tile.a, tile.a_stride, panel, tile.strip, tile.depth,
                                            tile.next + (kFirst > 0), tile.next_step, acc);
  } else {
    MultiplyTile<kRows, kVectors, 0>(d, tile.a, tile.a_stride, panel, tile.strip, tile.depth,
                                     tile.next, tile.next_step, acc);
  }
  TFL_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TFL_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      if (kFactored) {
        const auto factor = hn::LoadU(d, tile.factor[r] + (kFirst + v) * Width<T>());
        acc[r][v] = tile.from[0] == nullptr
                        ? hn::Mul(acc[r][v], factor)
                        : hn::MulAdd(acc[r][v], factor,
                                     hn::LoadU(d, tile.from[r] + (kFirst + v) * tile.from_stride));
      }
      hn::StoreU(acc[r][v], d, tile.to[r] + (kFirst + v) * tile.to_stride);
    }
  }
}

template <int kRows, int kVectors, bool kFactored, class T>
HWY_NOINLINE void RunTile(const Tile<T>& tile) {
  if constexpr (kRows <= kFewRows || kVectors <= kStripVectors) {
    RunVectors<kRows, 0, kVectors, true, kFactored>(tile);
  } else {
    RunVectors<kRows, 0, kStripVectors, false, kFactored>(tile);
    RunVectors<kRows, kStripVectors, kVectors - kStripVectors, false, kFactored>(tile);
  }
}

template <int kVectors, bool kFactored = false, class T>
HWY_INLINE void RunTileRows(const Tile<T>& tile, int rows) {
  WithConstant<kTileRows>(
      rows, [&](auto constant) { RunTile<constant.value, kVectors, kFactored>(tile); });
}

// z of one row for kPanels panels of units, from a kernel as it lies: its gates, and `from`'s, are
// `hidden` apart, its rows 4 hidden. z is [kPanels][4] vectors. All of it stays in registers.
// kFactors is 1, or 4 where each gate has factors of its own, a_stride apart. Calls that take
// turns with `descending`, the last row first, find in the first-level cache what the one before
// read last.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_SCALAR
constexpr int kRowPanels = 2;
#else
constexpr int kRowPanels = 4;
#endif
template <int kPanels, int kFactors, class T>
HWY_NOINLINE void RunRow(const T* HWY_RESTRICT a, int64_t a_stride, int64_t depth,
                         const T* HWY_RESTRICT kernel, const T* from, int64_t hidden,
                         bool descending, T* z) {
  const Tag<T> d;
  constexpr int64_t kWidth = Width<T>();
  hn::Vec<Tag<T>> acc[4][kPanels];
  TFL_UNROLL
  for (int gate = 0; gate < 4; ++gate) {
    TFL_UNROLL
    for (int v = 0; v < kPanels; ++v) {
      acc[gate][v] = hn::LoadU(d, from + gate * hidden + v * kWidth);
    }
  }
  const int64_t first = descending ? depth - 1 : 0, step = descending ? -1 : 1;
  for (int64_t i = 0; i < depth; ++i) {
    const int64_t p = first + step * i;
    const T* row = kernel + p * 4 * hidden;
    TFL_UNROLL
    for (int gate = 0; gate < 4; ++gate) {
      const auto x = hn::Set(d, a[kFactors == 1 ? p : gate * a_stride + p]);
      TFL_UNROLL
      for (int v = 0; v < kPanels; ++v) {
        acc[gate][v] = hn::MulAdd(x, hn::LoadU(d, row + gate * hidden + v * kWidth), acc[gate][v]);
      }
    }
  }
  TFL_UNROLL
  for (int gate = 0; gate < 4; ++gate) {
    TFL_UNROLL
    for (int v = 0; v < kPanels; ++v) hn::Store(acc[gate][v], d, z + (4 * v + gate) * kWidth);
  }
}

// to[r] = the dot product of a and row r, `depth` being a number of whole vectors and `rows` of
// kDottedRows. Or, with `factors`, the sum over the four gates of their shares of it, gate g's
// times factors[g * stride + r].
constexpr int kDottedRows = 4;
template <class T>
HWY_NOINLINE void DotRows(const T* HWY_RESTRICT a, const T* HWY_RESTRICT b, int64_t depth,
                          int64_t rows, const T* factors, int64_t stride, T* HWY_RESTRICT to) {
  const Tag<T> d;
  const int64_t part = factors == nullptr ? depth : depth / 4;
  for (int64_t r = 0; r < rows; r += kDottedRows, b += kDottedRows * depth) {
    hn::Vec<Tag<T>> sum[kDottedRows];
    TFL_UNROLL
    for (int q = 0; q < kDottedRows; ++q) sum[q] = hn::Zero(d);
    for (int64_t begin = 0, gate = 0; begin < depth; begin += part, ++gate) {
      hn::Vec<Tag<T>> share[kDottedRows];
      TFL_UNROLL
      for (int q = 0; q < kDottedRows; ++q) share[q] = hn::Zero(d);
      for (int64_t p = begin; p < begin + part; p += Width<T>()) {
        const auto x = hn::LoadU(d, a + p);
        TFL_UNROLL
        for (int q = 0; q < kDottedRows; ++q) {
          share[q] = hn::MulAdd(x, hn::LoadU(d, b + q * depth + p), share[q]);
        }
      }
      TFL_UNROLL
      for (int q = 0; q < kDottedRows; ++q) {
        sum[q] = factors == nullptr
                     ? share[q]
                     : hn::MulAdd(share[q], hn::Set(d, factors[gate * stride + r + q]), sum[q]);
      }
    }
    TFL_UNROLL
    for (int q = 0; q < kDottedRows; ++q) to[r + q] = hn::GetLane(hn::SumOfLanes(d, sum[q]));
  }
}

// Cuts rows into tiles of nearly equal height.
struct TileRows {
  explicit TileRows(int64_t rows, int64_t first = 0)
      : first(first),
        tiles((rows + kTileRows - 1) / kTileRows),
        height(tiles > 0 ? rows / tiles : 0),
        taller(tiles > 0 ? rows % tiles : 0) {}
  int64_t Begin(int64_t tile) const { return first + tile * height + std::min(tile, taller); }
  int64_t first;  // row
  int64_t tiles;
  int64_t height;
  int64_t taller;  // tiles with one row more, the first ones
};

}  // namespace HWY_NAMESPACE
}  // namespace tfl::cpu
HWY_AFTER_NAMESPACE();

#endif  // TF_FUSED_LSTM_CC_LSTM_CPU_TILE_INL_H_
