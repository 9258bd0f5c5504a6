"""What `replace_lstm` and `restore_lstm` have to know of tf_keras's models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
import tf_keras

from tf_fused_lstm.convert.cudnn import from_keras_cudnn_lstm
from tf_fused_lstm.convert.weights import LSTMWeights
from tf_fused_lstm.layers.tf_keras import FusedLSTM

Layer = tf_keras.layers.Layer
LAYER_NAME = f"tf_keras.layers.Layer of tf_keras {tf_keras.__version__}"
Model = tf_keras.Model
layers = tf_keras.layers
LSTM = layers.LSTM
_V1 = tf.compat.v1.keras.layers


def walk(model: Any) -> Iterator[tuple[str, Any]]:
    """The path of each layer of a model, itself among them, and the layer."""
    seen: set[int] = set()

    def visit(layer: Any, path: str) -> Iterator[tuple[str, Any]]:
        if id(layer) in seen:
            return
        seen.add(id(layer))
        yield path, layer
        for child in list(layer._flatten_layers(recursive=False, include_self=False)):
            yield from visit(child, f"{path}/{child.name}")

    return visit(model, model.name)


def templates(layer: Any) -> list[Any]:
    """Layers of which a wrapper keeps the configuration only, for its own configuration."""
    return [layer.layer] if isinstance(layer, tf_keras.layers.Bidirectional) else []


def refresh(layer: Any) -> None:
    """Brings what a wrapper keeps of its layers' classes up to date."""
    old = getattr(layer, "_backward_layer_config", None)
    if old is None:
        return
    new = tf_keras.saving.serialize_keras_object(layer.backward_layer)
    # The wrapper changes these after it has kept the configuration.
    new.pop("build_config", None)
    new["config"]["name"] = old["config"]["name"]
    if "zero_output_for_mask" not in old["config"]:
        new["config"].pop("zero_output_for_mask", None)
    layer._backward_layer_config = new


def _rebuild_v1(layer: Any) -> str | None:
    """Of tf.compat.v1.keras.layers.LSTM, whose function is that of tf_keras's cell."""
    if layer.dropout and not layer.recurrent_dropout:
        return "dropout of tf.compat.v1.keras.layers.LSTM is the same at every step"
    return _rebuild(layer, lambda weights: weights)


def _rebuild_cudnn(layer: Any) -> str | None:
    """Of tf.compat.v1.keras.layers.CuDNNLSTM, whose weights cuDNN orders."""
    if layer.bias_regularizer is not None or layer.bias_constraint is not None:
        return "bias_regularizer and bias_constraint see both biases of a CuDNNLSTM"
    if layer.go_backwards and layer.time_major:
        return "CuDNNLSTM with go_backwards and time_major reverses the batch"
    if layer.stateful and any(len(node.keras_inputs) > 1 for node in layer._inbound_nodes):
        return "a stateful CuDNNLSTM prefers an initial_state to the states that it keeps"
    return _rebuild(layer, lambda weights: from_keras_cudnn_lstm(*weights))


# Layers that compute an LSTM under another name, and what makes one a FusedLSTM.
REBUILDERS: dict[type, Callable[[Any], str | None]] = {
    _V1.LSTM: _rebuild_v1,
    _V1.CuDNNLSTM: _rebuild_cudnn,
}


def _rebuild(layer: Any, convert: Callable[[Any], LSTMWeights]) -> str | None:
    """Makes the layer a FusedLSTM with variables of its own; returns why it cannot be, or None.

    The object stays: it is held by models' attributes, lists and nodes.
    """
    config = layer.get_config()
    for name in config:  # the objects themselves, which may be functions
        if name.endswith(("_initializer", "_regularizer", "_constraint")):
            config[name] = getattr(layer, name)
    new = FusedLSTM.from_config(config)
    if new.fused_reason is not None:
        return new.fused_reason
    if layer.built:
        with tf.name_scope(layer.name):
            new.build(layer.input_spec[0].shape)
        new.set_weights([w for w in convert(layer.get_weights()) if w is not None])
        if layer.stateful:
            new.reset_states(tf_keras.backend.batch_get_value(layer.states))
    nodes = {name: vars(layer)[name] for name in ("_inbound_nodes_value", "_outbound_nodes_value")}
    layer.__class__ = FusedLSTM
    vars(layer).clear()
    vars(layer).update(vars(new), **nodes)
    # The caches of the new object are bound to it.
    layer._create_non_trackable_mask_cache()
    return None
