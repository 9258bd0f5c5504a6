"""Model.fit with Keras's LSTM and with FusedLSTM: a step's time, and what an epoch adds.

    python -m benchmarks.fit

An epoch of n batches takes a + n b; a and b are from epochs of one batch and of many, each the
median of rounds in which the layers take turns.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

import tf_fused_lstm as tfl
from benchmarks.shapes import Shape

# What the LSTM layers of bug reports have: one step, one row, small, large.
SHAPES = (
    Shape(1, 1, 16, 64), Shape(1, 50, 16, 32), Shape(1, 500, 7, 64), Shape(32, 100, 64, 128),
    Shape(64, 200, 64, 256),
)  # fmt: skip
KINDS = {"Keras": keras.layers.LSTM, "FusedLSTM": tfl.FusedLSTM}


def make_model(kind: type, shape: Shape) -> Any:
    """A model of the layer, and one unit on its last output."""
    entry = keras.Input((shape.steps, shape.input_size))
    model = keras.Sequential([entry, kind(shape.hidden_size), keras.layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=False)
    return model


def measure(shape: Shape, batches: int, rounds: int) -> dict[str, tuple[float, float]]:
    """(seconds of a step, seconds that an epoch adds) with each kind of layer."""
    rng = np.random.default_rng()
    rows = shape.batch * batches
    x = rng.standard_normal((rows, shape.steps, shape.input_size), np.float32)
    y = rng.standard_normal((rows, 1), np.float32)
    models = {name: make_model(kind, shape) for name, kind in KINDS.items()}
    times: dict[tuple[str, int], list[float]] = {}
    for round_number in range(rounds + 1):
        for name, model in models.items():
            for count in (1, batches):
                some = slice(count * shape.batch)
                begin = time.perf_counter()
                model.fit(x[some], y[some], batch_size=shape.batch, shuffle=False, verbose=0)
                if round_number:  # the first one traces
                    times.setdefault((name, count), []).append(time.perf_counter() - begin)
    results = {}
    for name in models:
        short, long = (float(np.median(times[name, count])) for count in (1, batches))
        step = (long - short) / (batches - 1)
        results[name] = step, short - step
    return results


def main(arguments: list[str] | None = None, shapes: tuple[Shape, ...] = SHAPES) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fit", description=__doc__)
    parser.add_argument("--batches", type=int, default=33, help="of a long epoch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0, help="0: as many as there are")
    options = parser.parse_args(arguments)
    if options.batches < 2 or options.rounds < 1:
        parser.error("--batches must be at least 2, and --rounds 1")
    if options.threads:
        tf.config.threading.set_intra_op_parallelism_threads(options.threads)
    table = Table("B,T,I,H", *(f"{name}, ms {what}" for what in ("a step", "an epoch more")
                               for name in KINDS))  # fmt: skip
    for shape in shapes:
        results = measure(shape, options.batches, options.rounds)
        cells = [f"{1e3 * results[name][i]:.3g}" for i in (0, 1) for name in KINDS]
        table.add_row(str(shape), *cells)
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
