// The gradients of the weights and the input: products over all steps, after the recurrence.
#if defined(TF_FUSED_LSTM_CC_LSTM_CPU_GRADIENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TF_FUSED_LSTM_CC_LSTM_CPU_GRADIENTS_INL_H_
#undef TF_FUSED_LSTM_CC_LSTM_CPU_GRADIENTS_INL_H_
#else
#define TF_FUSED_LSTM_CC_LSTM_CPU_GRADIENTS_INL_H_
#endif

#include "cc/lstm/cpu/buffers.h"
#include "cc/lstm/cpu/gemm-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tfl::cpu {
namespace HWY_NAMESPACE {

// Of one direction. T is the compute type.
template <class T>
class Gradients {
 public:
  Gradients(const BackwardCall& call, int direction)
      : direction_(direction),
        spec_(DirectionSpec(call.spec, direction)),
        plan_(call.plan),
        inputs_(call.inputs),
        gradients_(call.gradients),
        mask_(spec_, call.inputs.mask),
        buffers_(call, direction) {}

  // x where the products cannot read the caller's. What lies there at a masked step, NaN included,
  // does not reach grad_kernel.
  void CopyInput(int index, int count) {
    const RowStrides rows = CallerRows(spec_, spec_.input_size, spec_.go_backwards);
    const Part part(spec_.steps * spec_.batch, index, count);
    for (int64_t r = part.begin; r < part.end; ++r) {
      const int64_t step = r / spec_.batch, row = r % spec_.batch;
      T* copy = buffers_.x + r * spec_.input_size;
      if (mask_.Valid(step, row)) {
        ReadElements(spec_.dtype, At(inputs_.x, spec_.dtype, rows.Start(step, row)),
                     spec_.input_size, copy);
      } else {
        std::fill(copy, copy + spec_.input_size, T{0});
      }
    }
  }

  void BiasGradient(int index, int count) {
    const Tag<T> d;
    const int64_t width = 4 * plan_.hidden_padded, rows = spec_.steps * spec_.batch;
    T* sums = buffers_.grad_bias;
    const Part part(width / kUnitPadding, index, count);
    const int64_t begin = part.begin * kUnitPadding, end = part.end * kUnitPadding;
    std::fill(sums + begin, sums + end, T{0});
    for (int64_t r = 0; r < rows; ++r) {
      const T* from = buffers_.grad_gates + r * width;
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

  // Sets grad_x to this direction's share, or adds it from the second direction on.
  void InputGradient(Member& member) {
    const int64_t input = spec_.input_size, width = 4 * plan_.hidden_padded;
    Product<T> product;
    product.depth = width;
    product.parts = 1;
    product.part[0] = {spec_.steps * spec_.batch,
                       {buffers_.grad_gates, DenseRows(spec_.batch, width)},
                       {GradX(), CallerRows(spec_, input, spec_.go_backwards)}};
    product.a_transposed = false;
    product.b = TransposedGates(buffers_.kernel, input, spec_, plan_);
    product.bias = nullptr;
    product.accumulate = direction_ > 0;
    if (spec_.num_dropout_masks > 0 && width > 0) {
      product.segment_factors = {buffers_.dropout_mask, input};
      product.segment = width / spec_.num_dropout_masks;
    }
    Multiply(member, product);
  }

  void WriteInputGradient(int index, int count) {
    const Part part(spec_.steps * spec_.batch * spec_.input_size, index, count);
    WriteElements(spec_.dtype, GradX() + part.begin, part.end - part.begin,
                  At(gradients_.grad_x, spec_.dtype, part.begin));
  }

  // gradient [rows, 4 hidden] = a^T grad_gates for x and h, together where both are wanted, so that
  // grad_gates is packed once.
  void WeightGradients(Member& member) {
    const int64_t input = spec_.input_size, hidden = spec_.hidden_size;
    const int64_t padded = plan_.hidden_padded;
    const bool direct = plan_.plain_gates && !plan_.convert_weights;
    const int masks[2] = {spec_.num_dropout_masks, spec_.num_recurrent_dropout_masks};
    const Factors<T> factors[2] = {{masks[0] > 0 ? buffers_.dropout_mask : nullptr, input},
                                   {masks[1] > 0 ? buffers_.recurrent_mask : nullptr, padded}};
    const Rows<const T> x = plan_.copy_x
                                ? Rows<const T>{buffers_.x, DenseRows(spec_.batch, input)}
                                : Rows<const T>{static_cast<const T*>(inputs_.x),
                                                CallerRows(spec_, input, spec_.go_backwards)};
    const Rows<const T> a[2] = {x, {buffers_.hidden, DenseRows(spec_.batch, padded)}};
    const int64_t rows[2] = {input, hidden};
    void* const gradients[2] = {gradients_.grad_kernel[direction_],
                                gradients_.grad_recurrent_kernel[direction_]};
    Product<T> product;
    product.depth = spec_.steps * spec_.batch;
    product.a_transposed = true;
    product.b = {Columns<T>::kPlain, buffers_.grad_gates, 4 * padded, 4 * padded, hidden, padded};
    product.bias = nullptr;
    product.parts = 0;
    int inputs[2];  // of the product's parts
    T* buffer = buffers_.grad_kernel;
    for (int k = 0; k < 2; ++k) {
      if (gradients[k] == nullptr) continue;
      T* c = direct ? static_cast<T*>(gradients[k]) : buffer;
      buffer += rows[k] * 4 * padded;
      inputs[product.parts] = k;
      product.part[product.parts++] = {rows[k], a[k], {c, DenseRows(1, 4 * padded)}, factors[k]};
    }
    if (product.parts == 0) return;
    if (masks[0] < 4 && masks[1] < 4) {
      Multiply(member, product);
    } else {  // gate by gate, as a's factors differ
      member.Phase(plan_.step_tasks, [&](int index, int count) {
        Product<T> gate = product;
        gate.b.count = padded;
        for (int g = 0; g < 4; ++g) {
          MultiplyTask(gate, index, count, Scratch(member));
          gate.b.data += padded;
          for (int k = 0; k < gate.parts; ++k) {
            auto& part = gate.part[k];
            part.c.data += padded;
            if (masks[inputs[k]] == 4) part.a_factors.data += spec_.batch * part.a_factors.width;
          }
        }
      });
    }
    if (direct) return;
    member.Phase(1, [&](int index, int tasks) {
      for (int k = 0; k < product.parts; ++k) {
        const T* from = product.part[k].c.data;
        const Part part(product.part[k].rows, index, tasks);
        for (int64_t r = part.begin; r < part.end; ++r) {
          for (int gate = 0; gate < 4; ++gate) {
            WriteElements(spec_.weight_dtype, from + (r * 4 + gate) * padded, hidden,
                          At(gradients[inputs[k]], spec_.weight_dtype, (r * 4 + gate) * hidden));
          }
        }
      }
    });
  }

 private:
  // Where the directions' shares of grad_x add up: converted in the workspace, or the caller's.
  T* GradX() const {
    return plan_.convert_x ? Buffer<T>(gradients_.workspace, plan_.backward.grad_x)
                           : static_cast<T*>(gradients_.grad_x);
  }

  T* Scratch(const Member& member) const {
    return buffers_.member + member.id() * plan_.backward.member_size;
  }

  void Multiply(Member& member, const Product<T>& product) {
    member.Phase(plan_.step_tasks, [&](int index, int count) {
      MultiplyTask(product, index, count, Scratch(member));
    });
  }

  const int direction_;
  const tfl_lstm_spec spec_;  // go_backwards as this direction reads
  const Plan plan_;
  const tfl_lstm_inputs inputs_;
  const tfl_lstm_gradients gradients_;
  const Mask mask_;
  const BackwardBuffers<T> buffers_;
};

}  // namespace HWY_NAMESPACE
}  // namespace tfl::cpu
HWY_AFTER_NAMESPACE();

#endif  // TF_FUSED_LSTM_CC_LSTM_CPU_GRADIENTS_INL_H_
