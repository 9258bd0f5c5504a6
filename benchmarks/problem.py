"""Random data of one size, the right results for it, and how far off a peer's are."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from benchmarks import reference
from benchmarks.shapes import Shape

Mode = Literal["forward", "train"]
MODES: tuple[Mode, ...] = ("forward", "train")

DTYPES: dict[str, np.dtype] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
# What rounding may leave of a result, relative to its norm. Gate orders mixed up or a forgotten
# bias are off by far more than any of these.
TOLERANCES = {"float16": 1e-2, "bfloat16": 5e-2, "tf32": 5e-3, "float32": 2e-5, "float64": 1e-11}

Results = dict[str, NDArray]
GRADIENTS = ("grad_x", "grad_kernel", "grad_recurrent_kernel", "grad_bias")


@dataclass(frozen=True)
class Problem:
    """The input, the weights in Keras's layout and the gradient of the output, in the dtype."""

    shape: Shape
    dtype: str
    x: NDArray  # [batch, steps, input_size]
    kernel: NDArray  # [input_size, 4 * hidden_size]
    recurrent_kernel: NDArray  # [hidden_size, 4 * hidden_size]
    bias: NDArray  # [4 * hidden_size]
    grad_output: NDArray  # [batch, steps, hidden_size]
    _double: dict[str, reference.Array] = field(repr=False)

    @classmethod
    def random(cls, shape: Shape, dtype: str, seed: int | None = None) -> Problem:
        """Fresh normal data, weights scaled so that gates neither saturate nor idle."""
        generator = np.random.default_rng(seed)
        gates = 4 * shape.hidden_size
        sizes: dict[str, tuple[tuple[int, ...], float]] = {
            "x": ((shape.batch, shape.steps, shape.input_size), 1.0),
            "kernel": ((shape.input_size, gates), shape.input_size**-0.5),
            "recurrent_kernel": ((shape.hidden_size, gates), shape.hidden_size**-0.5),
            "bias": ((gates,), 0.5),
            "grad_output": ((shape.batch, shape.steps, shape.hidden_size), 1.0),
        }
        arrays = {
            name: (scale * generator.standard_normal(size)).astype(DTYPES[dtype])
            for name, (size, scale) in sizes.items()
        }
        # The reference starts from the rounded numbers, so that only arithmetic can differ.
        double = {name: array.astype(np.float64) for name, array in arrays.items()}
        return cls(shape, dtype, **arrays, _double=double)

    @cached_property
    def _forward(self) -> reference.Forward:
        d = self._double
        return reference.forward(d["x"], d["kernel"], d["recurrent_kernel"], d["bias"])

    @cached_property
    def _gradients(self) -> reference.Gradients:
        d = self._double
        return reference.backward(
            d["x"], d["kernel"], d["recurrent_kernel"], self._forward, d["grad_output"]
        )

    def expected(self, mode: Mode) -> Results:
        """What is right: the output and, for "train", the gradients, in float64."""
        results: Results = {"output": self._forward.output}
        if mode == "train":
            gradients = self._gradients
            results |= {name: getattr(gradients, name.removeprefix("grad_")) for name in GRADIENTS}
        return results

    def errors(self, mode: Mode, results: Results) -> dict[str, float]:
        """||result - expected|| / ||expected|| of each result; infinite where it is no number.

        Raises:
            ValueError: A result is missing or has a wrong shape.
        """
        errors = {}
        for name, expected in self.expected(mode).items():
            if name not in results:
                raise ValueError(f"{name} is missing")
            result = np.asarray(results[name]).astype(np.float64)
            if result.shape != expected.shape:
                raise ValueError(f"{name} has shape {result.shape}, not {expected.shape}")
            error = float(np.linalg.norm(result - expected) / np.linalg.norm(expected))
            errors[name] = error if np.isfinite(error) else float("inf")
        return errors
