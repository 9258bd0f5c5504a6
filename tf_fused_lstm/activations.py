"""Which activation functions the op knows, and by which spellings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

# The op's names; hard_sigmoid is Keras 3's, clip(x / 6 + 1 / 2, 0, 1).
NAMES = ("tanh", "sigmoid", "hard_sigmoid", "relu", "linear")

_BY_FUNCTION: dict[Any, str] = {
    function: name
    for name, functions in {
        "tanh": (keras.activations.tanh, keras.ops.tanh, tf.math.tanh),
        "sigmoid": (keras.activations.sigmoid, keras.ops.sigmoid, tf.math.sigmoid),
        "hard_sigmoid": (keras.activations.hard_sigmoid, keras.ops.hard_sigmoid),
        "relu": (keras.activations.relu, keras.ops.relu, tf.nn.relu),
        "linear": (keras.activations.linear, tf.identity),
    }.items()
    for function in functions
}


def name_of(activation: str | Callable[..., Any] | None) -> str | None:
    """The op's name for an activation given as a name, a function or None (linear).

    Returns None for one that the op does not know.
    """
    if activation is None:
        return "linear"
    if isinstance(activation, str):
        return activation if activation in NAMES else None
    try:
        return _BY_FUNCTION.get(activation)
    except TypeError:  # unhashable
        return None


def required_name_of(argument: str, activation: str | Callable[..., Any] | None) -> str:
    """As `name_of`, but raises a ValueError that names the argument."""
    name = name_of(activation)
    if name is None:
        raise ValueError(f"{argument} must be one of {', '.join(NAMES)}, got {activation!r}")
    return name


def function_of(name: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """The activation of that name, in ordinary TensorFlow ops."""
    return {
        "tanh": tf.math.tanh,
        "sigmoid": tf.math.sigmoid,
        "hard_sigmoid": lambda z: tf.clip_by_value(z / 6 + 0.5, 0, 1),
        "relu": tf.nn.relu,
        "linear": tf.identity,
    }[name]
