// The forward pass: projection of the input in chunks of steps, then their recurrence.
#include "cc/lstm/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cc/lstm/cpu/forward.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "cc/lstm/cpu/call.h"
#include "cc/lstm/cpu/cell-inl.h"
#include "cc/lstm/cpu/gemm-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tfl::cpu {
namespace HWY_NAMESPACE {

template <class T, class Cell>
class ForwardPass {
 public:
  ForwardPass(const ForwardCall& call, int direction)
      : direction_(direction),
        spec_(DirectionSpec(call.spec, direction)),
        plan_(call.plan),
        inputs_(call.inputs),
        outputs_(call.outputs),
        cell_policy_(call.spec),
        mask_(spec_, call.inputs.mask),
        output_rows_(OutputRows(call.spec, direction)),
        tiles_(call.spec.batch),
        panels_(plan_.hidden_padded / Width<T>()),
        column_panels_(ColumnPanels(spec_, panels_)),
        columns_((panels_ + column_panels_ - 1) / column_panels_),
        state_(spec_.batch * plan_.hidden_padded) {
    void* workspace = Buffer<char>(outputs_.workspace, direction * plan_.forward.bytes);
    const ForwardLayout& layout = plan_.forward;
    if (spec_.training) {
      void* reserve = Buffer<char>(outputs_.reserve, direction * plan_.reserve.bytes);
      gates_ = Buffer<T>(reserve, plan_.reserve.gates);
      cell_ = Buffer<T>(reserve, plan_.reserve.cell);
      hidden_ = Buffer<T>(reserve, plan_.reserve.hidden);
    } else {
      gates_ = Buffer<T>(workspace, layout.gates);
      cell_ = Buffer<T>(workspace, layout.cell);
      hidden_ = Buffer<T>(workspace, layout.hidden);
    }
    recurrent_ = Buffer<T>(workspace, layout.recurrent);
    packed_kernel_ = Buffer<T>(workspace, layout.packed_kernel);
    bias_ = Buffer<T>(workspace, layout.bias);
    first_valid_ = Buffer<int64_t>(workspace, layout.first_valid);
    x_ = Buffer<T>(workspace, layout.x);
    member_ = Buffer<T>(workspace, layout.member);
    recurrent_mask_ = Buffer<T>(workspace, layout.recurrent_mask);
    dropped_ = Buffer<T>(workspace, layout.dropped);
    if (plan_.convert_weights) {
      converted_kernel_ = Buffer<T>(workspace, layout.kernel);
      converted_recurrent_kernel_ = Buffer<T>(workspace, layout.recurrent_kernel);
      kernel_ = converted_kernel_;
      recurrent_kernel_ = converted_recurrent_kernel_;
    } else {
      kernel_ = static_cast<const T*>(inputs_.kernel[direction]);
      recurrent_kernel_ = static_cast<const T*>(inputs_.recurrent_kernel[direction]);
    }
  }

  // Every phase does its work for all directions.
  static void Run(ForwardPass* passes, Member& member) {
    const tfl_lstm_spec& spec = passes->spec_;
    const Plan& plan = passes->plan_;
    const int directions = spec.num_directions;
    const auto phase = [&](int tasks_per_share, const auto& task) {
      member.Phase(tasks_per_share, [&](int index, int count) {
        for (int d = 0; d < directions; ++d) task(passes[d], index, count);
      });
    };
    if (plan.convert_weights) {
      phase(1, [](ForwardPass& pass, int index, int count) { pass.ConvertWeights(index, count); });
    }
    phase(1, [](ForwardPass& pass, int index, int count) {
      if (!pass.plan_.direct_recurrent) pass.PackRecurrent(index, count);
      pass.StartStates(index, count);
    });
    for (int64_t begin = 0; begin < spec.steps; begin += plan.chunk_steps) {
      const int64_t end = std::min(spec.steps, begin + plan.chunk_steps);
      if (plan.copy_chunk) {
        phase(1, [&](ForwardPass& pass, int index, int count) {
          pass.CopyInput(begin, end, index, count);
        });
      }
      phase(plan.step_tasks, [&](ForwardPass& pass, int index, int count) {
        pass.Project(begin, end, index, count, member.id());
      });
      if (plan.row_tasks > 0) {
        member.Phase(1, [&](int index, int count) {
          for (int i = index; i < plan.row_tasks * directions; i += count) {
            passes[i / plan.row_tasks].RowSteps(begin, end, i % plan.row_tasks);
          }
        });
        continue;
      }
      for (int64_t step = begin; step < end; ++step) {
        const int64_t tiles = passes->tiles_.tiles;
        const int64_t each = plan.direct_recurrent ? passes->panels_ : passes->columns_ * tiles;
        member.Phase(plan.step_tasks, [&](int index, int count) {
          const Part part(directions * each, index, count);
          for (int64_t i = part.begin, next; i < part.end; i = next) {
            if (plan.direct_recurrent) {
              const int64_t direction = i / each, first = direction * each;
              next = std::min(part.end, first + each);
              passes[direction].StepRow(begin, step, i - first, next - first);
              continue;
            }
            const int64_t column = i / tiles, first = column * tiles;
            next = std::min(part.end, first + tiles);
            passes[i / each].StepTiles(begin, step, column % passes->columns_, passes->tiles_,
                                       i - first, next - first);
          }
        });
      }
    }
  }

 private:
  // All steps from `begin` to `end` for the rows of task `index` of plan_.row_tasks.
  void RowSteps(int64_t begin, int64_t end, int index) {
    const Part part(spec_.batch, index, plan_.row_tasks);
    const TileRows tiles(part.end - part.begin, part.begin);
    for (int64_t step = begin; step < end; ++step) {
      if (plan_.direct_recurrent) {
        StepRow(begin, step, 0, panels_);
        continue;
      }
      for (int64_t column = 0; column < columns_; ++column) {
        StepTiles(begin, step, column, tiles, 0, tiles.tiles);
      }
    }
  }

  void ConvertWeights(int index, int count) {
    const auto convert = [&](const void* from, int64_t rows, T* to) {
      const Part part(rows * 4 * spec_.hidden_size, index, count);
      ReadElements(spec_.weight_dtype, At(from, spec_.weight_dtype, part.begin),
                   part.end - part.begin, to + part.begin);
    };
    convert(inputs_.kernel[direction_], spec_.input_size, converted_kernel_);
    convert(inputs_.recurrent_kernel[direction_], spec_.hidden_size, converted_recurrent_kernel_);
  }

  // Panel u holds the columns of units [u, u + Width) of the four gates, side by side; where each
  // gate has a mask of its own, a column's panels hold all vectors of a gate side by side.
  void PackRecurrent(int index, int count) {
    const Tag<T> d;
    const int64_t hidden = spec_.hidden_size;
    const Part part(panels_, index, count);
    constexpr int64_t kAhead = 8;  // rows, which may lie pages apart
    for (int64_t p = 0; p < hidden; ++p) {
      const int64_t ahead = std::min(kAhead, hidden - 1 - p) * 4 * hidden;
      for (int gate = 0; gate < 4; ++gate) {
        const T* from = recurrent_kernel_ + (p * 4 + gate) * hidden;
        for (int64_t panel = part.begin; panel < part.end; ++panel) {
          const int64_t unit = panel * Width<T>();
          hwy::Prefetch(from + ahead + unit);
          hn::StoreU(LoadPart(d, ComputeType<T>(), from + unit, hidden - unit), d,
                     Recurrent(panel, gate, p));
        }
      }
    }
  }

  // Where recurrent_ holds row p of a gate, for the units of a panel.
  HWY_INLINE T* Recurrent(int64_t panel, int64_t gate, int64_t p) const {
    const int64_t first = panel - panel % column_panels_;
    const int64_t vectors = std::min(column_panels_, panels_ - first);
    const int64_t vector = gate * vectors + panel - first;
    return recurrent_ + (first + vector / 4) * spec_.hidden_size * PanelWidth<T>() +
           PanelOffset<T>(spec_.hidden_size, p, vector % 4);
  }

  // Initial states, the padded bias, where each row's valid steps begin.
  void StartStates(int index, int count) {
    const int64_t hidden = spec_.hidden_size, padded = plan_.hidden_padded;
    const Part part(spec_.batch, index, count);
    for (int64_t row = part.begin; row < part.end; ++row) {
      StartState(spec_.has_initial_h, inputs_.initial_h[direction_], row, hidden_ + row * padded);
      StartState(spec_.has_initial_c, inputs_.initial_c[direction_], row, cell_ + row * padded);
      if (spec_.num_recurrent_dropout_masks > 0) {
        ReadMasks(spec_, spec_.num_recurrent_dropout_masks,
                  inputs_.recurrent_dropout_mask[direction_], hidden, padded, row, recurrent_mask_);
        const Tag<T> d;
        for (int64_t unit = 0; unit < padded; unit += Width<T>()) {
          Drop(0, row, unit, hn::LoadU(d, hidden_ + row * padded + unit));
        }
      }
      if (spec_.steps == 0) {
        WriteElements(spec_.dtype, hidden_ + row * padded, hidden,
                      At(outputs_.final_h[direction_], spec_.dtype, row * hidden));
        WriteElements(spec_.dtype, cell_ + row * padded, hidden,
                      At(outputs_.final_c[direction_], spec_.dtype, row * hidden));
        if (!spec_.return_sequences) {
          std::memset(At(outputs_.output, spec_.dtype, LastOutput(row)), 0,
                      static_cast<size_t>(hidden) * ElementBytes(spec_.dtype));
        }
      }
      if (spec_.has_mask) first_valid_[row] = mask_.FirstValid(spec_.steps, row);
    }
    if (index != 0) return;
    for (int gate = 0; gate < 4; ++gate) {
      T* to = bias_ + gate * padded;
      std::fill(to, to + padded, T{0});
      if (spec_.has_bias) {
        ReadElements(spec_.weight_dtype,
                     At(inputs_.bias[direction_], spec_.weight_dtype, gate * hidden), hidden, to);
      }
    }
  }

  void StartState(bool given, const void* from, int64_t row, T* to) {
    std::fill(to, to + plan_.hidden_padded, T{0});
    if (!given) return;
    ReadElements(spec_.dtype, At(from, spec_.dtype, row * spec_.hidden_size), spec_.hidden_size,
                 to);
  }

  // x of steps [begin, end), converted; one copy after the other for each dropout mask.
  void CopyInput(int64_t begin, int64_t end, int index, int count) {
    const RowStrides rows = CallerRows(spec_, spec_.input_size, spec_.go_backwards);
    const int64_t chunk = (end - begin) * spec_.batch;
    const Part part(chunk, index, count);
    for (int64_t r = part.begin; r < part.end; ++r) {
      const int64_t row = r % spec_.batch;
      const void* from = At(inputs_.x, spec_.dtype, rows.Start(begin + r / spec_.batch, row));
      T* to = x_ + r * spec_.input_size;
      if (spec_.num_dropout_masks == 0) {
        ReadElements(spec_.dtype, from, spec_.input_size, to);
      } else {
        ReadDropped(spec_.dtype, from, spec_.input_size,
                    At(inputs_.dropout_mask[direction_], spec_.dtype, row * spec_.input_size),
                    spec_.batch * spec_.input_size, spec_.num_dropout_masks, to,
                    chunk * spec_.input_size);
      }
    }
  }

  // z without the recurrent part, for steps [begin, end).
  void Project(int64_t begin, int64_t end, int index, int count, int member) {
    const int64_t hidden = spec_.hidden_size, padded = plan_.hidden_padded;
    Product<T> product;
    product.depth = spec_.input_size;
    product.parts = 1;
    auto& part = product.part[0];
    part.rows = (end - begin) * spec_.batch;
    part.c = {StepGates(begin, begin), DenseRows(spec_.batch, 4 * padded)};
    if (plan_.copy_chunk) {
      part.a = {x_, DenseRows(spec_.batch, spec_.input_size)};
    } else {
      RowStrides rows = CallerRows(spec_, spec_.input_size, spec_.go_backwards);
      rows.first += begin * rows.step_stride;
      part.a = {static_cast<const T*>(inputs_.x), rows};
    }
    product.a_transposed = false;
    product.b = {plan_.plain_gates ? Columns<T>::kPlain : Columns<T>::kGates,
                 kernel_,
                 4 * hidden,
                 4 * padded,
                 hidden,
                 padded};
    product.bias = bias_;
    if (plan_.keep_packed) {
      product.packed = packed_kernel_;
      product.is_packed = begin > 0;
    }
    T* scratch = member_ + member * plan_.forward.member_size;
    if (spec_.num_dropout_masks < 4) {
      MultiplyTask(product, index, count, scratch);
      return;
    }
    // A copy of x for each gate.
    product.b.count = padded;
    for (int gate = 0; gate < 4; ++gate) {
      MultiplyTask(product, index, count, scratch);
      part.a.data += part.rows * spec_.input_size;
      product.b.data += hidden;
      part.c.data += padded;
      product.bias += padded;
    }
  }

  // Where a step's gates lie: in the reserve, or in the buffer of the chunk that starts at `begin`.
  T* StepGates(int64_t begin, int64_t step) const {
    return gates_ + (spec_.training ? step : step - begin) * 4 * state_;
  }
  T* StepHidden(int64_t step) const {
    return hidden_ + (spec_.training ? step : step % 2) * state_;
  }
  T* StepCell(int64_t step) const { return cell_ + (spec_.training ? step : 0) * state_; }

  // One step of the only row, for the units of some panels, from the recurrent kernel as it lies.
  void StepRow(int64_t begin, int64_t step, int64_t panel_begin, int64_t panel_end) {
    const int64_t hidden = spec_.hidden_size;
    alignas(64) T z[kRowPanels * PanelWidth<T>()];
    const T* a = spec_.num_recurrent_dropout_masks == 0 ? StepHidden(step) : Dropped(step, 0);
    for (int64_t panel = panel_begin, next; panel < panel_end; panel = next) {
      next = std::min(panel_end, panel + kRowPanels);
      const int64_t unit = panel * Width<T>();
      T* gates = StepGates(begin, step) + unit;
      WithConstant<kRowPanels>(static_cast<int>(next - panel), [&](auto panels) {
        const auto run = spec_.num_recurrent_dropout_masks < 4 ? RunRow<panels.value, 1, T>
                                                               : RunRow<panels.value, 4, T>;
        run(a, plan_.hidden_padded, hidden, recurrent_kernel_ + unit, gates, hidden, step % 2 != 0,
            z);
      });
      for (int64_t i = 0; i < next - panel; ++i) {
        const int64_t at = i * Width<T>();
        StepVector(step, 0, unit + at, z + i * PanelWidth<T>(), gates + at);
      }
    }
  }

  // With a mask for each gate a tile is of one gate: two panels share what they load of h, and a
  // single row, which has no other row's sums to work at meanwhile, takes four.
  static int64_t ColumnPanels(const tfl_lstm_spec& spec, int64_t panels) {
    if (spec.num_recurrent_dropout_masks < 4) return 1;
    return spec.batch == 1 && panels % 4 == 0 ? 4 : 2;
  }

  // Rows of z on the stack for each panel of a column.
  static constexpr int64_t kSumRows = kStepTiles * kTileRows;

  // One step for the rows of some tiles and the units of a column. Tile by tile for each block of
  // the depth, so that the panels' part stays in the second-level cache.
  void StepTiles(int64_t begin, int64_t step, int64_t column, const TileRows& tiles,
                 int64_t tile_begin, int64_t tile_end) {
    const int64_t hidden = spec_.hidden_size, panel = column * column_panels_;
    const int64_t panels = std::min(column_panels_, panels_ - panel);
    alignas(64) T z[4 * kSumRows][4 * Width<T>()];
    for (int64_t first = tile_begin, last; first < tile_end; first = last) {
      last = std::min(tile_end, first + kStepTiles);
      const int64_t block = last - first > 1 ? kBlockDepth : hidden;
      for (int64_t p = 0; p < hidden; p += block) {
        const int64_t depth = std::min(block, hidden - p);
        for (int64_t tile = first; tile < last; ++tile) {
          const int64_t row = tiles.Begin(tile), z_row = (tile - first) * kTileRows;
          const int rows = static_cast<int>(tiles.Begin(tile + 1) - row);
          if (column_panels_ == 1) {
            StepTile(begin, step, panel, row, rows, tile - first, p, depth, z + z_row);
          } else {
            WithConstant<4>(static_cast<int>(panels), [&](auto constant) {
              GatedTile<constant.value>(begin, step, panel, row, rows, p, depth, z + z_row);
            });
          }
          if (p + depth < hidden) continue;
          for (int64_t i = panel; i < panel + panels; ++i) {
            T* gates = StepGates(begin, step) + 4 * row * plan_.hidden_padded + i * Width<T>();
            for (int r = 0; r < rows; ++r) {
              StepVector(step, row + r, i * Width<T>(), z[(i - panel) * kSumRows + z_row + r],
                         gates + r * 4 * plan_.hidden_padded);
            }
          }
        }
      }
    }
  }

  // Adds depth [p, p + depth) to a panel's z.
  HWY_INLINE void StepTile(int64_t begin, int64_t step, int64_t panel, int64_t row, int rows,
                           int64_t turn, int64_t p, int64_t depth, T (*z)[4 * Width<T>()]) {
    const int64_t padded = plan_.hidden_padded, hidden = spec_.hidden_size;
    const int masks = spec_.num_recurrent_dropout_masks;
    const T* gates = StepGates(begin, step) + row * 4 * padded + panel * Width<T>();
    const T* factors = masks == 0 ? StepHidden(step) + row * padded : Dropped(step, row);
    Tile<T> tile;
    tile.panel = Recurrent(panel, 0, p);
    tile.strip = hidden * StripWidth<T>();
    tile.depth = depth;
    // What follows comes from the third-level cache, a quarter with each of the first tiles.
    if (turn < 4 && (panel + 1 < panels_ || p + depth < hidden)) {
      FetchQuarter(p + depth == hidden, turn, &tile);
    }
    if (p == 0) tile.from_stride = padded;
    for (int r = 0; r < rows; ++r) {
      tile.a[r] = factors + r * padded + p;
      tile.from[r] = p == 0 ? gates + r * 4 * padded : z[r];
      tile.to[r] = z[r];
    }
    RunTileRows<4>(tile, rows);
  }

  // The same gate by gate, each with its own factors, for kPanels panels.
  template <int kPanels>
  HWY_INLINE void GatedTile(int64_t begin, int64_t step, int64_t panel, int64_t row, int rows,
                            int64_t p, int64_t depth, T (*z)[4 * Width<T>()]) {
    const int64_t padded = plan_.hidden_padded;
    const T* gates = StepGates(begin, step) + row * 4 * padded + panel * Width<T>();
    Tile<T> tile;
    tile.strip = spec_.hidden_size * StripWidth<T>();
    tile.depth = depth;
    tile.to_stride = kSumRows * 4 * Width<T>();
    if (p > 0) tile.from_stride = tile.to_stride;
    for (int gate = 0; gate < 4; ++gate) {
      tile.panel = Recurrent(panel, gate, p);
      for (int r = 0; r < rows; ++r) {
        tile.a[r] = Dropped(step, row + r) + gate * padded + p;
        tile.to[r] = z[r] + gate * Width<T>();
        tile.from[r] = p == 0 ? gates + (4 * r + gate) * padded : tile.to[r];
      }
      RunTileRows<kPanels>(tile, rows);
    }
  }

  // h before a step times the recurrent masks: [masks, H_p].
  T* Dropped(int64_t step, int64_t row) const {
    return dropped_ +
           (step % 2 * spec_.batch + row) * plan_.hidden_padded * spec_.num_recurrent_dropout_masks;
  }
  HWY_INLINE void Drop(int64_t step, int64_t row, int64_t unit, hn::Vec<Tag<T>> h) {
    const Tag<T> d;
    const T* mask = recurrent_mask_ + row * plan_.hidden_padded + unit;
    T* to = Dropped(step, row);
    for (int i = 0; i < spec_.num_recurrent_dropout_masks; ++i) {
      hn::StoreU(hn::Mul(h, hn::LoadU(d, mask + i * state_)), d,
                 to + unit + i * plan_.hidden_padded);
    }
  }

  int64_t LastOutput(int64_t row) const {
    return (row * spec_.num_directions + direction_) * spec_.hidden_size;
  }

  // The pointwise part for one row and the units of a panel.
  HWY_INLINE void StepVector(int64_t step, int64_t row, int64_t unit, const T* z, T* gates_kept) {
    using V = hn::Vec<Tag<T>>;
    const Tag<T> d;
    const int64_t hidden = spec_.hidden_size, at = row * plan_.hidden_padded + unit;
    V gates[4];
    TFL_UNROLL
    for (int g = 0; g < 4; ++g) gates[g] = hn::Load(d, z + g * Width<T>());
    const V c_before = hn::LoadU(d, StepCell(step) + at);
    V c = c_before;
    V h;
    cell_policy_.Forward(d, gates, c, h);
    V output = h;
    if (HWY_UNLIKELY(!mask_.Valid(step, row))) {
      c = c_before;
      h = hn::LoadU(d, StepHidden(step) + at);
      const bool zero = spec_.zero_output_for_mask || step < first_valid_[row];
      output = zero ? hn::Zero(d) : h;
    }
    hn::StoreU(c, d, StepCell(step + 1) + at);
    hn::StoreU(h, d, StepHidden(step + 1) + at);
    if (spec_.num_recurrent_dropout_masks > 0) Drop(step + 1, row, unit, h);
    if (spec_.training) {
      TFL_UNROLL
      for (int g = 0; g < 4; ++g) {
        hn::StoreU(gates[g], d, gates_kept + g * plan_.hidden_padded);
      }
    }
    const int64_t valid = hidden - unit;
    if (spec_.return_sequences) {
      StorePart(d, output, spec_.dtype,
                At(outputs_.output, spec_.dtype, output_rows_.Start(step, row) + unit), valid);
    }
    if (step + 1 < spec_.steps) return;
    const int64_t to = row * hidden + unit;
    if (!spec_.return_sequences) {
      StorePart(d, output, spec_.dtype, At(outputs_.output, spec_.dtype, LastOutput(row) + unit),
                valid);
    }
    StorePart(d, h, spec_.dtype, At(outputs_.final_h[direction_], spec_.dtype, to), valid);
    StorePart(d, c, spec_.dtype, At(outputs_.final_c[direction_], spec_.dtype, to), valid);
  }

  const int direction_;
  const tfl_lstm_spec spec_;  // go_backwards as this direction reads
  const Plan plan_;
  const tfl_lstm_inputs inputs_;
  const tfl_lstm_outputs outputs_;
  const Cell cell_policy_;
  const Mask mask_;
  const RowStrides output_rows_;
  const TileRows tiles_;
  const int64_t panels_;
  const int64_t column_panels_;  // that a step's tile is computed for, but at the end of the units
  const int64_t columns_;
  const int64_t state_;  // elements of a padded state
  T* gates_;
  T* cell_;
  T* hidden_;
  T* recurrent_;
  T* packed_kernel_;
  T* bias_;
  int64_t* first_valid_;
  T* x_;
  T* member_;
  T* recurrent_mask_;
  T* dropped_;
  T* converted_kernel_ = nullptr;
  T* converted_recurrent_kernel_ = nullptr;
  const T* kernel_;
  const T* recurrent_kernel_;
};

template <class T, class Cell>
void ForwardWith(const ForwardCall& call, Member& member) {
  ForwardPass<T, Cell> passes[] = {{call, 0}, {call, call.spec.num_directions - 1}};
  ForwardPass<T, Cell>::Run(passes, member);
}

template <class T>
void ForwardAs(const ForwardCall& call, Member& member) {
  if (StandardActivations::Fits(call.spec)) {
    ForwardWith<T, LstmCell<StandardActivations>>(call, member);
  } else {
    ForwardWith<T, LstmCell<AnyActivations>>(call, member);
  }
}

void ForwardTarget(const ForwardCall& call, Member& member) {
  if (call.spec.dtype == TFL_FLOAT64) {
    ForwardAs<double>(call, member);
  } else {
    ForwardAs<float>(call, member);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tfl::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tfl::cpu {

HWY_EXPORT(ForwardTarget);

void Forward(const ForwardCall& call, Member& member) {
  HWY_DYNAMIC_DISPATCH(ForwardTarget)(call, member);
}

}  // namespace tfl::cpu
#endif  // HWY_ONCE
