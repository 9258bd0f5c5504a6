"""Keras layers on the op."""

from tf_fused_lstm.layers.lstm import FusedLSTM

__all__ = ["FusedLSTM"]
