"""A whole LSTM layer as one TensorFlow op, and the Keras layer on top of it.

    import tf_fused_lstm as tfl

    layer = tfl.FusedLSTM(128, return_sequences=True)  # a tf.keras.layers.LSTM in every other way
    output, final_h, final_c = tfl.fused_lstm(x, kernel, recurrent_kernel, bias)

Importing the package loads the op library, after a check that it was built for the running
TensorFlow, and registers the gradients, so that SavedModels that hold the op load from then on. The
layers are of the Keras that `tf.keras` is: Keras 3, or tf_keras (TF_USE_LEGACY_KERAS=1).
"""

from tf_fused_lstm._loader import BuildInfo, build_info, get_library_path, raw_ops
from tf_fused_lstm._version import __version__

# isort: split
from tf_fused_lstm import convert
from tf_fused_lstm import gradients as _gradients  # noqa: F401  (registers them)
from tf_fused_lstm.convert.replace import LSTMReport, replace_lstm, restore_lstm
from tf_fused_lstm.layers import FusedLSTM, FusedLSTMStack
from tf_fused_lstm.ops import FusedLSTMOutput, fused_lstm

raw_ops()
del raw_ops

__all__ = [
    "BuildInfo",
    "FusedLSTM",
    "FusedLSTMOutput",
    "FusedLSTMStack",
    "LSTMReport",
    "__version__",
    "build_info",
    "convert",
    "fused_lstm",
    "get_library_path",
    "replace_lstm",
    "restore_lstm",
]
