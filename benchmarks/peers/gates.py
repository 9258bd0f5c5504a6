"""Weights in the layouts that the peers want, from Keras's gates i, f, c, o, and back."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

KERAS = "ifco"


def reorder(weights: NDArray, wanted: str, given: str = KERAS) -> NDArray:
    """Reorders the gate blocks of the last axis, from order `given` to order `wanted`."""
    blocks = dict(zip(given, np.split(weights, 4, axis=-1), strict=True))
    return np.concatenate([blocks[gate] for gate in wanted], axis=-1)


def joint_kernel(kernel: NDArray, recurrent_kernel: NDArray, order: str) -> NDArray:
    """One [input_size + hidden_size, 4 * hidden_size] kernel, as TensorFlow's older cells have."""
    return reorder(np.concatenate([kernel, recurrent_kernel], axis=0), order)


def split_joint_kernel(joint: NDArray, input_size: int, order: str) -> tuple[NDArray, NDArray]:
    """The inverse of `joint_kernel`."""
    joint = reorder(joint, KERAS, order)
    return joint[:input_size], joint[input_size:]


def cudnn_parameters(kernel: NDArray, recurrent_kernel: NDArray, bias: NDArray) -> NDArray:
    """cuDNN's flat buffer: each gate's input weights, recurrent weights, then two biases each.

    cuDNN keeps a gate's weights as [hidden_size, in] and adds both biases; the second is zero.
    """
    weights = [
        block.T.ravel()
        for matrix in (kernel, recurrent_kernel)
        for block in np.split(matrix, 4, axis=-1)
    ]
    return np.concatenate([*weights, bias, np.zeros_like(bias)])


def from_cudnn_parameters(
    parameters: NDArray, input_size: int, hidden_size: int
) -> tuple[NDArray, NDArray, NDArray]:
    """Kernel, recurrent kernel and first bias from a flat buffer of `cudnn_parameters`."""
    matrices, position = [], 0
    for rows in (input_size, hidden_size):
        blocks = []
        for _ in range(4):
            block = parameters[position : position + rows * hidden_size]
            blocks.append(block.reshape(hidden_size, rows).T)
            position += rows * hidden_size
        matrices.append(np.concatenate(blocks, axis=-1))
    return matrices[0], matrices[1], parameters[position : position + 4 * hidden_size]
