// The backward pass: the recurrence from the last step to the first, then the products over all
// steps that give the gradients of the weights and the input.
#include "cc/lstm/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cc/lstm/cpu/backward.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "cc/lstm/cpu/call.h"
#include "cc/lstm/cpu/cell-inl.h"
#include "cc/lstm/cpu/gradients-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tfl::cpu {
namespace HWY_NAMESPACE {

template <class T, class Cell>
class BackwardPass {
 public:
  BackwardPass(const BackwardCall& call, int direction)
      : direction_(direction),
        spec_(DirectionSpec(call.spec, direction)),
        plan_(call.plan),
        inputs_(call.inputs),
        saved_(call.saved),
        gradients_(call.gradients),
        cell_policy_(call.spec),
        mask_(spec_, call.inputs.mask),
        output_rows_(OutputRows(call.spec, direction)),
        tiles_(call.spec.batch),
        panels_((plan_.hidden_padded + PanelWidth<T>() - 1) / PanelWidth<T>()),
        state_(spec_.batch * plan_.hidden_padded),
        buffers_(call, direction),
        products_(call, direction) {}

  // The recurrences' phases do their work for all directions.
  static void Run(BackwardPass* passes, Member& member) {
    const tfl_lstm_spec& spec = passes->spec_;
    const Plan& plan = passes->plan_;
    const int directions = spec.num_directions;
    const auto phase = [&](const auto& task) {
      member.Phase(1, [&](int index, int count) {
        for (int d = 0; d < directions; ++d) task(passes[d], index, count);
      });
    };
    if (plan.convert_weights || plan.copy_x) {
      phase([](BackwardPass& pass, int index, int count) {
        if (pass.plan_.convert_weights) pass.ConvertWeights(index, count);
        if (pass.plan_.copy_x) pass.products_.CopyInput(index, count);
      });
    }
    phase([](BackwardPass& pass, int index, int count) {
      if (!pass.plan_.direct_recurrent) pass.PackRecurrent(index, count);
      pass.StartStates(index, count);
    });
    Recurrence(passes, directions, member);
    phase([](BackwardPass& pass, int index, int count) {
      if (pass.gradients_.grad_bias[pass.direction_] != nullptr) {
        pass.products_.BiasGradient(index, count);
      }
    });
    if (passes->gradients_.grad_x != nullptr) {
      for (int d = 0; d < directions; ++d) passes[d].products_.InputGradient(member);
      if (plan.convert_x) {
        member.Phase(
            1, [&](int index, int count) { passes->products_.WriteInputGradient(index, count); });
      }
    }
    for (int d = 0; d < directions; ++d) passes[d].products_.WeightGradients(member);
  }

 private:
  void ConvertWeights(int index, int count) {
    const auto convert = [&](const void* from, int64_t rows, T* to) {
      const Part part(rows * 4 * spec_.hidden_size, index, count);
      ReadElements(spec_.weight_dtype, At(from, spec_.weight_dtype, part.begin),
                   part.end - part.begin, to + part.begin);
    };
    convert(inputs_.kernel[direction_], spec_.input_size, buffers_.converted_kernel);
    convert(inputs_.recurrent_kernel[direction_], spec_.hidden_size,
            buffers_.converted_recurrent_kernel);
  }

  void PackRecurrent(int index, int count) {
    const Columns<T> columns =
        TransposedGates(buffers_.recurrent_kernel, spec_.hidden_size, spec_, plan_);
    const int64_t depth = 4 * plan_.hidden_padded;
    const Part part(panels_, index, count);
    for (int64_t panel = part.begin; panel < part.end; ++panel) {
      PackTransposed(columns, 0, depth, panel * PanelWidth<T>(),
                     buffers_.recurrent + panel * depth * PanelWidth<T>());
    }
  }

  // The gradients after the last step.
  void StartStates(int index, int count) {
    const Part part(spec_.batch, index, count);
    for (int64_t row = part.begin; row < part.end; ++row) {
      StartState(saved_.grad_final_h[direction_], row, buffers_.carry);
      StartState(saved_.grad_final_c[direction_], row, buffers_.grad_cell);
      if (spec_.num_dropout_masks > 0) {
        ReadMasks(spec_, spec_.num_dropout_masks, inputs_.dropout_mask[direction_],
                  spec_.input_size, spec_.input_size, row, buffers_.dropout_mask);
      }
      if (spec_.num_recurrent_dropout_masks > 0) {
        ReadMasks(spec_, spec_.num_recurrent_dropout_masks,
                  inputs_.recurrent_dropout_mask[direction_], spec_.hidden_size,
                  plan_.hidden_padded, row, buffers_.recurrent_mask);
      }
      if (spec_.has_mask) buffers_.first_valid[row] = mask_.FirstValid(spec_.steps, row);
    }
  }

  void StartState(const void* from, int64_t row, T* states) {
    T* to = states + row * plan_.hidden_padded;
    std::fill(to, to + plan_.hidden_padded, T{0});
    if (from == nullptr) return;
    ReadElements(spec_.dtype, At(from, spec_.dtype, row * spec_.hidden_size), spec_.hidden_size,
                 to);
  }

  // Steps from the last to the first, then "step" -1: the gradients of the initial states.
  static void Recurrence(BackwardPass* passes, int directions, Member& member) {
    const Plan& plan = passes->plan_;
    const int64_t steps = passes->spec_.steps;
    if (plan.grad_row_tasks > 0) {
      member.Phase(1, [&](int index, int count) {
        for (int i = index; i < plan.grad_row_tasks * directions; i += count) {
          passes[i / plan.grad_row_tasks].RowSteps(i % plan.grad_row_tasks);
        }
      });
      return;
    }
    for (int64_t step = steps - 1; step >= -1; --step) {
      const int64_t tiles = passes->tiles_.tiles, each = passes->panels_ * tiles;
      member.Phase(plan.step_tasks, [&](int index, int count) {
        const Part part(directions * each, index, count);
        for (int64_t i = part.begin, next; i < part.end; i = next) {
          const int64_t panel = i / tiles, first = panel * tiles;
          next = std::min(part.end, first + tiles);
          passes[i / each].StepTiles(step, panel % passes->panels_, passes->tiles_, i - first,
                                     next - first);
        }
      });
    }
  }

  void RowSteps(int index) {
    const Part part(spec_.batch, index, plan_.grad_row_tasks);
    const TileRows tiles(part.end - part.begin, part.begin);
    for (int64_t step = spec_.steps - 1; step >= -1; --step) {
      for (int64_t panel = 0; panel < panels_; ++panel) {
        StepTiles(step, panel, tiles, 0, tiles.tiles);
      }
    }
  }

  // dh before step + 1, then step itself, for the rows of some tiles and a panel of units. Tile by
  // tile for each block of the depth, so that the panel's part stays in the second-level cache.
  void StepTiles(int64_t step, int64_t panel, const TileRows& tiles, int64_t tile_begin,
                 int64_t tile_end) {
    const int64_t depth = step + 1 < spec_.steps ? 4 * plan_.hidden_padded : 0;
    alignas(64) T dh[kStepTiles * kTileRows][PanelWidth<T>()];
    for (int64_t first = tile_begin, last; first < tile_end; first = last) {
      last = std::min(tile_end, first + kStepTiles);
      // With a mask for each gate the depth goes gate by gate.
      const bool whole = last - first == 1 || spec_.num_recurrent_dropout_masks == 4;
      const int64_t block = whole ? depth : kBlockDepth;
      int64_t p = 0;
      do {
        for (int64_t tile = first; tile < last; ++tile) {
          StepTile(step, panel, tiles, tile, tile - first, p, std::min(block, depth - p),
                   dh + (tile - first) * kTileRows);
        }
        p += block;
      } while (p < depth);
    }
  }

  // Adds depth [p, p + depth) to dh, and ends the step where that is the rest of it.
  HWY_INLINE void StepTile(int64_t step, int64_t panel, const TileRows& tiles, int64_t tile_index,
                           int64_t turn, int64_t p, int64_t depth, T (*dh)[PanelWidth<T>()]) {
    const int64_t padded = plan_.hidden_padded, whole = 4 * padded;
    const int64_t row = tiles.Begin(tile_index), unit = panel * PanelWidth<T>();
    const int rows = static_cast<int>(tiles.Begin(tile_index + 1) - row);
    const int vectors = static_cast<int>(std::min<int64_t>(4, (padded - unit) / Width<T>()));
    const bool ends = depth == 0 || p + depth == whole;
    Tile<T> tile;
    tile.panel = buffers_.recurrent + panel * whole * PanelWidth<T>() + p * StripWidth<T>();
    tile.strip = whole * StripWidth<T>();
    tile.depth = depth;
    // What follows comes from the third-level cache, a quarter with each of the first tiles.
    if (turn < 4 && (panel + 1 < panels_ || !ends)) {
      FetchQuarter(ends, turn, &tile);
    }
    for (int r = 0; r < rows; ++r) {
      if (depth > 0)
        tile.a[r] = buffers_.grad_gates + ((step + 1) * spec_.batch + row + r) * whole + p;
      tile.from[r] = p == 0 ? nullptr : dh[r];
      tile.to[r] = dh[r];
      if (ends) PrefetchVectors(step, row + r, unit, vectors);
    }
    const int masks = spec_.num_recurrent_dropout_masks;
    if (plan_.direct_recurrent && depth > 0) {
      DotRows(tile.a[0], buffers_.recurrent_kernel + unit * whole, whole, vectors * Width<T>(),
              masks < 4 ? nullptr : buffers_.recurrent_mask + unit, padded, dh[0]);
    } else {
      WithConstant<4>(vectors, [&](auto constant) {
        if (masks < 4 || depth == 0) {
          RunTileRows<constant.value>(tile, rows);
        } else {
          RunGateTiles<constant.value>(tile, rows, row, unit);
        }
      });
    }
    if (!ends) return;
    for (int r = 0; r < rows && masks == 1; ++r) Drop(row + r, unit, vectors, dh[r]);
    for (int r = 0; r < rows; ++r) {
      for (int v = 0; v < vectors; ++v) {
        const int64_t offset = v * Width<T>();
        StepVector(step, row + r, unit + offset, hn::Load(Tag<T>(), dh[r] + offset));
      }
    }
  }

  // The sum over the gates of their shares of dh, each times its mask.
  template <int kVectors>
  void RunGateTiles(Tile<T> tile, int rows, int64_t row, int64_t unit) const {
    const int64_t padded = plan_.hidden_padded;
    tile.depth = padded;
    for (int gate = 0; gate < 4; ++gate) {
      for (int r = 0; r < rows; ++r) {
        tile.from[r] = gate == 0 ? nullptr : tile.to[r];
        tile.factor[r] = buffers_.recurrent_mask + gate * state_ + (row + r) * padded + unit;
      }
      RunTileRows<kVectors, true>(tile, rows);
      for (int r = 0; r < rows; ++r) tile.a[r] += padded;
      tile.panel += padded * StripWidth<T>();
      tile.next[0] = nullptr;
    }
  }

  // values *= the only mask, in units from `unit` on.
  void Drop(int64_t row, int64_t unit, int vectors, T* values) const {
    const Tag<T> d;
    const T* mask = buffers_.recurrent_mask + row * plan_.hidden_padded + unit;
    for (int64_t i = 0; i < vectors * Width<T>(); i += Width<T>()) {
      hn::StoreU(hn::Mul(hn::LoadU(d, values + i), hn::LoadU(d, mask + i)), d, values + i);
    }
  }

  // What the pointwise part of a tile reads, long before it does.
  HWY_INLINE void PrefetchVectors(int64_t step, int64_t row, int64_t unit, int vectors) const {
    if (step < 0) return;
    const int64_t padded = plan_.hidden_padded;
    const T* gates = buffers_.gates + (step * spec_.batch + row) * 4 * padded + unit;
    const T* cell = buffers_.cell + step * state_ + row * padded + unit;
    const char* grad_output = nullptr;
    if (saved_.grad_output != nullptr && spec_.return_sequences) {
      grad_output = static_cast<const char*>(
          At(saved_.grad_output, spec_.dtype, output_rows_.Start(step, row) + unit));
    }
    for (int v = 0; v < vectors; ++v) {
      const int64_t offset = v * Width<T>();
      for (int g = 0; g < 4; ++g) hwy::Prefetch(gates + g * padded + offset);
      hwy::Prefetch(cell + offset);
      if (grad_output != nullptr) {
        hwy::Prefetch(grad_output + offset * static_cast<int64_t>(ElementBytes(spec_.dtype)));
      }
    }
  }

  HWY_INLINE void StepVector(int64_t step, int64_t row, int64_t unit, hn::Vec<Tag<T>> dh) {
    using V = hn::Vec<Tag<T>>;
    const Tag<T> d;
    const int64_t padded = plan_.hidden_padded, hidden = spec_.hidden_size;
    const int64_t at = row * padded + unit, valid = hidden - unit;
    // What went around step + 1, or came from behind the last one.
    if (step + 1 == spec_.steps || !mask_.Valid(step + 1, row)) {
      dh = hn::Add(dh, hn::LoadU(d, buffers_.carry + at));
    }
    V dc = hn::LoadU(d, buffers_.grad_cell + at);
    if (step < 0) {
      const int64_t to = row * hidden + unit;
      void* grad_initial_h = gradients_.grad_initial_h[direction_];
      void* grad_initial_c = gradients_.grad_initial_c[direction_];
      if (grad_initial_h != nullptr) {
        StorePart(d, dh, spec_.dtype, At(grad_initial_h, spec_.dtype, to), valid);
      }
      if (grad_initial_c != nullptr) {
        StorePart(d, dc, spec_.dtype, At(grad_initial_c, spec_.dtype, to), valid);
      }
      return;
    }
    const bool masked = !mask_.Valid(step, row);
    const bool dropped = masked && (spec_.zero_output_for_mask || step < buffers_.first_valid[row]);
    if (saved_.grad_output != nullptr && !dropped) {
      if (spec_.return_sequences) {
        const int64_t from = output_rows_.Start(step, row) + unit;
        dh =
            hn::Add(dh, LoadPart(d, spec_.dtype, At(saved_.grad_output, spec_.dtype, from), valid));
      } else if (step + 1 == spec_.steps) {
        const int64_t from = (row * spec_.num_directions + direction_) * hidden + unit;
        dh =
            hn::Add(dh, LoadPart(d, spec_.dtype, At(saved_.grad_output, spec_.dtype, from), valid));
      }
    }
    const int64_t gates_at = (step * spec_.batch + row) * 4 * padded + unit;
    T* grad_gates = buffers_.grad_gates + gates_at;
    if (masked) {
      for (int g = 0; g < 4; ++g) hn::StoreU(hn::Zero(d), d, grad_gates + g * padded);
      hn::StoreU(dh, d, buffers_.carry + at);
      return;
    }
    V gates[4];
    for (int g = 0; g < 4; ++g) gates[g] = hn::LoadU(d, buffers_.gates + gates_at + g * padded);
    cell_policy_.Backward(d, gates, hn::LoadU(d, buffers_.cell + step * state_ + at),
                          hn::LoadU(d, buffers_.cell + (step + 1) * state_ + at), dh, dc);
    for (int g = 0; g < 4; ++g) hn::StoreU(gates[g], d, grad_gates + g * padded);
    hn::StoreU(dc, d, buffers_.grad_cell + at);
  }

  const int direction_;
  const tfl_lstm_spec spec_;  // go_backwards as this direction reads
  const Plan plan_;
  const tfl_lstm_inputs inputs_;
  const tfl_lstm_saved saved_;
  const tfl_lstm_gradients gradients_;
  const Cell cell_policy_;
  const Mask mask_;
  const RowStrides output_rows_;
  const TileRows tiles_;
  const int64_t panels_;
  const int64_t state_;  // elements of a padded state
  const BackwardBuffers<T> buffers_;
  Gradients<T> products_;
};

template <class T, class Cell>
void BackwardWith(const BackwardCall& call, Member& member) {
  BackwardPass<T, Cell> passes[] = {{call, 0}, {call, call.spec.num_directions - 1}};
  BackwardPass<T, Cell>::Run(passes, member);
}

template <class T>
void BackwardAs(const BackwardCall& call, Member& member) {
  if (StandardActivations::Fits(call.spec)) {
    BackwardWith<T, LstmCell<StandardActivations>>(call, member);
  } else {
    BackwardWith<T, LstmCell<AnyActivations>>(call, member);
  }
}

void BackwardTarget(const BackwardCall& call, Member& member) {
  if (call.spec.dtype == TFL_FLOAT64) {
    BackwardAs<double>(call, member);
  } else {
    BackwardAs<float>(call, member);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace tfl::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tfl::cpu {

HWY_EXPORT(BackwardTarget);

void Backward(const BackwardCall& call, Member& member) {
  HWY_DYNAMIC_DISPATCH(BackwardTarget)(call, member);
}

}  // namespace tfl::cpu
#endif  // HWY_ONCE
