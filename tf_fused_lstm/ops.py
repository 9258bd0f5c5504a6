"""`fused_lstm`: the op as a function."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_fused_lstm import _raw_ops, _tensorflow, activations, composite, gradients
from tf_fused_lstm._arguments import to_dtype, to_flag, to_float, to_mask


class FusedLSTMOutput(NamedTuple):
    """What `fused_lstm` returns.

    Attributes:
        output: `[batch, steps, hidden_size]`, `[steps, batch, hidden_size]` if `time_major`, or
            `[batch, hidden_size]` without `return_sequences`. Of two directions
            `2 * hidden_size`: the output of the second one, at the steps whose x it read, is the
            latter half.
        final_h: `[batch, hidden_size]`, or a list of one for each kernel where those are a list.
        final_c: Likewise.
    """

    output: tf.Tensor
    final_h: tf.Tensor | list[tf.Tensor]
    final_c: tf.Tensor | list[tf.Tensor]


def _weight_dtype(x: tf.Tensor, kernel: Any) -> tf.DType:
    """float32 where a half or bfloat16 x meets float32 weights, else x's dtype."""
    x_dtype = x.dtype
    if x_dtype is tf.float32 or x_dtype.size != 2:
        return x_dtype
    dtype = getattr(kernel, "dtype", None)
    is_float32 = dtype is not None and tf.as_dtype(dtype) == tf.float32
    return tf.float32 if is_float32 else x_dtype


def _is_list(kernel: Any) -> bool:
    """Whether it is a list of kernels, not of the numbers of one."""
    if not isinstance(kernel, (list, tuple)) or not kernel:
        return False
    shape = getattr(kernel[0], "shape", None)
    rank = np.ndim(kernel[0]) if shape is None else tf.TensorShape(shape).rank
    return rank != 1


def _cells(name: str, value: Any, count: int) -> list[Any]:
    """The argument's values for `count` kernels that are a list."""
    if not isinstance(value, (list, tuple)):
        raise ValueError(
            f"{name} must be a list of {count} tensors, as kernel is, got a {type(value).__name__}"
        )
    if len(value) != count:
        raise ValueError(
            f"{name} must be a list of {count} tensors, as kernel is, got {len(value)}"
        )
    return list(value)


def _checked_attributes(
    time_major: Any,
    go_backwards: Any,
    return_sequences: Any,
    zero_output_for_mask: Any,
    activation: Any,
    recurrent_activation: Any,
    bidirectional: Any,
) -> composite.Attributes:
    return composite.Attributes(
        time_major=to_flag("time_major", time_major),
        go_backwards=to_flag("go_backwards", go_backwards),
        return_sequences=to_flag("return_sequences", return_sequences),
        zero_output_for_mask=to_flag("zero_output_for_mask", zero_output_for_mask),
        activation=activations.required_name_of("activation", activation),
        recurrent_activation=activations.required_name_of(
            "recurrent_activation", recurrent_activation
        ),
        bidirectional=to_flag("bidirectional", bidirectional),
    )


# By type as well: 1.0 is no flag, though it equals True.
_cached_attributes = functools.lru_cache(maxsize=64, typed=True)(_checked_attributes)


def _attributes(*arguments: Any) -> composite.Attributes:
    try:
        return _cached_attributes(*arguments)
    except TypeError:  # unhashable
        return _checked_attributes(*arguments)


@_tensorflow.unconverted
def fused_lstm(
    x: Any,
    kernel: Any,
    recurrent_kernel: Any,
    bias: Any = None,
    *,
    initial_h: Any = None,
    initial_c: Any = None,
    mask: Any = None,
    dropout_mask: Any = None,
    recurrent_dropout_mask: Any = None,
    time_major: bool = False,
    go_backwards: bool = False,
    bidirectional: bool = False,
    activation: str | Callable[..., Any] | None = "tanh",
    recurrent_activation: str | Callable[..., Any] | None = "sigmoid",
    return_sequences: bool = True,
    zero_output_for_mask: bool = False,
    training: bool | None = None,
) -> FusedLSTMOutput:
    """Runs a whole LSTM over time, in one op: a layer, both directions of one, or several layers.

    At every step, `z = x_t kernel + h recurrent_kernel + bias`, its last axis in Keras's gate
    order i, f, c, o; `i, f, o = recurrent_activation(z)`, `g = activation(z)`;
    `c = f c + i g`; `h = o activation(c)` (Hochreiter and Schmidhuber 1997; Gers et al. 2000).

    For several cells, `kernel` is a list of one for each: those of the lowest layer first, and
    with `bidirectional` two a layer, first that of the direction that runs forward in time. The
    other arguments that a cell has of its own are lists of the same length then. Layers may differ
    in hidden_size. A layer reads the whole output of the one below, so that its input_size is that
    output's last dimension.

    Args:
        x: The input, `[batch, steps, input_size]`, or `[steps, batch, input_size]` if
            `time_major`; float16, bfloat16, float32 or float64.
        kernel: `[input_size, 4 * hidden_size]`, of x's dtype, or float32 where x is float16 or
            bfloat16.
        recurrent_kernel: `[hidden_size, 4 * hidden_size]`, of kernel's dtype.
        bias: `[4 * hidden_size]`, of kernel's dtype. Default: none.
        initial_h: `[batch, hidden_size]`, of x's dtype. Default: zeros.
        initial_c: Likewise.
        mask: `[batch, steps]`, or `[steps, batch]` if `time_major`; bool, or numbers of which 0
            is False. At a False step h and c keep their values, and the output repeats that of
            the step before (zeros before the first True). Default: all True. In every layer.
        dropout_mask: Factors of the cell's input, the same at all steps, such as 0 and
            `1 / (1 - rate)`: `[1, batch, input_size]`, or `[4, batch, input_size]` with one for
            each gate i, f, c, o, of x's dtype. In a list, `[0, batch, input_size]` is none.
            Default: none. Masks have no gradient (Gal and Ghahramani 2016).
        recurrent_dropout_mask: Likewise `[1 or 4, batch, hidden_size]`, factors of h where it
            meets recurrent_kernel; output and states are not dropped.
        time_major: The layout of x, mask and output.
        go_backwards: Run from the last step to the first. The output stays in processing order.
            In every layer.
        bidirectional: Every layer has two cells, of which the second runs backward in time. Not
            with go_backwards.
        activation: tanh, sigmoid, hard_sigmoid, relu or linear, as a name or as Keras's or
            TensorFlow's function.
        recurrent_activation: Likewise.
        return_sequences: Give the (last layer's) output of every step, not only of the last.
        zero_output_for_mask: The output of a False step is zero.
        training: Keep what the gradient needs. None, the default, keeps it exactly when a
            GradientTape watches an argument, or a gradient of the traced function is built.
            It never changes a result: a gradient of a run that kept nothing runs the forward
            pass again.

    Returns:
        A named tuple `(output, final_h, final_c)` in x's dtype.

    Raises:
        ValueError: An argument has a wrong dtype, a flag is neither True nor False, or a shape is
            known to be wrong while tracing.
        tf.errors.InvalidArgumentError: An argument has a wrong shape.
    """
    attributes = _attributes(
        time_major, go_backwards, return_sequences, zero_output_for_mask, activation,
        recurrent_activation, bidirectional,
    )  # fmt: skip
    x = to_float("x", x)
    is_list = _is_list(kernel)
    kernels = kernel if is_list else [kernel]
    if attributes.bidirectional and len(kernels) % 2:
        raise ValueError(
            f"kernel must be a list of two kernels a layer with bidirectional, got {len(kernels)}"
        )
    if attributes.bidirectional and attributes.go_backwards:
        raise ValueError("go_backwards must be False with bidirectional, got True")
    weight_dtype = _weight_dtype(x, kernels[0])

    def cells(name: str, value: Any, dtype: tf.DType) -> list[tf.Tensor]:
        if not is_list:
            return [to_dtype(name, value, dtype)]
        values = _cells(name, value, len(kernels))
        return [to_dtype(f"{name}[{i}]", cell, dtype) for i, cell in enumerate(values)]

    def optional(name: str, value: Any, dtype: tf.DType) -> list[tf.Tensor]:
        return [] if value is None else cells(name, value, dtype)

    inputs = composite.Inputs(
        x=x,
        kernel=cells("kernel", kernel, weight_dtype),
        recurrent_kernel=cells("recurrent_kernel", recurrent_kernel, weight_dtype),
        bias=optional("bias", bias, weight_dtype),
        initial_h=optional("initial_h", initial_h, x.dtype),
        initial_c=optional("initial_c", initial_c, x.dtype),
        mask=[] if mask is None else [to_mask("mask", mask)],
        dropout_mask=optional("dropout_mask", dropout_mask, x.dtype),
        recurrent_dropout_mask=optional("recurrent_dropout_mask", recurrent_dropout_mask, x.dtype),
    )
    training = None if training is None else to_flag("training", training)
    output, final_h, final_c = run(inputs, attributes, training)
    if is_list:
        return FusedLSTMOutput(output, final_h, final_c)
    return FusedLSTMOutput(output, final_h[0], final_c[0])


def run(
    inputs: composite.Inputs, attributes: composite.Attributes, training: bool | None
) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
    """`fused_lstm` for converted arguments: the op, or ordinary ops where it cannot run."""
    raw_ops = _raw_ops.here()
    if raw_ops is None or _tensorflow.needs_ordinary_ops(inputs.differentiable()):
        return composite.lstm(inputs, attributes)
    if training is None:
        training = _tensorflow.gradient_is_recorded(inputs.differentiable())
    if training and _tensorflow.can_record():
        return gradients.run_recorded(raw_ops, inputs, attributes)
    output, final_h, final_c, _ = raw_ops.fused_lstm(
        **_raw_ops.arguments(inputs, attributes), training=training
    )
    return output, list(final_h), list(final_c)
