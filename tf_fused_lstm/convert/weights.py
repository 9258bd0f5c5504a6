"""`LSTMWeights`, the form that every conversion goes through, and the checks they share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

KERAS_GATES = "ifco"


class LSTMWeights(NamedTuple):
    """The weights of one LSTM layer in one direction, as keras.layers.LSTM holds them.

    `layer.set_weights(weights)` takes one (without its bias where that is None), and
    `LSTMWeights(*layer.get_weights())` makes one. The gate order is i, f, c, o.

    Attributes:
        kernel: `[input_size, 4 * hidden_size]`.
        recurrent_kernel: `[hidden_size, 4 * hidden_size]`.
        bias: `[4 * hidden_size]`, or None for `use_bias=False`.
    """

    kernel: np.ndarray
    recurrent_kernel: np.ndarray
    bias: np.ndarray | None = None

    @property
    def input_size(self) -> int:
        return self.kernel.shape[0]

    @property
    def hidden_size(self) -> int:
        return self.recurrent_kernel.shape[0]

    def bias_or_zeros(self) -> np.ndarray:
        if self.bias is not None:
            return self.bias
        return np.zeros(4 * self.hidden_size, self.kernel.dtype)


def to_array(value: Any) -> np.ndarray:
    """A NumPy array of an array, a TensorFlow tensor or variable, or a PyTorch tensor."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":  # of which PyTorch makes no array
            value = value.float()
    return np.asarray(value)


def check_shape(argument: str, value: Any, wanted: Sequence[int | None], says: str) -> np.ndarray:
    """The value as an array; raises ValueError unless it has the wanted shape.

    Args:
        argument: The name of the value.
        value: An array.
        wanted: The shape, None for any size.
        says: The shape in words, and where its sizes come from.
    """
    array = to_array(value)
    fits = array.ndim == len(wanted) and all(
        w is None or w == got for w, got in zip(wanted, array.shape, strict=True)
    )
    if not fits:
        sizes = ", ".join("?" if w is None else str(w) for w in wanted)
        raise ValueError(f"{argument} must have shape {says} = ({sizes}), got {array.shape}")
    return array


def divide(argument: str, array: np.ndarray, axis: int, parts: int, says: str) -> int:
    """The size of one of `parts` equal parts of an axis; raises ValueError if there is none."""
    size, rest = divmod(array.shape[axis], parts)
    if rest or not size:
        raise ValueError(
            f"{argument} must have shape {says}, with a size along axis {axis} that {parts} "
            f"divides, got {array.shape}"
        )
    return size


def items(argument: str, values: Any) -> list[Any]:
    try:
        return list(values)
    except TypeError:
        raise ValueError(f"{argument} must hold LSTM weights, got {values!r}") from None


def check(weights: Any, argument: str = "weights") -> LSTMWeights:
    """`weights` (kernel, recurrent_kernel and maybe bias) as LSTMWeights of agreeing shapes."""
    parts = items(argument, weights)
    if len(parts) not in (2, 3):
        raise ValueError(
            f"{argument} must be kernel, recurrent_kernel and maybe bias, got {len(parts)} arrays"
        )
    kernel, recurrent, bias = (*parts, None)[:3]
    says = "(hidden_size, 4 * hidden_size)"
    recurrent = check_shape(f"{argument}: recurrent_kernel", recurrent, (None, None), says)
    hidden = recurrent.shape[0]
    recurrent = check_shape(f"{argument}: recurrent_kernel", recurrent, (hidden, 4 * hidden), says)
    kernel = check_shape(
        f"{argument}: kernel", kernel, (None, 4 * hidden), "(input_size, 4 * hidden_size)"
    )
    if bias is not None:
        bias = check_shape(f"{argument}: bias", bias, (4 * hidden,), "(4 * hidden_size)")
    return LSTMWeights(kernel, recurrent, bias)


def check_cells(cells: Any, directions: int) -> list[LSTMWeights]:
    """Cells of stacked layers, the directions of a layer side by side, that fit each other."""
    if isinstance(cells, LSTMWeights):
        cells = [cells]
    cells = [check(cell, f"cells[{i}]") for i, cell in enumerate(items("cells", cells))]
    if not cells or len(cells) % directions:
        wanted = "one for each layer" if directions == 1 else "two for each layer"
        raise ValueError(f"cells must be LSTMWeights, {wanted}, got {len(cells)}")
    hidden = cells[0].hidden_size
    for i, cell in enumerate(cells):
        layer = i // directions
        inputs = cells[0].input_size if layer == 0 else directions * hidden
        check_shape(
            f"cells[{i}]: recurrent_kernel", cell.recurrent_kernel, (hidden, 4 * hidden),
            "(hidden_size, 4 * hidden_size) as in cells[0]",
        )  # fmt: skip
        check_shape(
            f"cells[{i}]: kernel", cell.kernel, (inputs, 4 * hidden),
            f"(input_size, 4 * hidden_size) of layer {layer}",
        )  # fmt: skip
    return cells


def reorder(array: np.ndarray, order: str, wanted: str, axis: int = -1) -> np.ndarray:
    """Reorders the four gate blocks of an axis, from `order` to `wanted`, such as "icfo"."""
    blocks = dict(zip(order, np.split(array, 4, axis), strict=True))
    return np.concatenate([blocks[gate] for gate in wanted], axis)
