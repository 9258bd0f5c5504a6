"""The types of the ops that graphs hold."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def op_types(function: Any, *arguments: Any) -> list[str]:
    """Of what `tf.function` traces for the arguments, without the functions that it calls."""
    graph = tf.function(function).get_concrete_function(*arguments).graph
    return [op.type for op in graph.get_operations()]


def all_op_types(graph: Any) -> list[str]:
    """Of a graph and of every function in its library."""
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    return [node.op for node in nodes]
