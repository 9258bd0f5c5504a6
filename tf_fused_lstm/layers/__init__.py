"""Keras layers on the op, for the Keras that `tf.keras` is."""

from typing import TYPE_CHECKING

from tf_fused_lstm import _keras

if TYPE_CHECKING or not _keras.USES_TF_KERAS:
    from tf_fused_lstm.layers.keras3 import FusedLSTM
else:
    from tf_fused_lstm.layers.tf_keras import FusedLSTM
from tf_fused_lstm.layers.stack import FusedLSTMStack

__all__ = ["FusedLSTM", "FusedLSTMStack"]
