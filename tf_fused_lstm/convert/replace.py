"""`replace_lstm` and `restore_lstm`: the LSTM layers of a Keras model, fused and back."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import keras

from tf_fused_lstm.layers import FusedLSTM


@dataclass(frozen=True)
class LSTMReport:
    """What `replace_lstm` or `restore_lstm` did to a model.

    Attributes:
        replaced: The paths of the layers that changed.
        left: The path of each LSTM that did not, and why.
    """

    replaced: tuple[str, ...]
    left: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        lines = [f"{path}: replaced" for path in self.replaced]
        lines += [f"{path}: left: {reason}" for path, reason in self.left]
        return "\n".join(lines or ["no LSTM layers"])


def replace_lstm(model: keras.Layer) -> keras.Layer:
    """Makes every `keras.layers.LSTM` in a model a `tfl.FusedLSTM`, in place.

    Functional, Sequential, subclassed and nested models, wrappers (Bidirectional, TimeDistributed,
    ...) and single layers alike: every layer that Keras tracks is found. The layers stay the
    objects they are, with their weights, names, states and connections; the optimizer and the
    compiled state stay too, and functions already traced are traced anew. To keep the original,
    pass `keras.models.clone_model(model)` with its weights set.

    What can only run Keras's own path stays a stock layer: an LSTM with an activation or dtype
    that the op has no kernel for, a subclass of LSTM (it may override anything), an RNN around an
    LSTMCell, a ConvLSTM. Layers in containers that Keras does not track are not seen.

    Args:
        model: A Keras 3 model or layer, built or not.

    Returns:
        The same model. Its attribute `lstm_report` is an `LSTMReport` of what was replaced, and
        what was left and why; a warning names the latter.

    Raises:
        TypeError: model is not a Keras layer.
    """
    return _convert(model, keras.layers.LSTM, FusedLSTM)


def restore_lstm(model: keras.Layer) -> keras.Layer:
    """Makes every `tfl.FusedLSTM` in a model a `keras.layers.LSTM`, in place.

    The inverse of `replace_lstm`, also for a model that was built with FusedLSTM layers: it can
    then be saved for use without tf_fused_lstm.

    Args:
        model: A Keras 3 model or layer, built or not.

    Returns:
        The same model, with the attribute `lstm_report`.

    Raises:
        TypeError: model is not a Keras layer.
    """
    return _convert(model, FusedLSTM, keras.layers.LSTM)


def _convert(model: Any, source: type, target: type) -> Any:
    if not isinstance(model, keras.Layer):
        raise TypeError(
            f"model must be a keras.Layer of Keras {keras.__version__}, got "
            f"{type(model).__module__}.{type(model).__name__}"
        )
    replaced, left = [], []
    for layer in model._flatten_layers():
        path = layer.path or layer.name
        if type(layer) is source:
            reason = _switch(layer, target)
        else:
            reason = _why_other(layer, source, target)
            if reason is None:
                continue
        if reason is None:
            replaced.append(path)
        else:
            left.append((path, reason))
    if replaced:
        _forget_traces(model)
    model.lstm_report = report = LSTMReport(tuple(sorted(replaced)), tuple(sorted(left)))
    if left:
        warnings.warn(f"Some LSTMs were left as they are:\n{report}", stacklevel=3)
    return model


def _switch(layer: Any, target: Any) -> str | None:
    """Makes the layer a `target`; returns why it cannot be, or None.

    One of LSTM and FusedLSTM is a subclass of the other with the same weights and state, so the
    object can change its class. A new object would have to be put wherever the old one is held:
    attributes, lists, other layers' nodes, optimizers.
    """
    wanted = target.from_config(_config_for(layer, target))
    if isinstance(wanted, FusedLSTM):
        # use_cudnn is no part of the configuration.
        wanted.use_cudnn = layer.use_cudnn
        if wanted.fused_reason is not None:
            return wanted.fused_reason
    had = type(layer).from_config(layer.get_config())
    for name in vars(had).keys() - vars(wanted).keys():
        object.__delattr__(layer, name)
    layer.__class__ = target
    for name, value in vars(wanted).items():
        if name not in vars(had):
            object.__setattr__(layer, name, value)
    return None


def _config_for(layer: Any, target: type) -> dict[str, Any]:
    config = layer.get_config()
    if not issubclass(target, FusedLSTM):
        config.pop("use_fused", None)
    return config


def _why_other(layer: Any, source: type, target: type) -> str | None:
    """Why a layer that computes an LSTM but is no `source` is left; None for other layers."""
    if type(layer) is target or source is FusedLSTM:
        return None
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


def _forget_traces(model: Any) -> None:
    for layer in model._flatten_layers():
        if isinstance(layer, keras.Model):
            layer.train_function = layer.test_function = layer.predict_function = None
