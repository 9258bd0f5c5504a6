"""PyTorch's `nn.LSTM`: oneDNN on a CPU, cuDNN on a GPU, there also replayed from a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peers.base import Program, Settings, Unavailable
from benchmarks.problem import Mode, Problem, Results


def _to_numpy(tensor: Any) -> NDArray:
    tensor = tensor.detach()
    # numpy has no bfloat16 of its own; float32 holds its values.
    tensor = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
    return tensor.cpu().numpy()


def _call(problem: Problem, mode: Mode, settings: Settings) -> Callable[[], Any]:
    """The call, not synchronised: the output, and for "train" the gradients as well."""
    if settings.device == "gpu" and not torch.cuda.is_available():
        raise Unavailable("this PyTorch sees no GPU")
    torch.set_num_threads(settings.threads)
    torch.backends.cuda.matmul.allow_tf32 = settings.tf32
    torch.backends.cudnn.allow_tf32 = settings.tf32
    place = torch.device("cuda" if settings.device == "gpu" else "cpu")
    dtype = getattr(torch, problem.dtype)

    def tensor(array: NDArray) -> Any:
        if problem.dtype == "bfloat16":
            array = array.astype(np.float32)
        return torch.tensor(np.ascontiguousarray(array), device=place, dtype=dtype)

    x = tensor(problem.x.swapaxes(0, 1))
    grad_output = tensor(problem.grad_output.swapaxes(0, 1))
    module = torch.nn.LSTM(
        problem.shape.input_size, problem.shape.hidden_size, device=place, dtype=dtype
    )
    weights: list[Any] = [
        module.weight_ih_l0,
        module.weight_hh_l0,
        module.bias_ih_l0,
        module.bias_hh_l0,
    ]
    values = [problem.kernel.T, problem.recurrent_kernel.T, problem.bias, 0 * problem.bias]
    with torch.no_grad():
        for weight, value in zip(weights, values, strict=True):
            weight.copy_(tensor(value))

    if mode == "forward":
        module.eval()

        def forward() -> Any:
            with torch.inference_mode():
                return module(x)[0]

        return forward

    x.requires_grad_(True)

    def train() -> Any:
        output = module(x)[0]
        return output, torch.autograd.grad(output, [x, *weights], grad_output)

    return train


def _results(mode: Mode, raw: Any) -> Results:
    if mode == "forward":
        return {"output": _to_numpy(raw).swapaxes(0, 1)}
    output, (grad_x, grad_kernel, grad_recurrent_kernel, grad_bias, _) = raw
    return {
        "output": _to_numpy(output).swapaxes(0, 1),
        "grad_x": _to_numpy(grad_x).swapaxes(0, 1),
        "grad_kernel": _to_numpy(grad_kernel).T,
        "grad_recurrent_kernel": _to_numpy(grad_recurrent_kernel).T,
        "grad_bias": _to_numpy(grad_bias),
    }


def build(problem: Problem, mode: Mode, settings: Settings) -> Program:
    """`torch.nn.LSTM`, called eagerly. Time-major."""
    call = _call(problem, mode, settings)

    def call_and_wait() -> Any:
        results = call()
        torch.cuda.synchronize()
        return results

    run = call if settings.device == "cpu" else call_and_wait
    return Program(run, lambda raw: _results(mode, raw))


def build_graph(problem: Problem, mode: Mode, settings: Settings) -> Program:
    """The same captured in a CUDA graph and replayed: cuDNN without any launch cost."""
    call = _call(problem, mode, settings)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # cuDNN chooses and allocates before the capture
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        static = call()

    def run() -> Any:
        graph.replay()
        torch.cuda.synchronize()
        return static

    def kernel_seconds(calls: int) -> float:
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            graph.replay()
        stop.record()
        stop.synchronize()
        return start.elapsed_time(stop) / 1e3

    return Program(run, lambda raw: _results(mode, raw), graph.reset, kernel_seconds)
