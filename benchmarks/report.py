"""Measurements as tables on the terminal and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from benchmarks import machine
from benchmarks.peers.base import Settings
from benchmarks.problem import MODES
from benchmarks.runner import Measurement

BASELINE = "fused"
FORMAT = 1
_QUANTITIES = {"host": "whole calls", "kernels": "a call's time on the GPU alone"}


@dataclass(frozen=True)
class Report:
    """A run: what was measured, on what, with what."""

    settings: dict[str, Any]
    machine: dict[str, Any]
    date: str
    measurements: list[Measurement]

    @classmethod
    def of(cls, measurements: Sequence[Measurement], settings: Settings) -> Report:
        date = datetime.now(UTC).isoformat(timespec="seconds")
        return cls(asdict(settings), machine.describe(), date, list(measurements))

    def write(self, path: Path) -> None:
        path.write_text(json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> Report:
        """Reads what `write` wrote.

        Raises:
            ValueError: The file is something else.
        """
        content = json.loads(path.read_text())
        if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
            raise ValueError(f"{path} holds no benchmark report of format {FORMAT}")
        measurements = [Measurement(**entry) for entry in content.pop("measurements")]
        return cls(**content, measurements=measurements)

    def beside(self, earlier: Report) -> Report:
        """This report with the peers of an earlier one that it has not measured itself.

        Raises:
            ValueError: The other was measured on another machine or with other settings.
        """
        for what, own, other in (
            ("settings", self.settings, earlier.settings),
            ("GPUs", self.machine["gpus"], earlier.machine["gpus"]),
            ("processor", self.machine["cpu"], earlier.machine["cpu"]),
        ):
            if own != other:
                raise ValueError(f"a report to stand beside has other {what}: {other}, not {own}")
        peers = {m.peer for m in self.measurements}
        others = [m for m in earlier.measurements if m.peer not in peers]
        return replace(self, measurements=[*self.measurements, *others])

    def quantity(self) -> str:
        """What the times are times of."""
        return _QUANTITIES[self.settings.get("clock", "host")]

    def title(self) -> str:
        """One line on the device and the settings."""
        settings = self.settings
        if settings["device"] == "gpu":
            gpus = self.machine["gpus"]
            where = gpus[0].split(",")[0] if gpus else "GPU"
        else:
            threads = settings["threads"]
            where = f"{self.machine['cpu']}, {threads} thread{'s' if threads > 1 else ''}"
        dtype = settings["dtype"]
        if settings["device"] == "gpu" and dtype == "float32":
            dtype += " (TF32 allowed)" if settings["tf32"] else " (no TF32)"
        return f"{where}, {dtype}"


def shapes(measurements: Sequence[Measurement]) -> list[str]:
    """The shapes, in order."""
    return list(dict.fromkeys(m.shape for m in measurements))


def ratio(measurement: Measurement, measurements: Sequence[Measurement]) -> float | None:
    """Its median over FusedLSTM's at the same shape and mode; None where there is none."""
    for base in measurements:
        same = (base.shape, base.mode) == (measurement.shape, measurement.mode)
        if same and base.peer == BASELINE and base.status == "ok":
            return measurement.median / base.median
    return None


def _milliseconds(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"


def _cells(measurement: Measurement | None, measurements: Sequence[Measurement]) -> list[Text]:
    """Time, spread and ratio."""
    if measurement is None or measurement.status == "unavailable":
        return [Text("-", "dim"), Text(""), Text("")]
    if measurement.status != "ok":
        return [Text(measurement.status, "bold red"), Text(""), Text("")]
    relative = ratio(measurement, measurements)
    return [
        Text(_milliseconds(measurement.median)),
        Text(f"±{measurement.spread * 100:.0f}%", "dim"),
        Text("" if relative is None else f"{relative:.2f}x"),
    ]


def _table(shape: str, measurements: Sequence[Measurement]) -> Table:
    here = [m for m in measurements if m.shape == shape]
    modes = [mode for mode in MODES if any(m.mode == mode for m in here)]
    table = Table(
        title=f"batch, steps, input size, hidden size: {shape}",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
    )
    table.add_column("", no_wrap=True)
    for mode in modes:
        table.add_column(f"{mode}, ms", justify="right")
        table.add_column("", justify="right")
        table.add_column("ratio", justify="right")
    table.add_column("error", justify="right")
    for peer in dict.fromkeys(m.peer for m in here):
        own = {m.mode: m for m in here if m.peer == peer}
        if all(m.status == "unavailable" for m in own.values()):
            continue
        cells = [cell for mode in modes for cell in _cells(own.get(mode), here)]
        errors = [m.error for m in own.values() if m.error is not None]
        error = f"{max(errors):.0e}" if errors else ""
        label = next(iter(own.values())).label
        style = "bold green" if peer == BASELINE else None
        table.add_row(label, *cells, Text(error, "dim"), style=style)
    return table


def _notes(measurements: Sequence[Measurement]) -> list[Text]:
    """Why peers are not in the tables, said once each."""
    notes: dict[tuple[str, str], list[Measurement]] = {}
    for m in measurements:
        if m.status != "ok":
            notes.setdefault((m.label, m.note), []).append(m)
    lines = []
    for (label, note), group in notes.items():
        if group[0].status == "unavailable":
            lines.append(Text(f"{label}: {note}", "dim"))
        else:
            where = ", ".join(f"{m.shape} {m.mode}" for m in group)
            lines.append(Text(f"{label}: {group[0].status} at {where}: {note}", "red"))
    return lines


def render(report: Report) -> RenderableType:
    """The tables, one a shape, and the notes below."""
    ms = report.measurements
    ordered = sorted(ms, key=lambda m: m.peer != BASELINE)
    return Group(
        Text(report.title(), "bold"),
        Text(
            f"Medians of {report.quantity()}; ± half the quartile distance; "
            "ratio: time over FusedLSTM's."
        ),
        *(_table(shape, ordered) for shape in shapes(ms)),
        *_notes(ms),
    )
