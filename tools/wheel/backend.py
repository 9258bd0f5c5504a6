"""PEP 517 build backend: `pip install .` and `python -m build` by way of Bazel.

Builds against the TensorFlow of the Python that runs it: the one of pip's isolated environment
(pyproject.toml names it), or your own with `pip install --no-build-isolation .`.
"""

import gzip
import importlib.util
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
from typing import Any

from metadata import core_metadata, distribution_name, read_project

_ROOT = pathlib.Path(__file__).resolve().parents[2]


def _bazel(*args: str) -> str:
    """Runs Bazel in the source tree and returns what it prints; fails with its last word."""
    environ = os.environ | {"PYTHON_BIN_PATH": sys.executable}
    try:
        command = [str(_ROOT / "tools/bazelw"), *args]
        return subprocess.check_output(command, cwd=_ROOT, env=environ, text=True).strip()
    except subprocess.CalledProcessError:
        sys.exit(f"tf_fused_lstm: bazel {' '.join(args)} failed; its messages stand above.")


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    if importlib.util.find_spec("tensorflow") is None:
        sys.exit(
            f"tf_fused_lstm: building needs TensorFlow in {sys.executable}. Let pip bring it "
            "(without --no-build-isolation), or: pip install 'tensorflow-cpu==2.21.*'"
        )
    _bazel("build", "//:wheel")
    (wheel,) = pathlib.Path(_bazel("info", "bazel-bin"), "wheel").glob("*.whl")
    copy = pathlib.Path(wheel_directory, wheel.name)
    shutil.copyfile(wheel, copy)
    return wheel.name


def build_sdist(sdist_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    project = read_project(_ROOT / "pyproject.toml")
    distribution = distribution_name(project)
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=_ROOT, text=True)
    name = f"{distribution}.tar.gz"
    with (
        gzip.GzipFile(pathlib.Path(sdist_directory, name), "wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as archive,
    ):
        for path in sorted(filter(None, listed.split("\0"))):
            archive.add(_ROOT / path, f"{distribution}/{path}", filter=_anonymous)
        data = core_metadata(project, ["LICENSE"], (_ROOT / "README.md").read_text()).encode()
        info = tarfile.TarInfo(f"{distribution}/PKG-INFO")
        info.size = len(data)
        archive.addfile(info, io.BytesIO(data))
    return name


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leaves out who packed a file and when."""
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    return info
