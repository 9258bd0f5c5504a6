// One call of the core on the CPU, after its arguments were checked.
#ifndef TF_FUSED_LSTM_CC_LSTM_CPU_CALL_H_
#define TF_FUSED_LSTM_CC_LSTM_CPU_CALL_H_

#include "cc/lstm/cpu/plan.h"
#include "cc/lstm/cpu/rows.h"
#include "cc/lstm/cpu/team.h"
#include "cc/lstm/lstm.h"

namespace tfl::cpu {

struct ForwardCall {
  tfl_lstm_spec spec;
  Plan plan;
  tfl_lstm_inputs inputs;
  tfl_lstm_outputs outputs;
};

struct BackwardCall {
  tfl_lstm_spec spec;
  Plan plan;
  tfl_lstm_inputs inputs;
  tfl_lstm_saved saved;
  tfl_lstm_gradients gradients;
};

// The programs that every member of the team runs, for the best instruction set of the machine.
void Forward(const ForwardCall& call, Member& member);
void Backward(const BackwardCall& call, Member& member);

// The spec as direction `index` of a call reads x and mask by it.
inline tfl_lstm_spec DirectionSpec(tfl_lstm_spec spec, int index) {
  if (index == 1) spec.go_backwards = 1;
  return spec;
}

// Where a direction's output of every step lies, in the order of the recurrence: a direction of two
// writes at the steps that it reads.
inline RowStrides OutputRows(const tfl_lstm_spec& spec, int direction) {
  RowStrides rows = CallerRows(spec, spec.num_directions * spec.hidden_size, direction == 1);
  rows.first += direction * spec.hidden_size;
  return rows;
}

// The mask of a call, in the order of the recurrence.
struct Mask {
  Mask(const tfl_lstm_spec& spec, const uint8_t* data)
      : data(spec.has_mask ? data : nullptr), rows(CallerRows(spec, 1, spec.go_backwards)) {}
  bool Valid(int64_t step, int64_t row) const {
    return data == nullptr || data[rows.Start(step, row)] != 0;
  }
  // The first valid step of a row, or spec.steps.
  int64_t FirstValid(int64_t steps, int64_t row) const {
    int64_t step = 0;
    while (step < steps && !Valid(step, row)) ++step;
    return step;
  }
  const uint8_t* data;
  RowStrides rows;
};

// The part [begin, end) of `size` things that task `index` of `count` takes.
struct Part {
  Part(int64_t size, int index, int count)
      : begin(size / count * index + size % count * index / count),
        end(size / count * (index + 1) + size % count * (index + 1) / count) {}
  int64_t begin;
  int64_t end;
};

template <class T>
T* Buffer(void* base, int64_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(base) + offset);
}
template <class T>
const T* Buffer(const void* base, int64_t offset) {
  return reinterpret_cast<const T*>(static_cast<const char*>(base) + offset);
}

}  // namespace tfl::cpu

#endif  // TF_FUSED_LSTM_CC_LSTM_CPU_CALL_H_
