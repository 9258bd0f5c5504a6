"""What runs inside one call: kernels and copies on a GPU, ops on a CPU, by TensorFlow's profiler.

This is how the project began: a Timeline that showed how little of an LSTM call is the LSTM.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from tensorflow.python.framework import op_def_registry
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from benchmarks.peers.base import Peer, Settings
from benchmarks.problem import Mode, Problem
from benchmarks.quiet import quiet
from benchmarks.shapes import Shape

CALLS = 20
ROWS = 16


@dataclass(frozen=True)
class Event:
    """One kernel, copy or op. Nanoseconds on the profiler's clock."""

    name: str
    start: float
    duration: float


@dataclass(frozen=True)
class Line:
    """All events of one name in a call."""

    name: str
    count: int
    microseconds: float


@dataclass(frozen=True)
class Trace:
    """One call of a peer.

    Attributes:
        call: Microseconds of a call by the host's clock, a median without the profiler.
        busy: Microseconds during which at least one of the events ran.
        lines: What ran, longest first.
    """

    peer: str
    label: str
    shape: str
    mode: Mode
    call: float
    busy: float
    lines: list[Line]

    @property
    def count(self) -> int:
        return sum(line.count for line in self.lines)


def busy_time(events: Iterable[Event]) -> float:
    """The length of the union of the events' intervals."""
    total, end = 0.0, float("-inf")
    for event in sorted(events, key=lambda e: e.start):
        stop = event.start + event.duration
        total += max(0.0, stop - max(end, event.start))
        end = max(end, stop)
    return total


def summarize(events: Sequence[Event]) -> list[Line]:
    """One line a name, longest first."""
    durations = defaultdict(list)
    for event in events:
        durations[event.name].append(event.duration)
    lines = [Line(name, len(times), sum(times) / 1e3) for name, times in durations.items()]
    return sorted(lines, key=lambda line: -line.microseconds)


def _plane_events(plane: Any, wanted: Any) -> Iterator[Event]:
    for line in plane.lines:
        for event in line.events:
            name = wanted(line.name, plane.event_metadata[event.metadata_id].name)
            if name is not None:
                start = line.timestamp_ns + event.offset_ps / 1e3
                yield Event(name, start, event.duration_ps / 1e3)


def _op_type(_: str, name: str) -> str | None:
    """The op type of a host event "node name:op type"."""
    _, colon, op_type = name.rpartition(":")
    return op_type if colon and op_def_registry.get(op_type) is not None else None


def _stream_event(line: str, name: str) -> str | None:
    """The kernel's or copy's name of an event in one of the device's streams."""
    return name if line.startswith("Stream") else None


def read_events(profile: bytes, device: str) -> list[Event]:
    """The ops ("cpu") or the kernels and copies ("gpu") in an XSpace of TensorFlow's profiler."""
    events: list[Event] = []
    for plane in xplane_pb2.XSpace.FromString(profile).planes:
        if device == "cpu" and plane.name == "/host:CPU":
            events += _plane_events(plane, _op_type)
        elif device == "gpu" and plane.name.startswith("/device:GPU"):
            events += _plane_events(plane, _stream_event)
    return events


def profile(run: Callable[[], Any], device: str, calls: int = 1) -> list[Event]:
    """The ops ("cpu") or the kernels and copies ("gpu") of so many calls."""
    with tempfile.TemporaryDirectory() as folder:
        tf.profiler.experimental.start(folder)
        try:
            for _ in range(calls):
                run()
        finally:
            tf.profiler.experimental.stop()
        events: list[Event] = []
        for path in Path(folder).rglob("*.xplane.pb"):
            events += read_events(path.read_bytes(), device)
    return events


def trace(peer: Peer, shape: Shape, mode: Mode, settings: Settings) -> Trace | None:
    """Traces one call; None for a peer that does not run on TensorFlow or not here."""
    if not peer.uses_tensorflow or peer.unavailable(settings, mode):
        return None
    with quiet():
        program = peer.build(Problem.random(shape, settings.dtype), mode, settings)
        try:
            program.run()
            # In the first calls, as TensorFlow stops tracing ops that it has found to be cheap.
            # Twice, as the first start of the profiler is slow.
            profile(program.run, settings.device)
            events = profile(program.run, settings.device)
            times = []
            for _ in range(CALLS):
                start = time.perf_counter()
                program.run()
                times.append(time.perf_counter() - start)
        finally:
            program.close()
    return Trace(
        peer.name,
        peer.label,
        str(shape),
        mode,
        statistics.median(times) * 1e6,
        busy_time(events) / 1e3,
        summarize(events),
    )


def render(traces: Sequence[Trace], device: str) -> RenderableType:
    """One table a call.

    On a CPU, ops inside a loop that TensorFlow finds to be cheap are missing: its profiler leaves
    them out.
    """
    what = "kernels and copies" if device == "gpu" else "ops"
    tables: list[RenderableType] = []
    for t in traces:
        table = Table(
            title=f"{t.label}, one {t.mode} call, {t.shape}",
            title_justify="left",
            title_style="bold",
            min_width=60,
        )
        table.add_column(what, no_wrap=True, overflow="ellipsis", max_width=70)
        table.add_column("count", justify="right")
        table.add_column("µs", justify="right")
        for line in t.lines[:ROWS]:
            table.add_row(line.name, str(line.count), f"{line.microseconds:.1f}")
        if rest := t.lines[ROWS:]:
            table.add_row(
                Text(f"{len(rest)} more", "dim"),
                str(sum(line.count for line in rest)),
                f"{sum(line.microseconds for line in rest):.1f}",
            )
        summary = (
            f"{t.count} {what}, busy {t.busy:.0f} µs; the call takes {t.call:.0f} µs "
            "without the profiler.\n"
        )
        tables += [table, Text(summary)]
    if device == "cpu":
        tables.append(Text("TensorFlow's profiler leaves out the cheap ops of a loop.", "dim"))
    return Group(*tables)
