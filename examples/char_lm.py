"""A character-level language model, trained with keras.layers.LSTM, then run on FusedLSTM.

Learns Python's own documentation (the docstrings of the standard library), swaps the layer, with
its trained weights, shows that the predictions stay the same and what the swap saves, trains on,
and writes a little text. Takes about a minute on two CPU cores.
"""

from __future__ import annotations

import argparse
import ast
import statistics
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import keras
import numpy as np
from numpy.typing import NDArray

import tf_fused_lstm as tfl

EMBEDDING, UNITS = 64, 128
BATCH, STEPS = 32, 100
CHARACTERS = 800_000
TOLERANCE = 1e-4


def gather_docstrings(limit: int) -> str:
    """Docstrings of the standard library's modules, classes and functions, up to limit characters.

    Returns:
        The text, its files in a random but fixed order.
    """
    paths = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    np.random.default_rng(0).shuffle(paths)
    parts: list[str] = []
    size = 0
    for path in paths:
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                doc = ast.get_docstring(node)
                if doc and len(doc) > 80:
                    parts.append(doc + "\n\n")
                    size += len(parts[-1])
        if size > limit:
            break
    return "".join(parts)[:limit]


class Vocabulary:
    """The common characters of a text, as numbers; 0 stands for all others."""

    def __init__(self, text: str, size: int = 96):
        self.characters = ["\N{REPLACEMENT CHARACTER}"] + [
            character for character, _ in Counter(text).most_common(size - 1)
        ]
        self._codes = {character: code for code, character in enumerate(self.characters)}

    def __len__(self) -> int:
        return len(self.characters)

    def encode(self, text: str) -> NDArray[np.int32]:
        return np.array([self._codes.get(character, 0) for character in text], np.int32)

    def decode(self, codes: list[int]) -> str:
        return "".join(self.characters[code] for code in codes)


def build_model(lstm: Callable[..., keras.layers.Layer], vocabulary_size: int) -> keras.Model:
    """Predicts each next character; input [batch, steps], output logits for every step."""
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            keras.layers.Embedding(vocabulary_size, EMBEDDING),
            lstm(UNITS, return_sequences=True),
            keras.layers.Dense(vocabulary_size),
        ]
    )
    model.compile(
        keras.optimizers.Adam(3e-3, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    return model


def make_examples(codes: NDArray[np.int32]) -> tuple[NDArray, NDArray]:
    """Windows of the text, shuffled, and the same moved on by one character."""
    count = (len(codes) - 1) // STEPS
    x = codes[: count * STEPS].reshape(count, STEPS)
    y = codes[1 : count * STEPS + 1].reshape(count, STEPS)
    order = np.random.default_rng(1).permutation(count)
    return x[order], y[order]


def milliseconds(run: Callable[[keras.Model], object], model: keras.Model, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        run(model)
    return (time.perf_counter() - start) / calls * 1e3


def compare_speed(
    models: dict[str, keras.Model], x: NDArray, y: NDArray, rounds: int = 5, calls: int = 6
) -> None:
    """Times training steps and predictions of one batch, in turns, and prints the medians."""
    x, y = x[:BATCH], y[:BATCH]
    actions: dict[str, Callable[[keras.Model], object]] = {
        "training step": lambda model: model.train_on_batch(x, y),
        "prediction": lambda model: model.predict_on_batch(x),
    }
    print(f"Milliseconds for a batch of {BATCH} x {STEPS} characters, {UNITS} units:")
    print(f"{'':15}" + "".join(f"{name:>14}" for name in models) + f"{'ratio':>9}")
    for action, run in actions.items():
        for model in models.values():
            run(model)
        times: dict[str, list[float]] = {name: [] for name in models}
        for _ in range(rounds):
            for name, model in models.items():
                times[name].append(milliseconds(run, model, calls))
        medians = [statistics.median(times[name]) for name in models]
        columns = "".join(f"{median:14.1f}" for median in medians)
        print(f"{action:15}{columns}{medians[0] / medians[1]:8.1f}x")


def write_text(
    model: keras.Model, vocabulary: Vocabulary, prompt: str, length: int, temperature: float = 0.6
) -> str:
    """Continues the prompt, drawing one character after the other."""
    rng = np.random.default_rng()
    codes = list(vocabulary.encode(prompt))
    for _ in range(length):
        window = np.array([codes[-STEPS:]], np.int32)
        logits = model.predict_on_batch(window)[0, -1].astype(np.float64) / temperature
        logits[0] = -np.inf  # not a character
        weights = np.exp(logits - logits.max())
        codes.append(int(rng.choice(len(vocabulary), p=weights / weights.sum())))
    return vocabulary.decode(codes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument(
        "--epochs", type=int, default=1, help="passes over the text with each layer"
    )
    parser.add_argument("--length", type=int, default=300, help="characters to write at the end")
    options = parser.parse_args()
    if options.epochs < 1 or options.length < 1:
        parser.error("--epochs and --length must be positive")

    text = gather_docstrings(CHARACTERS)
    vocabulary = Vocabulary(text)
    x, y = make_examples(vocabulary.encode(text))
    print(f"{len(text):,} characters of docstrings, {len(vocabulary)} different ones.")

    print("\nTraining with keras.layers.LSTM:")
    stock = build_model(keras.layers.LSTM, len(vocabulary))
    stock.fit(x, y, batch_size=BATCH, epochs=options.epochs)

    fused = build_model(tfl.FusedLSTM, len(vocabulary))
    fused.set_weights(stock.get_weights())
    expected, predicted = (model.predict(x[-BATCH:], verbose=0) for model in (stock, fused))
    difference = float(np.abs(predicted - expected).max())
    print(f"\nThe same weights in tfl.FusedLSTM: logits differ by {difference:.1e} at most.")
    if not difference < TOLERANCE:
        print(f"That is more than {TOLERANCE:.0e}: rounding does not explain it.", file=sys.stderr)
        return 1

    print("\nTraining on with FusedLSTM:")
    fused.fit(x, y, batch_size=BATCH, epochs=options.epochs)
    print()
    compare_speed({"keras LSTM": stock, "FusedLSTM": fused}, x, y)
    print(f"\nWhat it learned:\n{write_text(fused, vocabulary, 'Return the ', options.length)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
