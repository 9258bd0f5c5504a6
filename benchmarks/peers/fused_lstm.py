"""FusedLSTM: the op, and the Keras layer in a `tf.function`. Batch-major."""

from __future__ import annotations

import tensorflow as tf

import tf_fused_lstm as tfl
from benchmarks.peers import keras_lstm, on_tensorflow
from benchmarks.peers.base import Program, Settings
from benchmarks.problem import Mode, Problem


def build_function(problem: Problem, mode: Mode, settings: Settings) -> Program:
    """`tfl.fused_lstm` in a `tf.function`."""
    return _op_program(problem, mode, settings)


def build_concrete(problem: Problem, mode: Mode, settings: Settings) -> Program:
    """The same, by its concrete function, as one calls a SavedModel's signature."""
    return _op_program(problem, mode, settings, concrete=True)


def build_eager(problem: Problem, mode: Mode, settings: Settings) -> Program:
    """`tfl.fused_lstm`, called eagerly."""
    return _op_program(problem, mode, settings, eager=True)


def build_layer(problem: Problem, mode: Mode, settings: Settings) -> Program:
    """`tfl.FusedLSTM` in a `tf.function`."""
    return keras_lstm.layer_program(tfl.FusedLSTM, problem, mode, settings)


def _op_program(
    problem: Problem,
    mode: Mode,
    settings: Settings,
    *,
    eager: bool = False,
    concrete: bool = False,
) -> Program:
    # An eager read of a variable is an op of its own: inference holds its weights as tensors.
    hold = tf.identity if eager and mode == "forward" else tf.Variable
    with on_tensorflow.device(settings):
        kernel, recurrent_kernel, bias = weights = [
            hold(w) for w in (problem.kernel, problem.recurrent_kernel, problem.bias)
        ]

    def call(x: tf.Tensor) -> tf.Tensor:
        return tfl.fused_lstm(x, kernel, recurrent_kernel, bias).output

    return on_tensorflow.function_program(
        call, weights, problem, mode, settings, eager=eager, concrete=concrete
    )
