"""The op's function in ordinary TensorFlow ops: what has every derivative, and what XLA compiles.

Slow beside the op; used where the op cannot be: for derivatives of the gradient, and without the op
library or its XLA kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tf_fused_lstm.activations import function_of


class Attributes(NamedTuple):
    """The attributes that FusedLSTM and FusedLSTMGrad share, by their names in the op."""

    time_major: bool
    go_backwards: bool
    return_sequences: bool
    zero_output_for_mask: bool
    activation: str
    recurrent_activation: str
    bidirectional: bool = False


Tensors = Sequence[tf.Tensor]


class Inputs(NamedTuple):
    """The inputs that FusedLSTM and FusedLSTMGrad share, in the op's order.

    A sequence holds one tensor a cell (a direction of a layer), or none.
    """

    x: tf.Tensor
    kernel: Tensors
    recurrent_kernel: Tensors
    bias: Tensors = ()
    initial_h: Tensors = ()
    initial_c: Tensors = ()
    mask: Tensors = ()
    dropout_mask: Tensors = ()
    recurrent_dropout_mask: Tensors = ()

    def differentiable(self) -> list[tf.Tensor]:
        """Those that are there and have a gradient, in the op's order."""
        return [
            self.x, *self.kernel, *self.recurrent_kernel, *self.bias, *self.initial_h,
            *self.initial_c,
        ]  # fmt: skip

    def constants(self) -> list[tf.Tensor]:
        """Those after them in the op's order, which have no gradient."""
        return [*self.mask, *self.dropout_mask, *self.recurrent_dropout_mask]


class _Cell(NamedTuple):
    """One direction of a layer; tensors in the type that is computed in, None where absent."""

    kernel: tf.Tensor
    recurrent_kernel: tf.Tensor
    bias: tf.Tensor | None
    initial_h: tf.Tensor | None
    initial_c: tf.Tensor | None
    dropout_mask: tf.Tensor | None
    recurrent_dropout_mask: tf.Tensor | None

    @classmethod
    def of(cls, inputs: Inputs, index: int, dtype: tf.DType) -> _Cell:
        names = cls._fields
        return cls(
            **{
                name: tf.cast(_with_rank(getattr(inputs, name)[index], name), dtype)
                if getattr(inputs, name)
                else None
                for name in names
            }
        )


# Of a function traced without shapes not even the ranks are known.
_RANKS = {"x": 3, "kernel": 2, "recurrent_kernel": 2, "bias": 1, "initial_h": 2, "initial_c": 2,
          "mask": 2, "dropout_mask": 3, "recurrent_dropout_mask": 3}  # fmt: skip


def _with_rank(tensor: tf.Tensor, name: str) -> tf.Tensor:
    rank = _RANKS[name]
    return tensor if tensor.shape.rank == rank else tf.ensure_shape(tensor, [None] * rank)


def _swap_batch_and_steps(tensor: tf.Tensor) -> tf.Tensor:
    return tf.transpose(tensor, [1, 0, *range(2, tensor.shape.rank)])


def lstm(
    inputs: Inputs, attributes: Attributes, unroll: bool = False
) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
    """Runs the LSTM of cc/ops/fused_lstm_ops.cc; returns (output, final_h, final_c).

    Half and bfloat16 inputs are computed in float32.

    Args:
        inputs: The op's.
        attributes: The op's.
        unroll: Without a loop where the number of steps is known: of one TensorFlow makes no second
            derivative for many vectors at once.
    """
    dtype = inputs.x.dtype
    wide = tf.float32 if dtype.size == 2 else dtype
    x = tf.cast(_with_rank(inputs.x, "x"), wide)
    mask = _with_rank(inputs.mask[0], "mask") if inputs.mask else None
    if mask is not None:  # what x holds at masked steps, NaN perhaps, shall reach no derivative
        x = tf.where(mask[..., tf.newaxis], x, tf.zeros([], wide))
    if not attributes.time_major:
        x = _swap_batch_and_steps(x)
        mask = None if mask is None else _swap_batch_and_steps(mask)
    directions = 2 if attributes.bidirectional else 1
    final_h, final_c = [], []
    for first in range(0, len(inputs.kernel), directions):
        is_last = first + directions == len(inputs.kernel)
        sequences, lasts = [], []
        for index in range(first, first + directions):
            cell = _Cell.of(inputs, index, wide)
            backwards = attributes.go_backwards or index > first
            sequence, last, h, c = _run_cell(cell, x, mask, backwards, attributes, unroll)
            sequences.append(tf.reverse(sequence, [0]) if index > first else sequence)
            lasts.append(last)
            final_h.append(tf.cast(h, dtype))
            final_c.append(tf.cast(c, dtype))
        x = tf.concat(sequences, -1)
        if is_last and not attributes.return_sequences:
            return tf.cast(tf.concat(lasts, -1), dtype), final_h, final_c
    output = x if attributes.time_major else _swap_batch_and_steps(x)
    return tf.cast(output, dtype), final_h, final_c


def _gate_factors(masks: tf.Tensor | None) -> tf.Tensor | None:
    """Dropout masks, [0, 1 or 4, batch, size], as one for each gate; None for none."""
    if masks is None or masks.shape[0] == 0:
        return None
    if masks.shape[0] == 4:
        return masks
    all_masks = tf.concat([masks, tf.ones([1, *tf.unstack(tf.shape(masks)[1:])], masks.dtype)], 0)
    indices = tf.minimum(tf.range(4), tf.maximum(tf.shape(masks)[0] - 1, 0))
    return tf.gather(all_masks, indices)


def _gated_product(a: tf.Tensor, weights: tf.Tensor, factors: tf.Tensor | None) -> tf.Tensor:
    """a weights, each gate's columns from a times its factors. a: [..., batch, size]."""
    if factors is None:
        return tf.einsum("...bi,ij->...bj", a, weights)
    parts = tf.split(weights, 4, axis=-1)
    return tf.concat(
        [
            tf.einsum("...bi,ij->...bj", a * factor, part)
            for factor, part in zip(tf.unstack(factors, 4), parts, strict=True)
        ],
        -1,
    )


def _by_step(tensor: tf.Tensor) -> tf.TensorArray:
    """Its rows; with another one below if there may be none, as XLA reads from no empty array."""
    if not tensor.shape[0]:
        tensor = tf.pad(tensor, [[0, 1], *[[0, 0]] * (tensor.shape.rank - 1)])
    array = tf.TensorArray(tensor.dtype, size=tf.shape(tensor)[0], element_shape=tensor.shape[1:])
    return array.unstack(tensor)


def _run_cell(
    cell: _Cell,
    x: tf.Tensor,
    mask: tf.Tensor | None,
    backwards: bool,
    attributes: Attributes,
    unroll: bool,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """A cell over time-major x: (outputs in processing order, the last one, h, c)."""
    if backwards:
        x = tf.reverse(x, [0])
        mask = None if mask is None else tf.reverse(mask, [0])
    recurrent_kernel = cell.recurrent_kernel
    z = _gated_product(x, cell.kernel, _gate_factors(cell.dropout_mask))
    if cell.bias is not None:
        z += cell.bias
    hidden_size = recurrent_kernel.shape[0] or tf.shape(recurrent_kernel)[0]
    zeros = tf.zeros([tf.shape(x)[1], hidden_size], x.dtype)
    h = zeros if cell.initial_h is None else cell.initial_h
    c = zeros if cell.initial_c is None else cell.initial_c
    factors = _gate_factors(cell.recurrent_dropout_mask)

    activation = function_of(attributes.activation)
    recurrent_activation = function_of(attributes.recurrent_activation)

    def step(
        z: tf.Tensor, valid: tf.Tensor | None, h: tf.Tensor, c: tf.Tensor, output: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        gates = z + _gated_product(h, recurrent_kernel, factors)
        i, f, g, o = tf.split(gates, 4, axis=-1)
        new_c = recurrent_activation(f) * c + recurrent_activation(i) * activation(g)
        new_h = recurrent_activation(o) * activation(new_c)
        if valid is None:
            return new_h, new_c, new_h
        valid = valid[:, tf.newaxis]
        skipped = zeros if attributes.zero_output_for_mask else output
        return (
            tf.where(valid, new_h, h), tf.where(valid, new_c, c), tf.where(valid, new_h, skipped)
        )  # fmt: skip

    if unroll and z.shape[0]:
        output, sequence = zeros, []
        for t in range(z.shape[0]):
            h, c, output = step(z[t], None if mask is None else mask[t], h, c, output)
            sequence.append(output)
        return tf.stack(sequence), output, h, c

    steps = tf.shape(z)[0]
    z_steps = _by_step(z)
    mask_steps = None if mask is None else _by_step(mask)
    # Its first element is the zeros that a masked first step repeats, so that it is never empty.
    outputs = tf.TensorArray(
        z.dtype, size=steps + 1, element_shape=zeros.shape, clear_after_read=False
    )
    outputs = outputs.write(0, zeros)

    def body(
        t: tf.Tensor, h: tf.Tensor, c: tf.Tensor, output: tf.Tensor, outputs: tf.TensorArray
    ) -> tuple[tf.Tensor | tf.TensorArray, ...]:
        valid = None if mask_steps is None else mask_steps.read(t)
        h, c, output = step(z_steps.read(t), valid, h, c, output)
        return t + 1, h, c, output, outputs.write(t + 1, output)

    _, h, c, last, outputs = tf.while_loop(
        lambda t, *_: t < steps,
        body,
        (tf.constant(0), h, c, zeros, outputs),
        # XLA keeps what the gradient needs in an array of so many steps, which none may lack.
        maximum_iterations=z.shape[0] or tf.maximum(steps, 1),
    )
    return outputs.stack()[1:], last, h, c


def gradient(
    inputs: Inputs,
    attributes: Attributes,
    grad_outputs: Sequence[tf.Tensor],
    unroll: bool = False,
) -> list[tf.Tensor]:
    """The gradients of the loss with respect to `inputs.differentiable()`.

    Args:
        inputs: What `lstm` was called with.
        attributes: Likewise.
        grad_outputs: The gradients of the loss with respect to output, to final_h of every cell
            and to final_c of every cell.
        unroll: As in `lstm`.
    """
    sources = inputs.differentiable()
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(sources)
        output, final_h, final_c = lstm(inputs, attributes, unroll)
        outputs = [output, *final_h, *final_c]
    return tape.gradient(
        outputs, sources, output_gradients=list(grad_outputs), unconnected_gradients="zero"
    )
