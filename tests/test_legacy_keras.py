"""tf_keras as tf.keras (TF_USE_LEGACY_KERAS=1): the tests in legacy_keras/, each file a process."""

from pathlib import Path

import pytest
from processes import ROOT, run_together

FOLDER = Path(__file__).resolve().parent / "legacy_keras"
FILES = sorted(path.name for path in FOLDER.glob("test_*.py"))

pytest.importorskip("tf_keras")


def test_there_are_files():
    assert FILES


@pytest.mark.parametrize("name", FILES)
def test_file(name, tmp_path):
    command = [
        "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}",
        f"--confcutdir={FOLDER}", str(FOLDER / name),
    ]  # fmt: skip
    run_together([command], [{"TF_USE_LEGACY_KERAS": "1"}], tmp_path, timeout=600)
