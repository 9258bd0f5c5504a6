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
    kGates,            // data is [depth, 4 hidden], j counts padded gates, count / hidden_padded
    kGatesTransposed,  // data is [count, 4 hidden], p counts padded gates
  };
  Kind kind;
  const T* data;
  int64_t stride;  // between rows of data
  int64_t count;   // columns; those beyond, to the end of the last panel, are zero
  int64_t hidden;
  int64_t hidden_padded;
};

// The transpose of weights [rows, 4 hidden].
template <class T>
Columns<T> TransposedGates(const T* weights, int64_t rows, const tfl_lstm_spec& spec,
                           const Plan& plan) {
  return {Columns<T>::kGatesTransposed,
          weights,
          4 * spec.hidden_size,
          rows,
          spec.hidden_size,
          plan.hidden_padded};
}

// strip[p][j] for p in [begin, end) from rows of data; columns of 4 x 4 blocks in turn.
template <class T>
HWY_INLINE void PackTransposedRun(const T* const* rows, int64_t begin, int64_t length, T* strip) {
  constexpr int64_t kStrip = StripWidth<T>();
  int64_t p = 0;
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(T) == 4) {
    const hn::FixedTag<T, 4> d;
    const hn::RebindToUnsigned<hn::RepartitionToWide<decltype(d)>> dw;
    // A cache line of each row at a time: rows a power of two apart share few sets of the cache.
    for (int64_t run; (run = std::min<int64_t>(16, (length - p) / 4 * 4)) > 0; p += run) {
      for (int64_t j = 0; j < kStrip; j += 4) {
        for (int64_t q = p; q < p + run; q += 4) {
          const auto a = hn::LoadU(d, rows[j] + begin + q);
          const auto b = hn::LoadU(d, rows[j + 1] + begin + q);
          const auto e = hn::LoadU(d, rows[j + 2] + begin + q);
          const auto f = hn::LoadU(d, rows[j + 3] + begin + q);
          const auto ab0 = hn::BitCast(dw, hn::InterleaveLower(d, a, b));
          const auto ab1 = hn::BitCast(dw, hn::InterleaveUpper(d, a, b));
          const auto ef0 = hn::BitCast(dw, hn::InterleaveLower(d, e, f));
          const auto ef1 = hn::BitCast(dw, hn::InterleaveUpper(d, e, f));
          T* to = strip + q * kStrip + j;
          hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dw, ab0, ef0)), d, to);
          hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dw, ab0, ef0)), d, to + kStrip);
          hn::StoreU(hn::BitCast(d, hn::InterleaveLower(dw, ab1, ef1)), d, to + 2 * kStrip);
          hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(dw, ab1, ef1)), d, to + 3 * kStrip);
        }
      }
    }
  }
#endif
  for (; p < length; ++p) {
    for (int64_t j = 0; j < kStrip; ++j) strip[p * kStrip + j] = rows[j][begin + p];
  }
}

// Packs `panels` panels from column `column` on, depth [begin, begin + depth), one after the other.
// Reads each row of the source once, as its rows may be pages apart.
template <class T>
HWY_NOINLINE void PackColumns(const Columns<T>& from, int64_t begin, int64_t depth, int64_t column,
                              int64_t panels, T* packed) {
  const Tag<T> d;
  constexpr int64_t kWidth = Width<T>();
  constexpr int64_t kMostVectors = 4 * kBlockPanels;
  constexpr int64_t kAhead = 8;  // rows
  int64_t source[kMostVectors], valid[kMostVectors];
  const int64_t vectors = 4 * panels;
  for (int64_t v = 0; v < vectors; ++v) {
    source[v] = column + v * kWidth;
    valid[v] = from.count - source[v];
    if (from.kind == Columns<T>::kGates) {
      const int64_t gate = source[v] / from.hidden_padded;
      const int64_t unit = source[v] % from.hidden_padded;
      source[v] = gate * from.hidden + unit;
      valid[v] = column + v * kWidth < from.count ? from.hidden - unit : 0;
    }
  }
  for (int64_t p = 0; p < depth; ++p) {
    const T* row = from.data + (begin + p) * from.stride;
    const T* later = row + std::min(kAhead, depth - 1 - p) * from.stride;
    for (int64_t v = 0; v < vectors; ++v) {
      if (valid[v] > 0) hwy::Prefetch(later + source[v]);
      T* to = packed + PanelOffset<T>(depth, p, v);
      if (HWY_LIKELY(valid[v] >= kWidth)) {
        hn::StoreU(hn::LoadU(d, row + source[v]), d, to);
      } else if (valid[v] > 0) {
        hn::StoreU(LoadPart(d, ComputeType<T>(), row + source[v], valid[v]), d, to);
      } else {
        hn::StoreU(hn::Zero(d), d, to);
      }
    }
  }
}

// Packs one strip of a transposed source.
template <class T>
HWY_NOINLINE void PackTransposedStrip(const Columns<T>& from, int64_t begin, int64_t depth,
                                      int64_t column, T* strip) {
  constexpr int64_t kStrip = StripWidth<T>();
  const int64_t valid = std::min(kStrip, from.count - column);
  const T* rows[kStrip];
  for (int64_t p = begin; p < begin + depth;) {
    const int64_t gate = p / from.hidden_padded;
    const int64_t unit = p % from.hidden_padded;
    const bool padding = unit >= from.hidden;
    const int64_t run =
        std::min(begin + depth - p, (padding ? from.hidden_padded : from.hidden) - unit);
    T* to = strip + (p - begin) * kStrip;
    if (padding || valid <= 0) {
      std::memset(to, 0, static_cast<size_t>(run * kStrip) * sizeof(T));
    } else {
      // Beyond the last column any row will do, then zeros.
      for (int64_t j = 0; j < kStrip; ++j) {
        rows[j] = from.data + (column + std::min(j, valid - 1)) * from.stride + gate * from.hidden;
      }
      PackTransposedRun(rows, unit, run, to);
      if (valid < kStrip) {
        for (int64_t q = 0; q < run; ++q) {
          std::memset(to + q * kStrip + valid, 0, static_cast<size_t>(kStrip - valid) * sizeof(T));
        }
      }
    }
    p += run;
  }
}

// Likewise a panel.
template <class T>
void PackTransposed(const Columns<T>& from, int64_t begin, int64_t depth, int64_t column,
                    T* panel) {
  for (int v = 0; v < 4; v += kStripVectors) {
    PackTransposedStrip(from, begin, depth, column + v * Width<T>(),
                        panel + PanelOffset<T>(depth, 0, v));
  }
}

// Between the elements of a column of packed rows: a tile's, rounded up to what copies at once.
constexpr int64_t kPackedRows = 8;
static_assert(kTileRows <= kPackedRows);

// Factors of rows over time, the same at all steps: row r's are those of batch row r % batch.
template <class T>
struct Factors {
  const T* data = nullptr;  // null: none
  int64_t width = 0;        // between the batch's rows
};

// c = a b + bias: row r, column j. Two products of the same b may be one, their rows in turn.
template <class T>
struct Product {
  struct Part {
    int64_t rows;
    Rows<const T> a;  // a(r)[p]
    Rows<T> c;
    Factors<T> a_factors = {};  // of a(p)[r], where a is transposed
  };
  int64_t depth;
  bool a_transposed;  // a(p)[r] instead
  Columns<T> b;
  const T* bias;            // [b.count], or null for zeros
  bool accumulate = false;  // add to what c holds instead
  // Of what each `segment` of the depth adds to c, one set [batch, width] after the other.
  Factors<T> segment_factors = {};
  int64_t segment = 0;
  // Where all of b is packed for further products with it, of any number of rows.
  T* packed = nullptr;
  bool is_packed = false;
  int parts;
  Part part[2];
};

// Rows [begin, end) of a part of a product, cut into tiles.
template <class T>
struct Band {
  Band(const typename Product<T>::Part& part, int64_t begin, int64_t end)
      : part(&part), begin(begin), tiles(end - begin) {}
  int64_t Begin(int64_t tile) const { return begin + tiles.Begin(tile); }
  const typename Product<T>::Part* part;
  int64_t begin;
  TileRows tiles;
};

// Adds a tile to c, in columns from `column` on; the first block of the depth adds to the bias.
template <class T>
HWY_INLINE void ProductTile(const Product<T>& product, const Rows<T>& to, bool first, Tile<T>& tile,
                            int64_t row, int rows, int64_t column) {
  constexpr int64_t kPanel = PanelWidth<T>();
  const int64_t valid = std::min(product.b.count - column, kPanel);
  const int64_t vectors = (valid + Width<T>() - 1) / Width<T>();
  T* c[kTileRows];
  for (int r = 0; r < rows; ++r) c[r] = to(row + r) + column;
  const T* bias = product.bias == nullptr ? nullptr : product.bias + column;
  const auto run = [&] {
    WithConstant<4>(static_cast<int>(vectors),
                    [&](auto constant) { RunTileRows<constant.value>(tile, rows); });
  };
  if (HWY_LIKELY(valid == vectors * Width<T>())) {
    for (int r = 0; r < rows; ++r) {
      tile.from[r] = first ? bias : c[r];
      tile.to[r] = c[r];
    }
    run();
    return;
  }
  T part[kTileRows][kPanel];
  for (int r = 0; r < rows; ++r) {
    const T* from = first ? bias : c[r];
    std::fill(part[r], part[r] + kPanel, T{0});
    if (from != nullptr) std::copy(from, from + valid, part[r]);
    tile.from[r] = tile.to[r] = part[r];
  }
  run();
  for (int r = 0; r < rows; ++r) std::copy(part[r], part[r] + valid, c[r]);
}

// Likewise, segment by segment of the depth from `begin` on, each times its factors; no bias.
template <class T>
HWY_INLINE void FactoredTile(const Product<T>& product, const Rows<T>& to, int64_t begin,
                             Tile<T>& tile, int64_t row, int rows, int64_t column) {
  constexpr int64_t kPanel = PanelWidth<T>();
  const int64_t valid = std::min(product.b.count - column, kPanel), batch = to.strides.batch;
  const int64_t vectors = (valid + Width<T>() - 1) / Width<T>();
  const bool whole = valid == vectors * Width<T>();
  const Factors<T>& factors = product.segment_factors;
  const int64_t end = begin + tile.depth;
  const T* factor[kTileRows];  // of segment 0
  T* c[kTileRows];
  T part[2][kTileRows][kPanel];  // of c and of the factors, where there is no whole vector
  for (int r = 0; r < rows; ++r) {
    c[r] = to(row + r) + column;
    tile.to[r] = whole ? c[r] : part[0][r];
    factor[r] = factors.data + (row + r) % batch * factors.width + column;
    if (whole) continue;
    for (auto& values : part) std::fill(values[r], values[r] + kPanel, T{0});
    if (begin > 0 || product.accumulate) std::copy(c[r], c[r] + valid, part[0][r]);
  }
  for (int64_t p = begin, next; p < end; p = next) {
    const int64_t segment = p / product.segment;
    next = std::min(end, (segment + 1) * product.segment);
    tile.depth = next - p;
    for (int r = 0; r < rows; ++r) {
      tile.from[r] = p == 0 && !product.accumulate ? nullptr : tile.to[r];
      tile.factor[r] = factor[r] + segment * batch * factors.width;
      if (whole) continue;
      std::copy(tile.factor[r], tile.factor[r] + valid, part[1][r]);
      tile.factor[r] = part[1][r];
    }
    WithConstant<4>(static_cast<int>(vectors),
                    [&](auto constant) { RunTileRows<constant.value, true>(tile, rows); });
    for (int r = 0; r < rows; ++r) tile.a[r] += tile.depth * tile.a_stride;
    tile.panel += tile.depth * StripWidth<T>();
    tile.next[0] = nullptr;
  }
  for (int r = 0; r < rows && !whole; ++r) std::copy(part[0][r], part[0][r] + valid, c[r]);
}

// to = from * factors, kMost elements at the most.
template <int64_t kMost, class T>
HWY_INLINE void MultiplyRun(const T* HWY_RESTRICT from, const T* HWY_RESTRICT factors,
                            int64_t count, T* HWY_RESTRICT to) {
  if (HWY_LIKELY(count == kMost)) {
    const hn::CappedTag<T, kMost> d;
    for (int64_t i = 0; i < kMost; i += static_cast<int64_t>(hn::Lanes(d))) {
      hn::StoreU(hn::Mul(hn::LoadU(d, from + i), hn::LoadU(d, factors + i)), d, to + i);
    }
    return;
  }
  for (int64_t i = 0; i < count; ++i) to[i] = from[i] * factors[i];
}

// Packs a band of the transposed factor, depth [begin, begin + depth): [tile][p][kPackedRows].
template <class T>
HWY_NOINLINE void PackRows(const Band<T>& band, int64_t begin, int64_t depth, T* packed) {
  // A few rows of the source at a time, for the tiles' places may lie a power of two apart.
  constexpr int64_t kRun = 8;
  for (int64_t p = 0; p < depth; p += kRun) {
    const int64_t run = std::min(kRun, depth - p);
    const T* from[kRun];
    for (int64_t q = 0; q < run; ++q) from[q] = band.part->a(begin + p + q);
    T* to = packed + p * kPackedRows;
    const T* factors[kRun];
    const Factors<T>& given = band.part->a_factors;
    for (int64_t q = 0; q < run && given.data != nullptr; ++q) {
      factors[q] = given.data + (begin + p + q) % band.part->a.strides.batch * given.width;
    }
    for (int64_t t = 0; t < band.tiles.tiles; ++t, to += depth * kPackedRows) {
      const int64_t first = band.Begin(t);
      const bool full = first + kPackedRows <= band.part->rows;
      const int64_t rows = full ? kPackedRows : band.Begin(t + 1) - first;
      if (given.data != nullptr) {
        for (int64_t q = 0; q < run; ++q) {
          MultiplyRun<kPackedRows>(from[q] + first, factors[q] + first, rows, to + q * kPackedRows);
        }
      } else if (HWY_LIKELY(full)) {
        for (int64_t q = 0; q < run; ++q) {
          std::memcpy(to + q * kPackedRows, from[q] + first, kPackedRows * sizeof(T));
        }
      } else {
        for (int64_t q = 0; q < run; ++q) {
          std::copy(from[q] + first, from[q] + first + rows, to + q * kPackedRows);
        }
      }
    }
  }
}

// Fetches what a tile of c holds before it is added to.
template <class T>
HWY_INLINE void PrefetchTile(const Rows<T>& c, int64_t row, int rows, int64_t column) {
  for (int r = 0; r < rows; ++r) {
    const T* from = c(row + r) + column;
    for (int64_t v = 0; v < 4; ++v) hwy::Prefetch(from + v * Width<T>());
  }
}

// The part of c in the rows of a band, and `panels` panels from `panel` on, for a block of the
// depth.
template <class T>
HWY_NOINLINE void MultiplyBand(const Product<T>& product, const Band<T>& band, int64_t begin,
                               int64_t depth, const T* packed_a, int64_t panel, int64_t panels,
                               const T* packed_b) {
  constexpr int64_t kPanel = PanelWidth<T>();
  for (int64_t t = 0; t < band.tiles.tiles; ++t) {
    const int64_t row = band.Begin(t);
    const int rows = static_cast<int>(band.Begin(t + 1) - row);
    Tile<T> tile;
    tile.a_stride = product.a_transposed ? kPackedRows : 1;
    tile.depth = depth;
    tile.strip = depth * StripWidth<T>();
    for (int r = 0; r < rows && depth > 0; ++r) {
      tile.a[r] = product.a_transposed ? packed_a + t * depth * kPackedRows + r
                                       : band.part->a(row + r) + begin;
    }
    for (int64_t i = 0; i < panels; ++i) {
      if (i + 1 < panels) {
        PrefetchTile(band.part->c, row, rows, (panel + i + 1) * kPanel);
      } else if (t + 1 < band.tiles.tiles) {
        const int64_t next = row + rows;
        PrefetchTile(band.part->c, next, static_cast<int>(band.Begin(t + 2) - next),
                     panel * kPanel);
      }
      tile.panel = packed_b + i * depth * kPanel;
      // Rows of a for the tile after this one, two with each panel.
      tile.next[0] = nullptr;
      if (!product.a_transposed && t + 1 < band.tiles.tiles && depth > 0) {
        const int64_t next = row + rows + 2 * i, last = band.Begin(t + 2) - 1;
        if (next <= last) {
          tile.next_step = 1;
          tile.next[0] = band.part->a(next) + begin;
          tile.next[1] = band.part->a(std::min(next + 1, last)) + begin;
        }
      }
      if (product.segment_factors.data != nullptr) {
        Tile<T> factored = tile;
        FactoredTile(product, band.part->c, begin, factored, row, rows, (panel + i) * kPanel);
      } else {
        ProductTile(product, band.part->c, begin == 0 && !product.accumulate, tile, row, rows,
                    (panel + i) * kPanel);
      }
    }
  }
}

// The part of c in `count` bands of at most kBlockTiles tiles and panels [panel_begin, panel_end).
template <class T>
HWY_NOINLINE void MultiplyBands(const Product<T>& product, const Band<T>* bands, int count,
                                int64_t panel_begin, int64_t panel_end, bool keep, T* scratch) {
  constexpr int64_t kPanel = PanelWidth<T>();
  static_assert(kPanel <= kMaxPanel, "the scratch holds kBlockPanels panels");
  static_assert(kPackedRows <= kMaxPackedRows, "the scratch holds kBlockTiles packed tiles");
  T* packed_a = scratch + std::min(kBlockDepth, product.depth) * kBlockPanels * kMaxPanel;
  for (int64_t begin = 0; begin == 0 || begin < product.depth; begin += kBlockDepth) {
    const int64_t depth = std::min(kBlockDepth, product.depth - begin);
    const T* band_a[2] = {packed_a, packed_a + bands[0].tiles.tiles * depth * kPackedRows};
    if (product.a_transposed) {
      for (int k = 0; k < count; ++k) PackRows(bands[k], begin, depth, const_cast<T*>(band_a[k]));
    }
    for (int64_t panel = panel_begin; panel < panel_end; panel += kBlockPanels) {
      const int64_t panels = std::min(kBlockPanels, panel_end - panel);
      T* packed_b = scratch;
      if (keep) {
        const int64_t all = (product.b.count + kPanel - 1) / kPanel;
        packed_b = product.packed + (begin * all + panel * depth) * kPanel;
      }
      if (keep && product.is_packed) {
        // by an earlier product
      } else if (product.b.kind == Columns<T>::kGatesTransposed) {
        for (int64_t i = 0; i < panels; ++i) {
          PackTransposed(product.b, begin, depth, (panel + i) * kPanel,
                         packed_b + i * depth * kPanel);
        }
      } else {
        PackColumns(product.b, begin, depth, panel * kPanel, panels, packed_b);
      }
      for (int k = 0; k < count; ++k) {
        MultiplyBand(product, bands[k], begin, depth, band_a[k], panel, panels, packed_b);
      }
    }
  }
}

// Task `index` of `count` that together compute the product.
template <class T>
void MultiplyTask(const Product<T>& product, int index, int count, T* scratch) {
  const int64_t panels = (product.b.count + PanelWidth<T>() - 1) / PanelWidth<T>();
  int64_t tiles = 0;
  for (int k = 0; k < product.parts; ++k) tiles += TileRows(product.part[k].rows).tiles;
  if (panels == 0 || tiles == 0) return;
  // The division into column_tasks x row_tasks whose largest task is smallest. What is kept packed
  // is divided by columns, whatever the rows, and not kept where those are too few.
  const bool keep = product.packed != nullptr && panels >= count;
  int64_t column_tasks = keep ? count : 1, smallest = INT64_MAX;
  for (int64_t c = count; c >= 1 && !keep; --c) {
    if (count % c != 0) continue;
    const int64_t r = count / c;
    const int64_t largest = ((panels + c - 1) / c) * ((tiles + r - 1) / r);
    if (largest < smallest) smallest = largest, column_tasks = c;
  }
  const int64_t row_tasks = count / column_tasks;
  const int64_t i = index % column_tasks, j = index / column_tasks;
  const int64_t panel_begin = panels * i / column_tasks;
  const int64_t panel_end = panels * (i + 1) / column_tasks;
  // Tiles [begin, end) of all parts, as many at once as the scratch holds packed.
  const int64_t end = tiles * (j + 1) / row_tasks;
  const int64_t most = product.a_transposed ? kBlockTiles : end;
  for (int64_t begin = tiles * j / row_tasks, next; begin < end; begin = next) {
    next = std::min(end, begin + most);
    int64_t first = 0;  // of the part's tiles
    int bands = 0;
    Band<T> band[2] = {{product.part[0], 0, 0}, {product.part[0], 0, 0}};
    for (int k = 0; k < product.parts; ++k) {
      const TileRows part(product.part[k].rows);
      const int64_t from = std::clamp<int64_t>(begin - first, 0, part.tiles);
      const int64_t to = std::clamp<int64_t>(next - first, 0, part.tiles);
      if (from < to) band[bands++] = {product.part[k], part.Begin(from), part.Begin(to)};
      first += part.tiles;
    }
    MultiplyBands(product, band, bands, panel_begin, panel_end, keep, scratch);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tfl::cpu
HWY_AFTER_NAMESPACE();

#endif  // TF_FUSED_LSTM_CC_LSTM_CPU_GEMM_INL_H_
