"""tf_keras as tf.keras (TF_USE_LEGACY_KERAS=1): the tests in legacy_keras/, each file a process."""

from pathlib import Path

import pytest
from processes import ROOT, output_of, run_python, run_together

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


def test_missing_tf_keras_is_one_sentence():
    source = "import sys; sys.modules['tf_keras'] = None; import tf_fused_lstm"
    result = run_python(source, TF_USE_LEGACY_KERAS="1")
    assert result.returncode == 1
    last = result.stderr.strip().splitlines()[-1]
    assert last == (
        "ImportError: tf_fused_lstm needs tf.keras, but tf_keras, which TF_USE_LEGACY_KERAS asks "
        "for, is not installed"
    )


def test_keras_3_does_not_import_tf_keras():
    source = """
import sys
import tf_fused_lstm as tfl, keras
assert issubclass(tfl.FusedLSTM, keras.layers.LSTM)
print("tf_keras" in sys.modules)
"""
    assert output_of(source, TF_USE_LEGACY_KERAS=None) == "False"
