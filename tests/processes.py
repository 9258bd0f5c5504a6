"""Runs Python source in a process of its own, where a crash is a result and not the end."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Of processes that shall see the GPU, which others do not.
ON_GPU: dict[str, str | None] = {
    "CUDA_VISIBLE_DEVICES": None,
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
}


def _environment(environ: Mapping[str, str | None]) -> dict[str, str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path[1:]])
    for name, value in environ.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    return environment


def run_python(source: str, **environ: str | None) -> subprocess.CompletedProcess[str]:
    """Runs source with the package importable; an environ value of None removes the variable."""
    return subprocess.run(
        [sys.executable, "-c", source],
        env=_environment(environ), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def output_of(source: str, **environ: str | None) -> str:
    """What the source prints; fails the test if the process does."""
    result = run_python(source, **environ)
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout.strip()


def run_together(
    commands: Sequence[Sequence[str]],
    environs: Sequence[Mapping[str, str | None]],
    folder: Path,
    timeout: float,
) -> None:
    """Runs Python programs side by side; fails the test, with what they wrote, if one does.

    None outlives the call: when one fails, or time is up, the others are killed.
    """
    logs = [folder / f"{i}.log" for i in range(len(commands))]
    started: list[subprocess.Popen[bytes]] = []
    try:
        for command, environ, log in zip(commands, environs, logs, strict=True):
            with log.open("wb") as file:
                started.append(
                    subprocess.Popen(
                        [sys.executable, *command], env=_environment(environ), stdout=file,
                        stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                    )
                )  # fmt: skip
        end = time.monotonic() + timeout
        while any(process.poll() is None for process in started):
            if any(process.poll() for process in started) or time.monotonic() > end:
                break
            time.sleep(0.1)
    finally:
        statuses = [process.poll() for process in started]
        for process in started:
            process.kill()
            process.wait()
    if any(status != 0 for status in statuses):
        reports = [
            f"--- program {i} {'was killed' if status is None else f'ended with {status}'}:\n"
            + log.read_text(errors="replace")[-3000:]
            for i, (status, log) in enumerate(zip(statuses, logs, strict=True))
        ]
        pytest.fail("\n".join(reports), pytrace=False)
