"""PyTorch's `torch.nn.LSTM`, by its state dict; PyTorch itself is not needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tf_fused_lstm.convert.weights import LSTMWeights, check_cells, check_shape, to_array


def _suffix(layer: int, direction: int) -> str:
    return f"_l{layer}" + ("_reverse" if direction else "")


def from_torch(state_dict: Mapping[str, Any], prefix: str = "") -> list[LSTMWeights]:
    """The weights of a `torch.nn.LSTM`, whose gate order is i, f, g (Keras's c), o.

    Args:
        state_dict: `module.state_dict()`, or any mapping with its `weight_ih_l0`, `weight_hh_l0`,
            `bias_ih_l0`, `bias_hh_l0`, `weight_ih_l0_reverse`, ... of tensors or arrays.
        prefix: What stands before those names, such as "encoder.lstm.".

    Returns:
        One LSTMWeights for each layer and direction, the directions of a layer side by side. The
        two biases are added.

    Raises:
        ValueError: A name is missing, an array has a wrong shape, or the LSTM has a projection.
    """
    if f"{prefix}weight_ih_l0" not in state_dict:
        raise ValueError(
            f"state_dict must hold {prefix}weight_ih_l0, got {', '.join(sorted(state_dict))}"
        )
    if f"{prefix}weight_hr_l0" in state_dict:
        raise ValueError("state_dict must be of an LSTM without proj_size, got weight_hr_l0")
    directions = 2 if f"{prefix}weight_ih_l0_reverse" in state_dict else 1
    has_bias = f"{prefix}bias_ih_l0" in state_dict
    hidden = to_array(state_dict[f"{prefix}weight_hh_l0"]).shape[-1]

    def read(name: str, columns: tuple[int | None, ...]) -> np.ndarray:
        if prefix + name not in state_dict:
            raise ValueError(f"state_dict must hold {prefix}{name}, as it holds the layer's others")
        says = "(4 * hidden_size" + (", columns)" if columns else ")")
        return check_shape(prefix + name, state_dict[prefix + name], (4 * hidden, *columns), says)

    cells = []
    layer = 0
    while f"{prefix}weight_ih_l{layer}" in state_dict:
        for direction in range(directions):
            suffix = _suffix(layer, direction)
            kernel = read("weight_ih" + suffix, (None,)).T
            recurrent = read("weight_hh" + suffix, (hidden,)).T
            bias = None
            if has_bias:
                bias = read("bias_ih" + suffix, ()) + read("bias_hh" + suffix, ())
            cells.append(LSTMWeights(kernel, recurrent, bias))
        layer += 1
    return check_cells(cells, directions)


def to_torch(cells: Any, *, bidirectional: bool = False, prefix: str = "") -> dict[str, np.ndarray]:
    """The inverse of `from_torch`; the biases of h are zeros.

    `module.load_state_dict({name: torch.from_numpy(array) for name, array in result.items()})`
    loads it.

    Args:
        cells: LSTMWeights, one for each layer and direction; all with a bias or none.
        bidirectional: Whether each layer has two directions.
        prefix: What to write before the names.

    Returns:
        The state dict, of contiguous arrays; without biases where the cells have none.

    Raises:
        ValueError: The cells do not fit each other.
    """
    directions = 2 if bidirectional else 1
    cells = check_cells(cells, directions)
    has_bias = cells[0].bias is not None
    result = {}
    for i, cell in enumerate(cells):
        if (cell.bias is not None) != has_bias:
            raise ValueError(f"cells must all have a bias or none, got another in cells[{i}]")
        suffix = _suffix(*divmod(i, directions))
        result[f"{prefix}weight_ih{suffix}"] = np.ascontiguousarray(cell.kernel.T)
        result[f"{prefix}weight_hh{suffix}"] = np.ascontiguousarray(cell.recurrent_kernel.T)
        if cell.bias is not None:
            result[f"{prefix}bias_ih{suffix}"] = cell.bias.copy()
            result[f"{prefix}bias_hh{suffix}"] = np.zeros_like(cell.bias)
    return result
