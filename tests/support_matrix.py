"""The README's support matrix: its only source, what checks it, and the program that writes it.

    python tests/support_matrix.py                    # checks that the README has these tables
    python tests/support_matrix.py --write            # writes them into the README
    python tests/support_matrix.py --run "GPU" "GPU, XLA" --record    # on a machine with a GPU

test_support_matrix.py runs every cell that this machine can run. What a GPU's cells say is what
passed in the last recorded run, in support_record.json.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support_checks import Place

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
RECORD = Path(__file__).with_name("support_record.json")
BEGIN, END = "<!-- support matrix: tests/support_matrix.py -->", "<!-- end of support matrix -->"
NOT_RUN = "built, not run"


@dataclass(frozen=True)
class Column:
    """Where a column's checks run: a device, perhaps under XLA, and a Keras."""

    device: str = "CPU"
    jit: bool = False
    tf_keras: bool = False

    @property
    def place(self) -> Place:
        from support_checks import Place  # noqa: PLC0415

        return Place(self.device, self.jit)


@dataclass(frozen=True)
class Row:
    """What is supported, the function of support_checks.py that shows it, and what a cell says."""

    title: str
    check: str
    says: str = "yes"
    columns: tuple[str, ...] | None = None  # None: all


@dataclass(frozen=True)
class Table:
    columns: dict[str, Column]
    rows: list[Row]

    def cells(self) -> list[tuple[str, Row]]:
        return [(c, r) for c in self.columns for r in self.rows if c in (r.columns or [c])]


TABLES = [
    Table(
        {
            "CPU": Column(),
            "CPU, XLA": Column(jit=True),
            "GPU": Column("GPU"),
            "GPU, XLA": Column("GPU", jit=True),
        },
        [
            Row("float32, float64", "full_precision"),
            Row("float16, bfloat16; mixed policies", "half_precision"),
            Row(
                "any boolean mask, `go_backwards`, `zero_output_for_mask`, initial states, last "
                "output only",
                "flags",
            ),
            Row("batch-major and time-major, any size, zero batch or steps", "layouts_and_sizes"),
            Row("activations tanh, sigmoid, hard_sigmoid, relu, linear", "activations"),
            Row(
                "`dropout`, `recurrent_dropout`, `use_bias=False`, stateful",
                "dropout_bias_and_state",
            ),
            Row("other activations", "keras_path", says="Keras's path"),
            Row("both directions of `Bidirectional`, a `FusedLSTMStack` in one op", "wrappers"),
            Row("second order, Jacobians, forward mode", "higher_derivatives"),
            Row("`fit`, `evaluate`, `predict`", "training"),
            Row(
                "TF32 exactly when TensorFlow's switch allows it", "tensor_float_32",
                columns=("GPU", "GPU, XLA"),
            ),
        ],
    ),
    Table(
        {"Keras 3": Column(), "tf_keras": Column(tf_keras=True)},
        [
            Row("weights, masks, states, gradients of `LSTM`", "flags"),
            Row(
                "`Bidirectional`, with initial states too, or a `FusedLSTMStack` as one op",
                "wrappers",
            ),
            Row("`dropout`, `recurrent_dropout` from the same seed", "dropout"),
            Row("`time_major`", "time_major", columns=("tf_keras",)),
            Row("mixed policies, float16, bfloat16", "half_precision"),
            Row("`fit`, `evaluate`, `predict`", "training"),
            Row("`replace_lstm`, `restore_lstm`", "replace_and_restore"),
            Row("`.weights.h5`, both ways with `LSTM`", "weights_h5"),
            Row("checkpoints, both ways with `LSTM`", "checkpoint"),
            Row("`.keras` and `.h5` models", "model_files"),
            Row("SavedModel by `export`, the op inside", "saved_model"),
        ],
    ),
]  # fmt: skip


def column_of(name: str) -> tuple[Table, Column]:
    return next((t, t.columns[name]) for t in TABLES if name in t.columns)


def recorded() -> dict[str, dict[str, str | list[str]]]:
    return json.loads(RECORD.read_text()) if RECORD.exists() else {}


def _cell(name: str, column: Column, row: Row) -> str:
    if name not in (row.columns or [name]):
        return ""
    if column.device != "CPU" and row.check not in recorded().get(name, {}).get("passed", []):
        return NOT_RUN
    return row.says


def render() -> str:
    """The tables in Markdown, and what stands behind them."""
    lines = [BEGIN]
    for table in TABLES:
        lines += ["", f"| | {' | '.join(table.columns)} |", "|---" * (len(table.columns) + 1) + "|"]
        for row in table.rows:
            cells = [_cell(name, column, row) for name, column in table.columns.items()]
            lines.append(f"| {' | '.join([row.title, *cells])} |")
    lines += ["", "A test stands behind each cell (`tests/support_matrix.py`)."]
    machines = {
        f"{name} on {run['device']}, TensorFlow {run['tensorflow']}"
        for name, run in recorded().items()
    }
    if machines:
        lines.append(f"Recorded: {'; '.join(sorted(machines))}.")
    return "\n".join([*lines, END])


def in_readme() -> str:
    """What the README has where the tables belong."""
    text = README.read_text()
    begin, end = text.find(BEGIN), text.find(END)
    return text[begin : end + len(END)] if 0 <= begin < end else ""


def write() -> None:
    had = in_readme()
    if not had:
        sys.exit(f"{README} lacks the lines\n{BEGIN}\n{END}")
    README.write_text(README.read_text().replace(had, render()))


def run_cell(name: str, check: str) -> None:
    """Raises unless the cell is true. In a process whose Keras is the column's."""
    _run(check, column_of(name)[1].place)


@functools.cache
def _run(check: str, place: Place) -> None:
    import support_checks  # noqa: PLC0415
    import tensorflow as tf  # noqa: PLC0415

    function: Callable[[Place], None] = getattr(support_checks, check)
    tf.config.experimental.enable_tensor_float_32_execution(False)  # the checks' limits are without
    with tf.device(f"/{place.device}:0"):  # of variables, too
        function(place)


def run_column(name: str) -> dict[str, str | None]:
    """For each of the column's checks None, or the traceback of what failed."""
    results: dict[str, str | None] = {}
    for _, row in [cell for cell in column_of(name)[0].cells() if cell[0] == name]:
        try:
            run_cell(name, row.check)
            results[row.check] = None
        except Exception:
            results[row.check] = traceback.format_exc()
        print(f"{name}: {row.check}: {results[row.check] or 'passed'}", file=sys.stderr)
    return results


def _description(name: str, results: dict[str, str | None]) -> dict[str, str | list[str]]:
    import tensorflow as tf  # noqa: PLC0415

    device = tf.config.list_physical_devices(column_of(name)[1].device)[0]
    details = tf.config.experimental.get_device_details(device)
    passed = [check for check, failure in results.items() if failure is None]
    return {
        "device": details.get("device_name", "CPU"),
        "tensorflow": tf.__version__,
        "passed": passed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write the tables into the README")
    parser.add_argument("--run", nargs="+", metavar="COLUMN", help="run these columns' checks")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="write what failed there, and end with 0"
    )
    parser.add_argument(
        "--record", type=Path, nargs="?", const=RECORD, metavar="FILE",
        help=f"add what passed to {RECORD.name}, or to FILE",
    )  # fmt: skip
    arguments = parser.parse_args()
    if arguments.write:
        write()
        return 0
    if not arguments.run:
        return int(in_readme() != render())
    if any(column_of(name)[1].tf_keras for name in arguments.run):
        os.environ["TF_USE_LEGACY_KERAS"] = "1"
    results = {name: run_column(name) for name in arguments.run}
    if arguments.json:
        arguments.json.write_text(json.dumps(results))
    if arguments.record:
        record = recorded()
        record.update({name: _description(name, column) for name, column in results.items()})
        arguments.record.write_text(json.dumps(record, indent=1) + "\n")
    failed = any(failure for column in results.values() for failure in column.values())
    return int(failed and not arguments.json)


if __name__ == "__main__":
    sys.exit(main())
