"""Several of Keras 3's LSTM layers as one op: the directions of a Bidirectional, or a stack."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_fused_lstm import _keras, activations, composite, ops

# A stack from its lowest layer on, each the layers of its one or two directions.
Layers = Sequence[Sequence[Any]]


def why_apart(layers: Layers) -> str | None:
    """Why the layers cannot share one op although each can run it alone, or None."""
    cells = [cell for layer in layers for cell in layer]
    first = cells[0]
    same = ("activation", "recurrent_activation", "use_bias", "compute_dtype", "variable_dtype")
    for cell in cells[1:]:
        for name in same:
            if getattr(cell.cell, name) != getattr(first.cell, name):
                return f"{cell.name} has another {name} than {first.name}"
    for layer in layers:
        forward, *backward = layer
        # What lies at a masked step between two layers is not read, unless the upper one reads it
        # in another order than the mask.
        other = first if first.go_backwards else layer[-1]
        if forward.zero_output_for_mask != other.zero_output_for_mask:
            return f"{other.name} has another zero_output_for_mask than {forward.name}"
        if backward:
            if forward.go_backwards or not backward[0].go_backwards:
                return f"{forward.name} runs backward in time"
            if forward.units != backward[0].units:
                return f"{backward[0].name} has another number of units than {forward.name}"
            if _counts(forward) != _counts(backward[0]):
                return f"{backward[0].name} has other dropout than {forward.name}"
        elif forward.go_backwards != first.go_backwards:
            return f"{forward.name} runs in another direction than {first.name}"
    return None


def run(
    layers: Layers,
    sequences: Any,
    initial_states: Sequence[Any],
    mask: Any,
    training: Any,
) -> tuple[tf.Tensor, list[tf.Tensor], list[tf.Tensor]]:
    """Runs the layers' cells as one op; returns (output, final_h, final_c), the latter of each.

    Args:
        layers: Built FusedLSTM layers, each of which can run the op for this call, and which
            `why_apart` has nothing against.
        sequences: The input of the lowest layer.
        initial_states: The initial_state of each cell as its layer's call takes it, or None.
        mask: As a layer's call takes it.
        training: Whether dropout is active.
    """
    cells = [cell for layer in layers for cell in layer]
    first = cells[0]
    x = first._to_x(sequences)
    arguments = [
        cell._op_inputs(x, state, training)
        for cell, state in zip(cells, initial_states, strict=True)
    ]

    def listed(name: str) -> list[tf.Tensor]:
        values = [argument[name] for argument in arguments]
        if all(value is None for value in values):
            return []
        return [
            _absent(name, cell, x) if value is None else value
            for cell, value in zip(cells, values, strict=True)
        ]

    inputs = composite.Inputs(
        x=x,
        **{name: listed(name) for name in arguments[0]},
        mask=[] if mask is None else [first._mask(mask, x, 0)],
    )
    attributes = composite.Attributes(
        time_major=False,
        go_backwards=first.go_backwards,
        return_sequences=cells[-1].return_sequences,
        zero_output_for_mask=cells[-1].zero_output_for_mask,
        activation=activations.required_name_of("activation", first.cell.activation),
        recurrent_activation=activations.required_name_of(
            "recurrent_activation", first.cell.recurrent_activation
        ),
        bidirectional=len(layers[0]) == 2,
    )
    output, final_h, final_c = ops.run(inputs, attributes, training=None)
    for cell, *states in zip(cells, final_h, final_c, strict=True):
        if cell.stateful:
            for variable, state in zip(cell.states, states, strict=True):
                variable.assign(state)
    return output, final_h, final_c


def _counts(layer: Any) -> tuple[int, int]:
    """How many dropout masks the layer's cell draws, of its input and of h."""
    each = getattr(layer.cell, "dropout_mask_count", None) or 1
    return each * (0 < layer.dropout < 1), each * (0 < layer.recurrent_dropout < 1)


def _absent(name: str, cell: Any, x: tf.Tensor) -> tf.Tensor:
    """What stands for None in a list whose other tensors are given."""
    batch = tf.shape(x)[0]
    if name == "dropout_mask":
        return tf.zeros([0, batch, cell.cell.kernel.shape[0]], x.dtype)
    if name == "recurrent_dropout_mask":
        return tf.zeros([0, batch, cell.units], x.dtype)
    return tf.zeros([batch, cell.units], x.dtype)  # an initial state


class Together(threading.local):
    """What the forward layer of a Bidirectional leaves for the backward one, to return next."""

    results: Any = None


def call_in_wrapper(
    layer: Any, sequences: Any, initial_state: Any, mask: Any, training: Any
) -> Any:
    """The layer's results where a `keras.layers.Bidirectional` calls it and both directions can
    run as one op; None where it is to run alone.

    The wrapper calls its forward layer and then, with the same arguments but for initial_state, its
    backward layer. The first call runs both directions, the second one returns the rest.
    """
    wrapper = _keras.calling_layer(layer)
    if (
        not isinstance(wrapper, keras.layers.Bidirectional)
        or type(wrapper).call is not keras.layers.Bidirectional.call
    ):
        return None
    forward, backward = wrapper.forward_layer, wrapper.backward_layer
    if layer is backward and layer is not forward:
        results, layer._together.results = layer._together.results, None
        return results
    if layer is not forward or not isinstance(backward, type(forward)):
        return None
    if type(backward).call is not type(forward).call:
        forward._apart_reason = f"{type(backward).__name__} overrides call"
        return None
    backward._together.results = None
    forward._apart_reason = reason = _why_directions_apart(
        forward, backward, sequences, initial_state, mask, training
    )
    if reason is not None:
        return None
    output, final_h, final_c = run([[forward, backward]], sequences, [None, None], mask, training)
    ahead, behind = tf.split(output, 2, axis=-1)
    if forward.return_sequences:
        behind = tf.reverse(behind, [1])  # as the backward layer alone leaves it
    if forward.return_state:
        backward._together.results = (behind, final_h[1], final_c[1])
        return ahead, final_h[0], final_c[0]
    backward._together.results = behind
    return ahead


def forget_kept(layer: Any) -> None:
    """Drops what an earlier call of a Bidirectional's forward layer left and nobody took."""
    backward: Any = getattr(_keras.calling_layer(layer), "backward_layer", None)
    together = getattr(backward, "_together", None)
    if isinstance(together, Together):
        together.results = None


def _why_directions_apart(
    forward: Any, backward: Any, sequences: Any, initial_state: Any, mask: Any, training: Any
) -> str | None:
    if initial_state is not None:
        return "initial_state is given, of which the forward layer sees its half only"
    if backward._keras_refuses(sequences):
        return f"{backward.name} refuses the input"
    if not backward._can_run_op(sequences, mask, training):
        return f"{backward.name}: {backward.fused_reason}"
    if not backward.built:
        return f"{backward.name} is not built"
    return why_apart([[forward, backward]])
