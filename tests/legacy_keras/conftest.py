"""Settings for the tests with tf_keras as tf.keras, which ../test_legacy_keras.py runs.

They have processes of their own: elsewhere tf.keras is Keras 3.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import pytest
import tensorflow as tf
import tf_keras

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from stock_keras import keep_tf_keras_from_cudnn

assert os.environ.get("TF_USE_LEGACY_KERAS") == "1", "run tests/test_legacy_keras.py"
keep_tf_keras_from_cudnn()


@pytest.fixture(autouse=True)
def _settings():
    tf.config.experimental.enable_tensor_float_32_execution(False)
    yield
    tf_keras.mixed_precision.set_global_policy("float32")
    assert "keras" not in sys.modules, "something imported the other Keras"
