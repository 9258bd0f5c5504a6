"""A report as a bar chart. `python -m benchmarks.plot REPORT.json OUT.png`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from benchmarks.problem import MODES
from benchmarks.report import BASELINE, Report, ratio, shapes
from benchmarks.runner import Measurement

_HIGHLIGHT = "#d1495b"
# As fast as the baseline or nearly, only in tables.
_VARIANTS = ("fused-concrete", "fused-eager", "fused-layer")
_OTHERS = ("#22577a", "#38a3a5", "#57cc99", "#f2c14e", "#8d99ae", "#5e548e", "#b08968", "#4f5d2f")
_INK, _GRID = "#333333", "#dddddd"


def _colors(peers: list[str]) -> dict[str, str]:
    others = iter(_OTHERS * 2)
    return {peer: _HIGHLIGHT if peer == BASELINE else next(others) for peer in peers}


def _shape_label(shape: str) -> str:
    batch, steps, input_size, hidden = shape.split(",")
    sizes = f"hidden {hidden}" if input_size == hidden else f"{input_size} to {hidden}"
    return f"batch {batch}\n{steps} steps\n{sizes}"


def _panel(axes: Any, ms: list[Measurement], all_shapes: list[str], colors: dict[str, str]) -> None:
    """One mode's bars, each with its ratio to FusedLSTM above it."""
    lowest = min(m.median for m in ms)
    highest = max(m.median for m in ms)
    floor = lowest / 2
    for position, shape in enumerate(all_shapes):
        here = sorted((m for m in ms if m.shape == shape), key=lambda m: list(colors).index(m.peer))
        width = 0.86 / max(len(here), 1)
        for index, m in enumerate(here):
            center = position + (index - (len(here) - 1) / 2) * width
            axes.bar(
                center,
                m.median - floor,
                width * 0.92,
                bottom=floor,
                color=colors[m.peer],
                zorder=2,
            )
            error = [[m.median - m.quantiles["p25"]], [m.quantiles["p75"] - m.median]]
            axes.errorbar(center, m.median, error, ecolor=_INK, elinewidth=0.8, zorder=3)
            relative = ratio(m, ms)
            if m.peer == BASELINE:
                text, weight = f" {m.median:.3g} ms", "bold"
            else:
                text, weight = f" {relative:.2g}x" if relative else "", "normal"
            axes.text(
                center,
                m.quantiles["p75"] * 1.04,
                text,
                rotation=90,
                ha="center",
                va="bottom",
                fontsize=8,
                fontweight=weight,
                color=_INK,
                zorder=4,
            )
    axes.set_yscale("log")
    axes.set_ylim(floor, highest * 4)
    axes.set_xlim(-0.5, len(all_shapes) - 0.5)
    axes.set_xticks(range(len(all_shapes)), [_shape_label(shape) for shape in all_shapes])
    axes.tick_params(axis="x", length=0, labelsize=9)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(axis="y", color=_GRID, zorder=0)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_ylabel("ms a call, log scale")


def plot(report: Report, path: Path) -> None:
    """Writes the report's medians as a chart, a panel for each mode.

    Raises:
        ValueError: The report holds no time.
    """
    timed = [m for m in report.measurements if m.status == "ok" and m.peer not in _VARIANTS]
    if not timed:
        raise ValueError("the report holds no time to plot")
    peers = sorted(dict.fromkeys(m.peer for m in timed), key=lambda peer: peer != BASELINE)
    labels = {m.peer: m.label for m in timed}
    colors = _colors(peers)
    all_shapes = shapes(timed)
    modes = [mode for mode in MODES if any(m.mode == mode for m in timed)]
    bars = max(len({m.peer for m in timed if m.shape == shape}) for shape in all_shapes)
    width = min(24.0, max(9.0, 1.5 + len(all_shapes) * (0.35 + 0.2 * bars)))
    figure = Figure(figsize=(width, 1.2 + 3.6 * len(modes)), layout="constrained")
    grid = figure.subplots(len(modes), 1, squeeze=False)
    titles = {"forward": "Forward", "train": "Forward and backward"}
    for axes, mode in zip(grid[:, 0], modes, strict=True):
        _panel(axes, [m for m in timed if m.mode == mode], all_shapes, colors)
        axes.set_title(titles[mode], loc="left", fontsize=11, color=_INK)
    figure.suptitle(
        f"LSTM on {report.title()}", x=0.01, ha="left", fontsize=12, fontweight="bold", color=_INK
    )
    figure.legend(
        [Patch(color=colors[peer]) for peer in peers],
        [labels[peer] for peer in peers],
        loc="outside lower left",
        ncols=min(len(peers), 6),
        frameon=False,
        fontsize=9,
        title=f"Medians of {report.quantity()}, whiskers at the quartiles; factors: time over "
        "FusedLSTM's",
        title_fontsize=9,
        alignment="left",
    )
    figure.savefig(path, dpi=150, facecolor="white")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot", description=__doc__)
    parser.add_argument("report", type=Path, help="what --json wrote")
    parser.add_argument("picture", type=Path, help="a .png, .svg or .pdf to write")
    options = parser.parse_args(arguments)
    try:
        plot(Report.read(options.report), options.picture)
    except (OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
