"""The LSTM in float64 numpy, forward and backward, as plainly as it can be written.

The equations are those of Hochreiter and Schmidhuber (1997) with the forget gate of Gers et al.
(2000); weights are in Keras's layout, gates i, f, c, o.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Forward:
    """The output, [batch, steps, hidden_size], and what the backward pass reads."""

    output: Array
    gates: Array  # [steps, 4, batch, hidden_size], after their activations
    cells: Array  # [steps, batch, hidden_size]


@dataclass(frozen=True)
class Gradients:
    """The gradients with respect to the input and the weights, of their shapes."""

    x: Array
    kernel: Array
    recurrent_kernel: Array
    bias: Array


def _sigmoid(z: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * z))


def forward(x: Array, kernel: Array, recurrent_kernel: Array, bias: Array) -> Forward:
    """Runs the layer over x, [batch, steps, input_size], from zero states."""
    batch, steps, _ = x.shape
    hidden = recurrent_kernel.shape[0]
    projected = (x @ kernel + bias).transpose(1, 0, 2)
    h = np.zeros((batch, hidden))
    c = np.zeros((batch, hidden))
    output = np.empty((batch, steps, hidden))
    gates = np.empty((steps, 4, batch, hidden))
    cells = np.empty((steps, batch, hidden))
    for t in range(steps):
        z = projected[t] + h @ recurrent_kernel
        i, f, g, o = np.split(z, 4, axis=1)
        i, f, g, o = _sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)
        c = f * c + i * g
        h = o * np.tanh(c)
        output[:, t], gates[t], cells[t] = h, (i, f, g, o), c
    return Forward(output, gates, cells)


def backward(
    x: Array, kernel: Array, recurrent_kernel: Array, run: Forward, grad_output: Array
) -> Gradients:
    """The gradients of sum(output * grad_output)."""
    batch, steps, input_size = x.shape
    hidden = recurrent_kernel.shape[0]
    grad_z = np.empty((batch, steps, 4 * hidden))
    dh = np.zeros((batch, hidden))
    dc = np.zeros((batch, hidden))
    for t in reversed(range(steps)):
        i, f, g, o = run.gates[t]
        previous_c = run.cells[t - 1] if t else np.zeros((batch, hidden))
        tanh_c = np.tanh(run.cells[t])
        dh = dh + grad_output[:, t]
        dc = dc + dh * o * (1 - tanh_c**2)
        grad_z[:, t] = np.concatenate(
            [
                dc * g * i * (1 - i),
                dc * previous_c * f * (1 - f),
                dc * i * (1 - g**2),
                dh * tanh_c * o * (1 - o),
            ],
            axis=1,
        )
        dh = grad_z[:, t] @ recurrent_kernel.T
        dc = dc * f
    previous_h = np.concatenate([np.zeros((batch, 1, hidden)), run.output[:, :-1]], axis=1)
    flat_grad_z = grad_z.reshape(-1, 4 * hidden)
    return Gradients(
        x=grad_z @ kernel.T,
        kernel=x.reshape(-1, input_size).T @ flat_grad_z,
        recurrent_kernel=previous_h.reshape(-1, hidden).T @ flat_grad_z,
        bias=flat_grad_z.sum(axis=0),
    )
