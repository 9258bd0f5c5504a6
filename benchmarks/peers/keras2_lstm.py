"""Keras 2's LSTM layer, in the package tf_keras, in a `tf.function`. It chooses cuDNN itself."""

from __future__ import annotations

import tf_keras

from benchmarks.peers import keras_lstm
from benchmarks.peers.base import Program, Settings
from benchmarks.problem import Mode, Problem


def build(problem: Problem, mode: Mode, settings: Settings) -> Program:
    return keras_lstm.layer_program(tf_keras.layers.LSTM, problem, mode, settings)
