"""Checks every peer against the reference, then times those that are right, side by side.

Each round runs every peer once, in a new random order, so that whatever disturbs the machine
disturbs all of them. Within its turn a peer makes one call that is not timed, which brings its
data back into the caches, and then some that are, each timed alone.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import numpy as np

from benchmarks.peers.base import Peer, Program, Settings, Unavailable
from benchmarks.problem import TOLERANCES, Mode, Problem
from benchmarks.quiet import quiet
from benchmarks.shapes import Shape

ROUNDS = 8
MINIMUM_CALLS = 5
KERNEL_CALLS = 10  # in a sample of the kernels' time
WARM_UP_CALLS = 3

Status = Literal["ok", "wrong", "failed", "unavailable"]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Measurement:
    """One peer, shape and mode. Times in milliseconds.

    Attributes:
        status: "ok"; "wrong" if its results disagree with the reference, "failed" if it raised,
            "unavailable" if it cannot take part: then note says why and nothing was timed.
        error: The largest relative error of its results.
        samples: The number of calls timed.
        quantiles: Of the calls' times: "min", "p10", "p25", "median", "p75", "p90".
        rounds: Each round's median, in the order of measurement.
    """

    peer: str
    label: str
    shape: str
    mode: Mode
    status: Status
    note: str = ""
    error: float | None = None
    samples: int = 0
    quantiles: dict[str, float] = field(default_factory=dict)
    rounds: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return self.quantiles["median"]

    @property
    def spread(self) -> float:
        """Half the distance between the quartiles, relative to the median."""
        return (self.quantiles["p75"] - self.quantiles["p25"]) / 2 / self.median


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds."""
    values = np.quantile(np.asarray(seconds) * 1e3, [0, 0.1, 0.25, 0.5, 0.75, 0.9])
    names = ("min", "p10", "p25", "median", "p75", "p90")
    return dict(zip(names, (float(value) for value in values), strict=True))


def tolerance(settings: Settings) -> float:
    """The largest error that rounding explains."""
    tf32 = settings.device == "gpu" and settings.tf32 and settings.dtype == "float32"
    return TOLERANCES["tf32" if tf32 else settings.dtype]


@dataclass
class _Candidate:
    """A peer that was found right, and its times so far."""

    peer: Peer
    program: Program
    error: float
    kernels: bool
    estimate: float = 0.0
    rounds: list[list[float]] = field(default_factory=list)

    def time(self, calls: int) -> list[float]:
        if self.kernels:
            assert self.program.kernel_seconds is not None
            return [self.program.kernel_seconds(KERNEL_CALLS) / KERNEL_CALLS]
        run, clock = self.program.run, time.perf_counter
        seconds = []
        for _ in range(calls):
            start = clock()
            run()
            seconds.append(clock() - start)
        return seconds

    def calls_per_round(self, budget: float) -> int:
        wanted = max(MINIMUM_CALLS, budget / max(self.estimate, 1e-6))
        return max(1, round(wanted / ROUNDS))


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:300]


def _prepare(
    peer: Peer, problem: Problem, mode: Mode, settings: Settings
) -> _Candidate | Measurement:
    """Builds a peer's program and checks what it computes."""

    def refused(status: Status, note: str, error: float | None = None) -> Measurement:
        shape = str(problem.shape)
        return Measurement(peer.name, peer.label, shape, mode, status, note, error)

    if reason := peer.unavailable(settings, mode):
        return refused("unavailable", reason)
    program = None
    try:
        program = peer.build(problem, mode, settings)
        errors = problem.errors(mode, program.results(program.run()))
    except Unavailable as reason:
        return refused("unavailable", str(reason))
    except Exception as error:  # a peer's failure is a finding, and the others go on
        if program is not None:
            with suppress(Exception):
                program.close()
        return refused("failed", _first_line(error))
    worst = max(errors, key=lambda name: errors[name])
    if errors[worst] > (limit := tolerance(settings)):
        program.close()
        note = f"{worst} is off by {errors[worst]:.1e}, allowed {limit:.0e}"
        return refused("wrong", note, errors[worst])
    kernels = settings.clock == "kernels"
    if kernels and program.kernel_seconds is None:
        program.close()
        return refused("unavailable", "its kernels cannot be timed alone")
    return _Candidate(peer, program, errors[worst], kernels)


def _time(candidates: list[_Candidate], seconds: float, progress: Progress) -> None:
    """Fills the candidates' rounds."""
    for candidate in candidates:
        candidate.estimate = min(candidate.time(WARM_UP_CALLS))
    for number in range(ROUNDS):
        progress(f"round {number + 1} of {ROUNDS}")
        for candidate in random.sample(candidates, len(candidates)):
            calls = candidate.calls_per_round(seconds)
            if calls > 1 and not candidate.kernels:
                candidate.time(1)
            candidate.rounds.append(candidate.time(calls))


def _finish(candidate: _Candidate, shape: Shape, mode: Mode) -> Measurement:
    times = [second for part in candidate.rounds for second in part]
    peer = candidate.peer
    return Measurement(
        peer=peer.name,
        label=peer.label,
        shape=str(shape),
        mode=mode,
        status="ok",
        error=candidate.error,
        samples=len(times),
        quantiles=quantiles(times),
        rounds=[float(np.median(part)) * 1e3 for part in candidate.rounds],
    )


def _report(progress: Progress, where: str, what: str) -> None:
    progress(f"{where}: {what}")


def progress_steps(peers: Sequence[Peer], shapes: Sequence[Shape], modes: Sequence[Mode]) -> int:
    """How often `measure` reports progress."""
    return len(shapes) * len(modes) * (len(peers) + ROUNDS)


def measure(
    peers: Sequence[Peer],
    shapes: Iterable[Shape],
    modes: Sequence[Mode],
    settings: Settings,
    *,
    seconds: float,
    progress: Progress = lambda _: None,
) -> list[Measurement]:
    """Measures every peer at every shape in every mode.

    Args:
        seconds: About how long to time each peer in each mode at each shape.
        progress: Called with a word on what comes next, `progress_steps` times.
    """
    measurements: list[Measurement] = []
    order = {peer.name: position for position, peer in enumerate(peers)}
    for shape in shapes:
        problem = Problem.random(shape, settings.dtype)
        for mode in modes:
            here: list[Measurement] = []
            candidates: list[_Candidate] = []
            for peer in peers:
                progress(f"{shape} {mode}: {peer.label}")
                with quiet():
                    prepared = _prepare(peer, problem, mode, settings)
                if isinstance(prepared, Measurement):
                    here.append(prepared)
                else:
                    candidates.append(prepared)
            gc.collect()
            gc.disable()
            try:
                with quiet():
                    _time(candidates, seconds, partial(_report, progress, f"{shape} {mode}"))
            finally:
                gc.enable()
                for candidate in candidates:
                    candidate.program.close()
            here += [_finish(candidate, shape, mode) for candidate in candidates]
            measurements += sorted(here, key=lambda m: order[m.peer])
    return measurements
