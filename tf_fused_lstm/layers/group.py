"""LSTM layers of either Keras on the op: one, the directions of a Bidirectional, or a stack."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tf_fused_lstm import _keras, activations, composite, ops

# A stack from its lowest layer on, each the layers of its one or two directions.
Layers = Sequence[Sequence[Any]]


def why_apart(layers: Layers, training: Any) -> str | None:
    """Why the layers cannot share one op although each can run it alone, or None."""
    cells = [cell for layer in layers for cell in layer]
    first = cells[0]
    same = ("activation", "recurrent_activation", "use_bias", "compute_dtype", "variable_dtype")
    for cell in cells[1:]:
        for name in same:
            if getattr(cell.cell, name) != getattr(first.cell, name):
                return f"{cell.name} has another {name} than {first.name}"
        if cell.time_major != first.time_major:
            return f"{cell.name} has another time_major than {first.name}"
        for either in (first, cell):
            if either._drops_each_step(training):
                return f"{either.name} drops other inputs at each step"
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
            if forward._dropout_counts() != backward[0]._dropout_counts():
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
    x = first._dropped_each_step(first._to_x(sequences), training)
    arguments = [
        cell._op_inputs(x, state, training)
        for cell, state in zip(cells, initial_states, strict=True)
    ]

    def listed(name: str) -> list[tf.Tensor]:
        values = [argument[name] for argument in arguments]
        present = [value for value in values if value is not None]
        if not present or len(present) == len(values):
            return present
        return [
            _absent(name, cell, x) if value is None else value
            for cell, value in zip(cells, values, strict=True)
        ]

    inputs = composite.Inputs(
        x=x,
        **{name: listed(name) for name in arguments[0]},
        mask=[] if mask is None else [first._mask(mask, x)],
    )
    attributes = composite.Attributes(
        time_major=first.time_major,
        go_backwards=first.go_backwards,
        return_sequences=cells[-1].return_sequences,
        zero_output_for_mask=cells[-1].zero_output_for_mask,
        activation=activations.required_name_of("activation", first.cell.activation),
        recurrent_activation=activations.required_name_of(
            "recurrent_activation", first.cell.recurrent_activation
        ),
        bidirectional=len(layers[0]) == 2,
    )
    return ops.run(inputs, attributes, training=None)


def _absent(name: str, cell: Any, x: tf.Tensor) -> tf.Tensor:
    """What stands for None in a list whose other tensors are given."""
    batch = tf.shape(x)[cell._batch_axis]
    if name == "dropout_mask":
        return tf.zeros([0, batch, cell.cell.kernel.shape[0]], x.dtype)
    if name == "recurrent_dropout_mask":
        return tf.zeros([0, batch, cell.units], x.dtype)
    return tf.zeros([batch, cell.units], x.dtype)  # an initial state


class Together(threading.local):
    """What the forward layer of a Bidirectional leaves for the backward one, to return next."""

    results: Any = None

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Together, ()  # a copy of a layer has kept nothing


def run_in_wrapper(
    layer: Any, sequences: Any, initial_state: Any, mask: Any, training: Any
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor] | None:
    """The layer's (output, final_h, final_c) where a Bidirectional calls it and both directions
    can run as one op; None where it is to run alone.

    The wrapper calls its forward layer and then, with the same arguments but for initial_state, its
    backward layer. The first call runs both directions, the second one returns the rest.
    """
    found = _keras.calling_bidirectional(layer)
    if found is None:
        return None
    wrapper, states = found
    forward, backward = wrapper.forward_layer, wrapper.backward_layer
    if layer is backward and layer is not forward:
        results, layer._together.results = layer._together.results, None
        return results
    if not isinstance(backward, type(forward)):
        forward._apart_reason = f"{backward.name} is no {type(forward).__name__}"
        return None
    if type(backward).call is not type(forward).call:
        forward._apart_reason = f"{type(backward).__name__} overrides call"
        return None
    backward._together.results = None
    forward._apart_reason = reason = _why_directions_apart(
        forward, backward, sequences, initial_state, states, mask, training
    )
    if reason is not None:
        return None
    count = 0 if initial_state is None else len(initial_state)
    given = [initial_state, states[count:] if count else None]
    output, final_h, final_c = run([[forward, backward]], sequences, given, mask, training)
    ahead, behind = tf.split(output, 2, axis=-1)
    if forward.return_sequences:  # as the backward layer alone leaves it
        behind = tf.reverse(behind, [1 - forward._batch_axis])
    backward._together.results = behind, final_h[1], final_c[1]
    return ahead, final_h[0], final_c[0]


def forget_kept(layer: Any) -> None:
    """Drops what an earlier call of a Bidirectional's forward layer left and nobody took."""
    wrapper, _ = _keras.calling_bidirectional(layer) or (None, None)
    together = getattr(getattr(wrapper, "backward_layer", None), "_together", None)
    if isinstance(together, Together):
        together.results = None


def _why_directions_apart(
    forward: Any,
    backward: Any,
    sequences: Any,
    initial_state: Any,
    states: Any,
    mask: Any,
    training: Any,
) -> str | None:
    # The wrapper halves the states that it was given.
    if (initial_state is None) != (states is None) or (
        states is not None and len(states) != 2 * len(initial_state)
    ):
        return "the backward layer's initial_state is not known"
    if backward._stock_refuses(sequences, mask):
        return f"{backward.name} refuses the input"
    if not backward._can_run_op(sequences, mask):
        return f"{backward.name}: {backward.fused_reason}"
    if not backward.built:
        return f"{backward.name} is not built"
    return why_apart([[forward, backward]], training)
