"""LSTM cells inside while loops, which the rewrite leaves, for its report."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

WHILE_OPS = ("While", "StatelessWhile")
CELL_OPS = ("LSTMBlockCell",)


def frames(nodes: dict[str, tf.compat.v1.NodeDef]) -> set[str]:
    """The nodes inside TensorFlow 1's while loops: from Enter to Exit."""
    readers: dict[str, list[str]] = {}
    for node in nodes.values():
        for text in node.input:
            readers.setdefault(text.lstrip("^").partition(":")[0], []).append(node.name)
    inside: set[str] = set()
    todo = [name for name, node in nodes.items() if node.op in ("Enter", "RefEnter")]
    while todo:
        name = todo.pop()
        if name in inside or nodes[name].op in ("Exit", "RefExit"):
            continue
        inside.add(name)
        todo += readers.get(name, [])
    return inside


def cells(nodes: Iterable[tf.compat.v1.NodeDef]) -> list[str]:
    """The nodes at the heart of LSTM cells: a split in four whose parts go through sigmoids."""
    nodes = list(nodes)
    by_name = {node.name: node for node in nodes}
    sigmoids: dict[str, int] = {}
    for node in nodes:
        if node.op != "Sigmoid":
            continue
        source = by_name.get(node.input[0].partition(":")[0])
        if source is not None and source.op in ("Add", "AddV2"):  # of the forget bias
            source = by_name.get(source.input[0].partition(":")[0])
        if source is not None and source.op == "Split" and source.attr["num_split"].i == 4:
            sigmoids[source.name] = sigmoids.get(source.name, 0) + 1
    found = [name for name, count in sigmoids.items() if count == 3]
    return found + [node.name for node in nodes if node.op in CELL_OPS]
