// Blocked matrix products over all steps at once, and the packing of their factors.
#if defined(TF_FUSED_LSTM_CC_LSTM_CPU_GEMM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TF_FUSED_LSTM_CC_LSTM_CPU_GEMM_INL_H_
#undef TF_FUSED_LSTM_CC_LSTM_CPU_GEMM_INL_H_
#else
#define TF_FUSED_LSTM_CC_LSTM_CPU_GEMM_INL_H_
#endif

#include "cc/lstm/cpu/plan.h"
#include "cc/lstm/cpu/rows.h"
#include "cc/lstm/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tfl::cpu {
namespace HWY_NAMESPACE {

// The right factor of a product, before packing.
template <class T>
struct Columns {
  enum Kind {
    kPlain,            // (p, j) is data[p * stride + j]
    kGates,            // data is [depth, 4 hidden], j counts padded gates [4, hidden_padded]
    kGatesTransposed,  // data is [count, 4 hidden], p counts padded gates
  };
  Kind kind;
  const T* data;
  int64_t stride;  // between rows of data
  int64_t count;   // columns; those beyond, to the end of the last panel, are zero
  int64_t hidden;
  int64_t hidden_padded;
};

// panel[p][j - column] for p in [begin, end) from rows of data; columns of 4 x 4 blocks in turn.
template <class T>
HWY_INLINE void PackTransposedRun(const T* const* rows, int64_t begin, int64_t length, T* panel) {
  constexpr int64_t kPanel = PanelWidth<T>();
  int64_t p = 0;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == 4) {
    const hn::FixedTag<T, 4> d;
    const hn::RebindToUnsigned<hn::RepartitionToWide<decltype(d)>> dw;
    for (; p + 4 <= length; p += 4) {
      for (int64_t j = 0; j < kPanel; j += 4) {
        const auto a = hn::LoadU(d, rows[j] + begin + p);
        const auto b = hn::LoadU(d, rows[j + 1] + begin + p);
        const auto e = hn::LoadU(d, rows[j + 2] + begin + p);
        const auto f = hn::LoadU(d, rows[j + 3] + begin + p);
        const auto ab0 = hn::BitCast(dw, hn::InterleaveLower(d, a, b));
        const auto ab1 = hn::BitCast(dw, hn::InterleaveUpper(d, a, b));
        const auto ef0 = hn::BitCast(dw, hn::InterleaveLower(d, e, f));
        const auto ef1 = hn::BitCast(dw, hn::InterleaveUpper(d, e, f));
        T* to = panel + p * kPanel + j;
        hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dw, ab0, ef0)), d, to);
        hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dw, ab0, ef0)), d, to + kPanel);
        hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dw, ab1, ef1)), d, to + 2 * kPanel);
        hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dw, ab1, ef1)), d, to + 3 * kPanel);
      }
    }
  }
#endif
  for (; p < length; ++p) {
    for (int64_t j = 0; j < kPanel; ++j) panel[p * kPanel + j] = rows[j][begin + p];
  }
}

// Packs columns [column, column + PanelWidth) of depth [begin, begin + depth).
template <class T>
HWY_NOINLINE void PackPanel(const Columns<T>& from, int64_t begin, int64_t depth, int64_t column,
                            T* panel) {
  const Tag<T> d;
  constexpr int64_t kWidth = Width<T>();
  constexpr int64_t kPanel = PanelWidth<T>();
  if (from.kind != Columns<T>::kGatesTransposed) {
    for (int v = 0; v < 4; ++v) {
      int64_t source = column + v * kWidth;
      int64_t valid = from.count - source;
      if (from.kind == Columns<T>::kGates) {
        const int64_t gate = source / from.hidden_padded;
        const int64_t unit = source % from.hidden_padded;
        source = gate * from.hidden + unit;
        valid = gate < 4 ? from.hidden - unit : 0;
      }
      T* to = panel + v * kWidth;
      if (valid <= 0) {
        for (int64_t p = 0; p < depth; ++p) hn::StoreU(hn::Zero(d), d, to + p * kPanel);
      } else if (valid >= kWidth) {
        const T* data = from.data + begin * from.stride + source;
        for (int64_t p = 0; p < depth; ++p) {
          hn::StoreU(hn::LoadU(d, data + p * from.stride), d, to + p * kPanel);
        }
      } else {
        const T* data = from.data + begin * from.stride + source;
        for (int64_t p = 0; p < depth; ++p) {
          hn::StoreU(LoadPart(d, ComputeType<T>(), data + p * from.stride, valid), d,
                     to + p * kPanel);
        }
      }
    }
    return;
  }
  const int64_t valid = std::min(kPanel, from.count - column);
  const T* rows[kPanel];
  for (int64_t p = begin; p < begin + depth;) {
    const int64_t gate = p / from.hidden_padded;
    const int64_t unit = p % from.hidden_padded;
    const bool padding = unit >= from.hidden;
    const int64_t run =
        std::min(begin + depth - p, (padding ? from.hidden_padded : from.hidden) - unit);
    T* to = panel + (p - begin) * kPanel;
    if (padding || valid <= 0) {
      std::memset(to, 0, static_cast<size_t>(run * kPanel) * sizeof(T));
    } else {
      // Beyond the last column any row will do, then zeros.
      for (int64_t j = 0; j < kPanel; ++j) {
        rows[j] = from.data + (column + std::min(j, valid - 1)) * from.stride + gate * from.hidden;
      }
      PackTransposedRun(rows, unit, run, to);
      if (valid < kPanel) {
        for (int64_t q = 0; q < run; ++q) {
          std::memset(to + q * kPanel + valid, 0, static_cast<size_t>(kPanel - valid) * sizeof(T));
        }
      }
    }
    p += run;
  }
}

// c = a b + bias: row r, column j.
template <class T>
struct Product {
  int64_t rows;
  int64_t depth;
  Rows<const T> a;    // a(r)[p]
  bool a_transposed;  // a(p)[r] instead
  Columns<T> b;
  Rows<T> c;
  const T* bias;  // [b.count], or null for zeros
};

// Adds a tile to c, in columns from `column` on; the first block of the depth adds to the bias.
template <class T>
HWY_INLINE void ProductTile(const Product<T>& product, bool first, Tile<T>& tile, int64_t row,
                            int rows, int64_t column) {
  const int64_t valid = product.b.count - column;
  constexpr int64_t kPanel = PanelWidth<T>();
  T* c[kTileRows];
  for (int r = 0; r < rows; ++r) c[r] = product.c(row + r) + column;
  const T* bias = product.bias == nullptr ? nullptr : product.bias + column;
  if (HWY_LIKELY(valid >= kPanel)) {
    for (int r = 0; r < rows; ++r) {
      tile.from[r] = first ? bias : c[r];
      tile.to[r] = c[r];
    }
    RunTileRows<4>(tile, rows);
    return;
  }
  T part[kTileRows][kPanel];
  for (int r = 0; r < rows; ++r) {
    const T* from = first ? bias : c[r];
    std::fill(part[r], part[r] + kPanel, T{0});
    if (from != nullptr) std::copy(from, from + valid, part[r]);
    tile.from[r] = tile.to[r] = part[r];
  }
  RunTileRows<4>(tile, rows);
  for (int r = 0; r < rows; ++r) std::copy(part[r], part[r] + valid, c[r]);
}

// Packs columns [row, row + rows) of the transposed factor, tile by tile: [tile][p][kTileRows].
template <class T>
HWY_NOINLINE void PackRows(const Product<T>& product, int64_t begin, int64_t depth, int64_t row,
                           const TileRows& tiles, T* packed) {
  for (int64_t p = 0; p < depth; ++p) {
    const T* from = product.a(begin + p) + row;
    for (int64_t t = 0; t < tiles.tiles; ++t) {
      const int64_t first = tiles.Begin(t);
      const int64_t height = tiles.Begin(t + 1) - first;
      T* to = packed + (t * depth + p) * kTileRows;
      for (int64_t r = 0; r < height; ++r) to[r] = from[first + r];
    }
  }
}

// The part of c in rows [row_begin, row_end) and panels [panel_begin, panel_end).
template <class T>
HWY_NOINLINE void MultiplyBlock(const Product<T>& product, int64_t row_begin, int64_t row_end,
                                int64_t panel_begin, int64_t panel_end, T* scratch) {
  constexpr int64_t kPanel = PanelWidth<T>();
  static_assert(kPanel <= kMaxPanel, "the scratch holds kBlockPanels panels");
  static_assert(kBlockRows % kTileRows == 0, "the scratch holds kBlockRows packed rows");
  T* packed_b = scratch;
  T* packed_a = scratch + kBlockDepth * kBlockPanels * kMaxPanel;
  for (int64_t panel = panel_begin; panel < panel_end; panel += kBlockPanels) {
    const int64_t panels = std::min(kBlockPanels, panel_end - panel);
    for (int64_t begin = 0; begin == 0 || begin < product.depth; begin += kBlockDepth) {
      const int64_t depth = std::min(kBlockDepth, product.depth - begin);
      for (int64_t i = 0; i < panels; ++i) {
        PackPanel(product.b, begin, depth, (panel + i) * kPanel, packed_b + i * depth * kPanel);
      }
      for (int64_t row = row_begin; row < row_end; row += kBlockRows) {
        const TileRows tiles(std::min(kBlockRows, row_end - row));
        if (product.a_transposed) PackRows(product, begin, depth, row, tiles, packed_a);
        for (int64_t t = 0; t < tiles.tiles; ++t) {
          const int64_t first = row + tiles.Begin(t);
          const int height = static_cast<int>(row + tiles.Begin(t + 1) - first);
          Tile<T> tile;
          tile.a_stride = product.a_transposed ? kTileRows : 1;
          tile.depth = depth;
          for (int r = 0; r < height && depth > 0; ++r) {
            tile.a[r] = product.a_transposed ? packed_a + t * depth * kTileRows + r
                                             : product.a(first + r) + begin;
          }
          for (int64_t i = 0; i < panels; ++i) {
            tile.panel = packed_b + i * depth * kPanel;
            ProductTile(product, begin == 0, tile, first, height, (panel + i) * kPanel);
          }
        }
      }
    }
  }
}

// Task `index` of `count` that together compute the product.
template <class T>
void MultiplyTask(const Product<T>& product, int index, int count, T* scratch) {
  const int64_t panels = (product.b.count + PanelWidth<T>() - 1) / PanelWidth<T>();
  const TileRows tiles(product.rows);
  if (panels == 0 || product.rows == 0) return;
  // The division into column_tasks x row_tasks whose largest task is smallest.
  int64_t column_tasks = 1, smallest = INT64_MAX;
  for (int64_t c = count; c >= 1; --c) {
    if (count % c != 0) continue;
    const int64_t r = count / c;
    const int64_t largest = ((panels + c - 1) / c) * ((tiles.tiles + r - 1) / r);
    if (largest < smallest) smallest = largest, column_tasks = c;
  }
  const int64_t row_tasks = count / column_tasks;
  const int64_t i = index % column_tasks, j = index / column_tasks;
  MultiplyBlock(product, tiles.Begin(tiles.tiles * j / row_tasks),
                tiles.Begin(tiles.tiles * (j + 1) / row_tasks), panels * i / column_tasks,
                panels * (i + 1) / column_tasks, scratch);
}

}  // namespace HWY_NAMESPACE
}  // namespace tfl::cpu
HWY_AFTER_NAMESPACE();

#endif  // TF_FUSED_LSTM_CC_LSTM_CPU_GEMM_INL_H_
