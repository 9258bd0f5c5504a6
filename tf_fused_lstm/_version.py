"""The package's version, alone so that build tools can read it without TensorFlow."""

__version__ = "0.1.0"
