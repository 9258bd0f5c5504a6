// The backward pass: the recurrence from the last step to the first, then the products over all
// steps that give the gradients of the weights and the input.
#include "cc/lstm/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cc/lstm/cpu/backward.cc"
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
        state_(spec_.batch * plan_.hidden_padded) {
    void* workspace = Buffer<char>(gradients_.workspace, direction * plan_.backward.bytes);
    const void* reserve = Buffer<char>(saved_.reserve, direction * plan_.reserve.bytes);
    const BackwardLayout& layout = plan_.backward;
    gates_ = Buffer<T>(reserve, plan_.reserve.gates);
    cell_ = Buffer<T>(reserve, plan_.reserve.cell);
    hidden_ = Buffer<T>(reserve, plan_.reserve.hidden);
    grad_gates_ = Buffer<T>(workspace, layout.grad_gates);
    grad_cell_ = Buffer<T>(workspace, layout.grad_cell);
    carry_ = Buffer<T>(workspace, layout.carry);
    recurrent_ = Buffer<T>(workspace, layout.recurrent);
    first_valid_ = Buffer<int64_t>(workspace, layout.first_valid);
    x_ = Buffer<T>(workspace, layout.x);
    grad_x_part_ = Buffer<T>(workspace, layout.grad_x_part);
    recurrent_mask_ = Buffer<T>(workspace, layout.recurrent_mask);
    dropped_ = Buffer<T>(workspace, layout.dropped);
    grad_kernel_ = Buffer<T>(workspace, layout.grad_kernel);
    grad_bias_ = Buffer<T>(workspace, layout.grad_bias);
    member_ = Buffer<T>(workspace, layout.member);
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
        if (pass.plan_.copy_x) pass.CopyInput(0, index, count);
      });
    }
    phase([](BackwardPass& pass, int index, int count) {
      if (!pass.plan_.direct_recurrent) pass.PackRecurrent(index, count);
      pass.StartStates(index, count);
    });
    Recurrence(passes, directions, member);
    phase([](BackwardPass& pass, int index, int count) {
      if (pass.gradients_.grad_bias[pass.direction_] != nullptr) pass.BiasGradient(index, count);
    });
    if (passes->gradients_.grad_x != nullptr) {
      for (int d = 0; d < directions; ++d) passes[d].InputGradient(member);
      if (plan.convert_x) {
        member.Phase(1, [&](int index, int count) { passes->WriteInputGradient(index, count); });
      }
    }
    for (int d = 0; d < directions; ++d) passes[d].WeightGradients(member);
  }

 private:
  struct WeightGradient {
    int64_t rows;
    Rows<const T> a;
    void* gradient;
  };

  void ConvertWeights(int index, int count) {
    const auto convert = [&](const void* from, int64_t rows, T* to) {
      const Part part(rows * 4 * spec_.hidden_size, index, count);
      ReadElements(spec_.weight_dtype, At(from, spec_.weight_dtype, part.begin),
                   part.end - part.begin, to + part.begin);
    };
    convert(inputs_.kernel[direction_], spec_.input_size, converted_kernel_);
    convert(inputs_.recurrent_kernel[direction_], spec_.hidden_size, converted_recurrent_kernel_);
  }

  // x as it met the weights of a gate. What lies there at a masked step, NaN included, does not
  // reach grad_kernel.
  void CopyInput(int gate, int index, int count) {
    const RowStrides rows = CallerRows(spec_, spec_.input_size, spec_.go_backwards);
    const Part part(spec_.steps * spec_.batch, index, count);
    for (int64_t r = part.begin; r < part.end; ++r) {
      const int64_t step = r / spec_.batch, row = r % spec_.batch;
      T* copy = x_ + r * spec_.input_size;
      if (!mask_.Valid(step, row)) {
        std::fill(copy, copy + spec_.input_size, T{0});
        continue;
      }
      ReadElements(spec_.dtype, At(inputs_.x, spec_.dtype, rows.Start(step, row)), spec_.input_size,
                   copy);
      if (spec_.num_dropout_masks > 0) {
        MultiplyElements(spec_.dtype, DropoutMask(gate, row), spec_.input_size, copy, copy);
      }
    }
  }

  const void* DropoutMask(int gate, int64_t row) const {
    return At(inputs_.dropout_mask[direction_], spec_.dtype,
              (gate * spec_.batch + row) * spec_.input_size);
  }

  Columns<T> Transposed(const T* weights, int64_t rows) const {
    return {Columns<T>::kGatesTransposed, weights, 4 * spec_.hidden_size, rows, spec_.hidden_size,
            plan_.hidden_padded};
  }

  void PackRecurrent(int index, int count) {
    const Columns<T> columns = Transposed(recurrent_kernel_, spec_.hidden_size);
    const int64_t depth = 4 * plan_.hidden_padded;
    const Part part(panels_, index, count);
    for (int64_t panel = part.begin; panel < part.end; ++panel) {
      PackTransposed(columns, 0, depth, panel * PanelWidth<T>(),
                     recurrent_ + panel * depth * PanelWidth<T>());
    }
  }

  // The gradients after the last step.
  void StartStates(int index, int count) {
    const Part part(spec_.batch, index, count);
    for (int64_t row = part.begin; row < part.end; ++row) {
      StartState(saved_.grad_final_h[direction_], row, carry_);
      StartState(saved_.grad_final_c[direction_], row, grad_cell_);
      if (spec_.num_recurrent_dropout_masks > 0) {
        ReadRecurrentMasks(spec_, inputs_.recurrent_dropout_mask[direction_], plan_.hidden_padded,
                           row, recurrent_mask_);
      }
      if (spec_.has_mask) first_valid_[row] = mask_.FirstValid(spec_.steps, row);
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
    tile.panel = recurrent_ + (panel * whole + p) * PanelWidth<T>();
    tile.depth = depth;
    // What follows comes from the third-level cache, a quarter with each of the first tiles.
    if (turn < 4 && (panel + 1 < panels_ || !ends)) {
      FetchQuarter(tile.panel + depth * PanelWidth<T>(), turn, depth, &tile);
    }
    for (int r = 0; r < rows; ++r) {
      if (depth > 0) tile.a[r] = grad_gates_ + ((step + 1) * spec_.batch + row + r) * whole + p;
      tile.from[r] = p == 0 ? nullptr : dh[r];
      tile.to[r] = dh[r];
      if (ends) PrefetchVectors(step, row + r, unit, vectors);
    }
    const int masks = spec_.num_recurrent_dropout_masks;
    if (plan_.direct_recurrent && depth > 0) {
      DotRows(tile.a[0], recurrent_kernel_ + unit * whole, whole, vectors * Width<T>(), dh[0]);
    } else {
      WithConstant<4>(vectors, [&](auto constant) {
        if (masks < 4 || depth == 0) {
          RunTileRows<constant.value>(tile, rows);
        } else {
          RunGateTiles<constant.value>(tile, rows, row, unit, dh);
        }
      });
    }
    if (!ends) return;
    for (int r = 0; r < rows && masks == 1; ++r) Drop(0, row + r, unit, vectors, dh[r]);
    for (int r = 0; r < rows; ++r) {
      for (int v = 0; v < vectors; ++v) {
        const int64_t offset = v * Width<T>();
        StepVector(step, row + r, unit + offset, hn::Load(Tag<T>(), dh[r] + offset));
      }
    }
  }

  // The sum over the gates of their shares of dh, each times its mask.
  template <int kVectors>
  void RunGateTiles(Tile<T> tile, int rows, int64_t row, int64_t unit,
                    T (*dh)[PanelWidth<T>()]) const {
    const Tag<T> d;
    const int64_t padded = plan_.hidden_padded;
    alignas(64) T part[kTileRows][PanelWidth<T>()];
    tile.depth = padded;
    for (int gate = 0; gate < 4; ++gate) {
      for (int r = 0; r < rows; ++r) tile.to[r] = gate == 0 ? dh[r] : part[r];
      RunTileRows<kVectors>(tile, rows);
      for (int r = 0; r < rows; ++r) {
        Drop(gate, row + r, unit, kVectors, tile.to[r]);
        for (int64_t i = 0; gate > 0 && i < kVectors * Width<T>(); i += Width<T>()) {
          hn::Store(hn::Add(hn::Load(d, dh[r] + i), hn::Load(d, part[r] + i)), d, dh[r] + i);
        }
        tile.a[r] += padded;
      }
      tile.panel += padded * PanelWidth<T>();
      tile.next[0] = nullptr;
    }
  }

  // values *= the mask of a gate, in units from `unit` on.
  void Drop(int gate, int64_t row, int64_t unit, int vectors, T* values) const {
    const Tag<T> d;
    const T* mask = recurrent_mask_ + gate * state_ + row * plan_.hidden_padded + unit;
    for (int64_t i = 0; i < vectors * Width<T>(); i += Width<T>()) {
      hn::StoreU(hn::Mul(hn::LoadU(d, values + i), hn::LoadU(d, mask + i)), d, values + i);
    }
  }

  // What the pointwise part of a tile reads, long before it does.
  HWY_INLINE void PrefetchVectors(int64_t step, int64_t row, int64_t unit, int vectors) const {
    if (step < 0) return;
    const int64_t padded = plan_.hidden_padded;
    const T* gates = gates_ + (step * spec_.batch + row) * 4 * padded + unit;
    const T* cell = cell_ + step * state_ + row * padded + unit;
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
      dh = hn::Add(dh, hn::LoadU(d, carry_ + at));
    }
    V dc = hn::LoadU(d, grad_cell_ + at);
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
    const bool dropped = masked && (spec_.zero_output_for_mask || step < first_valid_[row]);
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
    T* grad_gates = grad_gates_ + gates_at;
    if (masked) {
      for (int g = 0; g < 4; ++g) hn::StoreU(hn::Zero(d), d, grad_gates + g * padded);
      hn::StoreU(dh, d, carry_ + at);
      return;
    }
    V gates[4];
    for (int g = 0; g < 4; ++g) gates[g] = hn::LoadU(d, gates_ + gates_at + g * padded);
    cell_policy_.Backward(d, gates, hn::LoadU(d, cell_ + step * state_ + at),
                          hn::LoadU(d, cell_ + (step + 1) * state_ + at), dh, dc);
    for (int g = 0; g < 4; ++g) hn::StoreU(gates[g], d, grad_gates + g * padded);
    hn::StoreU(dc, d, grad_cell_ + at);
  }

  void BiasGradient(int index, int count) {
    const Tag<T> d;
    const int64_t width = 4 * plan_.hidden_padded, rows = spec_.steps * spec_.batch;
    T* sums = grad_bias_;
    const Part part(width / kUnitPadding, index, count);
    const int64_t begin = part.begin * kUnitPadding, end = part.end * kUnitPadding;
    std::fill(sums + begin, sums + end, T{0});
    for (int64_t r = 0; r < rows; ++r) {
      const T* from = grad_gates_ + r * width;
      for (int64_t j = begin; j < end; j += Width<T>()) {
        hn::StoreU(hn::Add(hn::LoadU(d, sums + j), hn::LoadU(d, from + j)), d, sums + j);
      }
    }
    for (int64_t j = begin; j < end; j += kUnitPadding) {
      const int64_t gate = j / plan_.hidden_padded, unit = j % plan_.hidden_padded;
      WriteElements(spec_.weight_dtype, sums + j, std::min(kUnitPadding, spec_.hidden_size - unit),
                    At(gradients_.grad_bias[direction_], spec_.weight_dtype,
                       gate * spec_.hidden_size + unit));
    }
  }

  // Where the directions' shares of grad_x add up: converted in the workspace, or the caller's.
  T* GradX() const {
    return plan_.convert_x ? Buffer<T>(gradients_.workspace, plan_.backward.grad_x)
                           : static_cast<T*>(gradients_.grad_x);
  }

  // Sets grad_x to this direction's share, or adds it from the second direction on.
  void InputGradient(Member& member) {
    const int64_t input = spec_.input_size, width = 4 * plan_.hidden_padded;
    const Rows<T> grad_x = {GradX(), CallerRows(spec_, input, spec_.go_backwards)};
    Product<T> product;
    product.depth = width;
    product.parts = 1;
    auto& part = product.part[0];
    part = {spec_.steps * spec_.batch, {grad_gates_, DenseRows(spec_.batch, width)}, grad_x};
    product.a_transposed = false;
    product.b = Transposed(kernel_, input);
    product.bias = nullptr;
    if (spec_.num_dropout_masks == 0) {
      product.accumulate = direction_ > 0;
      Multiply(member, product);
      return;
    }
    part.c = {grad_x_part_, DenseRows(spec_.batch, input)};
    if (spec_.num_dropout_masks == 4) product.depth = plan_.hidden_padded;
    for (int gate = 0; gate < spec_.num_dropout_masks; ++gate) {
      Multiply(member, product);
      member.Phase(1, [&](int index, int count) {
        const Part rows(part.rows, index, count);
        for (int64_t r = rows.begin; r < rows.end; ++r) {
          T* share = part.c(r);
          MultiplyElements(spec_.dtype, DropoutMask(gate, r % spec_.batch), input, share, share);
          T* to = grad_x(r);
          if (gate == 0 && direction_ == 0) {
            std::copy(share, share + input, to);
          } else {
            for (int64_t i = 0; i < input; ++i) to[i] += share[i];
          }
        }
      });
      part.a.data += plan_.hidden_padded;
      product.b.data += spec_.hidden_size;
    }
  }

  void WriteInputGradient(int index, int count) {
    const Part part(spec_.steps * spec_.batch * spec_.input_size, index, count);
    WriteElements(spec_.dtype, GradX() + part.begin, part.end - part.begin,
                  At(gradients_.grad_x, spec_.dtype, part.begin));
  }

  void WeightGradients(Member& member) {
    const int64_t input = spec_.input_size, hidden = spec_.hidden_size;
    const int masks = spec_.num_dropout_masks, recurrent_masks = spec_.num_recurrent_dropout_masks;
    WeightGradient gradients[2];
    int count = 0;
    if (void* gradient = gradients_.grad_kernel[direction_]; gradient != nullptr) {
      const Rows<const T> x = plan_.copy_x
                                  ? Rows<const T>{x_, DenseRows(spec_.batch, input)}
                                  : Rows<const T>{static_cast<const T*>(inputs_.x),
                                                  CallerRows(spec_, input, spec_.go_backwards)};
      gradients[count++] = {input, x, gradient};
      if (masks > 0) {
        Multiply(member, gradients, 1, masks, [&](int gate, int index, int tasks) {
          if (gate > 0) CopyInput(gate, index, tasks);
        });
        count = 0;
      }
    }
    if (void* gradient = gradients_.grad_recurrent_kernel[direction_]; gradient != nullptr) {
      const Rows<const T> h{recurrent_masks == 0 ? hidden_ : dropped_,
                            DenseRows(spec_.batch, plan_.hidden_padded)};
      if (recurrent_masks > 0) {
        const WeightGradient recurrent = {hidden, h, gradient};
        Multiply(member, &recurrent, 1, recurrent_masks,
                 [&](int gate, int index, int tasks) { CopyHidden(gate, index, tasks); });
      } else {
        gradients[count++] = {hidden, h, gradient};
      }
    }
    // Together, where they can, so that grad_gates is packed once.
    if (count > 0) Multiply(member, gradients, count, 0, [](int, int, int) {});
  }

  // h before every step as it met the recurrent weights of a gate.
  void CopyHidden(int gate, int index, int count) {
    const int64_t padded = plan_.hidden_padded;
    const Part part(spec_.steps * spec_.batch, index, count);
    for (int64_t r = part.begin; r < part.end; ++r) {
      std::copy(hidden_ + r * padded, hidden_ + (r + 1) * padded, dropped_ + r * padded);
      Drop(gate, r % spec_.batch, 0, static_cast<int>(padded / Width<T>()), dropped_ + r * padded);
    }
  }

  // gradient [rows, 4 hidden] = a^T grad_gates, for one or two. With masks, copy(gate, index,
  // tasks) fills a's part first, for all gates or for one after the other.
  template <class Copy>
  void Multiply(Member& member, const WeightGradient* gradients, int parts, int masks,
                const Copy& copy) {
    const int64_t hidden = spec_.hidden_size, padded = plan_.hidden_padded;
    const bool direct = plan_.plain_gates && !plan_.convert_weights;
    Product<T> product;
    product.depth = spec_.steps * spec_.batch;
    product.a_transposed = true;
    product.b = {Columns<T>::kPlain,
                 grad_gates_,
                 4 * padded,
                 masks == 4 ? padded : 4 * padded,
                 hidden,
                 padded};
    product.bias = nullptr;
    product.parts = parts;
    T* buffer = grad_kernel_;
    for (int k = 0; k < parts; ++k) {
      const WeightGradient& gradient = gradients[k];
      T* c = direct ? static_cast<T*>(gradient.gradient) : buffer;
      product.part[k] = {gradient.rows, gradient.a, {c, DenseRows(1, 4 * padded)}};
      buffer += gradient.rows * 4 * padded;
    }
    if (masks == 0) Multiply(member, product);
    for (int gate = 0; gate < masks; ++gate) {
      member.Phase(1, [&](int index, int tasks) { copy(gate, index, tasks); });
      Multiply(member, product);
      product.b.data += padded;
      product.part[0].c.data += padded;
    }
    if (direct) return;
    member.Phase(1, [&](int index, int tasks) {
      const T* from = grad_kernel_;
      for (int k = 0; k < parts; ++k) {
        const Part part(gradients[k].rows, index, tasks);
        for (int64_t r = part.begin; r < part.end; ++r) {
          for (int gate = 0; gate < 4; ++gate) {
            WriteElements(spec_.weight_dtype, from + (r * 4 + gate) * padded, hidden,
                          At(gradients[k].gradient, spec_.weight_dtype, (r * 4 + gate) * hidden));
          }
        }
        from += gradients[k].rows * 4 * padded;
      }
    });
  }

  void Multiply(Member& member, const Product<T>& product) {
    T* scratch = member_ + member.id() * plan_.backward.member_size;
    member.Phase(plan_.step_tasks,
                 [&](int index, int count) { MultiplyTask(product, index, count, scratch); });
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
  const T* gates_;
  const T* cell_;
  const T* hidden_;
  T* grad_gates_;
  T* grad_cell_;
  T* carry_;
  T* recurrent_;
  int64_t* first_valid_;
  T* x_;
  T* grad_x_part_;
  T* recurrent_mask_;
  T* dropped_;
  T* grad_kernel_;
  T* grad_bias_;
  T* member_;
  T* converted_kernel_ = nullptr;
  T* converted_recurrent_kernel_ = nullptr;
  const T* kernel_;
  const T* recurrent_kernel_;
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
