"""TensorFlow 1's `BasicLSTMCell`, unrolled into a loop of ops, in a session."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tf_keras.src.layers.rnn.legacy_cells import BasicLSTMCell as Cell

from benchmarks.peers import on_tensorflow
from benchmarks.peers.base import Program, Settings
from benchmarks.peers.gates import joint_kernel, reorder, split_joint_kernel
from benchmarks.problem import Mode, Problem, Results

_ORDER = "icfo"


def build(problem: Problem, mode: Mode, settings: Settings) -> Program:
    """One cell, called once for every step: what LSTMs in TensorFlow began with. Time-major."""
    v1 = tf.compat.v1
    graph = tf.Graph()
    with graph.as_default(), on_tensorflow.device(settings):
        # Variables: a constant would be folded away together with all that follows from it.
        x_variable, grad_variable = (
            v1.get_variable(
                name,
                initializer=v1.placeholder(array.dtype, array.shape, f"{name}_value"),
                use_resource=True,
                trainable=False,
            )
            for name, array in (
                ("x", problem.x.swapaxes(0, 1)),
                ("grad_output", problem.grad_output.swapaxes(0, 1)),
            )
        )
        x = tf.identity(x_variable)
        cell = Cell(problem.shape.hidden_size, dtype=problem.dtype)
        state = cell.zero_state(problem.shape.batch, problem.dtype)
        outputs = []
        for x_t in tf.unstack(x):
            output, state = cell(x_t, state)
            outputs.append(output)
        gradients: list[Any] = []
        if mode == "train":
            gradients = v1.gradients(
                outputs, [x, *cell.trainable_variables], tf.unstack(grad_variable)
            )
        kernel = joint_kernel(problem.kernel, problem.recurrent_kernel, _ORDER)
        bias = reorder(problem.bias, _ORDER).copy()
        # The cell adds forget_bias, 1, at run time.
        forget = np.split(bias, 4)[_ORDER.index("f")]
        forget -= 1
        assignments = []
        feeds = {}
        for variable, value in zip(cell.trainable_variables, (kernel, bias), strict=True):
            placeholder = v1.placeholder(value.dtype, value.shape)
            assignments.append(variable.assign(placeholder).op)
            feeds[placeholder] = value
        initialise = [x_variable.initializer, grad_variable.initializer]
        feeds["x_value:0"] = problem.x.swapaxes(0, 1)
        feeds["grad_output_value:0"] = problem.grad_output.swapaxes(0, 1)

    session = v1.Session(
        graph=graph,
        config=v1.ConfigProto(
            intra_op_parallelism_threads=settings.threads,
            inter_op_parallelism_threads=settings.threads,
            gpu_options=v1.GPUOptions(allow_growth=True),
            allow_soft_placement=True,
        ),
    )
    session.run([*initialise, *assignments], feeds)
    fetches = {"output": outputs, "gradients": gradients}
    # A session returns when all its ops are done, on a GPU too; fetching ops copies nothing.
    run = session.make_callable([tensor.op for tensor in (*outputs, *gradients)])

    def results(_: Any) -> Results:
        values = session.run(fetches)
        results: Results = {"output": np.stack(values["output"], axis=1)}
        if mode == "train":
            grad_x, grad_kernel, grad_bias = values["gradients"]
            kernels = split_joint_kernel(grad_kernel, problem.shape.input_size, _ORDER)
            results |= {
                "grad_x": grad_x.swapaxes(0, 1),
                "grad_kernel": kernels[0],
                "grad_recurrent_kernel": kernels[1],
                "grad_bias": reorder(grad_bias, "ifco", _ORDER),
            }
        return results

    return Program(run, results, session.close)
