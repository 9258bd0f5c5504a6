"""What `replace_lstm` and `restore_lstm` have to know of Keras 3's models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras

Layer = keras.Layer
LAYER_NAME = f"keras.Layer of Keras {keras.__version__}"
Model = keras.Model
layers = keras.layers
LSTM = layers.LSTM

# Layers that compute an LSTM under another name, and what makes one a FusedLSTM.
REBUILDERS: dict[type, Callable[[Any], str | None]] = {}


def walk(model: Any) -> Iterator[tuple[str, Any]]:
    """The path of each layer of a model, itself among them, and the layer."""
    for layer in model._flatten_layers():
        yield layer.path or layer.name, layer


def templates(layer: Any) -> list[Any]:
    """Layers of which a wrapper keeps the configuration only: none in Keras 3."""
    return []


def refresh(layer: Any) -> None:
    """Brings what a wrapper keeps of its layers' classes up to date: nothing in Keras 3."""
