"""OpenVINO's LSTM on a CPU, forward only."""

from __future__ import annotations

from typing import Any

import numpy as np
import openvino

from benchmarks.peers.base import Program, Settings
from benchmarks.peers.onnx_model import serialized_model
from benchmarks.problem import Mode, Problem, Results


def build(problem: Problem, mode: Mode, settings: Settings) -> Program:
    """A compiled model, tuned for latency, in full float32. Time-major."""
    core = openvino.Core()
    model = core.compile_model(
        core.read_model(serialized_model(problem), b""),
        "CPU",
        {
            "INFERENCE_NUM_THREADS": settings.threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
        },
    )
    request = model.create_infer_request()
    # A copy: a tensor that shares an array's memory does not keep it.
    request.set_input_tensor(openvino.Tensor(np.ascontiguousarray(problem.x.swapaxes(0, 1))))

    def run() -> Any:
        request.infer()
        return request.get_output_tensor()

    def results(raw: Any) -> Results:
        return {"output": raw.data[:, 0].swapaxes(0, 1).copy()}

    return Program(run, results)
