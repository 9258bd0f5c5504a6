"""The ops that calls run, counted: what speed comes from, on any machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_callbacks
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2


def eager_ops(call: Callable[[], Any]) -> list[tuple[str, list[tf.Tensor]]]:
    """(type, outputs) of every op that the call runs eagerly."""
    ran = []

    def note(op_type, inputs, attributes, outputs, op_name=None, graph=None):
        if graph is None:
            name = op_type.decode() if isinstance(op_type, bytes) else op_type
            ran.append((name, list(outputs)))

    op_callbacks.add_op_callback(note)
    try:
        call()
    finally:
        op_callbacks.remove_op_callback(note)
    return ran


def graph_kernels(concrete: Any, inputs: Sequence[np.ndarray]) -> int:
    """How many kernels a run of a concrete function starts on the CPU, those of each pass of a loop
    too."""
    frozen = convert_variables_to_constants_v2(concrete)
    definition = frozen.graph.as_graph_def()
    for nodes in (definition.node, *(f.node_def for f in definition.library.function)):
        for node in nodes:
            node.device = "/device:CPU:0"
    metadata = tf.compat.v1.RunMetadata()
    config = tf.compat.v1.ConfigProto(allow_soft_placement=True)
    options = tf.compat.v1.RunOptions(trace_level=tf.compat.v1.RunOptions.FULL_TRACE)
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(definition, name="")
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            feeds = zip((t.name for t in frozen.inputs), inputs, strict=True)
            session.run(
                [t.name for t in frozen.outputs], dict(feeds), options=options,
                run_metadata=metadata,
            )  # fmt: skip
    return sum(len(device.node_stats) for device in metadata.step_stats.dev_stats)
