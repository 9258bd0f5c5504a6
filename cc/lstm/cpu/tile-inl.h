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

// acc[r][v] += sum over p below depth of a[r][p * a_stride] * panel[p][v], a panel being packed:
// PanelWidth columns for each p. A panel row stays in registers for all rows of the tile.
// With kPrefetch, also fetches depth cache lines from `next`, one with every row of the panel.
template <int kRows, int kVectors, bool kPrefetch, class D, class T = hn::TFromD<D>>
HWY_INLINE void MultiplyTile(D d, const T* const* HWY_RESTRICT a, int64_t a_stride,
                             const T* HWY_RESTRICT panel, int64_t depth, const T* next,
                             hn::Vec<D> (&acc)[kRows][kVectors]) {
  constexpr int64_t kWidth = Width<T>();
  const T* HWY_RESTRICT row[kRows];
  TFL_UNROLL
  for (int r = 0; r < kRows; ++r) row[r] = a[r];
  const int64_t end = depth * a_stride;
  for (int64_t p = 0; p != end; p += a_stride) {
    hn::Vec<D> b[kVectors];
    TFL_UNROLL
    for (int v = 0; v < kVectors; ++v) b[v] = hn::LoadU(d, panel + v * kWidth);
    TFL_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const auto x = hn::Set(d, row[r][p]);
      TFL_UNROLL
      for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::MulAdd(x, b[v], acc[r][v]);
    }
    panel += 4 * kWidth;
    if constexpr (kPrefetch) {
      hwy::Prefetch(next);
      next += 64 / sizeof(T);
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
// and to_stride apart; null: zeros. Not inlined: the only code that every use of a product shares.
template <class T>
struct Tile {
  const T* a[kTileRows] = {};
  int64_t a_stride = 1;
  const T* panel = nullptr;
  int64_t depth = 0;
  const T* next = nullptr;  // depth cache lines that a later tile reads; null: none
  const T* from[kTileRows] = {};
  int64_t from_stride = Width<T>();
  T* to[kTileRows] = {};
  int64_t to_stride = Width<T>();
};

template <int kRows, int kVectors, class T>
HWY_NOINLINE void RunTile(const Tile<T>& tile) {
  const Tag<T> d;
  hn::Vec<Tag<T>> acc[kRows][kVectors];
  if (tile.from[0] != nullptr) {
    TFL_UNROLL
    for (int r = 0; r < kRows; ++r) {
      TFL_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        acc[r][v] = hn::LoadU(d, tile.from[r] + v * tile.from_stride);
      }
    }
  } else {
    TFL_UNROLL
    for (int r = 0; r < kRows; ++r) {
      TFL_UNROLL
      for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::Zero(d);
    }
  }
  // A single row only waits for its panel: fetching another one at the same time gains nothing.
  if (kRows > 1 && tile.next != nullptr) {
    MultiplyTile<kRows, kVectors, kRows != 1>(d, tile.a, tile.a_stride, tile.panel, tile.depth,
                                              tile.next, acc);
  } else {
    MultiplyTile<kRows, kVectors, false>(d, tile.a, tile.a_stride, tile.panel, tile.depth,
                                         tile.next, acc);
  }
  TFL_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TFL_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      hn::StoreU(acc[r][v], d, tile.to[r] + v * tile.to_stride);
    }
  }
}

template <int kVectors, class T>
HWY_INLINE void RunTileRows(const Tile<T>& tile, int rows) {
  WithConstant<kTileRows>(rows, [&](auto constant) { RunTile<constant.value, kVectors>(tile); });
}

// As RunTile with four vectors, but vector v has a factor of its own: a[r][4 * p + v].
template <int kRows, class T>
HWY_NOINLINE void RunGatedTile(const Tile<T>& tile) {
  const Tag<T> d;
  constexpr int64_t kWidth = Width<T>();
  hn::Vec<Tag<T>> acc[kRows][4];
  const T* HWY_RESTRICT row[kRows];
  TFL_UNROLL
  for (int r = 0; r < kRows; ++r) {
    row[r] = tile.a[r];
    TFL_UNROLL
    for (int v = 0; v < 4; ++v) acc[r][v] = hn::LoadU(d, tile.from[r] + v * tile.from_stride);
  }
  const T* HWY_RESTRICT panel = tile.panel;
  for (int64_t p = 0; p != 4 * tile.depth; p += 4, panel += 4 * kWidth) {
    hn::Vec<Tag<T>> b[4];
    TFL_UNROLL
    for (int v = 0; v < 4; ++v) b[v] = hn::LoadU(d, panel + v * kWidth);
    TFL_UNROLL
    for (int r = 0; r < kRows; ++r) {
      TFL_UNROLL
      for (int v = 0; v < 4; ++v) {
        acc[r][v] = hn::MulAdd(hn::Set(d, row[r][p + v]), b[v], acc[r][v]);
      }
    }
  }
  TFL_UNROLL
  for (int r = 0; r < kRows; ++r) {
    TFL_UNROLL
    for (int v = 0; v < 4; ++v) hn::StoreU(acc[r][v], d, tile.to[r] + v * tile.to_stride);
  }
}

template <class T>
HWY_INLINE void RunGatedTileRows(const Tile<T>& tile, int rows) {
  WithConstant<kTileRows>(rows, [&](auto constant) { RunGatedTile<constant.value>(tile); });
}

// Cuts rows into tiles of nearly equal height.
struct TileRows {
  explicit TileRows(int64_t rows)
      : tiles((rows + kTileRows - 1) / kTileRows),
        height(tiles > 0 ? rows / tiles : 0),
        taller(tiles > 0 ? rows % tiles : 0) {}
  int64_t Begin(int64_t tile) const { return tile * height + std::min(tile, taller); }
  int64_t tiles;
  int64_t height;
  int64_t taller;  // tiles with one row more, the first ones
};

}  // namespace HWY_NAMESPACE
}  // namespace tfl::cpu
HWY_AFTER_NAMESPACE();

#endif  // TF_FUSED_LSTM_CC_LSTM_CPU_TILE_INL_H_
