"""tf_keras as tf.keras (TF_USE_LEGACY_KERAS=1): the tests in legacy_keras/, each file a process."""

from pathlib import Path

import pytest
from processes import ON_GPU, ROOT, run_together

FOLDER = Path(__file__).resolve().parent / "legacy_keras"
FILES = sorted(path.name for path in FOLDER.glob("test_*.py"))

pytest.importorskip("tf_keras")


def test_there_are_files():
    assert FILES


@pytest.mark.parametrize("device", ["CPU", pytest.param("GPU", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", FILES)
def test_file(name, device, tmp_path):
    command = [
        "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={ROOT}",
        f"--confcutdir={FOLDER}", str(FOLDER / name),
    ]  # fmt: skip
    environ = {"TF_USE_LEGACY_KERAS": "1"} | (ON_GPU if device == "GPU" else {})
    run_together([command], [environ], tmp_path, timeout=600)
