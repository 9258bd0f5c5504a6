"""Adds the fused LSTM's ops to a source tree of TensorFlow Serving, unless they are there."""

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

_REPOSITORY = """
# The fused LSTM's sources, and their build rules.
local_repository(
    name = "tf_fused_lstm_rules",
    path = "{root}",
)

load("@tf_fused_lstm_rules//third_party/tensorflow:source_tree.bzl", "fused_lstm_repositories")

fused_lstm_repositories(
    name = "tf_fused_lstm",
    path = "{root}",
)
"""
_LABEL = "@tf_fused_lstm//cc/kernels:ops_lib"
_ASSIGNMENT = re.compile(r"^SUPPORTED_TENSORFLOW_OPS = ", re.MULTILINE)


def add_repository(workspace: str) -> str:
    """Returns the text of Serving's WORKSPACE with this source tree as a repository."""
    if "fused_lstm_repositories" in workspace:
        return workspace
    return workspace.rstrip("\n") + "\n" + _REPOSITORY.format(root=ROOT)


def add_ops(build: str) -> str:
    """Returns the text of model_servers/BUILD with the ops among those that the server links."""
    if _LABEL in build:
        return build
    edited, count = _ASSIGNMENT.subn(rf'\g<0>["{_LABEL}"] + ', build, count=1)
    if not count:
        sys.exit("no SUPPORTED_TENSORFLOW_OPS in tensorflow_serving/model_servers/BUILD")
    return edited


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("serving", type=pathlib.Path, help="the source tree of TensorFlow Serving")
    serving = parser.parse_args().serving
    edits = {
        serving / "WORKSPACE": add_repository,
        serving / "tensorflow_serving/model_servers/BUILD": add_ops,
    }
    for path in edits:
        if not path.is_file():
            sys.exit(f"{serving} is no source tree of TensorFlow Serving: it has no {path}")
    edited = {path: edit(path.read_text(encoding="utf-8")) for path, edit in edits.items()}
    for path, text in edited.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
