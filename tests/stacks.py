"""Stacks of LSTM layers and directions: random weights, and their results by stock Keras layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from tf_fused_lstm import convert


def random_cell(rng: np.random.Generator, inputs: int, units: int, bias: bool = True):
    """LSTMWeights in float32."""
    return convert.LSTMWeights(
        rng.standard_normal((inputs, 4 * units)).astype(np.float32),
        rng.standard_normal((units, 4 * units)).astype(np.float32),
        rng.standard_normal(4 * units).astype(np.float32) if bias else None,
    )


def random_cells(
    rng: np.random.Generator,
    layers: int,
    directions: int,
    inputs: int,
    units: int,
    bias: bool = True,
):
    """LSTMWeights of each layer and direction, the directions of a layer side by side."""
    return [
        random_cell(rng, inputs if layer == 0 else directions * units, units, bias)
        for layer in range(layers)
        for _ in range(directions)
    ]


def keras_stack(
    cells: Sequence[convert.LSTMWeights],
    directions: int,
    x: np.ndarray,
    initial: Sequence[tuple[Any, Any]] | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(sequence, final h and c of every cell, [cells, batch, units]) by keras.layers.LSTM."""
    final_h, final_c = [], []
    for i in range(0, len(cells), directions):
        parts = []
        for d, cell in enumerate(cells[i : i + directions]):
            layer = keras.layers.LSTM(
                cell.hidden_size, return_sequences=True, return_state=True, go_backwards=d == 1,
                use_bias=cell.bias is not None,
            )  # fmt: skip
            layer.build(x.shape)
            layer.set_weights([w for w in cell if w is not None])
            states = None if initial is None else list(initial[i + d])
            out, h, c = (np.asarray(v) for v in layer(x, initial_state=states))
            parts.append(out[:, ::-1] if d else out)
            final_h.append(h)
            final_c.append(c)
        x = np.concatenate(parts, -1)
    return x, np.stack(final_h), np.stack(final_c)
