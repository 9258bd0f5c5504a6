"""Finds the op library, checks it against the running TensorFlow, and loads it once.

The library and `_build_info.py`, which the build writes, lie in the package's folder. Developers
may point TF_FUSED_LSTM_LIBRARY_DIR at another folder, with or without a `_build_info.py`.
"""

from __future__ import annotations

import functools
import os
import runpy
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import tensorflow as tf

from tf_fused_lstm._version import __version__

LIBRARY_NAME = "_tf_fused_lstm_ops.so"
LIBRARY_DIR_VARIABLE = "TF_FUSED_LSTM_LIBRARY_DIR"
FALLBACK_VARIABLE = "TF_FUSED_LSTM_ALLOW_FALLBACK"


@dataclass(frozen=True)
class BuildInfo:
    """What the op library was built with; None where the build left no record.

    Attributes:
        version: The version of tf_fused_lstm.
        tf_version: The TensorFlow whose headers it was built with, such as "2.21.0".
        cxx11_abi: TensorFlow's CXX11_ABI_FLAG, 0 or 1.
        cuda: The CUDA toolkit's version; None for a library without GPU code.
        cuda_architectures: The compute capabilities that it holds code for.
        compiler: The C++ compiler.
    """

    version: str
    tf_version: str | None = None
    cxx11_abi: int | None = None
    cuda: str | None = None
    cuda_architectures: tuple[str, ...] = ()
    compiler: str | None = None


@functools.cache
def _absolute(folder: str) -> Path:
    """As of the first call: the working directory may change before the XLA kernels are loaded."""
    return Path(folder).absolute()


def _library_dir() -> Path:
    override = os.environ.get(LIBRARY_DIR_VARIABLE)
    return _absolute(override) if override else Path(__file__).resolve().parent


def get_library_path() -> str:
    """The path of the op library, for `tf.load_op_library` and for model servers."""
    return str(_library_dir() / LIBRARY_NAME)


@functools.cache
def build_info() -> BuildInfo:
    """What the op library was built with."""
    path = _library_dir() / "_build_info.py"
    if not path.is_file():
        return BuildInfo(version=__version__)
    record = runpy.run_path(str(path))
    architectures = record.get("CUDA_ARCHITECTURES") or ()
    if isinstance(architectures, str):
        architectures = architectures.replace(",", " ").split()
    return BuildInfo(
        version=record["VERSION"],
        tf_version=record["TF_VERSION"],
        cxx11_abi=int(record["CXX11_ABI"]),
        cuda=record.get("CUDA") or None,
        cuda_architectures=tuple(str(a) for a in architectures),
        compiler=record.get("COMPILER") or None,
    )


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.split(".")[:2])


def _mismatch_message(info: BuildInfo, detail: str) -> str:
    built = f"TensorFlow {info.tf_version or 'of unknown version'}"
    if info.cxx11_abi is not None:
        built += f" (CXX11 ABI {info.cxx11_abi})"
    running = f"TensorFlow {tf.__version__} (CXX11 ABI {tf.sysconfig.CXX11_ABI_FLAG})"
    return (
        f"tf_fused_lstm {info.version} was built for {built}, but this is {running}{detail}. "
        f"Install the tf-fused-lstm that is built for TensorFlow {'.'.join(_minor(tf.__version__))}"
        ", or build it from source with this TensorFlow installed."
    )


def check(info: BuildInfo) -> None:
    """Raises ImportError if a library with this build record cannot run in this TensorFlow.

    TensorFlow's C++ ABI changes with its minor version.
    """
    wrong_version = info.tf_version is not None and _minor(info.tf_version) != _minor(
        tf.__version__
    )
    wrong_abi = info.cxx11_abi is not None and info.cxx11_abi != tf.sysconfig.CXX11_ABI_FLAG
    if wrong_version or wrong_abi:
        raise ImportError(_mismatch_message(info, ""))


def _load() -> ModuleType:
    path = get_library_path()
    if not os.path.isfile(path):
        raise ImportError(
            f"tf_fused_lstm's op library is missing: no file {path}. Reinstall tf-fused-lstm, or, "
            f"in a source checkout, build it and set {LIBRARY_DIR_VARIABLE} to its folder."
        )
    info = build_info()
    check(info)
    try:
        return tf.load_op_library(path)
    except tf.errors.NotFoundError as error:  # what TensorFlow makes of a dlopen that failed
        if "undefined symbol" in error.message:
            raise ImportError(_mismatch_message(info, f": {error.message}")) from error
        raise ImportError(
            f"tf_fused_lstm {info.version}'s op library {path} cannot be loaded: {error.message}"
        ) from error


@functools.cache
def raw_ops() -> ModuleType | None:
    """The generated wrappers of the ops, loaded at the first call.

    None only where the library cannot be loaded and the environment variable
    TF_FUSED_LSTM_ALLOW_FALLBACK is 1: then everything runs on ordinary ops, after one warning.

    Raises:
        ImportError: The library is missing or not built for this TensorFlow.
    """
    try:
        return _load()
    except ImportError as error:
        if os.environ.get(FALLBACK_VARIABLE) != "1":
            raise
        warnings.warn(f"Running LSTMs on ordinary TensorFlow ops: {error}", stacklevel=2)
        return None
