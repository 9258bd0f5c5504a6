"""The few things of TensorFlow that have no public name, all in one place.

Each degrades to a correct, slower answer if a release moves it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any, TypeVar

import tensorflow as tf

try:
    from tensorflow.python.eager import context as _context
except ImportError:
    _context = None

try:
    from tensorflow.python.eager import record as _record
except ImportError:
    _record = None

try:
    from tensorflow.python.eager import forwardprop_util as _forwardprop_util
except ImportError:
    _forwardprop_util = None

try:
    from tensorflow.python.ops import gradients_util as _gradients_util
except ImportError:
    _gradients_util = None

try:
    from tensorflow.python.framework import ops as _framework_ops
    from tensorflow.python.ops import control_flow_util as _control_flow_util
except ImportError:
    _framework_ops = None
    _control_flow_util = None

try:
    from tensorflow.python.autograph.impl import api as _autograph
except ImportError:
    _autograph = None

try:
    from tensorflow.python.ops.parallel_for import control_flow_ops as _parallel_for

    _PFOR = _parallel_for._pfor_impl.__code__
except (ImportError, AttributeError):
    _PFOR = None

try:
    from tensorflow.python.ops import resource_variable_ops as _resource_variable_ops
except ImportError:
    _resource_variable_ops = None

_Function = TypeVar("_Function", bound=Callable[..., Any])


def unconverted(function: _Function) -> _Function:
    """Marks a function that AutoGraph leaves as it is, as `do_not_convert` does.

    Without the scope that `do_not_convert` opens in every call, a tenth of a small eager op's time.
    """
    if _autograph is None:
        return tf.autograph.experimental.do_not_convert(function)
    return _autograph.autograph_artifact(function)


class UnconvertedCall:
    """AutoGraph's mark, `autograph_info__`, for a class whose instances it is to call as they are.

    Subclasses with a `__call__` of their own do not inherit it.
    """

    def __set_name__(self, owner: type, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: Any, owner: type) -> None:
        if owner.__call__ is not self._owner.__call__:
            raise AttributeError(self._name)


def is_eager(value: Any) -> bool:
    """Whether it is an eager tensor, in eager mode."""
    known = getattr(_framework_ops, "EagerTensor", None)
    return known is not None and isinstance(value, known) and tf.executing_eagerly()


def gradient_is_recorded(tensors: Iterable[tf.Tensor]) -> bool:
    """Whether an active GradientTape watches any of the tensors."""
    if _record is None:
        return True
    return bool(_record.should_record_backprop(list(tensors)))


def _accumulators() -> int:
    """How many ForwardAccumulators are active."""
    if _forwardprop_util is None:
        return 0
    return len(_forwardprop_util.pack_tangents([])[0])


def needs_ordinary_ops(tensors: Sequence[tf.Tensor]) -> bool:
    """Whether a derivative may be asked for here that only eager, ordinary ops have.

    A ForwardAccumulator differentiates an op's gradient as a function, loops included; of a loop
    TensorFlow has no third derivative, which it builds where another accumulator, or a persistent
    tape or two, are active besides.
    """
    if not tf.executing_eagerly() or not (accumulators := _accumulators()):
        return False
    return accumulators > 1 or (
        _gradients_util is not None
        and _gradients_util.PossibleTapeGradientTypes(tensors)
        == _gradients_util.POSSIBLE_GRADIENT_TYPES_HIGHER_ORDER
    )


def can_record() -> bool:
    """Whether `unrecorded` and `record` do here what TensorFlow does for an op by itself.

    Not while a ForwardAccumulator is active: of gradients taken inside of it, what it makes of a
    recorded function is wrong (TensorFlow 2.21).
    """
    if _record is None or _forwardprop_util is None or not tf.executing_eagerly():
        return False
    return not _accumulators()


def unrecorded() -> AbstractContextManager[Any]:
    """A scope whose eager ops no GradientTape sees."""
    return _record.stop_recording()


def record(
    name: str,
    outputs: Sequence[tf.Tensor],
    inputs: Sequence[tf.Tensor],
    backward: Callable[..., Sequence[tf.Tensor | None]],
) -> None:
    """Tells the active GradientTapes that the outputs came from the inputs.

    `backward` maps gradients of the outputs to those of the inputs, as in `tf.custom_gradient`,
    which would also copy the outputs.
    """
    _record.record_operation(name, list(outputs), list(inputs), backward)


def is_plain_variable(value: Any) -> bool:
    """Whether it is a tf.Variable of one device, whose handle ops read and assign."""
    known = getattr(_resource_variable_ops, "ResourceVariable", None)
    return type(value) is known and hasattr(_resource_variable_ops, "variable_accessed")


def read(variable: Any) -> tf.Tensor:
    """What tf.convert_to_tensor makes of a plain variable in eager mode, in less time."""
    _resource_variable_ops.variable_accessed(variable)
    return tf.raw_ops.ReadVariableOp(resource=variable.handle, dtype=variable.dtype)


def can_run() -> bool:
    """Whether `run` comes to an end wherever it is called.

    Of a function on several devices TensorFlow runs parts in its pool of threads, of which a
    `tf.py_function` that calls `run` may hold the only one.
    """
    threads = tf.config.threading.get_inter_op_parallelism_threads() or os.cpu_count()
    return threads != 1 or len(tf.config.list_logical_devices()) == 1


def run(
    function: Any, arguments: Sequence[tf.Tensor], dtypes: Sequence[tf.DType]
) -> Sequence[tf.Tensor]:
    """The outputs of a concrete function, of those types, in eager mode, unseen by tapes.

    By less than the function's own call, and by the public op only where there is one device:
    all calls of that op share what they send from one device to another, so that threads which
    run the same function at once get each other's values (TensorFlow 2.21).
    """
    if len(tf.config.list_logical_devices()) == 1:
        return tf.raw_ops.StatefulPartitionedCall(args=arguments, Tout=dtypes, f=function)
    call_function = getattr(_context and _context.context(), "call_function", None)
    if call_function is None:
        return tf.nest.flatten(function(*arguments))
    return call_function(function.name, list(arguments), len(dtypes))


def in_pfor() -> bool:
    """Whether ops are being made that a Jacobian, or tf.vectorized_map, runs for many vectors at
    once.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _PFOR:
        frame = frame.f_back
    return frame is not None


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
