"""`rewrite_graph_def`: the LSTMs of a graph and its functions become FusedLSTM ops."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import tensorflow as tf

from tf_fused_lstm.convert.graph import block_ops, cudnn_ops, loops
from tf_fused_lstm.convert.graph.body import (
    FOLDABLE,
    Body,
    FunctionBody,
    Ref,
    import_graph,
    main_body,
)

_Rewrite = Callable[[Body, tf.compat.v1.NodeDef], str]

# In this order: an op on parameters is still there when the RNN op that reads them is rewritten.
_REWRITES: tuple[tuple[tuple[str, ...], _Rewrite], ...] = (
    (cudnn_ops.RNN_OPS, cudnn_ops.rewrite_rnn),
    (block_ops.BLOCK_OPS, block_ops.rewrite_block),
    (cudnn_ops.PACK_OPS, cudnn_ops.rewrite_pack),
    (cudnn_ops.UNPACK_OPS, cudnn_ops.rewrite_unpack),
    ((cudnn_ops.SIZE_OP,), cudnn_ops.rewrite_size),
)
_GRADIENTS = (*cudnn_ops.GRADIENT_OPS, *block_ops.GRADIENT_OPS)
_REPORTED = (*_GRADIENTS, *loops.CELL_OPS)
_TARGETS = {op for ops, _ in _REWRITES for op in ops}
_REMOVABLE = FOLDABLE | {*cudnn_ops.PACK_OPS, *block_ops.BLOCK_OPS, "Shape"}


@dataclass(frozen=True)
class Entry:
    """What became of one node.

    Attributes:
        graph: "" for the main graph, else the function's name.
        node: The node's name.
        op: What it was.
        rewritten: Whether it was rewritten; else it was left.
        detail: Its sizes, or why it was left.
    """

    graph: str
    node: str
    op: str
    rewritten: bool
    detail: str


def rewrite_graph_def(
    graph_def: tf.compat.v1.GraphDef, results: Iterable[str] = (), kept: Iterable[str] = ()
) -> tuple[tf.compat.v1.GraphDef, list[Entry], dict[str, str]]:
    """Rewrites the LSTMs of a graph, in the main graph and in its functions, to FusedLSTM.

    CudnnRNN, CudnnRNNV2 and CudnnRNNV3 of mode lstm, each as one op with all its layers and
    directions, and BlockLSTM and BlockLSTMV2; CudnnRNNCanonicalToParams, CudnnRNNParamsToCanonical
    and CudnnRNNParamsSize become ordinary ops. What FusedLSTM cannot express stays as it is:
    training graphs, projections, peepholes, clipped cells, a cell in a while loop.

    Args:
        graph_def: The graph; it is not changed.
        results: Names of tensors ("node:index") that are read from outside.
        kept: Names of nodes of the main graph that stay, whether anything reads them or not.

    Returns:
        The new graph, an entry for each LSTM, and the new names of those tensors that have one.
        The rest keep theirs.

    Raises:
        ValueError: TensorFlow cannot import the graph.
    """
    new = tf.compat.v1.GraphDef()
    new.CopyFrom(graph_def)
    wanted = {name: Ref.parse(name) for name in results}
    main = main_body(new, wanted.values(), kept)
    entries = _rewrite_body(main)
    in_loops = _loop_bodies(new)
    entries += _left_of(main, in_loops)
    for function in new.library.function:
        ops = {node.op for node in function.node_def}
        if ops & _TARGETS or function.signature.name in in_loops or ops & set(_REPORTED):
            body = FunctionBody(function, main.graph, graph_def.library)
            entries += _rewrite_body(body)
            entries += _left_of(body, in_loops)
            if ops & _TARGETS:
                body.write()
    del new.node[:]
    new.node.extend(main.nodes.values())
    import_graph(new)  # a graph that does not load is no result
    moved = {
        name: f"{main.moved[ref].node}:{main.moved[ref].output}"
        for name, ref in wanted.items()
        if ref in main.moved
    }
    return new, entries, moved


def _rewrite_body(body: Body) -> list[Entry]:
    entries = []
    in_frames = loops.frames(body.nodes)
    for ops, rewrite in _REWRITES:
        for node in [n for n in body.nodes.values() if n.op in ops]:
            op, rewritten = node.op, False
            if node.name in in_frames:
                detail = "in a TensorFlow 1 while loop"
            else:
                try:
                    detail = rewrite(body, node)
                    rewritten = True
                except cudnn_ops.NotRewritableError as error:
                    detail = str(error)
                except ValueError as error:  # of TensorFlow: what the shapes say does not fit
                    detail = str(error).partition("\n")[0]
            entries.append(Entry(body.place, node.name, op, rewritten, detail))
        body.prune(_REMOVABLE)
    return entries


def _loop_bodies(graph_def: tf.compat.v1.GraphDef) -> set[str]:
    """The functions that are bodies of while loops."""
    graphs = [graph_def.node, *(f.node_def for f in graph_def.library.function)]
    nodes = (node for nodes in graphs for node in nodes if node.op in loops.WHILE_OPS)
    return {node.attr["body"].func.name for node in nodes}


def _left_of(body: Body, in_loops: set[str]) -> list[Entry]:
    """Entries for gradients, and for cells that loops or other nodes run step by step."""
    entries = [
        Entry(body.place, node.name, node.op, False, "the gradient in a training graph")
        for node in body.nodes.values()
        if node.op in _GRADIENTS
    ]
    in_frames = loops.frames(body.nodes)
    for name in loops.cells(body.nodes.values()):
        op = body.nodes[name].op
        is_op = op in loops.CELL_OPS
        if body.place in in_loops or name in in_frames:
            reason = "a cell inside a while loop"
        elif is_op:
            reason = "a cell for one step"
        else:
            continue
        entries.append(Entry(body.place, name, op if is_op else "LSTM cell", False, reason))
    return entries
