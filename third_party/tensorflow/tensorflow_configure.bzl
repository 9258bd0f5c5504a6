"""Finds the pip-installed TensorFlow to build against, and its Python for the toolchain.

@local_config_tensorflow has
  //:headers         C++ headers, with the flags that TensorFlow's own build used
  //:framework       libtensorflow_framework.so.2, to be linked by path
  //:xla_headers     headers, those that XLA's own include among them
  //:cc              libtensorflow_cc.so.2, which holds XLA, likewise
  //:py_toolchain    a Python toolchain on the interpreter that has this TensorFlow
  //:defs.bzl        PYTHON, TF_VERSION, CXX11_ABI
"""

load("//third_party:python.bzl", "PYTHON_ENVIRON", "find_python")

_BUILD = """
load("@bazel_tools//tools/python:toolchain.bzl", "py_runtime_pair")

package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = [":include"],
    defines = [
        "_GLIBCXX_USE_CXX11_ABI={cxx11_abi}",
        "EIGEN_MAX_ALIGN_BYTES=64",
    ],
    includes = ["include"],
)

cc_library(
    name = "xla_headers",
    includes = [
        "include/external/farmhash_archive/src",
        "include/external/highwayhash",
    ],
    deps = [":headers"],
)

filegroup(
    name = "framework",
    srcs = ["libtensorflow_framework.so.2"],
)

filegroup(
    name = "cc",
    srcs = ["libtensorflow_cc.so.2"],
)

py_runtime(
    name = "py3_runtime",
    interpreter_path = "{python}",
    python_version = "PY3",
)

py_runtime_pair(
    name = "py_runtime_pair",
    py3_runtime = ":py3_runtime",
)

toolchain(
    name = "py_toolchain",
    toolchain = ":py_runtime_pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)
"""

_DEFS = """
PYTHON = "{python}"
TF_VERSION = "{version}"
CXX11_ABI = {cxx11_abi}
"""

def _tensorflow_configure_impl(ctx):
    python = find_python(ctx)
    result = ctx.execute([python, ctx.path(Label("//third_party/tensorflow:probe.py"))])
    if result.return_code != 0:
        fail("\n".join([
            "No usable TensorFlow in %s: %s" % (python, result.stderr.strip()),
            "Install one (%s -m pip install 'tensorflow-cpu==2.21.*')," % python +
            " or name a Python that has it: PYTHON_BIN_PATH=/path/to/python3.",
        ]))
    found = json.decode(result.stdout)
    ctx.symlink(found["root"] + "/include", "include")
    for library in ["libtensorflow_framework.so.2", "libtensorflow_cc.so.2"]:
        ctx.symlink(found["root"] + "/" + library, library)
    ctx.file("BUILD", _BUILD.format(**found))
    ctx.file("defs.bzl", _DEFS.format(**found))

tensorflow_configure = repository_rule(
    implementation = _tensorflow_configure_impl,
    configure = True,
    environ = PYTHON_ENVIRON,
    local = True,
)
