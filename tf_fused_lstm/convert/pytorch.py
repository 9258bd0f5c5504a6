"""PyTorch's `torch.nn.LSTM`, by its state dict; PyTorch itself is not needed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from tf_fused_lstm.convert.weights import LSTMWeights, check_cells, check_shape, to_array

_NAME = re.compile(r"(weight|bias)_(ih|hh|hr)_l(\d+)(_reverse)?")


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
    if not isinstance(state_dict, Mapping):
        raise ValueError(
            "state_dict must be a mapping, such as module.state_dict(), got a "
            f"{type(state_dict).__name__}"
        )
    if f"{prefix}weight_ih_l0" not in state_dict:
        raise ValueError(
            f"state_dict must hold {prefix}weight_ih_l0, got {', '.join(sorted(state_dict))}"
        )
    names = [name.removeprefix(prefix) for name in state_dict if name.startswith(prefix)]
    # Each of them is read below, so that none of a state dict which lacks others goes lost.
    held = [match for match in map(_NAME.fullmatch, names) if match]
    if any(match[2] == "hr" for match in held):
        raise ValueError("state_dict must be of an LSTM without proj_size, got weight_hr_l0")
    layers = 1 + max(int(match[3]) for match in held)
    directions = 2 if any(match[4] for match in held) else 1
    has_bias = any(match[1] == "bias" for match in held)

    def value(name: str) -> np.ndarray:
        if prefix + name not in state_dict:
            raise ValueError(f"state_dict must hold {prefix}{name}, as it holds the LSTM's others")
        return to_array(state_dict[prefix + name])

    recurrent = value("weight_hh_l0")
    hidden = recurrent.shape[-1] if recurrent.ndim else 0

    def read(name: str, *columns: int | None, says: str = ")") -> np.ndarray:
        says = f"(4 * hidden_size{says}"
        return check_shape(prefix + name, value(name), (4 * hidden, *columns), says)

    cells = []
    for layer in range(layers):
        for direction in range(directions):
            suffix = _suffix(layer, direction)
            recurrent = read("weight_hh" + suffix, hidden, says=", hidden_size)").T
            inputs = directions * hidden if layer else None
            kernel = read("weight_ih" + suffix, inputs, says=", columns)").T
            bias = None
            if has_bias:
                bias = read("bias_ih" + suffix) + read("bias_hh" + suffix)
            cells.append(LSTMWeights(kernel, recurrent, bias))
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
