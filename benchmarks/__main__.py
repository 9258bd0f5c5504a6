"""`python -m benchmarks`: measures FusedLSTM beside its peers."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import report as reports
from benchmarks import runner
from benchmarks.machine import gpus, usable_cpus
from benchmarks.peers import PEERS, Peer, Settings
from benchmarks.peers.base import Clock
from benchmarks.plot import plot
from benchmarks.problem import DTYPES, MODES, Mode
from benchmarks.quiet import quiet
from benchmarks.shapes import SETS, Shape


def _shape(text: str) -> Shape:
    try:
        return Shape.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _peers(text: str) -> list[Peer]:
    names = [name.strip() for name in text.split(",")]
    if unknown := [name for name in names if name not in PEERS]:
        raise argparse.ArgumentTypeError(
            f"no peer {', '.join(map(repr, unknown))}; there are {', '.join(PEERS)}"
        )
    return [PEERS[name] for name in dict.fromkeys(names)]


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"must be positive, got {text}")
        return value

    return parse


def _folder_exists(text: str) -> Path:
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"no folder {path.parent}")
    return path


def _report(text: str) -> reports.Report:
    try:
        return reports.Report.read(Path(text))
    except (OSError, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Times whole LSTM calls of FusedLSTM and of its peers, after a check of every "
        "result against a float64 reference.",
        epilog="Sets: "
        + "; ".join(f"{name}: {' '.join(map(str, s.shapes))}" for name, s in SETS.items()),
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--set", choices=SETS, help="named shapes; default: cpu or gpu, by the device"
    )
    which.add_argument(
        "--shape",
        type=_shape,
        action="append",
        metavar="B,T,I,H",
        help="batch, steps, input size, hidden size; may be repeated",
    )
    parser.add_argument(
        "--mode",
        choices=(*MODES, "both"),
        default="both",
        help="train: forward and backward to the weights and the input",
    )
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--device", choices=("cpu", "gpu", "auto"), default="auto")
    parser.add_argument(
        "--threads",
        type=_positive(int),
        default=usable_cpus(),
        metavar="N",
        help="CPU threads for every peer; default: all %(default)s",
    )
    parser.add_argument(
        "--no-tf32", action="store_true", help="full float32 products on a GPU, for every peer"
    )
    parser.add_argument(
        "--peers",
        type=_peers,
        default=list(PEERS.values()),
        metavar="A,B,...",
        help=f"of {', '.join(PEERS)}; default: all that can run here",
    )
    parser.add_argument(
        "--seconds",
        type=_positive(float),
        metavar="S",
        help="how long to time each peer, mode and shape; default: by the set",
    )
    parser.add_argument(
        "--kernels",
        action="store_true",
        help="time what a call runs on the GPU, without what the host does around it",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="list what runs inside one call instead, for the peers on TensorFlow",
    )
    parser.add_argument(
        "--beside",
        type=_report,
        metavar="FILE",
        help="show, write and draw the peers of an earlier report (--json) too",
    )
    parser.add_argument("--json", type=_folder_exists, metavar="FILE", help="write the report")
    parser.add_argument("--plot", type=_folder_exists, metavar="FILE.png", help="draw the report")
    return parser


@contextlib.contextmanager
def _progress(console: Console, steps: int) -> Iterator[runner.Progress]:
    columns = (
        BarColumn(),
        TextColumn("{task.percentage:3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=steps)
        started = False

        def advance(text: str) -> None:
            nonlocal started
            bar.update(task, description=text, advance=int(started))
            started = True

        yield advance


def _start(options: argparse.Namespace) -> Settings:
    """The settings; TensorFlow, if a peer needs it, is imported without its start-up messages.

    Two frameworks on a GPU in one process may not get on, so it is not imported otherwise.
    """
    on_tensorflow = None
    with quiet():
        if any(peer.uses_tensorflow for peer in options.peers):
            on_tensorflow = importlib.import_module("benchmarks.peers.on_tensorflow")
        has_gpu = on_tensorflow.has_gpu() if on_tensorflow else bool(gpus())
        device = options.device
        if device == "auto":
            device = "gpu" if has_gpu else "cpu"
        clock: Clock = "kernels" if options.kernels else "host"
        settings = Settings(device, options.dtype, options.threads, not options.no_tf32, clock)
        if on_tensorflow:
            on_tensorflow.configure(settings)
    if device == "gpu" and not has_gpu:
        who = "TensorFlow sees" if on_tensorflow else "nvidia-smi shows"
        sys.exit(f"python -m benchmarks: --device gpu, but {who} no GPU")
    if device == "cpu" and options.kernels:
        sys.exit("python -m benchmarks: --kernels times a GPU; this runs on the CPU")
    return settings


def main(arguments: list[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    on_tensorflow = {peer.uses_tensorflow for peer in options.peers}
    if options.kernels and len(on_tensorflow) > 1:
        # Two CUPTIs in one process: PyTorch's of CUDA 13 beside TensorFlow's of CUDA 12 crashed it.
        parser.error("--kernels takes peers on TensorFlow or others in one run: choose by --peers")
    if options.profile and (options.beside or options.json or options.plot):
        parser.error("--profile writes no report: leave out --beside, --json and --plot")
    console = Console()
    with console.status("Starting"):
        settings = _start(options)
    if options.beside:  # refused now, not when all is measured
        try:
            reports.Report.of([], settings).beside(options.beside)
        except ValueError as error:
            parser.error(f"--beside: {error}")
    chosen = SETS[options.set or settings.device]
    shapes = options.shape or chosen.shapes
    modes: tuple[Mode, ...] = MODES if options.mode == "both" else (options.mode,)
    if options.profile:
        trace = importlib.import_module("benchmarks.trace")
        calls = [(s, m, p) for s in shapes for m in modes for p in options.peers]
        traces = []
        with _progress(console, len(calls)) as advance:
            for shape, mode, peer in calls:
                advance(f"{shape} {mode}: {peer.label}")
                if found := trace.trace(peer, shape, mode, settings):
                    traces.append(found)
        console.print(trace.render(traces, settings.device))
        return 0
    with _progress(console, runner.progress_steps(options.peers, shapes, modes)) as advance:
        measurements = runner.measure(
            options.peers,
            shapes,
            modes,
            settings,
            seconds=options.seconds or chosen.seconds,
            progress=advance,
        )
    report = reports.Report.of(measurements, settings)
    if options.beside:
        report = report.beside(options.beside)
    console.print(reports.render(report))
    if options.json:
        report.write(options.json)
        console.print(f"Wrote {options.json}")
    if options.plot:
        plot(report, options.plot)
        console.print(f"Wrote {options.plot}")
    return int(any(m.status in ("wrong", "failed") for m in measurements))


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sys.exit(main())
