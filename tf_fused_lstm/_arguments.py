"""What a caller passes as a tensor, or one ValueError that names the argument."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

FLOATS = frozenset((tf.float16, tf.bfloat16, tf.float32, tf.float64))


def _to_tensor(argument: str, value: Any, dtype: tf.DType | None = None) -> tf.Tensor:
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor, tf.IndexedSlices)):
        raise ValueError(f"{argument} must be a dense tensor, got a {type(value).__name__}")
    if value is None:
        raise ValueError(f"{argument} must be a tensor, got None")
    try:
        return tf.convert_to_tensor(value, dtype=dtype)
    except (TypeError, ValueError) as error:
        first_line = (str(error).splitlines() or [""])[0]
        raise ValueError(
            f"{argument} must be a tensor, or numbers that make one, got a "
            f"{type(value).__name__}: {first_line}"
        ) from error


def to_float(argument: str, value: Any) -> tf.Tensor:
    """A tensor of one of FLOATS, in the type that the value has."""
    tensor = value if isinstance(value, tf.Tensor) else _to_tensor(argument, value)
    if tensor.dtype not in FLOATS:
        raise ValueError(
            f"{argument} must be float16, bfloat16, float32 or float64, got dtype "
            f"{tensor.dtype.name}"
        )
    return tensor


def to_dtype(argument: str, value: Any, dtype: tf.DType) -> tf.Tensor:
    """Converts real numbers and arrays to dtype; a tensor or variable must have it already."""
    has = getattr(value, "dtype", None)
    if isinstance(value, tf.Tensor) and has is dtype:
        return value
    if isinstance(has, (tf.DType, str)):  # a tensor's or tf.Variable's, a keras.Variable's
        is_right = tf.as_dtype(has) == dtype
    else:  # NumPy itself would drop imaginary parts, and read strings and None as numbers.
        is_right = not (isinstance(has, np.dtype) and has.kind in "cOSU")
    if not is_right:
        raise ValueError(f"{argument} must be {dtype.name}, got dtype {getattr(has, 'name', has)}")
    return _to_tensor(argument, value, dtype)


def to_mask(argument: str, value: Any) -> tf.Tensor:
    """A bool tensor; of numbers, 0 is False."""
    mask = _to_tensor(argument, value)
    if mask.dtype == tf.bool:
        return mask
    if not (mask.dtype.is_integer or mask.dtype.is_floating):
        raise ValueError(f"{argument} must be bool or real numbers, got dtype {mask.dtype.name}")
    return tf.cast(mask, tf.bool)


def to_flag(argument: str, value: Any) -> bool:
    """A bool; also of NumPy's, and of 0 and 1."""
    if isinstance(value, (bool, np.bool_)) or (isinstance(value, int) and value in (0, 1)):
        return bool(value)
    raise ValueError(f"{argument} must be True or False, got {value!r}")
