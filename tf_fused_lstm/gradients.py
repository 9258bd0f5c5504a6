"""The gradients of the ops: FusedLSTMGrad for FusedLSTM, ordinary ops for FusedLSTMGrad.

The second makes every further derivative: second order, forward mode, Jacobians.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_fused_lstm import _tensorflow, composite
from tf_fused_lstm.ops import list_arguments, raw_ops_here

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


@tf.RegisterGradient("FusedLSTM")
def _fused_lstm_gradient(op: Any, *grads: tf.Tensor | None) -> list[tf.Tensor | None]:
    """Calls FusedLSTMGrad. `grads`: of output, final_h, final_c, and None for the reserve."""
    inputs, _ = _inputs(op)
    attributes = _attributes(op)
    *outputs, reserve = op.outputs
    grad_outputs = [
        tf.zeros_like(value) if grad is None else tf.convert_to_tensor(grad)
        for value, grad in zip(outputs, grads, strict=False)
    ]
    raw_ops = raw_ops_here()
    if raw_ops is None:
        results = composite.gradient(inputs, attributes, grad_outputs)
        return [*results, *_no_gradients(inputs)]
    cells = len(inputs.kernel)
    if not op.get_attr("training"):
        _tensorflow.keep_reserve(op)
    grad_x, *lists = raw_ops.fused_lstm_grad(
        **list_arguments(inputs),
        output=outputs[0],
        reserve=reserve,
        grad_output=grad_outputs[0],
        grad_final_h=grad_outputs[1 : 1 + cells],
        grad_final_c=grad_outputs[1 + cells :],
        **attributes._asdict(),
    )
    return [grad_x, *(tensor for tensors in lists for tensor in tensors),
            *_no_gradients(inputs)]  # fmt: skip


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
        first_order = composite.gradient(inputs, attributes, grad_outputs)
    return tape.gradient(
        first_order, sources, output_gradients=weights, unconnected_gradients="zero"
    )
