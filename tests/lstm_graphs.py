"""Graphs with cuDNN's and the block LSTM's ops, and what they compute."""

import numpy as np
import tensorflow as tf
from reference import Problem as Cell
from reference import Stack
from stacks import random_cell, random_cells

from tf_fused_lstm import convert
from tf_fused_lstm.convert.graph import rewrite_graph_def

BATCH, STEPS, INPUTS, UNITS = 4, 6, 5, 7
CLOSE = {"rtol": 1e-5, "atol": 2e-6}
RNN = {
    "CudnnRNN": tf.raw_ops.CudnnRNN,
    "CudnnRNNV2": tf.raw_ops.CudnnRNNV2,
    "CudnnRNNV3": tf.raw_ops.CudnnRNNV3,
}


class Problem:
    """A stack of layers, its input and initial states, and what cuDNN would make of them."""

    def __init__(
        self, rng, layers=1, directions=1, lengths=None, time_major=True, dtype=tf.float32
    ):
        self.layers, self.directions, self.time_major = layers, directions, time_major
        to = tf.as_dtype(dtype).as_numpy_dtype
        self.cells = [
            convert.LSTMWeights(*(w.astype(to) for w in cell))
            for cell in random_cells(rng, layers, directions, INPUTS, UNITS)
        ]
        self.x = rng.standard_normal((BATCH, STEPS, INPUTS)).astype(to)
        shape = (layers * directions, BATCH, UNITS)
        self.h, self.c = (rng.standard_normal(shape).astype(to) for _ in range(2))
        self.lengths = np.full(BATCH, STEPS, np.int32) if lengths is None else lengths

    @property
    def direction(self):
        return "bidirectional" if self.directions == 2 else "unidirectional"

    @property
    def batch_axis(self):
        """Of x, h and c as the op takes them."""
        return 1 if self.time_major else 0

    def blob(self):
        return convert.to_cudnn_params(self.cells, bidirectional=self.directions == 2)

    def canonical(self):
        return convert.to_cudnn_canonical(self.cells, bidirectional=self.directions == 2)

    def layout(self, array):
        return array.swapaxes(0, 1)

    def feeds(self):
        """x, h, c as the op takes them."""
        if self.time_major:
            return self.layout(self.x), self.h, self.c
        return self.x, self.layout(self.h), self.layout(self.c)

    def wanted(self):
        """Row by row, each of its own length."""
        output = np.zeros((BATCH, STEPS, self.directions * UNITS))
        final = np.stack([self.h, self.c]).astype(np.float64)
        for b, n in enumerate(self.lengths):
            output[b, :n], *states = self.stack(slice(b, b + 1), n).forward()
            final[:, :, b] = np.squeeze(states, 2)
        if self.time_major:
            return self.layout(output), *final
        return output, *(self.layout(f) for f in final)

    def stack(self, rows, steps):
        """The reference's, of some rows."""
        x, h, c = (
            v.astype(np.float64) for v in (self.x[rows, :steps], self.h[:, rows], self.c[:, rows])
        )
        cells = [
            Cell(
                x, *(w.astype(np.float64) for w in weights), initial_h=h[i], initial_c=c[i],
                go_backwards=i % self.directions == 1,
            )
            for i, weights in enumerate(self.cells)
        ]  # fmt: skip
        return Stack(
            [cells[i : i + self.directions] for i in range(0, len(cells), self.directions)]
        )

    def check(self, got):
        for g, w in zip(got, self.wanted(), strict=True):
            np.testing.assert_allclose(g, w, **CLOSE)


def rnn(problem, op, x, h, c, params, lengths=None, **attributes):
    arguments = {
        "input": x, "input_h": h, "input_c": c, "params": params, "direction": problem.direction,
        **attributes,
    }  # fmt: skip
    if op == "CudnnRNNV3":
        arguments["sequence_lengths"] = problem.lengths if lengths is None else lengths
        arguments["time_major"] = problem.time_major
    return RNN[op](**arguments)


def frozen(problem, op, weights, **attributes):
    """A GraphDef with placeholders x, h, c, and an op named rnn."""
    with tf.Graph().as_default() as graph:
        x, h, c = (
            tf.compat.v1.placeholder(
                v.dtype, [None if i == problem.batch_axis else n for i, n in enumerate(v.shape)],
                name,
            )
            for name, v in zip("xhc", problem.feeds(), strict=True)
        )  # fmt: skip
        if weights in ("blob", "constant"):
            params = tf.constant(problem.blob())
        elif weights == "identity":
            params = tf.identity(tf.reshape(tf.constant(problem.blob()), [-1]))
        elif weights == "fed":
            params = tf.compat.v1.placeholder(problem.x.dtype, [None], "params")
        else:
            make = getattr(tf.raw_ops, f"CudnnRNNCanonicalToParams{weights.removeprefix('pack')}")
            lists = zip(("weights", "biases"), problem.canonical(), strict=True)
            params = make(
                num_layers=problem.layers, num_units=UNITS, input_size=INPUTS,
                direction=problem.direction,
                **{name: [tf.constant(v) for v in values] for name, values in lists},
            )  # fmt: skip
        rnn(problem, op, x, h, c, params, name="rnn", **attributes)
    return graph.as_graph_def()


def run(graph_def, feeds, fetches):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.graph_util.import_graph_def(graph_def, name="")
        return session.run(fetches, feeds)


def op_counts(nodes):
    types = [node.op for node in nodes]
    return {op: types.count(op) for op in set(types)}


def run_rnn(problem, graph_def, **more):
    feeds = dict(zip(("x:0", "h:0", "c:0"), problem.feeds(), strict=True))
    return run(graph_def, feeds | more, ["rnn:0", "rnn:1", "rnn:2"])


PEEPHOLE = np.zeros(UNITS, np.float32)


def block_feeds(rng):
    shapes = {"x": (STEPS, BATCH, INPUTS), "c": (BATCH, UNITS), "h": (BATCH, UNITS)}
    return {f"{n}:0": rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}


def block(rng, op, x, c, h, seq_len_max, weights="constant", **attributes):
    w, b = convert.to_basic_lstm_cell(random_cell(rng, INPUTS, UNITS))
    if weights == "fed":
        w = tf.compat.v1.placeholder_with_default(w, w.shape)
        b = tf.compat.v1.placeholder_with_default(b, b.shape)
    arguments = {"cell_clip": -1.0, **attributes}
    if op == "BlockLSTM":
        arguments.setdefault("forget_bias", 0.5)
    return getattr(tf.raw_ops, op)(
        seq_len_max=seq_len_max, x=x, cs_prev=c, h_prev=h, w=w, wci=PEEPHOLE, wcf=PEEPHOLE,
        wco=PEEPHOLE, b=b, **arguments,
    )  # fmt: skip


def block_inputs(known=True):
    shapes = {"x": (STEPS, BATCH, INPUTS), "c": (BATCH, UNITS), "h": (BATCH, UNITS)}
    if not known:
        shapes = {"x": (None, None, INPUTS), "c": (None, UNITS), "h": (None, UNITS)}
    return [tf.compat.v1.placeholder(tf.float32, s, n) for n, s in shapes.items()]


def check_same(before, feeds, fetches, fused=1):
    new, entries, _ = rewrite_graph_def(before)
    for got, wanted in zip(run(new, feeds, fetches), run(before, feeds, fetches), strict=True):
        np.testing.assert_allclose(got, wanted, **CLOSE)
    counts = op_counts(new.node)
    assert counts.get("FusedLSTM", 0) == fused
    assert not {"BlockLSTM", "BlockLSTMV2"} & set(counts)
    assert [e.rewritten for e in entries] == [True]
