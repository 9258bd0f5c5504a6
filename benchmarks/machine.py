"""What a measurement was made on and with."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

PACKAGES = (
    "tf-fused-lstm",
    "tensorflow",
    "tensorflow-cpu",
    "keras",
    "tf_keras",
    "numpy",
    "torch",
    "onnx",
    "onnxruntime",
    "openvino",
)


def usable_cpus() -> int:
    """The CPUs this process may run on."""
    return len(os.sched_getaffinity(0))


def _cpu_info() -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo."""
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return {}
    first = path.read_text().split("\n\n", 1)[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def gpus() -> list[str]:
    """Name and driver of each NVIDIA GPU, as nvidia-smi tells them; none where it cannot."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]


def describe() -> dict[str, Any]:
    """Processor, GPUs, operating system and the versions of the installed frameworks."""
    cpu = _cpu_info()
    flags = cpu.get("flags", "").split()
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cpu": cpu.get("model name", platform.processor() or platform.machine()),
        "cpu_flags": [f for f in flags if f.startswith(("avx", "fma", "amx"))],
        "cpus": usable_cpus(),
        "gpus": gpus(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": versions,
    }
