"""What `replace_lstm` and `restore_lstm` have to know of Keras 3's models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras

Layer = keras.Layer
LAYER_NAME = f"keras.Layer of Keras {keras.__version__}"
Model = keras.Model
LSTM = keras.layers.LSTM

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


def why_other(layer: Any) -> str | None:
    """Why a layer that computes an LSTM, but is not Keras's, is left; None for other layers."""
    if isinstance(layer, keras.layers.LSTM):
        return f"{type(layer).__name__} is a subclass of LSTM, which may override its loop"
    if isinstance(
        layer, (keras.layers.ConvLSTM1D, keras.layers.ConvLSTM2D, keras.layers.ConvLSTM3D)
    ):
        return f"{type(layer).__name__} convolves in its cell"
    if isinstance(layer, keras.layers.RNN):
        cell = layer.cell
        cells = cell.cells if isinstance(cell, keras.layers.StackedRNNCells) else [cell]
        if any(isinstance(c, keras.layers.LSTMCell) for c in cells):
            return "an RNN around LSTMCells; use LSTM layers for it to be replaced"
    return None
