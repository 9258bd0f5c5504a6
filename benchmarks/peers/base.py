"""What every way to run an LSTM looks like to the runner."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.problem import DTYPES, MODES, Mode, Problem, Results

Device = Literal["cpu", "gpu"]
Clock = Literal["host", "kernels"]


@dataclass(frozen=True)
class Settings:
    """What holds for every peer alike.

    Attributes:
        device: Where the call runs.
        dtype: The type of input, weights and output.
        threads: CPU threads each framework may use for one call.
        tf32: Whether float32 products may run as TF32 on a GPU.
        clock: "host" times whole calls; "kernels" only what they run on the GPU.
    """

    device: Device
    dtype: str
    threads: int
    tf32: bool = True
    clock: Clock = "host"


@dataclass(frozen=True)
class Program:
    """One call, ready to run as often as wanted; input and weights lie where they are needed.

    Attributes:
        run: One whole call. Returns when its results are there.
        results: Turns what `run` returned into arrays in Keras's layouts.
        close: Frees what is not freed by forgetting the program.
        kernel_seconds: The GPU's time for so many calls, without the host's; None if unknown.
    """

    run: Callable[[], Any]
    results: Callable[[Any], Results]
    close: Callable[[], None] = lambda: None
    kernel_seconds: Callable[[int], float] | None = None


class Unavailable(Exception):  # noqa: N818  (it is no error)
    """Raised while a program is built: the peer cannot take part, and the message says why."""


@dataclass(frozen=True)
class Peer:
    """A way to run an LSTM layer; its module is imported when it is first used.

    Attributes:
        name: On the command line and in reports.
        label: In tables and pictures.
        builder: "module:function" in benchmarks.peers; (problem, mode, settings) -> Program.
        requires: The modules it imports.
    """

    name: str
    label: str
    builder: str
    requires: tuple[str, ...]
    devices: tuple[Device, ...] = ("cpu", "gpu")
    dtypes: tuple[str, ...] = tuple(DTYPES)
    modes: tuple[Mode, ...] = MODES

    @property
    def uses_tensorflow(self) -> bool:
        return "tensorflow" in self.requires

    def unavailable(self, settings: Settings, mode: Mode) -> str | None:
        """Why it cannot take part, as far as can be known beforehand; None if it may."""
        missing = [name for name in self.requires if importlib.util.find_spec(name) is None]
        if missing:
            return f"{' and '.join(missing)} not installed"
        if settings.device not in self.devices:
            return f"not on {settings.device}"
        if settings.dtype not in self.dtypes:
            return f"no {settings.dtype}"
        if mode not in self.modes:
            return f"no {mode} mode"
        return None

    def build(self, problem: Problem, mode: Mode, settings: Settings) -> Program:
        """Makes the program for that problem.

        Raises:
            Unavailable: It cannot take part after all.
        """
        module, function = self.builder.split(":")
        builders = importlib.import_module(f"benchmarks.peers.{module}")
        return getattr(builders, function)(problem, mode, settings)
