"""Runs Python source in a process of its own, where a crash is a result and not the end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def run_python(source: str, **environ: str | None) -> subprocess.CompletedProcess[str]:
    """Runs source with the package importable; an environ value of None removes the variable."""
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *sys.path[1:]])
    for name, value in environ.items():
        environment.pop(name, None)
        if value is not None:
            environment[name] = value
    return subprocess.run(
        [sys.executable, "-c", source],
        env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def output_of(source: str, **environ: str | None) -> str:
    """What the source prints; fails the test if the process does."""
    result = run_python(source, **environ)
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout.strip()
