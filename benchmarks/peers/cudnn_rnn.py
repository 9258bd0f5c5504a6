"""TensorFlow's `CudnnRNNV3` op: cuDNN's LSTM, as CudnnLSTM used to call it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from benchmarks.peers import on_tensorflow
from benchmarks.peers.base import Program, Settings
from benchmarks.peers.gates import cudnn_parameters, from_cudnn_parameters
from benchmarks.problem import Mode, Problem, Results


def build(problem: Problem, mode: Mode, settings: Settings) -> Program:
    """`tf.raw_ops.CudnnRNNV3` in a `tf.function`, its weights packed beforehand. Time-major."""
    shape = problem.shape
    with on_tensorflow.device(settings):
        parameters = tf.Variable(
            cudnn_parameters(problem.kernel, problem.recurrent_kernel, problem.bias)
        )
        state = tf.zeros((1, shape.batch, shape.hidden_size), problem.dtype)
    with tf.device("/CPU:0"):
        lengths = tf.fill((shape.batch,), shape.steps)

    def call(x: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.CudnnRNNV3(
            input=x,
            input_h=state,
            input_c=state,
            params=parameters,
            sequence_lengths=lengths,
            is_training=mode == "train",
            time_major=True,
        ).output

    def weight_gradients(grads: Sequence[Any]) -> Results:
        unpacked = from_cudnn_parameters(grads[0], shape.input_size, shape.hidden_size)
        names = ("grad_kernel", "grad_recurrent_kernel", "grad_bias")
        return dict(zip(names, unpacked, strict=True))

    return on_tensorflow.function_program(
        call,
        [parameters],
        problem,
        mode,
        settings,
        time_major=True,
        weight_gradients=weight_gradients,
    )
