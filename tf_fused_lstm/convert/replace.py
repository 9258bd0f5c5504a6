"""`replace_lstm` and `restore_lstm`: the LSTM layers of a Keras model, fused and back."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tf_fused_lstm import _keras
from tf_fused_lstm.layers import FusedLSTM

if TYPE_CHECKING or not _keras.USES_TF_KERAS:
    from tf_fused_lstm.convert import keras3_models as models
else:
    from tf_fused_lstm.convert import tf_keras_models as models


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


def replace_lstm(model: Any) -> Any:
    """Makes every stock LSTM layer in a model a `tfl.FusedLSTM`, in place.

    Functional, Sequential, subclassed and nested models, wrappers (Bidirectional, TimeDistributed,
    ...) and single layers alike: every layer that Keras tracks is found. The layers stay the
    objects they are, with their weights, names, states and connections; the optimizer and the
    compiled state stay too, and functions already traced are traced anew. To keep the original,
    pass `keras.models.clone_model(model)` with its weights set.

    What can only run Keras's own path stays a stock layer: an LSTM with an activation or dtype
    that the op has no kernel for, a subclass of LSTM (it may override anything), an RNN around an
    LSTMCell, a ConvLSTM. Layers in containers that Keras does not track are not seen.

    Where `tf.keras` is tf_keras, tf.compat.v1.keras.layers.CuDNNLSTM and LSTM become FusedLSTM too.
    These two get new variables of the same function (a CuDNNLSTM's have another layout): compile
    the model again to train it. They go back to tf_keras.layers.LSTM.

    Args:
        model: A model or layer, built or not, of the Keras that `tf.keras` is.

    Returns:
        The same model. Its attribute `lstm_report` is an `LSTMReport` of what was replaced, and
        what was left and why; a warning names the latter.

    Raises:
        TypeError: model is not a Keras layer.
    """
    return _convert(model, models.LSTM, FusedLSTM)


def restore_lstm(model: Any) -> Any:
    """Makes every `tfl.FusedLSTM` in a model a stock LSTM layer, in place.

    The inverse of `replace_lstm`, also for a model that was built with FusedLSTM layers: it can
    then be saved for use without tf_fused_lstm.

    Args:
        model: A model or layer, built or not, of the Keras that `tf.keras` is.

    Returns:
        The same model, with the attribute `lstm_report`.

    Raises:
        TypeError: model is not a Keras layer.
    """
    return _convert(model, FusedLSTM, models.LSTM)


def _convert(model: Any, source: Any, target: Any) -> Any:
    if not isinstance(model, models.Layer):
        raise TypeError(
            f"model must be a {models.LAYER_NAME}, which tf.keras is here, got "
            f"{type(model).__module__}.{type(model).__name__}"
        )
    replaced, left = [], []
    for path, layer in list(models.walk(model)):
        for template in models.templates(layer):
            _change(template, source, target)
        changed, reason = _change(layer, source, target)
        if changed:
            replaced.append(path)
        elif reason is not None:
            left.append((path, reason))
    if replaced:
        _forget(model)
    model.lstm_report = report = LSTMReport(tuple(sorted(replaced)), tuple(sorted(left)))
    if left:
        warnings.warn(f"Some LSTMs were left as they are:\n{report}", stacklevel=3)
    return model


def _change(layer: Any, source: Any, target: Any) -> tuple[bool, str | None]:
    """Makes a layer a `target`; returns whether it did, and why it did not for an LSTM."""
    rebuild = models.REBUILDERS.get(type(layer)) if target is FusedLSTM else None
    if type(layer) is source:
        reason = _switch(layer, target)
    elif rebuild is not None:
        reason = rebuild(layer)
    elif type(layer) is target or source is FusedLSTM:
        return False, None
    else:
        return False, _why_other(layer)
    return reason is None, reason


def _why_other(layer: Any) -> str | None:
    """Why a layer that computes an LSTM, but is not Keras's, is left; None for other layers."""
    layers = models.layers
    if isinstance(layer, (models.LSTM, *models.REBUILDERS)):
        return f"{type(layer).__name__} is a subclass of LSTM, which may override its loop"
    if isinstance(layer, (layers.ConvLSTM1D, layers.ConvLSTM2D, layers.ConvLSTM3D)):
        return f"{type(layer).__name__} convolves in its cell"
    if isinstance(layer, layers.RNN):
        cell = layer.cell
        cells = cell.cells if isinstance(cell, layers.StackedRNNCells) else [cell]
        if any(isinstance(c, layers.LSTMCell) for c in cells):
            return "an RNN around LSTMCells; use LSTM layers for it to be replaced"
    return None


def _switch(layer: Any, target: Any) -> str | None:
    """Makes the layer a `target`; returns why it cannot be, or None.

    One of LSTM and FusedLSTM is a subclass of the other with the same weights and state, so the
    object can change its class. A new object would have to be put wherever the old one is held:
    attributes, lists, other layers' nodes, optimizers.
    """
    # Of any configuration: the classes have other attributes, and that of the layer may hold
    # functions, of which Keras makes no layer again.
    had, wanted = (vars(kind(1, name=layer.name)) for kind in (type(layer), target))
    before, source = dict(vars(layer)), type(layer)
    new = {name: value for name, value in wanted.items() if name not in had}
    for old, name in (("supports_jit", "_supports_jit"), ("_supports_jit", "supports_jit")):
        if name in new:
            new[name] = before[old]
    layer.__class__ = target
    for name in had.keys() - wanted.keys():
        del vars(layer)[name]
    vars(layer).update(new)
    reason = layer._configuration_reason() if isinstance(layer, FusedLSTM) else None
    if reason is not None:
        layer.__class__ = source
        vars(layer).clear()
        vars(layer).update(before)
    return reason


def _forget(model: Any) -> None:
    """Forgets what was derived from the layers as they were."""
    for _, layer in list(models.walk(model)):
        models.refresh(layer)
        if isinstance(layer, models.Model):
            layer.train_function = layer.test_function = layer.predict_function = None
