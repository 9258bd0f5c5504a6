"""BlockLSTM and BlockLSTMV2, TensorFlow 1's LSTM over time for the CPU, in terms of FusedLSTM."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from tf_fused_lstm.convert.cells import CELL_GATES
from tf_fused_lstm.convert.graph.body import Body, Ref
from tf_fused_lstm.convert.graph.cudnn_ops import NotRewritableError
from tf_fused_lstm.convert.weights import KERAS_GATES, reorder
from tf_fused_lstm.ops import fused_lstm

BLOCK_OPS = ("BlockLSTM", "BlockLSTMV2")
GRADIENT_OPS = ("BlockLSTMGrad", "BlockLSTMGradV2")

# Of the outputs i, cs, f, o, ci, co, h.
_CS, _H = 1, 6
_OUTPUT_NAMES = ("i", "cs", "f", "o", "ci", "co", "h")


def rewrite_block(body: Body, node: tf.compat.v1.NodeDef) -> str:
    """Replaces a BlockLSTM by a FusedLSTM; returns what it was, in words.

    Its weights are one kernel for [x, h], gates i, c, f, o (BlockLSTMV2: i, f, c, o); its states of
    all steps and its gates are outputs, of which only h and the states at the end can be kept.
    """
    is_v2 = node.op == "BlockLSTMV2"
    clip = node.attr["cell_clip"].f if "cell_clip" in node.attr else (0.0 if is_v2 else 3.0)
    if node.attr["use_peephole"].b:
        raise NotRewritableError("use_peephole: the gates read c")
    if clip > 0:
        raise NotRewritableError(f"cell_clip is {clip:g}: c is clipped")
    forget_bias = 0.0
    if not is_v2:
        forget_bias = node.attr["forget_bias"].f if "forget_bias" in node.attr else 1.0
    readers = body.consumers()
    used = [
        i for i in range(len(_OUTPUT_NAMES))
        if readers.get(Ref(node.name, i)) or Ref(node.name, i) in body.results
    ]  # fmt: skip
    gates = [_OUTPUT_NAMES[i] for i in used if i not in (_CS, _H)]
    if gates:
        raise NotRewritableError(f"its outputs {', '.join(gates)} are read: a training graph")
    ends, gathers = _uses_of_states(body, node)

    seq_len_max, x, cs_prev, h_prev, w = body.inputs(node)[:5]
    bias = body.inputs(node)[8]
    rows, columns = body.dims(w, 2)
    units = columns // 4 if columns is not None else body.dims(h_prev, 2)[1]
    input_size = body.dims(x, 3)[2]
    if input_size is None and rows is not None and units is not None:
        input_size = rows - units
    if units is None or input_size is None:
        raise NotRewritableError("the graph does not tell its sizes")
    for name, ref, shape in (
        ("w", w, [input_size + units, 4 * units]),
        ("b", bias, [4 * units]),
    ):
        if not body.shape(ref).is_compatible_with(shape):
            raise NotRewritableError(
                f"{name} has shape {body.shape(ref)}, where {input_size} -> {units} needs {shape}"
            )
    constants = body.values((w, bias))
    inputs = [x, cs_prev, h_prev]
    masked = not _is_all_steps(body, seq_len_max, x)
    order = KERAS_GATES if is_v2 else CELL_GATES

    def run(tensors: Sequence[tf.Tensor], mask: tf.Tensor | None) -> Sequence[tf.Tensor]:
        x, cs_prev, h_prev, *weights = tensors
        if constants is not None:
            kernel, b = (reorder(value, order, KERAS_GATES) for value in constants)
            b[units : 2 * units] += np.asarray(forget_bias, b.dtype)
            kernel, b = tf.constant(kernel), tf.constant(b)
        else:
            kernel, b = (_reordered(v, order) for v in weights)
            added = np.zeros(4 * units, b.dtype.as_numpy_dtype)
            added[units : 2 * units] = forget_bias
            b += tf.constant(added)
        return fused_lstm(
            x, kernel[:input_size], kernel[input_size:], b, initial_h=h_prev, initial_c=cs_prev,
            mask=mask, time_major=True, zero_output_for_mask=mask is not None, training=False,
        )  # fmt: skip

    weights = [w, bias] if constants is None else []

    def build(*tensors: tf.Tensor) -> Sequence[tf.Tensor]:
        mask, limit = None, tensors[0]
        if masked:
            steps = tf.shape(tensors[1])[0]
            mask = tf.range(tf.cast(steps, tf.int64)) < limit
            mask = tf.tile(mask[:, tf.newaxis], [1, tf.shape(tensors[1])[1]])
        h, _, final_c = run(tensors[1:] if masked else tensors, mask)
        if masked:
            # The op's states beyond seq_len_max are zeros.
            final_c = tf.where(tf.cast(steps, tf.int64) <= limit, final_c, tf.zeros_like(final_c))
        return h, final_c

    def build_gather(lengths: tf.Tensor, *tensors: tf.Tensor) -> Sequence[tf.Tensor]:
        mask = tf.transpose(tf.sequence_mask(lengths, tf.shape(tensors[0])[0]))
        return [run(tensors, mask)[2]]

    refs = [*inputs, *weights]
    for gather, lengths in gathers:
        body.replace(gather, [lengths, *refs], build_gather, (0,))
    for end in ends:  # the last step of cs is the final c, the new node's second output
        body.loses(end)
        end.op = "Identity"
        control = [text for text in end.input if text.startswith("^")]
        end.input[:] = [str(Ref(node.name, 1)), *control]
        dtype = end.attr["T"].type
        end.attr.clear()
        end.attr["T"].type = dtype
    if gathers and used == [_CS]:
        return f"{input_size} -> {units}, only its state at each row's end"
    body.replace(node, [seq_len_max, *refs] if masked else refs, build, (_H,))
    if _H not in used:  # by any name that is known here
        return f"{input_size} -> {units}; its h is output 0 now, its last c output 1"
    return f"{input_size} -> {units}"


def _reordered(tensor: tf.Tensor, order: str) -> tf.Tensor:
    blocks = dict(zip(order, tf.split(tensor, 4, -1), strict=True))
    if order == KERAS_GATES:
        return tensor
    return tf.concat([blocks[gate] for gate in KERAS_GATES], -1)


def _is_all_steps(body: Body, seq_len_max: Ref, x: Ref) -> bool:
    """Whether seq_len_max is surely x's number of steps."""
    value = body.value(seq_len_max)
    if value is not None:
        steps = body.dims(x, 3)[0]
        return steps is not None and int(value) >= steps
    node, ref = body.producer(seq_len_max)
    while node.op in ("Cast", "Reshape", "Squeeze"):
        node, ref = body.producer(body.inputs(node)[0])
    return body.is_size(ref, x, 0)


def _uses_of_states(
    body: Body, node: tf.compat.v1.NodeDef
) -> tuple[list[tf.compat.v1.NodeDef], list[tuple[tf.compat.v1.NodeDef, Ref]]]:
    """The readers of cs: nodes that take its last step, and (GatherNd, lengths) that take each
    row's last.

    Raises NotRewritableError for any other.
    """
    states = Ref(node.name, _CS)
    all_states = NotRewritableError("its cell states of all steps (cs) are read")
    if states in body.results:
        raise all_states
    readers = body.consumers()
    ends, gathers = [], []
    for name, _ in readers.get(states, []):
        reader = body.nodes[name]
        if reader.op == "StridedSlice":
            begin = body.value(body.inputs(reader)[1])
            masks = ("begin_mask", "ellipsis_mask", "new_axis_mask")
            simple = not any(reader.attr[m].i for m in masks)
            if not simple or reader.attr["shrink_axis_mask"].i != 1 or begin is None:
                raise all_states
            if begin.tolist() != [-1]:
                raise all_states
            ends.append(reader)
        elif reader.op == "ConcatV2":
            gathers += _gathers(body, node, reader, readers)
        else:
            raise all_states
    return ends, gathers


def _gathers(
    body: Body,
    node: tf.compat.v1.NodeDef,
    concat: tf.compat.v1.NodeDef,
    readers: dict[Ref, list[tuple[str, int]]],
) -> list[tuple[tf.compat.v1.NodeDef, Ref]]:
    """Readers of concat([cs_prev, cs]) that take row b at step lengths[b]: (GatherNd, lengths)."""
    refused = NotRewritableError("its cell states of all steps (cs) are read")
    first, _, axis = body.inputs(concat)
    expand, _ = body.producer(first)
    if expand.op != "ExpandDims" or body.inputs(expand)[0] != body.inputs(node)[2]:
        raise refused
    if body.value(axis) != 0 or body.value(body.inputs(expand)[1]) != 0:
        raise refused
    if Ref(concat.name, 0) in body.results:
        raise refused
    found = []
    for name, position in readers.get(Ref(concat.name, 0), []):
        gather = body.nodes[name]
        if gather.op != "GatherNd" or position != 0:
            raise refused
        pack, _ = body.producer(body.inputs(gather)[1])
        if pack.op != "Pack" or pack.attr["axis"].i != 1 or pack.attr["N"].i != 2:
            raise refused
        lengths, rows = body.inputs(pack)
        rows_node, _ = body.producer(rows)
        if rows_node.op != "Range" or body.value(body.inputs(rows_node)[0]) != 0:
            raise refused
        if not _is_at_least(body, body.inputs(node)[0], lengths):
            raise NotRewritableError("its seq_len_max may be less than the lengths of cs read")
        found.append((gather, lengths))
    return found


def _is_at_least(body: Body, seq_len_max: Ref, lengths: Ref) -> bool:
    """Whether seq_len_max is surely the maximum of lengths."""
    node, _ = body.producer(seq_len_max)
    while node.op == "Cast":
        node, _ = body.producer(body.inputs(node)[0])
    if node.op != "Max":
        return False
    return _without_casts(body, body.inputs(node)[0]) == _without_casts(body, lengths)


def _without_casts(body: Body, ref: Ref) -> Ref:
    node, ref = body.producer(ref)
    while node.op == "Cast":
        node, ref = body.producer(body.inputs(node)[0])
    return ref
