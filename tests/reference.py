"""The LSTM and its gradient in float64 NumPy, straight from the equations, one step at a time."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


def _sigmoid(z):
    e = np.exp(-np.abs(z))
    return np.where(z >= 0, 1, e) / (1 + e)


# name: (the function of z, its derivative as a function of the value y and of z)
ACTIVATIONS = {
    "tanh": (np.tanh, lambda y, z: 1 - y * y),
    "sigmoid": (_sigmoid, lambda y, z: y * (1 - y)),
    "hard_sigmoid": (lambda z: np.clip(z / 6 + 0.5, 0, 1), lambda y, z: (np.abs(z) < 3) / 6),
    "relu": (lambda z: np.maximum(z, 0), lambda y, z: (z > 0) * 1.0),
    "linear": (lambda z: z, lambda y, z: np.ones_like(z)),
}


def _factors(masks):
    """The four gates' dropout masks, of [0, 1 or 4, batch, size] or None."""
    if masks is None or len(masks) == 0:
        return np.ones(4)
    return masks if len(masks) == 4 else np.repeat(masks, 4, axis=0)


def _gated(a, weights, masks):
    """a weights, each gate's part from a times its dropout mask."""
    parts = np.split(weights, 4, axis=1)
    return np.concatenate(
        [(a * m) @ w for m, w in zip(_factors(masks), parts, strict=True)], axis=1
    )


def _gated_gradients(a, weights, masks, dz):
    """The gradients of `_gated` with respect to a and weights."""
    da, dw = np.zeros(a.shape), []
    gates = zip(_factors(masks), np.split(weights, 4, axis=1), np.split(dz, 4, axis=1), strict=True)
    for m, w, d in gates:
        da += (d @ w.T) * m
        dw.append((a * m).T @ d)
    return da, np.concatenate(dw, axis=1)


@dataclass
class Problem:
    """A call of the op: its inputs, batch-major, and its flags."""

    x: np.ndarray
    kernel: np.ndarray
    recurrent_kernel: np.ndarray
    bias: np.ndarray | None = None
    initial_h: np.ndarray | None = None
    initial_c: np.ndarray | None = None
    mask: np.ndarray | None = None
    dropout_mask: np.ndarray | None = None
    recurrent_dropout_mask: np.ndarray | None = None
    go_backwards: bool = False
    return_sequences: bool = True
    zero_output_for_mask: bool = False
    activation: str = "tanh"
    recurrent_activation: str = "sigmoid"
    _steps: list = field(default_factory=list, repr=False)

    WEIGHTS = ("kernel", "recurrent_kernel", "bias")
    INPUTS = ("x", *WEIGHTS, "initial_h", "initial_c")

    def present(self) -> list[str]:
        """The names of the differentiable inputs that are given."""
        return [name for name in self.INPUTS if getattr(self, name) is not None]

    def flags(self) -> dict:
        names = ("go_backwards", "return_sequences", "zero_output_for_mask", "activation",
                 "recurrent_activation")  # fmt: skip
        return {name: getattr(self, name) for name in names}

    def forward(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(output, final_h, final_c)."""
        batch, steps, _ = self.x.shape
        hidden = self.recurrent_kernel.shape[0]
        act, _ = ACTIVATIONS[self.activation]
        rec, _ = ACTIVATIONS[self.recurrent_activation]
        zeros = np.zeros((batch, hidden))
        h = zeros if self.initial_h is None else self.initial_h.astype(np.float64)
        c = zeros if self.initial_c is None else self.initial_c.astype(np.float64)
        out, outputs = zeros, []
        self._steps = []
        for t in range(steps)[:: -1 if self.go_backwards else 1]:
            z = _gated(self.x[:, t], self.kernel, self.dropout_mask)
            z = z + _gated(h, self.recurrent_kernel, self.recurrent_dropout_mask)
            if self.bias is not None:
                z = z + self.bias
            zi, zf, zg, zo = np.split(z, 4, axis=1)
            i, f, g, o = rec(zi), rec(zf), act(zg), rec(zo)
            new_c = f * c + i * g
            a = act(new_c)
            new_h = o * a
            valid = np.ones((batch, 1), bool) if self.mask is None else self.mask[:, t, None]
            self._steps.append((t, valid, h, c, (zi, zf, zg, zo), (i, f, g, o), new_c, a))
            out = np.where(valid, new_h, zeros if self.zero_output_for_mask else out)
            h, c = np.where(valid, new_h, h), np.where(valid, new_c, c)
            outputs.append(out)
        if self.return_sequences:
            out = np.stack(outputs, axis=1) if outputs else np.zeros((batch, 0, hidden))
        return out, h, c

    def backward(self, grad_output, grad_h, grad_c) -> dict[str, np.ndarray]:
        """The gradients of sum(output * grad_output) + ..., by the name of the input."""
        self.forward()
        _, d_act = ACTIVATIONS[self.activation]
        _, d_rec = ACTIVATIONS[self.recurrent_activation]
        dx, dw = np.zeros(self.x.shape), np.zeros(self.kernel.shape)
        dr, db = np.zeros(self.recurrent_kernel.shape), np.zeros(self.kernel.shape[1])
        dh, dc = grad_h.astype(np.float64), grad_c.astype(np.float64)
        d_out = np.zeros_like(dh)  # what later masked steps send back to this step's output
        for s in reversed(range(len(self._steps))):
            t, valid, h, c, (zi, zf, zg, zo), (i, f, g, o), new_c, a = self._steps[s]
            if self.return_sequences:
                d_out = d_out + grad_output[:, s]
            elif s == len(self._steps) - 1:
                d_out = d_out + grad_output
            d_new_h = np.where(valid, dh + d_out, 0)
            d_new_c = np.where(valid, dc, 0) + d_new_h * o * d_act(a, new_c)
            dz = np.concatenate(
                [
                    d_new_c * g * d_rec(i, zi),
                    d_new_c * c * d_rec(f, zf),
                    d_new_c * i * d_act(g, zg),
                    d_new_h * a * d_rec(o, zo),
                ],
                axis=1,
            )
            dx[:, t], share = _gated_gradients(self.x[:, t], self.kernel, self.dropout_mask, dz)
            dw += share
            dh_before, share = _gated_gradients(
                h, self.recurrent_kernel, self.recurrent_dropout_mask, dz
            )
            dr += share
            db += dz.sum(axis=0)
            dh = np.where(valid, 0, dh) + dh_before
            dc = np.where(valid, 0, dc) + d_new_c * f
            d_out = np.where(valid | self.zero_output_for_mask, 0, d_out)
        grads = {"x": dx, "kernel": dw, "recurrent_kernel": dr, "bias": db, "initial_h": dh,
                 "initial_c": dc}  # fmt: skip
        return {name: grads[name] for name in self.present()}


@dataclass
class Stack:
    """Layers of one or two directions; forward fills in x of all cells but the lowest layer's."""

    layers: list[list[Problem]]

    def cells(self) -> list[Problem]:
        return [cell for layer in self.layers for cell in layer]

    def forward(self) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
        """(output, final_h of every cell, final_c of every cell)."""
        x, final_h, final_c = self.layers[0][0].x, [], []
        for layer in self.layers:
            outputs = []
            for d, cell in enumerate(layer):
                cell.x = x
                output, h, c = cell.forward()
                backward_sequence = d == 1 and cell.return_sequences
                outputs.append(output[:, ::-1] if backward_sequence else output)
                final_h.append(h)
                final_c.append(c)
            x = np.concatenate(outputs, axis=-1)
        return x, final_h, final_c

    def backward(self, grad_output, grads_h, grads_c) -> list[dict[str, np.ndarray]]:
        """The gradients of every cell; x of the first is the whole stack's."""
        self.forward()
        grads = [None] * len(self.cells())
        index = len(grads)
        for layer in reversed(self.layers):
            index -= len(layer)
            parts = np.split(grad_output, len(layer), axis=-1)
            for d, cell in enumerate(layer):
                part = parts[d][:, ::-1] if d == 1 and cell.return_sequences else parts[d]
                grads[index + d] = cell.backward(part, grads_h[index + d], grads_c[index + d])
            grad_output = sum(grads[index + d]["x"] for d in range(len(layer)))
        grads[0]["x"] = grad_output
        return grads


def relative_error(got, wanted) -> float:
    """||got - wanted|| / ||wanted||; NaN anywhere gives NaN, which no limit admits."""
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    assert got.shape == wanted.shape, f"shape {got.shape}, wanted {wanted.shape}"
    scale = np.linalg.norm(wanted)
    return float(np.linalg.norm(got - wanted) / (scale if scale > 0 else 1))


MASKS = ("none", "right", "left", "holes", "all_false", "random", "one_row_empty")


def make_mask(kind: str, rng: np.random.Generator, batch: int, steps: int) -> np.ndarray | None:
    """A mask of a kind of MASKS, [batch, steps]."""
    lengths = rng.integers(0, steps + 1, size=(batch, 1))
    time = np.arange(steps)[None]
    match kind:
        case "none":
            return None
        case "right":
            return time < lengths
        case "left":
            return time >= lengths
        case "holes":
            return (time % 3 != 1) & (time < np.maximum(lengths, 1))
        case "all_false":
            return np.zeros((batch, steps), bool)
        case "random":
            return rng.random((batch, steps)) < 0.5
        case "one_row_empty":
            mask = np.ones((batch, steps), bool)
            mask[-1] = False
            return mask
    raise ValueError(kind)


def make_problem(
    rng: np.random.Generator,
    batch: int = 3,
    steps: int = 5,
    input_size: int = 2,
    hidden_size: int = 4,
    mask: str = "none",
    bias: bool = True,
    states: bool = True,
    **flags,
) -> Problem:
    """A fresh random problem in float64, of scale such that gates are not saturated."""

    def normal(*shape, scale=1.0):
        return rng.standard_normal(shape) * scale

    gates = 4 * hidden_size
    return Problem(
        x=normal(batch, steps, input_size),
        kernel=normal(input_size, gates, scale=input_size**-0.5),
        recurrent_kernel=normal(hidden_size, gates, scale=hidden_size**-0.5),
        bias=normal(gates, scale=0.5) if bias else None,
        initial_h=normal(batch, hidden_size, scale=0.5) if states else None,
        initial_c=normal(batch, hidden_size, scale=0.5) if states else None,
        mask=make_mask(mask, rng, batch, steps),
        **flags,
    )


def make_dropout_mask(rng: np.random.Generator, count: int, batch: int, size: int) -> np.ndarray:
    """`count` masks of rate 0.4."""
    return (rng.random((count, batch, size)) < 0.6) / 0.6


def make_stack(
    rng: np.random.Generator,
    sizes: tuple[int, ...] = (4, 3),
    batch: int = 3,
    steps: int = 5,
    input_size: int = 2,
    bidirectional: bool = False,
    mask: str = "none",
    masks: tuple[int, int] = (0, 0),
    return_sequences: bool = True,
    **options,
) -> Stack:
    """A stack of random cells, of hidden sizes `sizes`, with (dropout, recurrent dropout) masks."""
    directions = 2 if bidirectional else 1
    shared_mask = make_mask(mask, rng, batch, steps)
    layers = []
    for index, hidden_size in enumerate(sizes):
        sequences = return_sequences if index + 1 == len(sizes) else True
        layer = []
        for d in range(directions):
            cell = make_problem(
                rng, batch, steps, input_size, hidden_size, return_sequences=sequences, **options
            )
            cell.go_backwards = cell.go_backwards or d == 1
            cell.mask = shared_mask
            if masks[0]:
                cell.dropout_mask = make_dropout_mask(rng, masks[0], batch, input_size)
            if masks[1]:
                cell.recurrent_dropout_mask = make_dropout_mask(rng, masks[1], batch, hidden_size)
            layer.append(cell)
        layers.append(layer)
        input_size = directions * hidden_size
    return Stack(layers)
