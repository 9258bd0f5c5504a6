"""The ops' own wrappers: whether they can run here, and what they are called with."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import tensorflow as tf

from tf_fused_lstm import _loader, _tensorflow, _xla, composite


def here() -> ModuleType | None:
    """The wrappers; None without the op library, or where XLA compiles and lacks its kernels."""
    raw_ops = _loader.raw_ops()
    if raw_ops is None or tf.executing_eagerly():
        return raw_ops
    return None if _tensorflow.in_xla_context() and not _xla.available() else raw_ops


def arguments(inputs: composite.Inputs, attributes: composite.Attributes) -> dict[str, Any]:
    """Keyword arguments of either op."""
    values: dict[str, Any] = dict(zip(composite.Inputs._fields, inputs, strict=True))
    for name, value in values.items():
        if value.__class__ is tuple:
            values[name] = list(value)
    try:
        values.update(_cached_attributes(attributes))
    except TypeError:  # unhashable
        values.update(_attributes(attributes))
    return values


def _attributes(attributes: composite.Attributes) -> dict[str, Any]:
    """Flags by their truth, as Keras's layers take them."""
    return {
        name: value if name.endswith("activation") else bool(value)
        for name, value in attributes._asdict().items()
    }


_cached_attributes = functools.lru_cache(maxsize=64)(_attributes)
