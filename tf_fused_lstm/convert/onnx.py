"""ONNX's LSTM operator, by its inputs W, R and B; onnx itself is not needed."""

from __future__ import annotations

from typing import Any

import numpy as np

from tf_fused_lstm.convert.weights import (
    KERAS_GATES,
    LSTMWeights,
    check,
    check_shape,
    divide,
    items,
    reorder,
)

ONNX_GATES = "iofc"


def from_onnx(w: Any, r: Any, b: Any = None, *, p: Any = None) -> list[LSTMWeights]:
    """The weights of an ONNX LSTM, whose gate order is i, o, f, c.

    Args:
        w: The input W, `[directions, 4 * hidden_size, input_size]`.
        r: The input R, `[directions, 4 * hidden_size, hidden_size]`.
        b: The input B, `[directions, 8 * hidden_size]`, that of the input, then that of h; None
            where the node has none.
        p: The input P, peepholes; None or zeros, since a Keras LSTM has none.

    Returns:
        One LSTMWeights for each direction. The two biases are added. A node with direction
        "reverse" has one, for a layer with `go_backwards`.

    Raises:
        ValueError: An argument has a wrong shape, or p holds peepholes.
    """
    says = "(directions, 4 * hidden_size, hidden_size)"
    r = check_shape("r", r, (None, None, None), says)
    hidden = divide("r", r, 1, 4, says)
    directions = r.shape[0]
    if directions not in (1, 2):
        raise ValueError(f"r must have shape {says} of one or two directions, got {r.shape}")
    r = check_shape("r", r, (directions, 4 * hidden, hidden), says)
    w = check_shape(
        "w", w, (directions, 4 * hidden, None), "(directions, 4 * hidden_size, input_size)"
    )
    if b is not None:
        b = check_shape("b", b, (directions, 8 * hidden), "(directions, 8 * hidden_size)")
        b = reorder(b[:, : 4 * hidden] + b[:, 4 * hidden :], ONNX_GATES, KERAS_GATES)
    if p is not None and np.any(np.asarray(p)):
        raise ValueError("p must be None or zeros: a Keras LSTM has no peepholes")
    w, r = (reorder(v, ONNX_GATES, KERAS_GATES, 1) for v in (w, r))
    return [LSTMWeights(w[d].T, r[d].T, None if b is None else b[d]) for d in range(directions)]


def to_onnx(cells: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The inverse of `from_onnx`; the bias of h is zeros.

    Args:
        cells: LSTMWeights of one layer, one for each direction.

    Returns:
        `(W, R, B)`.

    Raises:
        ValueError: The cells do not fit each other.
    """
    cells = [cells] if isinstance(cells, LSTMWeights) else items("cells", cells)
    cells = [check(cell, f"cells[{i}]") for i, cell in enumerate(cells)]
    if len(cells) not in (1, 2):
        raise ValueError(f"cells must be LSTMWeights of one or two directions, got {len(cells)}")
    shape = cells[0].kernel.shape
    for i, cell in enumerate(cells):
        check_shape(
            f"cells[{i}]: kernel", cell.kernel, shape,
            "(input_size, 4 * hidden_size) as in cells[0]",
        )  # fmt: skip

    def order(array: np.ndarray) -> np.ndarray:
        return reorder(array, KERAS_GATES, ONNX_GATES)

    biases = [order(cell.bias_or_zeros()) for cell in cells]
    return (
        np.stack([order(cell.kernel).T for cell in cells]),
        np.stack([order(cell.recurrent_kernel).T for cell in cells]),
        np.stack([np.concatenate([b, np.zeros_like(b)]) for b in biases]),
    )
