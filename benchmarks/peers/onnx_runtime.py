"""ONNX Runtime's LSTM on a CPU, forward only."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime

from benchmarks.peers.base import Program, Settings
from benchmarks.peers.onnx_model import serialized_model
from benchmarks.problem import Mode, Problem, Results


def build(problem: Problem, mode: Mode, settings: Settings) -> Program:
    """An inference session with its input and output bound to memory. Time-major."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings.threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Its threads spin within a call, but not on into the calls of the peers that follow.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(
        serialized_model(problem), options, providers=["CPUExecutionProvider"]
    )
    shape = problem.shape
    output = np.empty((shape.steps, 1, shape.batch, shape.hidden_size), np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.ascontiguousarray(problem.x.swapaxes(0, 1)))
    binding.bind_output("output", "cpu", 0, output.dtype, output.shape, output.ctypes.data)

    def run() -> np.ndarray:
        session.run_with_iobinding(binding)
        return output

    def results(raw: Any) -> Results:
        return {"output": raw[:, 0].swapaxes(0, 1)}

    return Program(run, results)
