"""Fixtures and settings for all Python tests."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import pytest
import tensorflow as tf

# A GPU's float32 products in full, as on the CPU; a test that wants TF32 turns it on.
tf.config.experimental.enable_tensor_float_32_execution(False)


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: needs a GPU; skipped on machines without one")


def pytest_collection_modifyitems(config, items):
    if tf.config.list_physical_devices("GPU"):
        return
    skip = pytest.mark.skip(reason="no GPU on this machine")
    for item in items:
        if "gpu" in item.keywords:
            item.add_marker(skip)


@pytest.fixture
def rng(request) -> np.random.Generator:
    """Random numbers of the test's own, the same in every run of it."""
    return np.random.default_rng(list(request.node.nodeid.encode()))


@pytest.fixture(autouse=True)
def _float32_policy():
    yield
    keras.config.set_dtype_policy("float32")
