"""Fixtures and settings for all Python tests."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# Tests start processes that use the same GPU.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import keras
import numpy as np
import pytest
import tensorflow as tf
from stock_keras import keep_keras_from_cudnn

keep_keras_from_cudnn()

# As by default; but TensorFlow turns it off for good where a process begins with a function in a
# tf.Graph, which a test may happen to do first.
tf.config.set_soft_device_placement(True)

# There tf.keras is another Keras; test_legacy_keras.py runs it, in processes of its own.
collect_ignore = ["legacy_keras"]


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a GPU; skipped on machines without one")


def pytest_collection_modifyitems(config, items):
    if tf.config.list_physical_devices("GPU"):
        return
    skip = pytest.mark.skip(reason="no GPU on this machine")
    for item in items:
        if item.get_closest_marker("gpu"):  # keywords hold the names of folders too
            item.add_marker(skip)


@pytest.fixture
def rng(request) -> np.random.Generator:
    """Random numbers of the test's own, the same in every run of it."""
    return np.random.default_rng(list(request.node.nodeid.encode()))


@pytest.fixture(autouse=True)
def _float32_policy():
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture(autouse=True)
def _full_float32_products():
    """On a GPU as on the CPU; a test that wants TF32 turns it on (the harness does)."""
    tf.config.experimental.enable_tensor_float_32_execution(False)
