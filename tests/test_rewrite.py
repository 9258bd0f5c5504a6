"""Rewriting graphs: TensorFlow builds CudnnRNN ops without a GPU, a reference in float64 says what
they compute."""

import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from lstm_graphs import (
    BATCH,
    CLOSE,
    INPUTS,
    RNN,
    STEPS,
    UNITS,
    Problem,
    block,
    block_feeds,
    block_inputs,
    check_same,
    frozen,
    op_counts,
    rnn,
    run,
    run_rnn,
)
from op_checks import LIMITS
from reference import relative_error
from stacks import keras_stack, random_cell, random_cells
from tensorflow.core.protobuf import saved_model_pb2
from tf_keras.src.layers.rnn import cudnn_lstm as tf_keras_cudnn_lstm

from tf_fused_lstm import convert
from tf_fused_lstm.__main__ import main
from tf_fused_lstm.convert.graph import rewrite, rewrite_graph_def


@pytest.mark.parametrize("weights", ["blob", "identity", "fed", "pack", "packV2"])
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("op", RNN)
def test_cudnn_rnn(rng, op, directions, layers, weights):
    problem = Problem(rng, layers, directions)
    new, entries, moved = rewrite_graph_def(frozen(problem, op, weights))
    feeds = {"params:0": problem.blob()} if weights == "fed" else {}
    problem.check(run_rnn(problem, new, **feeds))
    counts = op_counts(new.node)
    assert counts["FusedLSTM"] == 1
    assert not {"Reverse", "ReverseV2"} & set(counts)  # nor is anything else done around the op
    assert not [name for name in counts if name.startswith("Cudnn")]
    assert moved == {}
    (entry,) = entries
    assert entry.rewritten
    assert (entry.node, entry.op) == ("rnn", op)
    assert f"{INPUTS} -> {UNITS}" in entry.detail
    if weights != "fed":  # the weights are constants of the new op's, the old ones are gone
        assert counts.get("Slice", 0) == counts.get("Transpose", 0) == 0
        assert sum(n.ByteSize() for n in new.node) < 1.5 * problem.blob().nbytes + 20000


@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("directions", [1, 2])
def test_sequence_lengths_and_layout(rng, directions, layers, time_major):
    lengths = np.array([4, STEPS, 1, 3], np.int32)
    problem = Problem(rng, layers, directions, lengths, time_major)
    new, _, _ = rewrite_graph_def(frozen(problem, "CudnnRNNV3", "blob"))
    problem.check(run_rnn(problem, new))
    (node,) = [n for n in new.node if n.op == "FusedLSTM"]
    assert node.attr["num_mask"].i == 1
    assert node.attr["N"].i == layers * directions


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("weights", ["constant", "fed"])
@pytest.mark.parametrize("dtype", LIMITS)
def test_types(rng, dtype, weights, directions, layers):
    lengths = np.array([4, STEPS, 1, 3], np.int32)
    problem = Problem(rng, layers, directions, lengths, dtype=dtype)
    new, _, _ = rewrite_graph_def(frozen(problem, "CudnnRNNV3", weights))
    feeds = {"params:0": problem.blob()} if weights == "fed" else {}
    limit, _ = LIMITS[dtype]
    for got, wanted in zip(run_rnn(problem, new, **feeds), problem.wanted(), strict=True):
        assert got.dtype == problem.x.dtype
        assert relative_error(got, wanted) <= limit
    assert op_counts(new.node)["FusedLSTM"] == 1


def test_two_ops_of_a_graph(rng):
    """One reads the other's output; each becomes one op."""
    lower, upper = Problem(rng, 2, 1), Problem(rng, 1, 2)
    with tf.Graph().as_default() as graph:
        x, h, c = (tf.constant(v) for v in lower.feeds())
        y = rnn(lower, "CudnnRNNV2", x, h, c, tf.constant(lower.blob())).output
        upper.x = y_values = np.zeros((BATCH, STEPS, UNITS), np.float32)
        upper.cells = random_cells(rng, 1, 2, UNITS, UNITS)
        _, h, c = (tf.constant(v) for v in upper.feeds())
        rnn(upper, "CudnnRNN", y, h, c, tf.constant(upper.blob()), name="rnn")
    new, entries, _ = rewrite_graph_def(graph.as_graph_def())
    assert [e.rewritten for e in entries] == [True, True]
    assert op_counts(new.node)["FusedLSTM"] == 2
    y_values[:] = lower.layout(lower.wanted()[0])
    upper.check(run(new, {}, ["rnn:0", "rnn:1", "rnn:2"]))


@pytest.mark.parametrize("batch_is_known", [False, True])
def test_full_lengths_need_no_mask(rng, batch_is_known):
    """As Keras's CuDNNLSTM asks for them: Fill([batch], Shape(x)[0])."""
    problem = Problem(rng)
    with tf.Graph().as_default() as graph:
        shapes = [v.shape if batch_is_known else (v.shape[0], None, v.shape[2])
                  for v in problem.feeds()]  # fmt: skip
        if not batch_is_known:
            shapes[0] = (None, None, INPUTS)
        x, h, c = (
            tf.compat.v1.placeholder(tf.float32, shape, name)
            for name, shape in zip("xhc", shapes, strict=True)
        )
        lengths = tf.fill([tf.shape(x)[1]], tf.shape(x)[0])
        rnn(problem, "CudnnRNNV3", x, h, c, tf.constant(problem.blob()), lengths, name="rnn")
    new, _, _ = rewrite_graph_def(graph.as_graph_def())
    problem.check(run_rnn(problem, new))
    (node,) = [n for n in new.node if n.op == "FusedLSTM"]
    assert node.attr["num_mask"].i == 0


def test_gpu_device_and_control_inputs(rng):
    """Old graphs name a GPU; the new ops run on what there is."""
    problem = Problem(rng)
    graph_def = frozen(problem, "CudnnRNN", "blob")
    for node in graph_def.node:
        if node.op == "CudnnRNN":
            node.device = "/device:GPU:0"
            node.attr["_class"].list.s.append(b"loc:@x")
            node.input.append("^x")
    graph_def.node.add(name="after", op="NoOp", input=["^rnn"])
    new, _, _ = rewrite_graph_def(graph_def)
    problem.check(run_rnn(problem, new))
    (node,) = [n for n in new.node if n.name == "rnn"]
    assert "^x" in node.input


def test_parameters_ops(rng):
    """What a CudnnLSTM's saver has in its graph, without an RNN op that reads it."""
    problem = Problem(rng, 2, 2)
    weights, biases = problem.canonical()
    sizes = {"num_layers": 2, "num_units": UNITS, "input_size": INPUTS}
    with tf.Graph().as_default() as graph:
        direction = {"direction": "bidirectional"}
        packed = tf.raw_ops.CudnnRNNCanonicalToParams(
            **sizes, weights=weights, biases=biases, **direction
        )
        blob = tf.add(packed, 1.0, name="blob")
        tf.raw_ops.CudnnRNNParamsToCanonical(
            **sizes, params=blob, num_params=32, **direction, name="unpacked"
        )
        tf.raw_ops.CudnnRNNParamsSize(**sizes, T=tf.float32, S=tf.int32, **direction, name="size")
    new, entries, _ = rewrite_graph_def(graph.as_graph_def())
    assert [e.rewritten for e in entries] == [True] * 3
    fetches = ["blob:0", "size:0", *(f"unpacked:{i}" for i in range(64))]
    got_blob, size, *unpacked = run(new, {}, fetches)
    np.testing.assert_array_equal(got_blob, problem.blob() + 1)
    assert size == problem.blob().size
    for got, wanted in zip(unpacked, [*weights, *biases], strict=True):
        np.testing.assert_array_equal(got, wanted + 1)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"rnn_mode": "gru"}, "rnn_mode is gru"),
        ({"input_mode": "skip_input"}, "input_mode is skip_input"),
        ({"dropout": 0.5, "is_training": True}, "dropout of 0.5 in training"),
    ],
)
def test_left_for_its_attributes(rng, attributes, reason):
    problem = Problem(rng)
    graph_def = frozen(problem, "CudnnRNNV2", "blob", **attributes)
    new, (entry,), _ = rewrite_graph_def(graph_def)
    assert not entry.rewritten
    assert reason in entry.detail
    assert op_counts(new.node) == op_counts(graph_def.node)


@pytest.mark.parametrize("op", RNN)
def test_training_graph_is_left(rng, op):
    problem = Problem(rng, 2, 2)
    with tf.Graph().as_default() as graph:
        x, h, c = (tf.constant(v) for v in problem.feeds())
        params = tf.constant(problem.blob())
        output = rnn(problem, op, x, h, c, params)[0]
        tf.gradients(output, x)
    new, entries, _ = rewrite_graph_def(graph.as_graph_def())
    assert {(e.op, e.rewritten) for e in entries} == {
        (op, False), (op.replace("RNN", "RNNBackprop"), False)
    }  # fmt: skip
    assert "its reserve is read: a training graph" in entries[0].detail
    assert "FusedLSTM" not in op_counts(new.node)


class Exported(tf.Module):
    """A bidirectional stack whose weights are variables, in nested functions."""

    def __init__(self, problem):
        super().__init__()
        self.problem = problem
        weights, biases = problem.canonical()
        self.weights = [tf.Variable(v) for v in weights]
        self.biases = [tf.Variable(v) for v in biases]

    @tf.function(input_signature=[tf.TensorSpec((None, None, INPUTS), tf.float32, "x")])
    def serve(self, x):
        return {"y": 2 * self.inner(x)}

    @tf.function
    def inner(self, x):
        problem = self.problem
        params = tf.raw_ops.CudnnRNNCanonicalToParamsV2(
            num_layers=problem.layers, num_units=UNITS, input_size=INPUTS,
            weights=[v.read_value() for v in self.weights],
            biases=[v.read_value() for v in self.biases], direction=problem.direction,
        )  # fmt: skip
        zeros = tf.zeros([len(problem.cells), tf.shape(x)[1], UNITS])
        lengths = tf.fill([tf.shape(x)[1]], tf.shape(x)[0])
        return rnn(problem, "CudnnRNNV3", x, zeros, zeros, params, lengths).output


def exported(rng, path):
    problem = Problem(rng, 2, 2)
    problem.h[:] = problem.c[:] = 0
    module = Exported(problem)
    tf.saved_model.save(module, str(path), signatures={"serving_default": module.serve})
    return problem


def saved_model_graph(path):
    saved_model = saved_model_pb2.SavedModel.FromString((path / "saved_model.pb").read_bytes())
    (meta_graph,) = saved_model.meta_graphs
    return meta_graph.graph_def


def test_saved_model(rng, tmp_path):
    problem = exported(rng, tmp_path / "in")
    entries = rewrite(tmp_path / "in", tmp_path / "out")
    assert entries
    assert all(e.rewritten and e.graph for e in entries)
    loaded = tf.saved_model.load(str(tmp_path / "out"))
    x, _, _ = problem.feeds()
    wanted = 2 * problem.wanted()[0]
    graph_def = saved_model_graph(tmp_path / "out")
    fused = [n for f in graph_def.library.function for n in f.node_def if n.op == "FusedLSTM"]
    assert len(fused) == len([e for e in entries if e.op == "CudnnRNNV3"])
    assert all(node.attr["N"].i == len(problem.cells) for node in fused)
    np.testing.assert_allclose(loaded.serve(x)["y"], wanted, **CLOSE)
    got = loaded.signatures["serving_default"](x=tf.constant(x))["y"]
    np.testing.assert_allclose(got, wanted, **CLOSE)

    # D6: a reloaded model has gradients, to its variables too.
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(loaded.serve(x)["y"])
    for gradient in tape.gradient(loss, [*loaded.weights, *loaded.biases]):
        assert np.abs(gradient).max() > 0


def test_command(rng, tmp_path, capsys):
    problem = Problem(rng, 2)
    source = tmp_path / "frozen.pb"
    source.write_bytes(frozen(problem, "CudnnRNNV3", "pack").SerializeToString())
    assert main(["rewrite", str(source), str(tmp_path / "out.pb"), "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["op"] == "CudnnRNNV3"
    assert entry["rewritten"] is True
    new = tf.compat.v1.GraphDef.FromString((tmp_path / "out.pb").read_bytes())
    problem.check(run_rnn(problem, new))

    assert main(["rewrite", str(source), str(tmp_path / "out.pb")]) == 1
    assert "OUT must not exist" in capsys.readouterr().err
    assert main(["rewrite", str(tmp_path / "no"), str(tmp_path / "new.pb")]) == 1
    assert "IN must be" in capsys.readouterr().err
    (tmp_path / "text.pb").write_text("no graph")
    assert main(["rewrite", str(tmp_path / "text.pb"), str(tmp_path / "new.pb")]) == 1
    assert "does not hold a GraphDef" in capsys.readouterr().err


def test_command_in_a_process(rng, tmp_path):
    exported(rng, tmp_path / "in")
    command = [sys.executable, "-m", "tf_fused_lstm", "rewrite", "in", "out"]
    root = pathlib.Path(convert.__file__).parents[2]
    for name in ("in", "out"):
        command[command.index(name)] = str(tmp_path / name)
    result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert result.stdout.strip().endswith("rewritten, 0 left")
    assert "2 layers, bidirectional, 5 -> 7" in result.stdout


# BlockLSTM runs on the CPU as it is, so the graph before is the reference.


@pytest.mark.parametrize("weights", ["constant", "fed"])
@pytest.mark.parametrize("seq_len_max", [STEPS, 4, 0, "shape", "fed"])
@pytest.mark.parametrize("op", ["BlockLSTM", "BlockLSTMV2"])
def test_block_lstm(rng, op, seq_len_max, weights):
    feeds = block_feeds(rng)
    with tf.Graph().as_default() as graph:
        x, c, h = block_inputs(known=seq_len_max != "shape")
        limit = seq_len_max
        if limit == "shape":
            limit = tf.cast(tf.shape(x)[0], tf.int64)
        elif limit == "fed":
            limit = tf.compat.v1.placeholder(tf.int64, [], "limit")
            feeds["limit:0"] = 3
        out = block(rng, op, x, c, h, tf.cast(limit, tf.int64), weights)
        tf.add(out.h, 1.0, name="y")
        tf.identity(out.cs[-1], name="last")
    check_same(graph.as_graph_def(), feeds, ["y:0", "last:0"])


@pytest.mark.parametrize("reads_h", [False, True])
def test_block_lstm_with_lengths(rng, reads_h):
    """As LSTMBlockFusedCell takes each row's last state: from all, by its length."""
    feeds = block_feeds(rng) | {"lengths:0": np.array([4, 0, 2, 3], np.int32)}
    with tf.Graph().as_default() as graph:
        x, c, h = block_inputs(known=False)
        lengths = tf.compat.v1.placeholder(tf.int32, [None], "lengths")
        limit = tf.cast(tf.reduce_max(lengths), tf.int64)
        out = block(rng, "BlockLSTM", x, c, h, limit)
        states = tf.concat([tf.expand_dims(c, 0), out.cs], 0)
        indices = tf.stack([lengths, tf.range(tf.shape(x)[1])], 1)
        tf.gather_nd(states, indices, name="last")
        if reads_h:
            tf.add(out.h, 1.0, name="y")
    fetches = ["last:0", "y:0"] if reads_h else ["last:0"]
    check_same(graph.as_graph_def(), feeds, fetches, fused=1 + reads_h)


@pytest.mark.parametrize(
    ("attributes", "read", "reason"),
    [
        ({"cell_clip": 3.0}, "h", "cell_clip is 3"),
        ({"use_peephole": True}, "h", "use_peephole"),
        ({}, "f", "its outputs f are read"),
        ({}, "cs", "cell states of all steps"),
    ],
)
def test_block_lstm_that_is_left(rng, attributes, read, reason):
    feeds = block_feeds(rng)
    with tf.Graph().as_default() as graph:
        x, c, h = block_inputs()
        out = block(rng, "BlockLSTM", x, c, h, STEPS, **attributes)
        tf.add(getattr(out, read), 1.0, name="y")
    before = graph.as_graph_def()
    new, (entry,), _ = rewrite_graph_def(before)
    assert not entry.rewritten
    assert reason in entry.detail
    np.testing.assert_array_equal(run(new, feeds, "y:0"), run(before, feeds, "y:0"))


def test_names_of_results_follow(rng):
    """A signature that reads h, BlockLSTM's output 6, reads the new op's."""
    feeds = block_feeds(rng)
    with tf.Graph().as_default() as graph:
        x, c, h = block_inputs()
        name = block(rng, "BlockLSTMV2", x, c, h, STEPS).h.name
    before = graph.as_graph_def()
    new, _, moved = rewrite_graph_def(before, [name])
    got, wanted = run(new, feeds, moved[name]), run(before, feeds, name)
    np.testing.assert_allclose(got, wanted, **CLOSE)


@pytest.mark.parametrize("v2", [False, True])
def test_cell_in_a_while_loop_is_left(rng, v2):
    cell = random_cell(rng, INPUTS, UNITS)
    w = np.concatenate(cell[:2])
    with tf.Graph().as_default() as graph:
        if not v2:
            tf.compat.v1.disable_control_flow_v2()
        try:
            x, c, h = block_inputs()

            def step(t, c, h):
                z = tf.matmul(tf.concat([x[t], h], 1), w) + cell.bias
                i, j, f, o = tf.split(z, 4, 1)
                c = tf.sigmoid(f + 1.0) * c + tf.sigmoid(i) * tf.tanh(j)
                return t + 1, c, tf.sigmoid(o) * tf.tanh(c)

            tf.while_loop(lambda t, *_: t < STEPS, step, (0, c, h))
        finally:
            tf.compat.v1.enable_control_flow_v2()
        graph_def = graph.as_graph_def()
    assert bool({"While", "StatelessWhile"} & set(op_counts(graph_def.node))) == v2
    new, (entry,), _ = rewrite_graph_def(graph_def)
    assert (entry.op, entry.rewritten) == ("LSTM cell", False)
    assert entry.detail == "a cell inside a while loop"
    assert bool(entry.graph) == v2
    assert op_counts(new.node) == op_counts(graph_def.node)


def test_keras_cudnn_lstm(rng, tmp_path):
    """A SavedModel of tf_keras's CuDNNLSTM, with two biases, runs on the CPU."""
    layer = tf_keras_cudnn_lstm.CuDNNLSTM(UNITS, return_sequences=True)
    layer.build((None, STEPS, INPUTS))
    layer.set_weights([rng.standard_normal(w.shape) for w in layer.get_weights()])
    module = tf.Module()
    module.weights = layer.weights
    module.serve = tf.function(
        layer.call, input_signature=[tf.TensorSpec((None, STEPS, INPUTS), tf.float32)]
    )
    tf.saved_model.save(module, str(tmp_path / "in"))
    entries = rewrite(tmp_path / "in", tmp_path / "out")
    assert all(e.rewritten and e.op == "CudnnRNNV3" for e in entries)
    loaded = tf.saved_model.load(str(tmp_path / "out"))
    x = rng.standard_normal((BATCH, STEPS, INPUTS)).astype(np.float32)
    got = loaded.serve(x)
    cell = convert.from_keras_cudnn_lstm(*layer.get_weights())
    np.testing.assert_allclose(got, keras_stack([cell], 1, x)[0], **CLOSE)


def test_keras_lstm_says_what_it_leaves(rng, tmp_path):
    """tf_keras's LSTM holds a loop and, for the GPU, a CudnnRNNV3 beside it."""
    model = tf_keras.Sequential([tf_keras.Input((STEPS, INPUTS)), tf_keras.layers.LSTM(UNITS)])
    x = rng.standard_normal((BATCH, STEPS, INPUTS)).astype(np.float32)
    model.save(tmp_path / "in", save_format="tf")
    entries = rewrite(tmp_path / "in", tmp_path / "out")
    assert {e.detail for e in entries if e.op == "LSTM cell"} == {"a cell inside a while loop"}
    assert any(e.rewritten for e in entries if e.op == "CudnnRNNV3")
    loaded = tf.saved_model.load(str(tmp_path / "out"))
    (got,) = loaded.signatures["serving_default"](tf.constant(x)).values()
    np.testing.assert_allclose(got, model(x), **CLOSE)
