"""The layer as an ONNX model, for the runtimes that read it."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper

from benchmarks.peers.gates import reorder
from benchmarks.problem import Problem

_ORDER = "iofc"


def serialized_model(problem: Problem) -> bytes:
    """A model with input "x" and output "output", time-major, its weights constants.

    The output is [steps, 1, batch, hidden_size], as ONNX's LSTM gives it.
    """
    shape = problem.shape

    def weights(matrix: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(reorder(matrix, _ORDER).T[None])

    bias = reorder(problem.bias, _ORDER)
    constants = {
        "W": weights(problem.kernel),
        "R": weights(problem.recurrent_kernel),
        "B": np.concatenate([bias, np.zeros_like(bias)])[None],
    }
    sizes = (shape.batch, shape.hidden_size)
    graph = helper.make_graph(
        [helper.make_node("LSTM", ["x", "W", "R", "B"], ["output"], hidden_size=sizes[1])],
        "lstm",
        [
            helper.make_tensor_value_info(
                "x", TensorProto.FLOAT, (shape.steps, shape.batch, shape.input_size)
            )
        ],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, (shape.steps, 1, *sizes))],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    checker.check_model(model)
    return model.SerializeToString()
