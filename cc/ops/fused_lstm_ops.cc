// The op contract: names, types, shapes and documentation of FusedLSTM and FusedLSTMGrad.
//
// Optional inputs are lists of no tensor or as many as there are; weights are lists so that one op
// can hold several layers and directions.
#include "cc/ops/shape_functions.h"
#include "tensorflow/core/framework/op.h"

namespace tf_fused_lstm {

// The attributes and inputs that forward and gradient share. What was added later stands at the
// lists' ends, with the default that older graphs mean. N has no default: a SavedModel drops
// attributes at their default, and TensorFlow then reads back an output list of N tensors as empty.
#define TFL_COMMON_INPUTS                          \
  Input("x: T")                                    \
      .Input("kernel: N * W")                      \
      .Input("recurrent_kernel: N * W")            \
      .Input("bias: num_bias * W")                 \
      .Input("initial_h: num_initial_h * T")       \
      .Input("initial_c: num_initial_c * T")       \
      .Input("mask: num_mask * bool")              \
      .Input("dropout_mask: num_dropout_mask * T") \
      .Input("recurrent_dropout_mask: num_recurrent_dropout_mask * T")

#define TFL_COMMON_ATTRS                                                                   \
  Attr("T: {half, bfloat16, float, double}")                                               \
      .Attr("W: {half, bfloat16, float, double}")                                          \
      .Attr("N: int >= 1")                                                                 \
      .Attr("num_bias: int >= 0 = 0")                                                      \
      .Attr("num_initial_h: int >= 0 = 0")                                                 \
      .Attr("num_initial_c: int >= 0 = 0")                                                 \
      .Attr("num_mask: int >= 0 = 0")                                                      \
      .Attr("num_dropout_mask: int >= 0 = 0")                                              \
      .Attr("num_recurrent_dropout_mask: int >= 0 = 0")                                    \
      .Attr("bidirectional: bool = false")                                                 \
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
A whole LSTM over time, in one op: a layer, both directions of one, or layers on top of each other.

For every step: z = x_t kernel + h recurrent_kernel + bias, its last axis in Keras's gate order
i, f, g, o; i, f, o = recurrent_activation(z), g = activation(z); c = f c + i g;
h = o activation(c). Source: Hochreiter and Schmidhuber, Long Short-Term Memory, 1997; Gers,
Schmidhuber and Cummins, Learning to Forget, 2000; weights as in keras.layers.LSTM.

Lists hold a tensor for each cell: one a layer, from the lowest on, or with bidirectional two, first
that of the direction that runs forward in time, then that of the one that runs backward. Layers may
differ in hidden_size; a layer above the first reads the whole output of the one below, of every
step, so that its input_size is that output's last dimension. Errors name a cell's tensor as in
kernel[2] where there are several.

x: The input, [batch, steps, input_size], or [steps, batch, input_size] if time_major.
kernel: The input weights of every cell, [input_size, 4 * hidden_size].
recurrent_kernel: The recurrent weights, [hidden_size, 4 * hidden_size].
bias: No tensor, or one for every cell, [4 * hidden_size].
initial_h: No tensor (zeros), or one for every cell, [batch, hidden_size].
initial_c: Likewise.
mask: No tensor or one, [batch, steps], or [steps, batch] if time_major, for all layers. False at a
  step keeps h and c, and repeats the output of the step before (zeros before the first valid step).
dropout_mask: No tensor, or one for every cell: factors of the cell's input that hold for all steps,
  such as 0 and 1 / (1 - rate), [1, batch, input_size] for all gates, [4, batch, input_size] for each
  of i, f, g, o, or [0, batch, input_size] for none. The directions of a layer have as many each.
recurrent_dropout_mask: Likewise [.., batch, hidden_size], factors of h where it meets
  recurrent_kernel; the output and the states are not dropped. Masks are constants: they have no
  gradient. Source: Gal and Ghahramani, A Theoretically Grounded Application of Dropout in Recurrent
  Neural Networks, 2016.
output: h of every step of the last layer, [batch, steps, hidden_size] or, if time_major,
  [steps, batch, hidden_size]; without return_sequences the last step's, [batch, hidden_size]. In
  processing order, but bidirectional [.., 2 * hidden_size], with what the backward direction gave at
  the step whose x it read; without return_sequences each direction's last.
final_h: h of every cell after its last step, [batch, hidden_size].
final_c: c likewise; inside the op c is kept in float32 for half and bfloat16.
reserve: Bytes that FusedLSTMGrad reads. Empty unless training.
T: The type of x, the states and the output. Products accumulate in float32 or wider.
W: The type of the weights: T, or float where T is half or bfloat16.
time_major: The layout of x, mask and output.
bidirectional: Each layer has two directions. Not with go_backwards.
go_backwards: Run from the last step to the first; x and mask are read in reverse, the output is left
  in processing order. In every layer.
return_sequences: Give the last layer's output of every step, not only of the last.
zero_output_for_mask: A masked step's output is zero, in every layer.
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

The inputs before output and the attributes are those of the FusedLSTM op.

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
