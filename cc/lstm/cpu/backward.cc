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
  explicit BackwardPass(const BackwardCall& call)
      : spec_(call.spec),
        plan_(call.plan),
        inputs_(call.inputs),
        saved_(call.saved),
        gradients_(call.gradients),
        cell_policy_(call.spec),
        mask_(call.spec, call.inputs.mask),
        output_rows_(CallerRows(call.spec, call.spec.hidden_size, false)),
        tiles_(call.spec.batch),
        panels_((plan_.hidden_padded + PanelWidth<T>() - 1) / PanelWidth<T>()),
        state_(spec_.batch * plan_.hidden_padded) {
    void* workspace = gradients_.workspace;
    const BackwardLayout& layout = plan_.backward;
    gates_ = Buffer<T>(saved_.reserve, plan_.reserve.gates);
    cell_ = Buffer<T>(saved_.reserve, plan_.reserve.cell);
    hidden_ = Buffer<T>(saved_.reserve, plan_.reserve.hidden);
    grad_gates_ = Buffer<T>(workspace, layout.grad_gates);
    grad_cell_ = Buffer<T>(workspace, layout.grad_cell);
    carry_ = Buffer<T>(workspace, layout.carry);
    recurrent_ = Buffer<T>(workspace, layout.recurrent);
    first_valid_ = Buffer<int64_t>(workspace, layout.first_valid);
    member_ = Buffer<T>(workspace, layout.member);
    kernel_ = plan_.convert_weights ? Buffer<T>(workspace, layout.kernel)
                                    : static_cast<const T*>(inputs_.kernel);
    recurrent_kernel_ = plan_.convert_weights ? Buffer<T>(workspace, layout.recurrent_kernel)
                                              : static_cast<const T*>(inputs_.recurrent_kernel);
  }

  void Run(Member& member) {
    if (plan_.convert_weights || plan_.copy_x) {
      member.Phase(1, [&](int index, int count) { Convert(index, count); });
    }
    member.Phase(1, [&](int index, int count) {
      PackRecurrent(index, count);
      StartStates(index, count);
    });
    Recurrence(member);
    if (gradients_.grad_bias != nullptr) {
      member.Phase(1, [&](int index, int count) { BiasGradient(index, count); });
    }
    if (gradients_.grad_x != nullptr) InputGradient(member);
    const int64_t input = spec_.input_size, hidden = spec_.hidden_size;
    if (gradients_.grad_kernel != nullptr) {
      const Rows<const T> x = plan_.copy_x
                                  ? Rows<const T>{Buffer<T>(gradients_.workspace, plan_.backward.x),
                                                  DenseRows(spec_.batch, input)}
                                  : Rows<const T>{static_cast<const T*>(inputs_.x),
                                                  CallerRows(spec_, input, spec_.go_backwards)};
      WeightGradient(member, x, input, gradients_.grad_kernel);
    }
    if (gradients_.grad_recurrent_kernel != nullptr) {
      const Rows<const T> h{hidden_, DenseRows(spec_.batch, plan_.hidden_padded)};
      WeightGradient(member, h, hidden, gradients_.grad_recurrent_kernel);
    }
  }

 private:
  void Convert(int index, int count) {
    void* workspace = gradients_.workspace;
    if (plan_.convert_weights) {
      const auto convert = [&](const void* from, int64_t rows, int64_t offset) {
        const Part part(rows * 4 * spec_.hidden_size, index, count);
        ReadElements(spec_.weight_dtype, At(from, spec_.weight_dtype, part.begin),
                     part.end - part.begin, Buffer<T>(workspace, offset) + part.begin);
      };
      convert(inputs_.kernel, spec_.input_size, plan_.backward.kernel);
      convert(inputs_.recurrent_kernel, spec_.hidden_size, plan_.backward.recurrent_kernel);
    }
    // What lies in x at a masked step, NaN included, does not reach grad_kernel.
    if (plan_.copy_x) {
      const RowStrides rows = CallerRows(spec_, spec_.input_size, spec_.go_backwards);
      T* to = Buffer<T>(workspace, plan_.backward.x);
      const Part part(spec_.steps * spec_.batch, index, count);
      for (int64_t r = part.begin; r < part.end; ++r) {
        const int64_t step = r / spec_.batch, row = r % spec_.batch;
        T* copy = to + r * spec_.input_size;
        if (mask_.Valid(step, row)) {
          ReadElements(spec_.dtype, At(inputs_.x, spec_.dtype, rows.Start(step, row)),
                       spec_.input_size, copy);
        } else {
          std::fill(copy, copy + spec_.input_size, T{0});
        }
      }
    }
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
      StartState(saved_.grad_final_h, row, carry_);
      StartState(saved_.grad_final_c, row, grad_cell_);
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
  void Recurrence(Member& member) {
    if (plan_.row_tasks > 0) {
      member.Phase(1, [&](int index, int) {
        if (index >= plan_.row_tasks) return;
        const Part part(tiles_.tiles, index, plan_.row_tasks);
        for (int64_t step = spec_.steps - 1; step >= -1; --step) {
          for (int64_t panel = 0; panel < panels_; ++panel) {
            for (int64_t tile = part.begin; tile < part.end; ++tile) StepTile(step, panel, tile);
          }
        }
      });
      return;
    }
    for (int64_t step = spec_.steps - 1; step >= -1; --step) {
      member.Phase(plan_.step_tasks, [&](int index, int count) {
        const Part part(panels_ * tiles_.tiles, index, count);
        int64_t panel = part.begin / tiles_.tiles, tile = part.begin % tiles_.tiles;
        for (int64_t i = part.begin; i < part.end; ++i) {
          StepTile(step, panel, tile);
          if (++tile == tiles_.tiles) tile = 0, ++panel;
        }
      });
    }
  }

  // dh before step + 1, then step itself, for the rows of a tile and a panel of units.
  void StepTile(int64_t step, int64_t panel, int64_t tile_index) {
    const int64_t padded = plan_.hidden_padded, depth = 4 * padded;
    const int64_t row = tiles_.Begin(tile_index), unit = panel * PanelWidth<T>();
    const int rows = static_cast<int>(tiles_.Begin(tile_index + 1) - row);
    const int vectors = static_cast<int>(std::min<int64_t>(4, (padded - unit) / Width<T>()));
    alignas(64) T dh[kTileRows][PanelWidth<T>()];
    Tile<T> tile;
    tile.panel = recurrent_ + panel * depth * PanelWidth<T>();
    tile.depth = step + 1 < spec_.steps ? depth : 0;
    // The next panel comes from the third-level cache, a quarter with each of this one's tiles.
    if (tile_index < 4 && panel + 1 < panels_) {
      tile.next = tile.panel + depth * PanelWidth<T>() + tile_index * depth * Width<T>();
    }
    for (int r = 0; r < rows; ++r) {
      if (tile.depth > 0) tile.a[r] = grad_gates_ + ((step + 1) * spec_.batch + row + r) * depth;
      tile.to[r] = dh[r];
    }
    WithConstant<4>(vectors, [&](auto constant) { RunTileRows<constant.value>(tile, rows); });
    for (int r = 0; r < rows; ++r) {
      for (int v = 0; v < vectors; ++v) {
        const int64_t offset = v * Width<T>();
        StepVector(step, row + r, unit + offset, hn::Load(Tag<T>(), dh[r] + offset));
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
      if (gradients_.grad_initial_h != nullptr) {
        StorePart(d, dh, spec_.dtype, At(gradients_.grad_initial_h, spec_.dtype, to), valid);
      }
      if (gradients_.grad_initial_c != nullptr) {
        StorePart(d, dc, spec_.dtype, At(gradients_.grad_initial_c, spec_.dtype, to), valid);
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
        const int64_t from = row * hidden + unit;
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
    T* sums = Buffer<T>(gradients_.workspace, plan_.backward.grad_bias);
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
                    At(gradients_.grad_bias, spec_.weight_dtype, gate * spec_.hidden_size + unit));
    }
  }

  void InputGradient(Member& member) {
    const int64_t input = spec_.input_size, width = 4 * plan_.hidden_padded;
    const RowStrides rows = CallerRows(spec_, input, spec_.go_backwards);
    Product<T> product;
    product.rows = spec_.steps * spec_.batch;
    product.depth = width;
    product.a = {grad_gates_, DenseRows(spec_.batch, width)};
    product.a_transposed = false;
    product.b = Transposed(kernel_, input);
    product.c = plan_.convert_x ? Rows<T>{Buffer<T>(gradients_.workspace, plan_.backward.grad_x),
                                          DenseRows(spec_.batch, input)}
                                : Rows<T>{static_cast<T*>(gradients_.grad_x), rows};
    product.bias = nullptr;
    Multiply(member, product);
    if (!plan_.convert_x) return;
    member.Phase(1, [&](int index, int count) {
      const Part part(product.rows, index, count);
      for (int64_t r = part.begin; r < part.end; ++r) {
        const int64_t to = rows.Start(r / spec_.batch, r % spec_.batch);
        WriteElements(spec_.dtype, product.c(r), input, At(gradients_.grad_x, spec_.dtype, to));
      }
    });
  }

  // gradient [rows, 4 hidden] = a^T grad_gates.
  void WeightGradient(Member& member, const Rows<const T>& a, int64_t rows, void* gradient) {
    const int64_t hidden = spec_.hidden_size, padded = plan_.hidden_padded;
    const bool direct = plan_.plain_gates && !plan_.convert_weights;
    Product<T> product;
    product.rows = rows;
    product.depth = spec_.steps * spec_.batch;
    product.a = a;
    product.a_transposed = true;
    product.b = {Columns<T>::kPlain, grad_gates_, 4 * padded, 4 * padded, hidden, padded};
    product.c = {direct ? static_cast<T*>(gradient)
                        : Buffer<T>(gradients_.workspace, plan_.backward.grad_kernel),
                 DenseRows(1, 4 * padded)};
    product.bias = nullptr;
    Multiply(member, product);
    if (direct) return;
    member.Phase(1, [&](int index, int count) {
      const Part part(rows, index, count);
      for (int64_t r = part.begin; r < part.end; ++r) {
        for (int gate = 0; gate < 4; ++gate) {
          WriteElements(spec_.weight_dtype, product.c(r) + gate * padded, hidden,
                        At(gradient, spec_.weight_dtype, (r * 4 + gate) * hidden));
        }
      }
    });
  }

  void Multiply(Member& member, const Product<T>& product) {
    T* scratch = member_ + member.id() * kMemberScratch;
    member.Phase(plan_.step_tasks,
                 [&](int index, int count) { MultiplyTask(product, index, count, scratch); });
  }

  const tfl_lstm_spec spec_;
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
  T* member_;
  const T* kernel_;
  const T* recurrent_kernel_;
};

template <class T>
void BackwardAs(const BackwardCall& call, Member& member) {
  if (StandardActivations::Fits(call.spec)) {
    BackwardPass<T, LstmCell<StandardActivations>>(call).Run(member);
  } else {
    BackwardPass<T, LstmCell<AnyActivations>>(call).Run(member);
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
