"""The variables of TensorFlow 1's cells, from their NumPy values."""

from __future__ import annotations

from typing import Any

import numpy as np

from tf_fused_lstm.convert.weights import (
    KERAS_GATES,
    LSTMWeights,
    check,
    check_shape,
    divide,
    reorder,
)

CELL_GATES = "icfo"


def _add_to_forget_gate(bias: np.ndarray, forget_bias: float) -> np.ndarray:
    """Of a bias in Keras's order, a copy."""
    bias = bias.copy()
    hidden = bias.shape[0] // 4
    bias[hidden : 2 * hidden] += forget_bias
    return bias


def from_basic_lstm_cell(kernel: Any, bias: Any, *, forget_bias: float = 1.0) -> LSTMWeights:
    """The weights of a BasicLSTMCell, LSTMCell (without peepholes) or LSTMBlockCell.

    Their gate order is i, c, f, o, their kernel is that of the input above that of h, and
    `forget_bias` is added at run time (tf.compat.v1.nn.rnn_cell.BasicLSTMCell;
    tf.raw_ops.LSTMBlockCell and BlockLSTM hold the same as `w` and `b`).

    Args:
        kernel: `[input_size + hidden_size, 4 * hidden_size]`.
        bias: `[4 * hidden_size]`.
        forget_bias: The cell's argument or the op's attribute; it goes into the bias.

    Raises:
        ValueError: An argument has a wrong shape.
    """
    says = "(input_size + hidden_size, 4 * hidden_size)"
    kernel = check_shape("kernel", kernel, (None, None), says)
    hidden = divide("kernel", kernel, 1, 4, says)
    if kernel.shape[0] <= hidden:
        raise ValueError(
            f"kernel must have shape {says}, so more than {hidden} rows, got {kernel.shape}"
        )
    bias = check_shape("bias", bias, (4 * hidden,), "(4 * hidden_size)")
    kernel = reorder(kernel, CELL_GATES, KERAS_GATES)
    inputs = kernel.shape[0] - hidden
    bias = _add_to_forget_gate(reorder(bias, CELL_GATES, KERAS_GATES), forget_bias)
    return LSTMWeights(kernel[:inputs], kernel[inputs:], bias)


def to_basic_lstm_cell(weights: Any, *, forget_bias: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """The inverse of `from_basic_lstm_cell`.

    Args:
        weights: LSTMWeights.
        forget_bias: What the cell will add at run time; it is taken out of the bias.

    Returns:
        `(kernel, bias)`, `[input_size + hidden_size, 4 * hidden_size]` and `[4 * hidden_size]`.

    Raises:
        ValueError: An argument has a wrong shape.
    """
    weights = check(weights)
    bias = _add_to_forget_gate(weights.bias_or_zeros(), -forget_bias)
    kernel = np.concatenate([weights.kernel, weights.recurrent_kernel])
    return (
        reorder(kernel, KERAS_GATES, CELL_GATES),
        reorder(bias, KERAS_GATES, CELL_GATES),
    )
