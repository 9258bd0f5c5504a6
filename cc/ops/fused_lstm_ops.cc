// The op contract: names, types, shapes and documentation of FusedLSTM and FusedLSTMGrad.
//
// Optional inputs are lists of no or one tensor, weights are lists so that one op can hold several
// layers and directions: the recurrence is one kernel family, an added layer one more list entry.
#include "cc/ops/shape_functions.h"
#include "tensorflow/core/framework/op.h"

namespace tf_fused_lstm {

// The attributes and inputs that forward and gradient share. N has no default: a SavedModel drops
// attributes at their default, and TensorFlow then reads back an output list of N tensors as empty.
#define TFL_COMMON_INPUTS                    \
  Input("x: T")                              \
      .Input("kernel: N * W")                \
      .Input("recurrent_kernel: N * W")      \
      .Input("bias: num_bias * W")           \
      .Input("initial_h: num_initial_h * T") \
      .Input("initial_c: num_initial_c * T") \
      .Input("mask: num_mask * bool")

#define TFL_COMMON_ATTRS                                                                   \
  Attr("T: {half, bfloat16, float, double}")                                               \
      .Attr("W: {half, bfloat16, float, double}")                                          \
      .Attr("N: int >= 1")                                                                 \
      .Attr("num_bias: int >= 0 = 0")                                                      \
      .Attr("num_initial_h: int >= 0 = 0")                                                 \
      .Attr("num_initial_c: int >= 0 = 0")                                                 \
      .Attr("num_mask: int >= 0 = 0")                                                      \
      .Attr("time_major: bool = false")                                                    \
      .Attr("go_backwards: bool = false")                                                  \
      .Attr("return_sequences: bool = true")                                               \
      .Attr("zero_output_for_mask: bool = false")                                          \
      .Attr("activation: {'tanh', 'sigmoid', 'hard_sigmoid', 'relu', 'linear'} = 'tanh'")  \
      .Attr(                                                                               \
          "recurrent_activation: {'tanh', 'sigmoid', 'hard_sigmoid', 'relu', 'linear'} = " \
          "'sigmoid'")

REGISTER_OP("FusedLSTM")
    .TFL_COMMON_INPUTS.Output("output: T")
    .Output("final_h: N * T")
    .Output("final_c: N * T")
    .Output("reserve: uint8")
    .TFL_COMMON_ATTRS.Attr("training: bool = false")
    .SetShapeFn(ForwardShape)
    .Doc(R"doc(
A whole LSTM layer over time, in one op.

For every step: z = x_t kernel + h recurrent_kernel + bias, its last axis in Keras's gate order
i, f, g, o; i, f, o = recurrent_activation(z), g = activation(z); c = f c + i g;
h = o activation(c). Source: Hochreiter and Schmidhuber, Long Short-Term Memory, 1997; Gers,
Schmidhuber and Cummins, Learning to Forget, 2000; weights as in keras.layers.LSTM.

x: The input, [batch, steps, input_size], or [steps, batch, input_size] if time_major.
kernel: The input weights, [input_size, 4 * hidden_size]. N must be 1.
recurrent_kernel: The recurrent weights, [hidden_size, 4 * hidden_size].
bias: No or one tensor, [4 * hidden_size].
initial_h: No tensor (zeros) or one, [batch, hidden_size].
initial_c: No tensor (zeros) or one, [batch, hidden_size].
mask: No tensor or one, [batch, steps], or [steps, batch] if time_major. False at a step keeps h and
  c, and repeats the output of the step before (zeros before the first valid step).
output: h of every step, in processing order, [batch, steps, hidden_size] or, if time_major,
  [steps, batch, hidden_size]; without return_sequences the last step's, [batch, hidden_size].
final_h: h after the last step, [batch, hidden_size].
final_c: c after the last step, [batch, hidden_size]; inside the op c is kept in float32 for half and
  bfloat16.
reserve: Bytes that FusedLSTMGrad reads. Empty unless training.
T: The type of x, the states and the output. Products accumulate in float32 or wider.
W: The type of the weights: T, or float where T is half or bfloat16.
time_major: The layout of x, mask and output.
go_backwards: Run from the last step to the first; x and mask are read in reverse, the output is left
  in processing order.
return_sequences: Give the output of every step, not only of the last.
zero_output_for_mask: A masked step's output is zero.
activation: The activation of g and of the output. hard_sigmoid is clip(x / 6 + 1 / 2, 0, 1).
recurrent_activation: The activation of i, f and o.
training: Keep the reserve. The gradient of an op without it runs the forward pass again.
)doc");

REGISTER_OP("FusedLSTMGrad")
    .TFL_COMMON_INPUTS.Input("output: T")
    .Input("reserve: uint8")
    .Input("grad_output: T")
    .Input("grad_final_h: N * T")
    .Input("grad_final_c: N * T")
    .Output("grad_x: T")
    .Output("grad_kernel: N * W")
    .Output("grad_recurrent_kernel: N * W")
    .Output("grad_bias: num_bias * W")
    .Output("grad_initial_h: num_initial_h * T")
    .Output("grad_initial_c: num_initial_c * T")
    .TFL_COMMON_ATTRS.SetShapeFn(GradientShape)
    .Doc(R"doc(
The gradient of FusedLSTM: backpropagation through time, in one op.

The first seven inputs and the attributes are those of the FusedLSTM op.

output: FusedLSTM's output.
reserve: FusedLSTM's reserve, from a run on the same kind of device. Empty: the forward pass is run
  again first.
grad_output: The gradient with respect to output.
grad_final_h: The gradient with respect to final_h.
grad_final_c: The gradient with respect to final_c.
grad_x: The gradient with respect to x; likewise the others.
)doc");

#undef TFL_COMMON_ATTRS
#undef TFL_COMMON_INPUTS

}  // namespace tf_fused_lstm
