"""Which activation functions the op knows, and by which spellings."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

# The op's names; hard_sigmoid is Keras 3's, clip(x / 6 + 1 / 2, 0, 1).
NAMES = ("tanh", "sigmoid", "hard_sigmoid", "relu", "linear")

_OF_TENSORFLOW: dict[Any, str] = {
    tf.math.tanh: "tanh",
    tf.math.sigmoid: "sigmoid",
    tf.nn.relu: "relu",
    tf.identity: "linear",
}


@functools.cache
def _of_keras() -> dict[Any, str]:
    keras = sys.modules["keras"]
    functions = {getattr(keras.activations, name): name for name in NAMES}
    return functions | {getattr(keras.ops, name): name for name in NAMES if name != "linear"}


@functools.cache
def _of_tf_keras() -> dict[Any, str]:
    # Its hard_sigmoid is another function, clip(x / 5 + 1 / 2, 0, 1).
    activations = sys.modules["tf_keras"].activations
    return {getattr(activations, name): name for name in NAMES if name != "hard_sigmoid"}


def _spellings() -> Iterator[dict[Any, str]]:
    """Functions and their names, of TensorFlow and of the Kerases that are there: none is imported
    for this.
    """
    yield _OF_TENSORFLOW
    if "keras" in sys.modules:
        yield _of_keras()
    if "tf_keras" in sys.modules:
        yield _of_tf_keras()


def name_of(activation: str | Callable[..., Any] | None) -> str | None:
    """The op's name for an activation given as a name, a function or None (linear).

    Returns None for one that the op does not know.
    """
    if activation is None:
        return "linear"
    if isinstance(activation, str):
        return activation if activation in NAMES else None
    try:
        return next((names[activation] for names in _spellings() if activation in names), None)
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
