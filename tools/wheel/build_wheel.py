"""Packs files into a wheel: the same bytes for the same files, whenever and wherever it runs."""

import argparse
import base64
import hashlib
import pathlib
import zipfile

from elf import platform_tag
from metadata import core_metadata, distribution_name, read_project

_EPOCH = (1980, 1, 1, 0, 0, 0)


class _Archive:
    """A zip file that keeps the RECORD of what is written to it."""

    def __init__(self, path: pathlib.Path) -> None:
        self._zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self._record: list[str] = []

    def write(self, name: str, data: bytes, mode: int = 0o644) -> None:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        self._record.append(f"{name},sha256={digest},{len(data)}")
        self._put(name, data, mode)

    def close(self, record_name: str) -> None:
        self._record.append(f"{record_name},,")
        self._put(record_name, ("\n".join(self._record) + "\n").encode(), 0o644)
        self._zip.close()

    def _put(self, name: str, data: bytes, mode: int) -> None:
        info = zipfile.ZipInfo(name, _EPOCH)
        info.external_attr = (0o100000 | mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self._zip.writestr(info, data)


def _is_library(path: pathlib.Path) -> bool:
    return ".so" in path.suffixes


def _license_names(licenses: list[pathlib.Path]) -> dict[str, pathlib.Path]:
    """Names license files of other projects after their repository: LICENSE.highway."""
    names = {}
    for path in licenses:
        parts = path.parts
        owner = f".{parts[parts.index('external') + 1]}" if "external" in parts else ""
        names[path.name + owner] = path
    return names


def build_wheel(args: argparse.Namespace) -> pathlib.Path:
    project = read_project(args.pyproject)
    tag = f"py3-none-{platform_tag(path for path in args.files if _is_library(path))}"
    distribution = distribution_name(project)
    info = f"{distribution}.dist-info"
    licenses = _license_names(args.license)
    readme = "\n".join(path.read_text(encoding="utf-8") for path in args.readme)

    args.output.mkdir(parents=True, exist_ok=True)
    wheel = args.output / f"{distribution}-{tag}.whl"
    archive = _Archive(wheel)
    packed = {
        (path.relative_to(args.root) if path.is_relative_to(args.root) else path).as_posix(): path
        for path in args.files
    }
    for name, path in sorted(packed.items()):
        archive.write(name, path.read_bytes(), 0o755 if _is_library(path) else 0o644)
    for name, path in sorted(licenses.items()):
        archive.write(f"{info}/licenses/{name}", path.read_bytes())
    archive.write(f"{info}/METADATA", core_metadata(project, sorted(licenses), readme).encode())
    wheel_file = [
        "Wheel-Version: 1.0",
        f"Generator: tf_fused_lstm {project['version']}",
        "Root-Is-Purelib: false",
        f"Tag: {tag}",
    ]
    archive.write(f"{info}/WHEEL", ("\n".join(wheel_file) + "\n").encode())
    archive.close(f"{info}/RECORD")
    return wheel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pyproject", type=pathlib.Path, required=True)
    parser.add_argument("--output", type=pathlib.Path, required=True, help="folder for the wheel")
    parser.add_argument(
        "--root", type=pathlib.Path, required=True, help="folder of generated files"
    )
    parser.add_argument("--readme", type=pathlib.Path, action="append", default=[])
    parser.add_argument("--license", type=pathlib.Path, action="append", default=[])
    parser.add_argument("files", type=pathlib.Path, nargs="+", help="paths from the current folder")
    build_wheel(parser.parse_args())


if __name__ == "__main__":
    main()
