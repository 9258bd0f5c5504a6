"""Prints, as JSON, what a build needs to know of this Python's TensorFlow, without importing it."""

import importlib.metadata
import importlib.util
import json
import mmap
import pathlib
import sys


def installed_version() -> str:
    """Returns the version of the distribution that brought the tensorflow package."""
    names = importlib.metadata.packages_distributions().get("tensorflow", [])
    names = [
        n for n in names if n.lower().replace("_", "-").startswith(("tensorflow", "tf-nightly"))
    ]
    versions = {name: importlib.metadata.version(name) for name in sorted(set(names))}
    if len(set(versions.values())) != 1:
        found = ", ".join(f"{name} {version}" for name, version in versions.items())
        sys.exit(f"wanted one version of TensorFlow, found {found or 'no metadata of it'}")
    return next(iter(versions.values()))


def main() -> None:
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or spec.origin is None:
        sys.exit("no module named tensorflow")
    root = pathlib.Path(spec.origin).parent
    library = root / "libtensorflow_framework.so.2"
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        # The new ABI of libstdc++ mangles std::string with this in its name.
        cxx11_abi = int(data.find(b"NSt7__cxx1112basic_string") >= 0)
    found = {
        "python": sys.executable,
        "root": str(root),
        "version": installed_version(),
        "cxx11_abi": cxx11_abi,
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
