"""Runs pytest on the files of one Bazel test target, and reports to Bazel what it needs."""

import os
import pathlib
import sys

import pytest


class _Shard:
    """Keeps every n-th test, where Bazel splits a target over several processes."""

    def __init__(self, index: int, total: int) -> None:
        self._index = index
        self._total = total

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = items[self._index :: self._total]


def main() -> int:
    environ = os.environ
    root = pathlib.Path(environ["TEST_SRCDIR"], environ["TEST_WORKSPACE"])
    args = [
        f"--rootdir={root}",
        f"--config-file={root / 'pyproject.toml'}",
        "-p",
        "no:cacheprovider",
    ]
    # Python resolves the links to its sources, beside which no libraries lie.
    environ["TF_FUSED_LSTM_LIBRARY_DIR"] = str(root / "tf_fused_lstm")
    if "XML_OUTPUT_FILE" in environ:
        args.append(f"--junit-xml={environ['XML_OUTPUT_FILE']}")
    if "TESTBRIDGE_TEST_ONLY" in environ:
        args.append(f"-k={environ['TESTBRIDGE_TEST_ONLY']}")
    plugins = []
    total = int(environ.get("TEST_TOTAL_SHARDS", "1"))
    if total > 1:
        pathlib.Path(environ["TEST_SHARD_STATUS_FILE"]).touch()
        plugins.append(_Shard(int(environ["TEST_SHARD_INDEX"]), total))
    status = pytest.main(args + sys.argv[1:], plugins=plugins)
    # A shard, or a -k filter, may select nothing.
    empty_is_fine = total > 1 or "TESTBRIDGE_TEST_ONLY" in environ
    if status == pytest.ExitCode.NO_TESTS_COLLECTED and empty_is_fine:
        return 0
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
