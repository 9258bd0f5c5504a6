"""`fused_lstm`: the op as a function."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import tensorflow as tf

from tf_fused_lstm import _loader, _tensorflow, _xla, activations, composite
from tf_fused_lstm._arguments import to_dtype, to_float, to_mask


class FusedLSTMOutput(NamedTuple):
    """What `fused_lstm` returns.

    Attributes:
        output: `[batch, steps, hidden_size]`, `[steps, batch, hidden_size]` if `time_major`, or
            `[batch, hidden_size]` without `return_sequences`.
        final_h: `[batch, hidden_size]`.
        final_c: `[batch, hidden_size]`.
    """

    output: tf.Tensor
    final_h: tf.Tensor
    final_c: tf.Tensor


def _weight_dtype(x: tf.Tensor, kernel: Any) -> tf.DType:
    """float32 where a half or bfloat16 x meets float32 weights, else x's dtype."""
    x_dtype = x.dtype
    if x_dtype is tf.float32 or x_dtype.size != 2:
        return x_dtype
    dtype = getattr(kernel, "dtype", None)
    is_float32 = dtype is not None and tf.as_dtype(dtype) == tf.float32
    return tf.float32 if is_float32 else x_dtype


@tf.autograph.experimental.do_not_convert
def fused_lstm(
    x: Any,
    kernel: Any,
    recurrent_kernel: Any,
    bias: Any = None,
    *,
    initial_h: Any = None,
    initial_c: Any = None,
    mask: Any = None,
    time_major: bool = False,
    go_backwards: bool = False,
    activation: str | Callable[..., Any] | None = "tanh",
    recurrent_activation: str | Callable[..., Any] | None = "sigmoid",
    return_sequences: bool = True,
    zero_output_for_mask: bool = False,
    training: bool | None = None,
) -> FusedLSTMOutput:
    """Runs a whole LSTM layer over time, in one op.

    At every step, `z = x_t kernel + h recurrent_kernel + bias`, its last axis in Keras's gate
    order i, f, c, o; `i, f, o = recurrent_activation(z)`, `g = activation(z)`;
    `c = f c + i g`; `h = o activation(c)` (Hochreiter and Schmidhuber 1997; Gers et al. 2000).

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
            the step before (zeros before the first True). Default: all True.
        time_major: The layout of x, mask and output.
        go_backwards: Run from the last step to the first. The output stays in processing order.
        activation: tanh, sigmoid, hard_sigmoid, relu or linear, as a name or as Keras's or
            TensorFlow's function.
        recurrent_activation: Likewise.
        return_sequences: Give the output of every step, not only of the last.
        zero_output_for_mask: The output of a False step is zero.
        training: Keep what the gradient needs. None, the default, keeps it exactly when a
            GradientTape watches an argument, or a gradient of the traced function is built.
            It never changes a result: a gradient of a run that kept nothing runs the forward
            pass again.

    Returns:
        A named tuple `(output, final_h, final_c)` in x's dtype.

    Raises:
        ValueError: An argument has a wrong dtype, or a shape known to be wrong while tracing.
        tf.errors.InvalidArgumentError: An argument has a wrong shape.
    """
    x = to_float("x", x)
    weight_dtype = _weight_dtype(x, kernel)
    inputs = composite.Inputs(
        x=x,
        kernel=to_dtype("kernel", kernel, weight_dtype),
        recurrent_kernel=to_dtype("recurrent_kernel", recurrent_kernel, weight_dtype),
        bias=None if bias is None else to_dtype("bias", bias, weight_dtype),
        initial_h=None if initial_h is None else to_dtype("initial_h", initial_h, x.dtype),
        initial_c=None if initial_c is None else to_dtype("initial_c", initial_c, x.dtype),
        mask=None if mask is None else to_mask("mask", mask),
    )
    attributes = composite.Attributes(
        time_major=time_major,
        go_backwards=go_backwards,
        return_sequences=return_sequences,
        zero_output_for_mask=zero_output_for_mask,
        activation=activations.required_name_of("activation", activation),
        recurrent_activation=activations.required_name_of(
            "recurrent_activation", recurrent_activation
        ),
    )
    return run(inputs, attributes, training)


def raw_ops_here() -> ModuleType | None:
    """The ops' wrappers; None without the op library, or where XLA compiles and lacks its own."""
    raw_ops = _loader.raw_ops()
    if raw_ops is None or tf.executing_eagerly():
        return raw_ops
    return None if _tensorflow.in_xla_context() and not _xla.available() else raw_ops


def as_list(tensor: tf.Tensor | None) -> list[tf.Tensor]:
    """An optional tensor in the op's form: a list of no or one tensor."""
    return [] if tensor is None else [tensor]


def list_arguments(inputs: composite.Inputs) -> dict[str, Any]:
    """The inputs as keyword arguments of the raw ops."""
    return {
        "x": inputs.x,
        "kernel": [inputs.kernel],
        "recurrent_kernel": [inputs.recurrent_kernel],
        "bias": as_list(inputs.bias),
        "initial_h": as_list(inputs.initial_h),
        "initial_c": as_list(inputs.initial_c),
        "mask": as_list(inputs.mask),
    }


def run(
    inputs: composite.Inputs, attributes: composite.Attributes, training: bool | None
) -> FusedLSTMOutput:
    """`fused_lstm` for converted arguments: the op, or ordinary ops where it cannot run."""
    raw_ops = raw_ops_here()
    if raw_ops is None:
        return FusedLSTMOutput(*composite.lstm(inputs, attributes))
    if training is None:
        training = _tensorflow.gradient_is_recorded(inputs.differentiable())
    output, (final_h,), (final_c,), _ = raw_ops.fused_lstm(
        **list_arguments(inputs), **vars(attributes), training=training
    )
    return FusedLSTMOutput(output, final_h, final_c)
