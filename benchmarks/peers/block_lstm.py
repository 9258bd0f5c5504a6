"""TensorFlow's `BlockLSTMV2` op, which runs all steps but launches their parts one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from benchmarks.peers import on_tensorflow
from benchmarks.peers.base import Program, Settings
from benchmarks.peers.gates import KERAS, joint_kernel, split_joint_kernel
from benchmarks.problem import Mode, Problem, Results


def build(problem: Problem, mode: Mode, settings: Settings) -> Program:
    """`tf.raw_ops.BlockLSTMV2` in a `tf.function`. Time-major.

    The gradient that TensorFlow registers for it calls the gradient op of version 1, whose gate
    order differs, and is wrong. Here BlockLSTMGradV2 is called itself.
    """
    shape = problem.shape
    joint = joint_kernel(problem.kernel, problem.recurrent_kernel, KERAS)
    with on_tensorflow.device(settings):
        weights = [tf.Variable(joint), tf.Variable(problem.bias)]
        state = tf.zeros((shape.batch, shape.hidden_size), problem.dtype)
        peephole = tf.zeros((shape.hidden_size,), problem.dtype)

    @tf.custom_gradient
    def layer(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tuple[tf.Tensor, Any]:
        inputs = {
            "seq_len_max": tf.constant(shape.steps, tf.int64),
            "x": x,
            "cs_prev": state,
            "h_prev": state,
            "w": kernel,
            "wci": peephole,
            "wcf": peephole,
            "wco": peephole,
            "b": bias,
        }
        run = tf.raw_ops.BlockLSTMV2(**inputs)

        def gradient(grad_output: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            grads = tf.raw_ops.BlockLSTMGradV2(
                **inputs,
                **run._asdict(),
                cs_grad=tf.zeros_like(run.cs),
                h_grad=grad_output,
                use_peephole=False,
            )
            return grads.x_grad, grads.w_grad, grads.b_grad

        return run.h, gradient

    def weight_gradients(grads: Sequence[Any]) -> Results:
        grad_kernel, grad_bias = grads
        kernels = split_joint_kernel(grad_kernel, shape.input_size, KERAS)
        return {
            "grad_kernel": kernels[0],
            "grad_recurrent_kernel": kernels[1],
            "grad_bias": grad_bias,
        }

    return on_tensorflow.function_program(
        lambda x: layer(x, *(tf.convert_to_tensor(w) for w in weights)),
        weights,
        problem,
        mode,
        settings,
        time_major=True,
        weight_gradients=weight_gradients,
    )
