"""Whether the ops' XLA kernels can be had: they are in a library of their own, since they need
TensorFlow's XLA compiler.

The op library loads it when XLA first asks for one of them, in a function of a SavedModel too. This
module does so before that, while functions are traced, to say why where it cannot be.
"""

from __future__ import annotations

import ctypes
import functools
import os
import warnings
from pathlib import Path

import tensorflow as tf

from tf_fused_lstm import _loader

LIBRARY_NAME = "_tf_fused_lstm_xla.so"
CORE_NAME = "libtf_fused_lstm_core.so"


@functools.cache
def load_error() -> str | None:
    """Loads the library at the first call; says why it could not be, or None."""
    if _loader.raw_ops() is None:
        return "the op library is not loaded"
    folder = Path(_loader.get_library_path()).parent
    try:
        tf.load_library(str(folder / LIBRARY_NAME))
    except (OSError, tf.errors.OpError) as error:  # no file; a dlopen that failed
        return getattr(error, "message", None) or str(error)
    return None


@functools.cache
def _error_here() -> str | None:
    """As `load_error`, or why XLA would not find a kernel for this machine's device."""
    error = load_error()
    if error is None and tf.config.list_physical_devices("GPU"):
        core = ctypes.CDLL(os.path.join(os.path.dirname(_loader.get_library_path()), CORE_NAME))
        if not core.tfl_built_with_cuda():
            return "it was built without CUDA, and XLA compiles for the GPU"
    return error


@functools.cache
def available() -> bool:
    """Whether a function with `jit_compile=True` may hold the ops; warns once where it may not."""
    error = _error_here()
    if error is None:
        return True
    warnings.warn(
        "tf_fused_lstm cannot run in functions compiled by XLA (jit_compile=True); LSTMs in them "
        f"run on ordinary TensorFlow ops. Without jit_compile they run fused. The reason: {error}",
        stacklevel=2,
    )
    return False
