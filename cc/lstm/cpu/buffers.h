// Where a direction of the backward pass finds its tensors.
#ifndef TF_FUSED_LSTM_CC_LSTM_CPU_BUFFERS_H_
#define TF_FUSED_LSTM_CC_LSTM_CPU_BUFFERS_H_

#include "cc/lstm/cpu/call.h"

namespace tfl::cpu {

// T is the compute type. What lies where: ReserveLayout and BackwardLayout.
template <class T>
struct BackwardBuffers {
  BackwardBuffers(const BackwardCall& call, int direction) {
    const BackwardLayout& layout = call.plan.backward;
    void* workspace = Buffer<char>(call.gradients.workspace, direction * layout.bytes);
    const void* reserve = Buffer<char>(call.saved.reserve, direction * call.plan.reserve.bytes);
    gates = Buffer<T>(reserve, call.plan.reserve.gates);
    cell = Buffer<T>(reserve, call.plan.reserve.cell);
    hidden = Buffer<T>(reserve, call.plan.reserve.hidden);
    grad_gates = Buffer<T>(workspace, layout.grad_gates);
    grad_cell = Buffer<T>(workspace, layout.grad_cell);
    carry = Buffer<T>(workspace, layout.carry);
    recurrent = Buffer<T>(workspace, layout.recurrent);
    first_valid = Buffer<int64_t>(workspace, layout.first_valid);
    x = Buffer<T>(workspace, layout.x);
    dropout_mask = Buffer<T>(workspace, layout.dropout_mask);
    recurrent_mask = Buffer<T>(workspace, layout.recurrent_mask);
    grad_kernel = Buffer<T>(workspace, layout.grad_kernel);
    grad_bias = Buffer<T>(workspace, layout.grad_bias);
    member = Buffer<T>(workspace, layout.member);
    if (call.plan.convert_weights) {
      converted_kernel = Buffer<T>(workspace, layout.kernel);
      converted_recurrent_kernel = Buffer<T>(workspace, layout.recurrent_kernel);
      kernel = converted_kernel;
      recurrent_kernel = converted_recurrent_kernel;
    } else {
      kernel = static_cast<const T*>(call.inputs.kernel[direction]);
      recurrent_kernel = static_cast<const T*>(call.inputs.recurrent_kernel[direction]);
    }
  }

  const T* gates;
  const T* cell;
  const T* hidden;
  T* grad_gates;
  T* grad_cell;
  T* carry;
  T* recurrent;
  int64_t* first_valid;
  T* x;
  T* dropout_mask;
  T* recurrent_mask;
  T* grad_kernel;
  T* grad_bias;
  T* member;
  T* converted_kernel = nullptr;
  T* converted_recurrent_kernel = nullptr;
  const T* kernel;
  const T* recurrent_kernel;
};

}  // namespace tfl::cpu

#endif  // TF_FUSED_LSTM_CC_LSTM_CPU_BUFFERS_H_
