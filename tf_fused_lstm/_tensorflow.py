"""The few things of TensorFlow that have no public name, all in one place.

Each degrades to a correct, slower answer if a release moves it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tensorflow as tf

try:
    from tensorflow.python.eager import record as _record
except ImportError:
    _record = None

try:
    from tensorflow.python.framework import ops as _framework_ops
    from tensorflow.python.ops import control_flow_util as _control_flow_util
except ImportError:
    _control_flow_util = None


def gradient_is_recorded(tensors: Iterable[tf.Tensor]) -> bool:
    """Whether an active GradientTape watches any of the tensors."""
    if _record is None:
        return True
    return bool(_record.should_record_backprop(list(tensors)))


def in_xla_context() -> bool:
    """Whether a function is being traced that XLA will compile (`jit_compile=True`)."""
    if _control_flow_util is None:
        return False
    return bool(_control_flow_util.GraphOrParentsInXlaContext(_framework_ops.get_default_graph()))


def keep_reserve(op: Any) -> None:
    """Makes a traced forward op keep its reserve, now that its gradient is being built.

    TensorFlow serialises a function's forward part anew after it has built the gradient, so only
    that part changes; the function that runs without a gradient still keeps nothing. Elsewhere
    (eager, a v1 graph, whose nodes are fixed once they ran) nothing happens, and the gradient runs
    the forward pass again.
    """
    graph = getattr(op, "graph", None)
    if not hasattr(graph, "outer_graph") or not hasattr(op, "_set_attr"):
        return
    op._set_attr("training", tf.compat.v1.AttrValue(b=True))
