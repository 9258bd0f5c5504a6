"""Core metadata of the package, from pyproject.toml and tf_fused_lstm/_version.py."""

import pathlib
import re
import tomllib
from typing import Any


def read_project(pyproject: pathlib.Path) -> dict[str, Any]:
    """Returns the [project] table of a pyproject.toml, with the version of its package."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    source = (pyproject.parent / "tf_fused_lstm/_version.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)
    assert match is not None, "tf_fused_lstm/_version.py has no __version__"
    return project | {"version": match[1]}


def distribution_name(project: dict[str, Any]) -> str:
    """Returns "name-version" as file names spell it."""
    return f"{project['name'].replace('-', '_')}-{project['version']}"


def core_metadata(project: dict[str, Any], licenses: list[str], readme: str) -> str:
    """Returns the text of METADATA (or PKG-INFO), version 2.4."""
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        f"License-Expression: {project['license']}",
        *(f"License-File: {name}" for name in licenses),
        f"Keywords: {','.join(project['keywords'])}",
        *(f"Classifier: {classifier}" for classifier in project["classifiers"]),
        f"Requires-Python: {project['requires-python']}",
        *(f"Requires-Dist: {requirement}" for requirement in project["dependencies"]),
    ]
    for extra, requirements in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        for requirement in requirements:
            spec, _, marker = (part.strip() for part in requirement.partition(";"))
            marker = f"({marker}) and " if marker else ""
            lines.append(f'Requires-Dist: {spec}; {marker}extra == "{extra}"')
    lines += ["Description-Content-Type: text/markdown", "", readme]
    return "\n".join(lines)
