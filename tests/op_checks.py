"""Runs the op on a reference problem, forward and gradient, and compares every result."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from reference import Problem, relative_error

import tf_fused_lstm as tfl

# Allowed ||got - wanted|| / ||wanted||, of results and of gradients.
LIMITS = {
    "float64": (1e-12, 1e-11),
    "float32": (2e-6, 1e-5),
    "float16": (4e-3, 1.5e-2),
    "bfloat16": (2.5e-2, 8e-2),
}


def _time_major(value):
    return value if value.ndim < 2 else np.swapaxes(value, 0, 1)


def rounded(problem: Problem, dtype: str, weight_dtype: str | None = None) -> Problem:
    """The same problem with its inputs rounded to dtype, so that the op sees exactly these."""
    for name in problem.present():
        wanted = weight_dtype or dtype if name in problem.WEIGHTS else dtype
        value = getattr(problem, name).astype(tf.as_dtype(wanted).as_numpy_dtype)
        setattr(problem, name, value.astype(np.float64))
    return problem


def op_arguments(problem: Problem, dtype: str, weight_dtype: str | None = None, time_major=False):
    """The problem as tensors, by the argument names of tfl.fused_lstm."""
    tensors = {}
    for name in problem.present():
        value = getattr(problem, name)
        if name == "x" and time_major:
            value = _time_major(value)
        wanted = weight_dtype or dtype if name in problem.WEIGHTS else dtype
        tensors[name] = tf.constant(value, wanted)
    return tensors


def check(
    rng: np.random.Generator,
    problem: Problem,
    dtype: str = "float64",
    weight_dtype: str | None = None,
    time_major: bool = False,
    training: bool | None = None,
    limits: tuple[float, float] | None = None,
    in_graph: bool = False,
    jit_compile: bool = False,
) -> None:
    """Every output and every gradient of the op against the reference."""
    problem = rounded(problem, dtype, weight_dtype)
    wanted = problem.forward()
    weights = [
        rng.standard_normal(v.shape).astype(tf.as_dtype(dtype).as_numpy_dtype) for v in wanted
    ]
    wanted_grads = problem.backward(*(w.astype(np.float64) for w in weights))
    tensors = op_arguments(problem, dtype, weight_dtype, time_major)
    mask = problem.mask
    if time_major:
        mask = None if mask is None else _time_major(mask)
        if problem.return_sequences:
            weights[0] = _time_major(weights[0])

    def run(tensors, weights):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            outputs = tfl.fused_lstm(
                **tensors, mask=mask, time_major=time_major, training=training, **problem.flags()
            )
        return outputs, tape.gradient(outputs, tensors, output_gradients=list(weights))

    if in_graph or jit_compile:
        run = tf.function(run, autograph=False, jit_compile=jit_compile or None)
    outputs, grads = run(tensors, [tf.constant(w) for w in weights])
    limit, grad_limit = limits or LIMITS[dtype]
    for name, got, want in zip(outputs._fields, outputs, wanted, strict=True):
        assert got.dtype == dtype
        in_time_major = name == "output" and time_major and problem.return_sequences
        value = _time_major(got.numpy()) if in_time_major else got.numpy()
        assert relative_error(value, want) <= limit, name
    for name, want in wanted_grads.items():
        assert grads[name].dtype == tensors[name].dtype
        value = grads[name].numpy()
        if name == "x" and time_major:
            value = _time_major(value)
        assert relative_error(value, want) <= grad_limit, f"gradient of {name}"
