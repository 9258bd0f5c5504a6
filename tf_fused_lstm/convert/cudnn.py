"""cuDNN's parameters: TensorFlow's CudnnLSTM blob and canonical lists, and Keras's CuDNNLSTM.

cuDNN numbers an LSTM's matrices i, f, c, o for the input and again for h, each
`[hidden_size, columns]` row by row; the biases likewise, one set for the input and one for h. The
blob holds the matrices of every layer and direction (layer 0 forward, layer 0 backward, layer 1
forward, ...), then all biases in the same order, without gaps. Source: NVIDIA's cuDNN API
reference, cudnnGetRNNWeightParams (the numbering), tf.raw_ops.CudnnRNNCanonicalToParams (the
canonical lists).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import Any

import numpy as np

from tf_fused_lstm.convert.weights import (
    LSTMWeights,
    check,
    check_cells,
    check_shape,
    divide,
)

# Matrices (and biases) of one layer and direction: four gates for the input, four for h.
REGIONS = 8


def canonical_shapes(
    num_layers: int, num_units: int, input_size: int, bidirectional: bool
) -> Iterator[tuple[int, int]]:
    """The shapes of the canonical matrices, in order."""
    directions = 2 if bidirectional else 1
    for layer in range(num_layers):
        columns = input_size if layer == 0 else directions * num_units
        for _ in range(directions):
            yield from [(num_units, columns)] * 4
            yield from [(num_units, num_units)] * 4


def cudnn_params_size(
    num_layers: int, num_units: int, input_size: int, *, bidirectional: bool = False
) -> int:
    """The number of elements of the blob.

    Raises:
        ValueError: A size is no number, or too small.
    """
    for name, value, least in (
        ("num_layers", num_layers, 1), ("num_units", num_units, 1), ("input_size", input_size, 0)
    ):  # fmt: skip
        if not isinstance(value, Integral) or value < least:
            raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}")
    shapes = list(canonical_shapes(num_layers, num_units, input_size, bidirectional))
    return sum(rows * columns for rows, columns in shapes) + len(shapes) * num_units


def from_cudnn_canonical(
    weights: Sequence[Any], biases: Sequence[Any], *, bidirectional: bool = False
) -> list[LSTMWeights]:
    """The weights in cuDNN's canonical lists, as CudnnRNNCanonicalToParams takes them.

    Args:
        weights: For each layer and direction, eight `[hidden_size, columns]` matrices.
        biases: As many biases, each `[hidden_size]`.
        bidirectional: Whether each layer has two directions.

    Returns:
        One LSTMWeights for each layer and direction, the directions of a layer side by side. The
        two biases of a gate are added.

    Raises:
        ValueError: A list has a wrong length, or an array a wrong shape.
    """
    directions = 2 if bidirectional else 1
    for name, arrays in (("weights", weights), ("biases", biases)):
        if not len(arrays) or len(arrays) % (REGIONS * directions):
            raise ValueError(
                f"{name} must be {REGIONS * directions} arrays for each layer, got {len(arrays)}"
            )
    if len(weights) != len(biases):
        raise ValueError(f"biases must be {len(weights)} arrays, as weights, got {len(biases)}")
    says = "(hidden_size, columns)"
    hidden = check_shape("weights[0]", weights[0], (None, None), says).shape[0]
    weights = [check_shape(f"weights[{i}]", w, (hidden, None), says) for i, w in enumerate(weights)]
    biases = [
        check_shape(f"biases[{i}]", b, (hidden,), "(hidden_size)") for i, b in enumerate(biases)
    ]
    cells = []
    for start in range(0, len(weights), REGIONS):
        kernel = np.concatenate(weights[start : start + 4]).T
        recurrent = np.concatenate(weights[start + 4 : start + 8]).T
        bias = np.concatenate(biases[start : start + 4])
        bias = bias + np.concatenate(biases[start + 4 : start + 8])
        cells.append(LSTMWeights(kernel, recurrent, bias))
    return check_cells(cells, directions)


def to_cudnn_canonical(
    cells: Any, *, bidirectional: bool = False
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The inverse of `from_cudnn_canonical`; the biases of h are zeros.

    Args:
        cells: LSTMWeights, one for each layer and direction.
        bidirectional: Whether each layer has two directions.

    Returns:
        `(weights, biases)`.

    Raises:
        ValueError: The cells do not fit each other.
    """
    weights, biases = [], []
    for cell in check_cells(cells, 2 if bidirectional else 1):
        bias = cell.bias_or_zeros()
        weights += np.split(cell.kernel.T, 4) + np.split(cell.recurrent_kernel.T, 4)
        biases += np.split(bias, 4) + np.split(np.zeros_like(bias), 4)
    return weights, biases


def from_cudnn_params(
    params: Any,
    *,
    num_layers: int,
    num_units: int,
    input_size: int,
    bidirectional: bool = False,
) -> list[LSTMWeights]:
    """The weights in the opaque parameters of a CudnnLSTM, mode "lstm", input "linear_input".

    Args:
        params: The blob, `[cudnn_params_size(...)]`.
        num_layers: Stacked layers.
        num_units: hidden_size.
        input_size: The size of the first layer's input.
        bidirectional: Whether each layer has two directions.

    Returns:
        One LSTMWeights for each layer and direction, the directions of a layer side by side. The
        two biases of a gate are added.

    Raises:
        ValueError: params has a wrong shape, or a size is no number.
    """
    size = cudnn_params_size(num_layers, num_units, input_size, bidirectional=bidirectional)
    params = check_shape(
        "params", params, (size,),
        f"that {num_layers} layers of {num_units} units with input_size {input_size} and "
        f"bidirectional={bidirectional} need",
    )  # fmt: skip
    shapes = list(canonical_shapes(num_layers, num_units, input_size, bidirectional))
    ends = np.cumsum([rows * columns for rows, columns in shapes])
    *matrices, rest = np.split(params, ends)
    weights = [m.reshape(shape) for m, shape in zip(matrices, shapes, strict=True)]
    return from_cudnn_canonical(weights, np.split(rest, len(weights)), bidirectional=bidirectional)


def to_cudnn_params(cells: Any, *, bidirectional: bool = False) -> np.ndarray:
    """The inverse of `from_cudnn_params`; the biases of h are zeros.

    Args:
        cells: LSTMWeights, one for each layer and direction.
        bidirectional: Whether each layer has two directions.

    Returns:
        The blob, `[cudnn_params_size(...)]`.

    Raises:
        ValueError: The cells do not fit each other.
    """
    weights, biases = to_cudnn_canonical(cells, bidirectional=bidirectional)
    return np.concatenate([a.reshape(-1) for a in (*weights, *biases)])


def from_keras_cudnn_lstm(kernel: Any, recurrent_kernel: Any, bias: Any) -> LSTMWeights:
    """The weights of a Keras CuDNNLSTM layer (`tf.compat.v1.keras.layers.CuDNNLSTM`).

    It holds cuDNN's matrices as cuDNN reads them, and both biases.

    Args:
        kernel: `[input_size, 4 * hidden_size]`, each gate's block with its elements in the order
            of the `[hidden_size, input_size]` matrix.
        recurrent_kernel: `[hidden_size, 4 * hidden_size]`, each gate's block transposed.
        bias: `[8 * hidden_size]`, that of the input, then that of h.

    Raises:
        ValueError: An argument has a wrong shape.
    """
    bias = check_shape("bias", bias, (None,), "(8 * hidden_size)")
    hidden = divide("bias", bias, 0, REGIONS, "(8 * hidden_size)")
    kernel, recurrent, bias = check(
        (kernel, recurrent_kernel, bias[: 4 * hidden] + bias[4 * hidden :]), "CuDNNLSTM"
    )
    blocks = [b.reshape(hidden, -1).T for b in np.split(kernel, 4, 1)]
    recurrent = np.concatenate([b.T for b in np.split(recurrent, 4, 1)], 1)
    return LSTMWeights(np.concatenate(blocks, 1), recurrent, bias)


def to_keras_cudnn_lstm(weights: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The inverse of `from_keras_cudnn_lstm`; the bias of h is zeros.

    Args:
        weights: LSTMWeights.

    Returns:
        `(kernel, recurrent_kernel, bias)`, as `CuDNNLSTM.set_weights` takes them.

    Raises:
        ValueError: An argument has a wrong shape.
    """
    weights = check(weights)
    blocks = [b.T.reshape(b.shape) for b in np.split(weights.kernel, 4, 1)]
    recurrent = np.concatenate([b.T for b in np.split(weights.recurrent_kernel, 4, 1)], 1)
    bias = weights.bias_or_zeros()
    return np.concatenate(blocks, 1), recurrent, np.concatenate([bias, np.zeros_like(bias)])
