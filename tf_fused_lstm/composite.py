"""The op's function in ordinary TensorFlow ops: what has every derivative, and what XLA compiles.

Slow beside the op; used where the op cannot be: for derivatives of the gradient, and without the op
library or its XLA kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import tensorflow as tf

from tf_fused_lstm.activations import function_of


@dataclass(frozen=True)
class Attributes:
    """The attributes that FusedLSTM and FusedLSTMGrad share, by their names in the op."""

    time_major: bool
    go_backwards: bool
    return_sequences: bool
    zero_output_for_mask: bool
    activation: str
    recurrent_activation: str


@dataclass(frozen=True)
class Inputs:
    """The inputs that FusedLSTM and FusedLSTMGrad share; None where the op has no tensor."""

    x: tf.Tensor
    kernel: tf.Tensor
    recurrent_kernel: tf.Tensor
    bias: tf.Tensor | None
    initial_h: tf.Tensor | None
    initial_c: tf.Tensor | None
    mask: tf.Tensor | None

    def differentiable(self) -> list[tf.Tensor]:
        """Those that are there and have a gradient, in the op's order."""
        tensors = (
            self.x, self.kernel, self.recurrent_kernel, self.bias, self.initial_h, self.initial_c
        )  # fmt: skip
        return [t for t in tensors if t is not None]


def _swap_batch_and_steps(tensor: tf.Tensor) -> tf.Tensor:
    return tf.transpose(tensor, [1, 0, *range(2, tensor.shape.rank)])


def lstm(inputs: Inputs, attributes: Attributes) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Runs the LSTM of cc/ops/fused_lstm_ops.cc; returns (output, final_h, final_c).

    Half and bfloat16 inputs are computed in float32.
    """
    dtype = inputs.x.dtype
    wide = tf.float32 if dtype.size == 2 else dtype
    x = tf.cast(inputs.x, wide)
    mask = inputs.mask
    if not attributes.time_major:
        x = _swap_batch_and_steps(x)
        mask = None if mask is None else _swap_batch_and_steps(mask)
    if attributes.go_backwards:
        x = tf.reverse(x, [0])
        mask = None if mask is None else tf.reverse(mask, [0])
    recurrent_kernel = tf.cast(inputs.recurrent_kernel, wide)
    z = tf.einsum("tbi,ij->tbj", x, tf.cast(inputs.kernel, wide))
    if inputs.bias is not None:
        z += tf.cast(inputs.bias, wide)
    hidden_size = recurrent_kernel.shape[0] or tf.shape(recurrent_kernel)[0]
    zeros = tf.zeros([tf.shape(x)[1], hidden_size], wide)
    h = zeros if inputs.initial_h is None else tf.cast(inputs.initial_h, wide)
    c = zeros if inputs.initial_c is None else tf.cast(inputs.initial_c, wide)

    outputs, last, h, c = _loop(z, h, c, zeros, recurrent_kernel, mask, attributes)
    if attributes.return_sequences:
        output = outputs if attributes.time_major else _swap_batch_and_steps(outputs)
    else:
        output = last
    return tf.cast(output, dtype), tf.cast(h, dtype), tf.cast(c, dtype)


def _loop(
    z: tf.Tensor,
    h: tf.Tensor,
    c: tf.Tensor,
    zeros: tf.Tensor,
    recurrent_kernel: tf.Tensor,
    mask: tf.Tensor | None,
    attributes: Attributes,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """The recurrence over time-major z, in processing order: (outputs, last output, h, c)."""
    activation = function_of(attributes.activation)
    recurrent_activation = function_of(attributes.recurrent_activation)
    steps = tf.shape(z)[0]
    z_steps = tf.TensorArray(z.dtype, size=steps, element_shape=z.shape[1:]).unstack(z)
    mask_steps = None
    if mask is not None:
        mask_steps = tf.TensorArray(tf.bool, size=steps).unstack(mask)
    # Its first element is the zeros that a masked first step repeats, so that it is never empty.
    outputs = tf.TensorArray(
        z.dtype, size=steps + 1, element_shape=zeros.shape, clear_after_read=False
    )
    outputs = outputs.write(0, zeros)

    def step(
        t: tf.Tensor, h: tf.Tensor, c: tf.Tensor, output: tf.Tensor, outputs: tf.TensorArray
    ) -> tuple[tf.Tensor | tf.TensorArray, ...]:
        gates = z_steps.read(t) + tf.linalg.matmul(h, recurrent_kernel)
        i, f, g, o = tf.split(gates, 4, axis=-1)
        new_c = recurrent_activation(f) * c + recurrent_activation(i) * activation(g)
        new_h = recurrent_activation(o) * activation(new_c)
        if mask_steps is None:
            h, c, output = new_h, new_c, new_h
        else:
            valid = mask_steps.read(t)[:, tf.newaxis]
            skipped = zeros if attributes.zero_output_for_mask else output
            h, c = tf.where(valid, new_h, h), tf.where(valid, new_c, c)
            output = tf.where(valid, new_h, skipped)
        return t + 1, h, c, output, outputs.write(t + 1, output)

    _, h, c, last, outputs = tf.while_loop(
        lambda t, *_: t < steps,
        step,
        (tf.constant(0), h, c, zeros, outputs),
        maximum_iterations=z.shape[0] if z.shape[0] is not None else steps,
    )
    return outputs.stack()[1:], last, h, c


def gradient(
    inputs: Inputs, attributes: Attributes, grad_outputs: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """The gradients of the loss with respect to `inputs.differentiable()`.

    Args:
        inputs: What `lstm` was called with.
        attributes: Likewise.
        grad_outputs: The gradients of the loss with respect to output, final_h and final_c.
    """
    sources = inputs.differentiable()
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(sources)
        outputs = lstm(inputs, attributes)
    return tape.gradient(
        outputs, sources, output_gradients=list(grad_outputs), unconnected_gradients="zero"
    )
