"""pytest_test: one Bazel test target for one file of pytest tests."""

def pytest_test(name, src, deps = [], data = [], **kwargs):
    """Runs pytest on `src`; the interpreter's own packages hold pytest and TensorFlow.

    Args:
      name: the target's name.
      src: the test file.
      deps: Python libraries.
      data: files; pyproject.toml, with pytest's settings, is added.
      **kwargs: what py_test takes, such as size and shard_count.
    """
    native.py_test(
        name = name,
        srcs = [
            src,
            "//tools/pytest:main.py",
        ],
        args = ["$(rootpath %s)" % src],
        data = data + ["//:pyproject.toml"],
        main = "//tools/pytest:main.py",
        python_version = "PY3",
        deps = deps,
        **kwargs
    )
