"""Keras layers on the op."""

from tf_fused_lstm.layers.keras3 import FusedLSTM

__all__ = ["FusedLSTM"]
