"""Loading the library: what is checked, what a user reads when it does not fit."""

import dataclasses
import os
import re
import shutil
import subprocess
import tomllib
import zipfile
from pathlib import Path

import pytest
import tensorflow as tf
from processes import ROOT, output_of, run_python

import tf_fused_lstm as tfl
from tf_fused_lstm import _loader, _xla

BUILD_INFO = """
VERSION = "0.1.0"
TF_VERSION = "{tf_version}"
CXX11_ABI = {abi}
CUDA = None
CUDA_ARCHITECTURES = ()
COMPILER = "g++ 12"
"""


@pytest.fixture
def library_dir(tmp_path):
    """A folder with copies of the libraries, for a record of another build."""
    for path in Path(tfl.get_library_path()).parent.glob("*.so*"):
        shutil.copy(path, tmp_path)
    return tmp_path


def import_error(library_dir, **environ):
    result = run_python(
        "import tf_fused_lstm", TF_FUSED_LSTM_LIBRARY_DIR=str(library_dir), **environ
    )
    assert result.returncode == 1
    lines = result.stderr.strip().splitlines()
    assert [line for line in lines if line.startswith("ImportError: ")] == lines[-1:]
    return lines[-1]


def test_g1_undefined_symbol_is_one_import_error(library_dir):
    """As an op library built for another TensorFlow: a name in it that no library has."""
    path = library_dir / _loader.LIBRARY_NAME
    content = path.read_bytes()
    symbol = b"tfl_cpu_lstm_forward\0"
    assert symbol in content
    path.write_bytes(content.replace(symbol, b"tfl_cpu_lstm_xorward\0"))
    message = import_error(library_dir)
    assert "undefined symbol" in message
    assert f"this is TensorFlow {tf.__version__}" in message


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_g1_built_with_the_old_abi(library_dir, tmp_path):
    """A library whose std::string is not TensorFlow's, with a record of the right version."""
    source = tmp_path / "old.cc"
    source.write_text("""
#include <string>
namespace tensorflow {
class OpDefBuilder {
 public:
  explicit OpDefBuilder(std::string name);
};
}  // namespace tensorflow
static tensorflow::OpDefBuilder builder("Old");
""")
    library = library_dir / _loader.LIBRARY_NAME
    flags = tf.sysconfig.get_compile_flags() + tf.sysconfig.get_link_flags()
    flags = [f for f in flags if "CXX11_ABI" not in f] + ["-D_GLIBCXX_USE_CXX11_ABI=0"]
    command = ["g++", "-shared", "-fPIC", str(source), "-o", str(library), *flags]
    subprocess.run(command, check=True, capture_output=True)
    abi = tf.sysconfig.CXX11_ABI_FLAG
    (library_dir / "_build_info.py").write_text(
        BUILD_INFO.format(tf_version=tf.__version__, abi=abi)
    )
    message = import_error(library_dir)
    assert "undefined symbol: _ZN10tensorflow12OpDefBuilderC1ESs" in message
    assert f"built for TensorFlow {tf.__version__}" in message
    assert f"this is TensorFlow {tf.__version__}" in message


def test_g1_other_abi(library_dir):
    abi = 1 - tf.sysconfig.CXX11_ABI_FLAG
    (library_dir / "_build_info.py").write_text(
        BUILD_INFO.format(tf_version=tf.__version__, abi=abi)
    )
    message = import_error(library_dir)
    assert f"CXX11 ABI {abi}" in message and f"CXX11 ABI {1 - abi}" in message


def test_g2_other_tensorflow(library_dir):
    version = "2.17.1"
    (library_dir / "_build_info.py").write_text(
        BUILD_INFO.format(tf_version=version, abi=tf.sysconfig.CXX11_ABI_FLAG)
    )
    # The check comes before the load: this is no library at all.
    (library_dir / _loader.LIBRARY_NAME).write_bytes(b"not a library")
    message = import_error(library_dir)
    assert f"built for TensorFlow {version}" in message
    assert f"this is TensorFlow {tf.__version__}" in message


def test_g2_other_patch_release_is_fine():
    minor = ".".join(tf.__version__.split(".")[:2])
    info = _loader.BuildInfo("0.1.0", f"{minor}.99", tf.sysconfig.CXX11_ABI_FLAG)
    _loader.check(info)
    for version in ("2.5.0", f"{minor}0.1", "3.21.0"):
        with pytest.raises(ImportError, match=f"built for TensorFlow {version}"):
            _loader.check(dataclasses.replace(info, tf_version=version))


def test_g2_fallback_to_ordinary_ops(tmp_path):
    printed = output_of(
        """
import warnings
import numpy as np, tensorflow as tf
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import keras, tf_fused_lstm as tfl
    stock, fused = keras.layers.LSTM(4), tfl.FusedLSTM(4)
    x = tf.random.stateless_normal((3, 5, 2), [1, 2])
    stock.build(x.shape); fused.build(x.shape)
    fused.set_weights(stock.get_weights())
    np.testing.assert_allclose(fused(x), stock(x), rtol=1e-5, atol=1e-6)
    output = tfl.fused_lstm(x, *[v.value for v in stock.weights], return_sequences=False).output
    np.testing.assert_allclose(output, stock(x), rtol=1e-5, atol=1e-6)
ours = [str(w.message) for w in caught if "ordinary" in str(w.message)]
print(len(ours), fused.fused_reason)
""",
        TF_FUSED_LSTM_LIBRARY_DIR=str(tmp_path),
        TF_FUSED_LSTM_ALLOW_FALLBACK="1",
    )
    assert printed == "1 the op library is not loaded"


def test_g4_missing_library(tmp_path):
    message = import_error(tmp_path)
    assert str(tmp_path / _loader.LIBRARY_NAME) in message and "Reinstall" in message


def test_g4_broken_library(library_dir):
    (library_dir / "libtf_fused_lstm_core.so").unlink()
    assert "libtf_fused_lstm_core.so" in import_error(library_dir)


def wheels():
    """The one of this build, where Bazel runs; or what `make wheel` made of the modules as they are
    now, if it did."""
    of_bazel = list(Path("wheel").glob("*.whl"))
    if of_bazel:
        return of_bazel
    changed = max(p.stat().st_mtime for p in (ROOT / "tf_fused_lstm").rglob("*.py"))
    return [p for p in (ROOT / "dist").glob("*.whl") if p.stat().st_mtime > changed]


@pytest.mark.skipif(not wheels(), reason="no wheel")
def test_g4_wheel_holds_all_that_runs(tmp_path):
    """The libraries and every module, as installed, from wherever it is imported."""
    with zipfile.ZipFile(wheels()[0]) as archive:
        archive.extractall(tmp_path)
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "tf_fused_lstm").rglob("*.py")}
    assert not {name for name in modules if not (tmp_path / name).is_file()}
    printed = output_of(
        f"""
import sys
sys.path[0] = {str(tmp_path)!r}  # and not the source tree
import tensorflow as tf, tf_fused_lstm as tfl
x = tf.ones((3, 5, 2))
assert tfl.FusedLSTM(4)(x).shape == tf.function(tfl.FusedLSTM(4), jit_compile=True)(x).shape
assert tfl.build_info().version == tfl.__version__ and tfl.build_info().tf_version
print(tfl.get_library_path())
""",
        TF_FUSED_LSTM_LIBRARY_DIR=None,
    )
    assert printed == str(tmp_path / "tf_fused_lstm" / _loader.LIBRARY_NAME)


BACKEND = ROOT / "tools" / "wheel" / "backend.py"


@pytest.mark.skipif(not BACKEND.is_file(), reason="no source tree")
def test_g4_building_needs_tensorflow_and_says_so():
    """pip brings what pyproject.toml names; without isolation the message says what is missing."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    minor = ".".join(tf.__version__.split(".")[:2])
    assert f"tensorflow-cpu=={minor}.*" in project["build-system"]["requires"]
    result = run_python(f"""
import importlib.util, sys
sys.path.insert(0, {str(BACKEND.parent)!r})
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: name != "tensorflow" and found(name, *rest) or None
import backend
backend.build_wheel(".")
""")
    assert result.returncode == 1
    assert "building needs TensorFlow" in result.stderr
    assert f"pip install 'tensorflow-cpu=={minor}.*'" in result.stderr


def test_g5_cpu_only_machine():
    """No CUDA library is needed; a device that is not there falls back under soft placement."""
    printed = output_of(
        """
import tensorflow as tf
tf.config.set_soft_device_placement(True)
import tf_fused_lstm as tfl
with tf.device("/GPU:0"):
    print(tfl.FusedLSTM(4)(tf.ones((3, 5, 2))).device[-5:])
""",
        LD_LIBRARY_PATH=None,
    )
    assert printed == "CPU:0"


@pytest.mark.skipif(shutil.which("readelf") is None, reason="no readelf")
def test_g5_the_op_library_needs_the_framework_alone():
    """Neither TensorFlow's XLA compiler, which the XLA kernels' own library needs, nor CUDA."""

    def needed(name):
        path = Path(tfl.get_library_path()).parent / name
        command = ["readelf", "--dynamic", "--wide", str(path)]
        lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return set(re.findall(r"\(NEEDED\).*\[(.*)\]", lines))

    ops, core, xla = map(needed, (_loader.LIBRARY_NAME, _xla.CORE_NAME, _xla.LIBRARY_NAME))
    assert {n for n in ops if "tensorflow" in n} == {"libtensorflow_framework.so.2"}
    assert not any("tensorflow" in n for n in core)
    assert "libtensorflow_cc.so.2" in xla
    assert not any("cuda" in n or "cublas" in n for n in ops | core | xla)


def test_library_path_and_build_info():
    assert os.path.isfile(tfl.get_library_path())
    assert Path(tfl.get_library_path()).name == "_tf_fused_lstm_ops.so"
    info = tfl.build_info()
    assert info.version == tfl.__version__
    assert info.tf_version is None or tf.__version__.startswith(info.tf_version.rsplit(".", 1)[0])


def test_build_info_reads_the_record(tmp_path, monkeypatch):
    (tmp_path / "_build_info.py").write_text(
        BUILD_INFO.format(tf_version="2.21.0", abi=1)
        .replace("CUDA = None", 'CUDA = "12.5"')
        .replace("()", '("8.0", "9.0a")')
    )
    monkeypatch.setenv(_loader.LIBRARY_DIR_VARIABLE, str(tmp_path))
    info = _loader.build_info.__wrapped__()
    assert info == tfl.BuildInfo("0.1.0", "2.21.0", 1, "12.5", ("8.0", "9.0a"), "g++ 12")


def test_library_is_loaded_once_and_may_be_loaded_before():
    output_of(f"""
import tensorflow as tf
tf.load_op_library({tfl.get_library_path()!r})
import tf_fused_lstm as tfl
assert tfl._loader.raw_ops() is tfl._loader.raw_ops()
assert tfl.FusedLSTM(4)(tf.ones((3, 5, 2))).shape == (3, 4)
""")
