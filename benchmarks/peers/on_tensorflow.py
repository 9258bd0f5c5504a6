"""What the peers that run on TensorFlow share."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import tensorflow as tf

from benchmarks import trace
from benchmarks.peers.base import Program, Settings
from benchmarks.problem import GRADIENTS, Mode, Problem, Results

_configured: Settings | None = None


def configure(settings: Settings) -> None:
    """Sets TensorFlow's threads and TF32 switch, and lets others have some GPU memory.

    Must come before TensorFlow's first op; threads cannot change after it.
    """
    global _configured  # noqa: PLW0603  (TensorFlow's own threads are global as well)
    if _configured is None:
        tf.config.threading.set_intra_op_parallelism_threads(settings.threads)
        tf.config.threading.set_inter_op_parallelism_threads(settings.threads)
        if settings.device == "cpu":
            tf.config.set_visible_devices([], "GPU")
        for gpu in tf.config.get_visible_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
        tf.get_logger().setLevel("ERROR")
    elif _configured.threads != settings.threads:
        raise ValueError(
            f"TensorFlow already runs with {_configured.threads} threads, "
            f"{settings.threads} were asked for"
        )
    tf.config.experimental.enable_tensor_float_32_execution(settings.tf32)
    _configured = settings


def has_gpu() -> bool:
    return bool(tf.config.list_physical_devices("GPU"))


@functools.cache
def _sees_gpu() -> bool:
    return bool(tf.config.get_visible_devices("GPU"))


def device(settings: Settings) -> Any:
    """The scope in which ops are placed on the settings' device."""
    # Where there is no other, as `configure` sees to, a scope only costs each call 5 us.
    if settings.device == "cpu" and not _sees_gpu():
        return nullcontext()
    return tf.device(f"/{settings.device.upper()}:0")


def synchronised(call: Callable[..., Any], settings: Settings) -> Callable[..., Any]:
    """`call`, but on a GPU it returns when the work is done, not when it is queued."""
    if settings.device == "cpu":
        return call

    def call_and_wait(*args: Any) -> Any:
        results = call(*args)
        tf.test.experimental.sync_devices()
        return results

    return call_and_wait


def function_program(
    call: Callable[[tf.Tensor], tf.Tensor],
    weights: Sequence[tf.Variable],
    problem: Problem,
    mode: Mode,
    settings: Settings,
    *,
    time_major: bool = False,
    eager: bool = False,
    concrete: bool = False,
    weight_gradients: Callable[[Sequence[Any]], Results] | None = None,
) -> Program:
    """A program around `call`, which maps the input to the sequence of outputs.

    Args:
        call: The layer.
        weights: What it reads: kernel, recurrent kernel and bias in Keras's layout, unless
            weight_gradients says otherwise.
        time_major: The layout of call's input and output.
        eager: Call it as it is, not in a `tf.function`.
        concrete: Call the concrete function, without the search for the one that fits.
        weight_gradients: Turns the gradients of weights into Keras's layout.
    """

    def train(x: tf.Tensor, grad_output: tf.Tensor) -> tuple[tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = call(x)
        return output, tape.gradient(output, [x, *weights], output_gradients=grad_output)

    def layout(sequence: Any) -> Any:
        return sequence.swapaxes(0, 1) if time_major else sequence

    with device(settings):
        # identity: a constant may live on the host, the result of an op does not.
        x = tf.identity(layout(problem.x))
        grad_output = tf.identity(layout(problem.grad_output))
    body = call if mode == "forward" else train
    arguments = (x,) if mode == "forward" else (x, grad_output)
    program: Any = body if eager else tf.function(body)
    if concrete:
        with device(settings):
            program = program.get_concrete_function(*arguments)
    whole = synchronised(program, settings)

    def run() -> Any:
        with device(settings):
            return whole(*arguments)

    def results(raw: Any) -> Results:
        if mode == "forward":
            return {"output": layout(raw.numpy())}
        output, (grad_x, *grads) = raw
        arrays = [grad.numpy() for grad in grads]
        converted = (
            dict(zip(GRADIENTS[1:], arrays, strict=True))
            if weight_gradients is None
            else weight_gradients(arrays)
        )
        return {"output": layout(output.numpy()), "grad_x": layout(grad_x.numpy()), **converted}

    def kernel_seconds(calls: int) -> float:
        return trace.busy_time(trace.profile(run, "gpu", calls)) / 1e9

    return Program(run, results, kernel_seconds=kernel_seconds)
