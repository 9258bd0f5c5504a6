"""Keras 3's `keras.layers.LSTM` in a `tf.function`. It chooses cuDNN itself. Batch-major."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from benchmarks.peers import on_tensorflow
from benchmarks.peers.base import Program, Settings
from benchmarks.problem import Mode, Problem


def build(problem: Problem, mode: Mode, settings: Settings) -> Program:
    return layer_program(keras.layers.LSTM, problem, mode, settings)


def layer_program(
    layer_class: Callable[..., Any], problem: Problem, mode: Mode, settings: Settings
) -> Program:
    """A program around one Keras layer, of Keras 2 or 3."""
    with on_tensorflow.device(settings):
        # The weights are set below; the default initializer does not know bfloat16.
        layer = layer_class(
            problem.shape.hidden_size,
            return_sequences=True,
            recurrent_initializer="zeros",
            dtype=problem.dtype,
        )
        layer.build(problem.x.shape)
        layer.set_weights([problem.kernel, problem.recurrent_kernel, problem.bias])
    # Keras 3's variables wrap TensorFlow's, Keras 2's are TensorFlow's.
    weights = [
        variable if isinstance(variable, tf.Variable) else variable.value
        for variable in layer.trainable_variables
    ]
    return on_tensorflow.function_program(
        lambda x: layer(x, training=mode == "train"), weights, problem, mode, settings
    )
