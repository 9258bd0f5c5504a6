"""Which Keras this process uses, and the few things of it that have no public name.

Each of those degrades to a correct, slower answer if a release moves it.
"""

from __future__ import annotations

import contextlib
import sys
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

import tensorflow as tf

# Whether `tf.keras` is tf_keras (TF_USE_LEGACY_KERAS=1), and not Keras 3. The other one is never
# imported.
USES_TF_KERAS = tf.keras.layers.LSTM.__module__.partition(".")[0] == "tf_keras"

try:
    if USES_TF_KERAS:
        from tf_keras.src.mixed_precision import autocast_variable

        _autocast_scope = autocast_variable.enable_auto_cast_variables
    else:
        from keras.src.backend.common import variables

        _autocast_scope = variables.AutocastScope
except (ImportError, AttributeError):
    _autocast_scope = None

_get_global: Any = None
if not USES_TF_KERAS:
    with contextlib.suppress(ImportError, AttributeError):
        from keras.src.backend.common import global_state

        _get_global = global_state.get_global_attribute


def without_autocast() -> AbstractContextManager[Any]:
    """A scope in which Keras variables read as they are stored, not in the compute dtype."""
    return contextlib.nullcontext() if _autocast_scope is None else _autocast_scope(None)


def keras_chooses_jit() -> bool:
    """Whether Keras is asking on its own behalf, for `compile(jit_compile="auto")`."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_resolve_auto_jit_compile":
        frame = frame.f_back
    return frame is not None


def calling_layer(layer: Any) -> Any:
    """The Keras 3 layer whose call is calling `layer`, which is being called; None if unknown."""
    scopes = [] if _get_global is None else _get_global("name_scope_stack") or []
    callers = [getattr(scope, "caller", None) for scope in scopes[-2:]]
    return callers[0] if len(callers) == 2 and callers[1] is layer else None
