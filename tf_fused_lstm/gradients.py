"""The gradients of the ops: FusedLSTMGrad for FusedLSTM, ordinary ops for FusedLSTMGrad.

The second makes every further derivative: second order, forward mode, Jacobians.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from tf_fused_lstm import _raw_ops, _tensorflow, composite

_OPTIONAL = ("bias", "initial_h", "initial_c", "mask", "dropout_mask", "recurrent_dropout_mask")
_ATTRIBUTES = composite.Attributes._fields


def _attributes(op: Any) -> composite.Attributes:
    def get(name: str) -> Any:
        value = op.get_attr(name)
        return value.decode() if isinstance(value, bytes) else value

    return composite.Attributes(**{name: get(name) for name in _ATTRIBUTES})


def _inputs(op: Any) -> tuple[composite.Inputs, list[tf.Tensor]]:
    """The op's shared inputs, and the inputs after them."""
    rest = list(op.inputs)

    def take(count: str) -> list[tf.Tensor]:
        return [rest.pop(0) for _ in range(op.get_attr(count))]

    inputs = composite.Inputs(
        x=rest.pop(0),
        kernel=take("N"),
        recurrent_kernel=take("N"),
        **{name: take(f"num_{name}") for name in _OPTIONAL},
    )
    return inputs, rest


def _no_gradients(inputs: composite.Inputs) -> list[None]:
    return [None] * len(inputs.constants())


def _gradient(
    inputs: composite.Inputs,
    attributes: composite.Attributes,
    outputs: Sequence[tf.Tensor],
    reserve: tf.Tensor,
    grads: Sequence[tf.Tensor | None],
) -> list[tf.Tensor]:
    """The gradients of `inputs.differentiable()`, from those of output, final_h and final_c."""
    grad_outputs = [
        tf.zeros_like(value) if grad is None else tf.convert_to_tensor(grad)
        for value, grad in zip(outputs, grads, strict=False)
    ]
    raw_ops = _raw_ops.here()
    if raw_ops is None:
        return composite.gradient(inputs, attributes, grad_outputs)
    cells = len(inputs.kernel)
    # Where the reserve was kept: its layout is the device's.
    with tf.device(reserve.device) if reserve.device else contextlib.nullcontext():
        grad_x, *lists = raw_ops.fused_lstm_grad(
            **_raw_ops.arguments(inputs, attributes),
            output=outputs[0],
            reserve=reserve,
            grad_output=grad_outputs[0],
            grad_final_h=grad_outputs[1 : 1 + cells],
            grad_final_c=grad_outputs[1 + cells :],
        )
    return [grad_x, *(tensor for tensors in lists for tensor in tensors)]


@tf.RegisterGradient("FusedLSTM")
def _fused_lstm_gradient(op: Any, *grads: tf.Tensor | None) -> list[tf.Tensor | None]:
    """Calls FusedLSTMGrad. `grads`: of output, final_h, final_c, and None for the reserve."""
    inputs, _ = _inputs(op)
    *outputs, reserve = op.outputs
    if not op.get_attr("training"):
        _tensorflow.keep_reserve(op)
    return [
        *_gradient(inputs, _attributes(op), outputs, reserve, grads),
        *_no_gradients(inputs),
    ]


def run_recorded(
    raw_ops: ModuleType, inputs: composite.Inputs, attributes: composite.Attributes
) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
    """The op in eager mode, keeping what its gradient needs, on the active tapes.

    Recorded by itself the op would be given a gradient of its reserve: as many zeros as that holds.
    """
    with _tensorflow.unrecorded():
        output, final_h, final_c, reserve = raw_ops.fused_lstm(
            **_raw_ops.arguments(inputs, attributes), training=True
        )
    outputs = [output, *final_h, *final_c]

    def backward(*grads: tf.Tensor | None) -> list[tf.Tensor]:
        return _gradient(inputs, attributes, outputs, reserve, grads)

    _tensorflow.record("FusedLSTM", outputs, inputs.differentiable(), backward)
    return output, list(final_h), list(final_c)


@tf.RegisterGradient("FusedLSTMGrad")
def _fused_lstm_grad_gradient(op: Any, *grads: tf.Tensor | None) -> list[tf.Tensor | None]:
    """Differentiates the gradient as a function of the inputs and of the gradients given to it.

    output and reserve are functions of the inputs, so their share is in the inputs' gradients.
    """
    inputs, rest = _inputs(op)
    attributes = _attributes(op)
    _output, _reserve, *grad_outputs = rest
    weights = [
        tf.zeros_like(value) if grad is None else tf.convert_to_tensor(grad)
        for value, grad in zip(op.outputs, grads, strict=True)
    ]
    sources = [*inputs.differentiable(), *grad_outputs]
    results = _second_order(inputs, attributes, grad_outputs, weights, sources)
    count = len(sources) - len(grad_outputs)
    return [*results[:count], *_no_gradients(inputs), None, None, *results[count:]]


def _second_order(
    inputs: composite.Inputs,
    attributes: composite.Attributes,
    grad_outputs: Sequence[tf.Tensor],
    weights: Sequence[tf.Tensor],
    sources: Sequence[tf.Tensor],
) -> list[tf.Tensor]:
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(sources)
        first_order = composite.gradient(
            inputs, attributes, grad_outputs, unroll=_tensorflow.in_pfor()
        )
    return tape.gradient(
        first_order, sources, output_gradients=weights, unconnected_gradients="zero"
    )
