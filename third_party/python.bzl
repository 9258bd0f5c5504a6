"""Which Python a build uses, for repository rules."""

PYTHON_ENVIRON = ["PATH", "PYTHON_BIN_PATH"]

def find_python(ctx):
    """Finds the Python that has TensorFlow.

    Args:
      ctx: the context of a repository rule with PYTHON_ENVIRON in its environ.

    Returns:
      The path that $PYTHON_BIN_PATH names, else that of the workspace's .venv, which `make` makes,
      else that of python3 on PATH.
    """
    python = ctx.os.environ.get("PYTHON_BIN_PATH", "")
    if python:
        return python
    venv = ctx.path(Label("//:WORKSPACE")).dirname.get_child(".venv").get_child("bin").get_child("python")
    if venv.exists:
        return str(venv)
    python3 = ctx.which("python3")
    if python3 == None:
        fail("No python3 on PATH. Install Python 3, or name one: PYTHON_BIN_PATH=/path/to/python3.")
    return str(python3)
