"""Which Keras this process uses, and the few things of it that have no public name.

Each of those degrades to a correct, slower answer if a release moves it.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

import tensorflow as tf

from tf_fused_lstm import _tensorflow

# Whether `tf.keras` is tf_keras (TF_USE_LEGACY_KERAS=1), and not Keras 3. The other one is never
# imported.
USES_TF_KERAS = tf.keras.layers.LSTM.__module__.partition(".")[0] == "tf_keras"

_in_stateless_scope = None
try:
    if USES_TF_KERAS:
        from tf_keras.src.mixed_precision import autocast_variable

        _autocast_scope = autocast_variable.enable_auto_cast_variables
    else:
        from keras.src.backend.common import stateless_scope, variables

        _autocast_scope = variables.AutocastScope
        _in_stateless_scope = stateless_scope.in_stateless_scope
except (ImportError, AttributeError):
    _autocast_scope = None

# What Bidirectional runs when it is called, as frames show it.
_BIDIRECTIONAL_CALL = getattr(tf.keras.layers.Bidirectional.call, "__code__", None)
# Modules whose frames may lie between that and the call of one of its layers: not those of
# tf.function or tf.recompute_grad, which no tensor may leave but as a result.
_CALLING = ("keras.", "tf_keras.", "tf_fused_lstm.", "tensorflow.python.autograph.")


def without_autocast() -> AbstractContextManager[Any]:
    """A scope in which Keras variables read as they are stored, not in the compute dtype."""
    return contextlib.nullcontext() if _autocast_scope is None else _autocast_scope(None)


def track_in_checkpoints(layer: Any, parts: Sequence[Any]) -> None:
    """Makes TensorFlow's checkpoints of a layer hold the layers that it has in a list, which Keras
    3 leaves out of them.
    """
    if not USES_TF_KERAS and hasattr(layer, "_track_trackable"):
        for part in parts:
            layer._track_trackable(part, name=part.name)


def keras_chooses_jit() -> bool:
    """Whether Keras is asking on its own behalf, for `compile(jit_compile="auto")`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_resolve_auto_jit_compile":
        frame = frame.f_back
    return frame is not None


def eager_variable(variable: Any) -> Any | None:
    """The tf.Variable that reading and assigning a Keras variable comes to, in eager mode; None
    where Keras or tf.distribute may do something else, or where that is not known.
    """
    if not tf.executing_eagerly():
        return None
    value = variable
    if not USES_TF_KERAS:
        if _in_stateless_scope is None or _in_stateless_scope():
            return None
        value = getattr(variable, "value", None)
    return value if _tensorflow.is_plain_variable(value) else None


def read(variable: Any) -> tf.Tensor:
    """A Keras variable's tensor."""
    plain = eager_variable(variable)
    return tf.convert_to_tensor(variable) if plain is None else _tensorflow.read(plain)


def calling_bidirectional(layer: Any) -> tuple[Any, Any] | None:
    """The `tf.keras.layers.Bidirectional` whose own `call` is calling `layer`, which is being
    called, and the initial_state of both directions that it was given; None if it is not so.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _BIDIRECTIONAL_CALL:
        if not frame.f_globals.get("__name__", "").startswith(_CALLING):
            return None
        frame = frame.f_back
    if frame is None:
        return None
    arguments = frame.f_locals
    wrapper, inputs = arguments.get("self"), arguments.get("inputs")
    if layer is not getattr(wrapper, "forward_layer", None) and (
        layer is not getattr(wrapper, "backward_layer", None)
    ):
        return None
    if isinstance(inputs, list) and len(inputs) > 1:  # tf_keras, of states that are its tensors
        return wrapper, inputs[1:]
    return wrapper, arguments.get("initial_state")
