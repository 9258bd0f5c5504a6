"""Rewriting graphs that are malformed, and what of TensorFlow 1's files names nodes by the side."""

import numpy as np
import pytest
import tensorflow as tf
from lstm_graphs import (
    BATCH,
    CLOSE,
    INPUTS,
    STEPS,
    UNITS,
    Problem,
    block,
    block_feeds,
    block_inputs,
    check_same,
    op_counts,
    rnn,
    run,
)
from stacks import random_cell
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow.python.training import saver

from tf_fused_lstm import convert
from tf_fused_lstm.__main__ import main
from tf_fused_lstm.convert.graph import rewrite, rewrite_graph_def

V1 = tf.compat.v1


def packed(weights, biases, states=1, units=UNITS, direction="unidirectional"):
    """An RNN on parameters that are packed from these lists, beside one that is right."""
    with tf.Graph().as_default() as graph:
        x = V1.placeholder(tf.float32, [None, None, INPUTS], "x")
        h, c = (V1.placeholder(tf.float32, [states, None, units], n) for n in "hc")
        params = tf.raw_ops.CudnnRNNCanonicalToParams(
            num_layers=1, num_units=units, input_size=INPUTS, weights=weights, biases=biases,
            direction=direction,
        )  # fmt: skip
        tf.raw_ops.CudnnRNNV2(
            input=x, input_h=h, input_c=c, params=params, direction=direction, name="rnn"
        )
        right = Problem(np.random.default_rng(0))
        x, h, c = (tf.constant(v) for v in right.feeds())
        rnn(right, "CudnnRNN", x, h, c, tf.constant(right.blob()), name="right")
    return graph.as_graph_def()


@pytest.mark.parametrize(
    ("change", "more", "reason"),
    [
        (lambda w, b: (w[:7], b[:7]), {}, "weights are 7, where 1 layer, 5 -> 7 needs 8"),
        (lambda w, b: ([w[0][:3], *w[1:]], b), {}, r"weights[0] has shape (3, 5), where"),
        (lambda w, b: (w, [*b[:7], b[0][:2]]), {}, r"biases[7] has shape (2,), where"),
        (lambda w, b: (w, b), {"units": 9}, r"weights[0] has shape (7, 5), where 1 layer, 5 -> 9"),
        (lambda w, b: (w, b), {"states": 3, "direction": "bidirectional"},
         "input_h is of 3 layers and directions of 7 units"),
        (lambda w, b: (w, b), {"states": 0}, "input_h is of 0 layers"),
        (lambda w, b: (w, b), {"units": 0}, "input_h is of 1 layers and directions of 0 units"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit(rng, change, more, reason):
    """The node is left, and says why; the rest is rewritten."""
    new, entries, _ = rewrite_graph_def(packed(*change(*Problem(rng).canonical()), **more))
    (entry,) = [e for e in entries if e.node == "rnn"]
    assert not entry.rewritten
    assert reason in entry.detail
    assert [e.rewritten for e in entries if e.node == "right"] == [True]
    assert op_counts(new.node)["FusedLSTM"] == 1


@pytest.mark.parametrize("weights", ["constant", "fed"])
@pytest.mark.parametrize("shape", [(13, 28), (12, 29), (7, 28), (3, 0)])
def test_block_lstm_whose_weights_do_not_fit(shape, weights):
    w, b = np.zeros(shape, np.float32), np.zeros(shape[1] // 4 * 4, np.float32)
    peephole = np.zeros(UNITS, np.float32)
    with tf.Graph().as_default() as graph:
        x, c, h = block_inputs()
        if weights == "fed":
            w, b = (V1.placeholder(tf.float32, v.shape) for v in (w, b))
        tf.raw_ops.BlockLSTM(
            seq_len_max=STEPS, x=x, cs_prev=c, h_prev=h, w=w, wci=peephole, wcf=peephole,
            wco=peephole, b=b, cell_clip=-1,
        )  # fmt: skip
    new, (entry,), _ = rewrite_graph_def(graph.as_graph_def())
    assert not entry.rewritten
    assert f"w has shape {shape}, where 5 -> " in entry.detail
    assert op_counts(new.node)["BlockLSTM"] == 1


def test_parameters_op_of_wrong_sizes(rng):
    with tf.Graph().as_default() as graph:
        sizes = {"num_layers": 1, "num_units": UNITS, "input_size": INPUTS}
        blob = Problem(rng).blob()
        tf.raw_ops.CudnnRNNParamsToCanonical(**sizes, params=blob, num_params=9)
        tf.raw_ops.CudnnRNNParamsSize(**{**sizes, "num_layers": 0}, T=tf.float32, S=tf.int32)
    _, entries, _ = rewrite_graph_def(graph.as_graph_def())
    assert {e.detail for e in entries if not e.rewritten} == {
        "num_params is 9, where 1 layer, 5 -> 7 has 8",
        "num_layers is 0, num_units 7, input_size 5",
    }


def test_colocation_with_weights(rng):
    """As a frozen graph's `read` ops stand beside their variables."""
    with tf.Graph().as_default() as graph:
        out = block(rng, "BlockLSTM", *block_inputs(), STEPS)
        tf.add(out.h, 1.0, name="y")
    graph_def = graph.as_graph_def()
    (node,) = [n for n in graph_def.node if n.op == "BlockLSTM"]
    for other in graph_def.node:
        if other.name == "y":
            names = (node.name, node.input[4], "x")
            other.attr["_class"].list.s.extend(f"loc:@{name}".encode() for name in names)
    check_same(graph_def, block_feeds(rng), ["y:0"])


def test_h_that_nothing_reads(rng):
    """A frozen graph does not say what is fetched from it."""
    with tf.Graph().as_default() as graph:
        block(rng, "BlockLSTMV2", *block_inputs(), STEPS)
    before = graph.as_graph_def()
    new, (entry,), _ = rewrite_graph_def(before)
    assert entry.detail == "5 -> 7; its h is output 0 now, its last c output 1"
    feeds = block_feeds(rng)
    old = run(before, feeds, ["BlockLSTMV2:6", "BlockLSTMV2:1"])
    h, c = run(new, feeds, ["BlockLSTMV2:0", "BlockLSTMV2:1"])
    np.testing.assert_allclose(h, old[0], **CLOSE)
    np.testing.assert_allclose(c, old[1][-1], **CLOSE)


def test_command_on_an_unknown_op(tmp_path, capsys):
    graph_def = V1.GraphDef()
    graph_def.node.add(name="a", op="NoSuchOp")
    (tmp_path / "in.pb").write_bytes(graph_def.SerializeToString())
    assert main(["rewrite", str(tmp_path / "in.pb"), str(tmp_path / "out.pb")]) == 1
    assert "Op type not registered 'NoSuchOp'" in capsys.readouterr().err
    assert not (tmp_path / "out.pb").exists()


@pytest.fixture
def control_flow_v1():
    V1.disable_control_flow_v2()
    yield
    V1.enable_control_flow_v2()


@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_saved_model_with_cond_and_collections(rng, control_flow_v1, tmp_path):
    """A file of TensorFlow 1 names nodes in its collections: its conds, variables, lists."""
    w, b = convert.to_basic_lstm_cell(random_cell(rng, INPUTS, UNITS))
    peephole = np.zeros(UNITS, np.float32)
    with tf.Graph().as_default(), V1.Session() as session:
        x = V1.placeholder(tf.float32, [None, None, INPUTS], "x")
        w, b = (V1.get_variable(n, initializer=v) for n, v in (("w", w), ("b", b)))
        zeros = tf.zeros([tf.shape(x)[1], UNITS])

        def lstm(x):
            return tf.raw_ops.BlockLSTM(
                seq_len_max=tf.cast(tf.shape(x)[0], tf.int64), x=x, cs_prev=zeros, h_prev=zeros,
                w=w, wci=peephole, wcf=peephole, wco=peephole, b=b, cell_clip=-1,
            ).h  # fmt: skip

        h = lstm(x)
        y = V1.cond(tf.reduce_sum(x) > 0, lambda: h + lstm(2 * x), lambda: h)
        V1.add_to_collection("outputs", h)
        session.run(V1.global_variables_initializer())
        V1.saved_model.simple_save(session, str(tmp_path / "in"), {"x": x}, {"y": y})
        value = rng.standard_normal((STEPS, BATCH, INPUTS)).astype(np.float32)
        values = [value - value.mean() + shift for shift in (-0.5, 0.5)]
        wanted = [session.run([y, h], {x: v}) for v in values]
    entries = rewrite(tmp_path / "in", tmp_path / "out")
    assert [e.rewritten for e in entries] == [True, True]
    with tf.Graph().as_default(), V1.Session() as session:
        meta_graph = V1.saved_model.load(session, ["serve"], str(tmp_path / "out"))
        y = meta_graph.signature_def["serving_default"].outputs["y"].name
        (h,) = V1.get_collection("outputs")
        assert len(V1.get_collection("variables")) == 2
        for v, want in zip(values, wanted, strict=True):
            for got, w in zip(session.run([y, h], {"x:0": v}), want, strict=True):
                np.testing.assert_allclose(got, w, **CLOSE)


def test_command_on_a_broken_collection(tmp_path, capsys):
    saved_model = saved_model_pb2.SavedModel()
    collections = saved_model.meta_graphs.add().collection_def
    collections["variables"].bytes_list.value.append(b"no VariableDef")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "saved_model.pb").write_bytes(saved_model.SerializeToString())
    assert main(["rewrite", str(tmp_path / "in"), str(tmp_path / "out")]) == 1
    assert "collection variables holds no VariableDef" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


class CudnnParameters(saver.BaseSaverBuilder.SaveableObject):
    """As tf.contrib's CudnnLSTM saves its one variable: by layer and gate, through cuDNN's ops."""

    def __init__(self, variable, problem):
        self.variable = variable
        self.sizes = {
            "num_layers": problem.layers, "num_units": UNITS, "input_size": INPUTS,
            "direction": problem.direction,
        }  # fmt: skip
        self.count = 8 * len(problem.cells)
        parts = tf.raw_ops.CudnnRNNParamsToCanonical(
            **self.sizes, params=variable, num_params=self.count
        )
        tensors = [*parts.weights, *parts.biases]
        specs = [saver.BaseSaverBuilder.SaveSpec(t, "", f"lstm/{i}") for i, t in enumerate(tensors)]
        super().__init__(variable, specs, "lstm/opaque_kernel")

    def restore(self, restored_tensors, restored_shapes):
        packed = tf.raw_ops.CudnnRNNCanonicalToParams(
            **self.sizes, weights=restored_tensors[: self.count],
            biases=restored_tensors[self.count :],
        )  # fmt: skip
        return V1.assign(self.variable, packed, validate_shape=False)


@pytest.mark.parametrize("op", ["CudnnRNN", "CudnnRNNV2"])
def test_saved_model_of_tensorflow_1s_cudnn_lstm(rng, op, tmp_path):
    """It is restored, and runs, where there is no GPU."""
    problem = Problem(rng, 2, 2)
    problem.h[:] = problem.c[:] = 0
    with tf.Graph().as_default() as graph:
        x = V1.placeholder(tf.float32, [None, None, INPUTS], "x")
        zeros = tf.zeros([len(problem.cells), tf.shape(x)[1], UNITS])
        variable = V1.get_variable(
            "lstm/opaque_kernel", [problem.blob().size], use_resource=False,
            initializer=V1.zeros_initializer(),
        )  # fmt: skip
        y = rnn(problem, op, x, zeros, zeros, variable).output
        saver_def = V1.train.Saver([CudnnParameters(variable, problem)]).as_saver_def()
        meta_graph = V1.train.export_meta_graph(graph=graph, saver_def=saver_def)
        signature = V1.saved_model.predict_signature_def({"x": x}, {"y": y})
    meta_graph.meta_info_def.tags.append("serve")
    meta_graph.signature_def["serving_default"].CopyFrom(signature)
    (tmp_path / "in" / "variables").mkdir(parents=True)
    saved_model = saved_model_pb2.SavedModel(saved_model_schema_version=1, meta_graphs=[meta_graph])
    (tmp_path / "in" / "saved_model.pb").write_bytes(saved_model.SerializeToString())
    tensors = [v for values in problem.canonical() for v in values]
    names = [f"lstm/{i}" for i in range(len(tensors))]
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "in" / "variables" / "variables"), tensor_names=names,
        shape_and_slices=[""] * len(names), tensors=tensors,
    )  # fmt: skip

    entries = rewrite(tmp_path / "in", tmp_path / "out")
    assert all(e.rewritten for e in entries)
    assert {e.op for e in entries} == {
        op, "CudnnRNNParamsToCanonical", "CudnnRNNCanonicalToParams"
    }  # fmt: skip
    given, _, _ = problem.feeds()
    with tf.Graph().as_default(), V1.Session() as session:
        V1.saved_model.load(session, ["serve"], str(tmp_path / "out"))
        got = session.run(y.name, {"x:0": given})
        types = op_counts(session.graph_def.node)
    np.testing.assert_allclose(got, problem.wanted()[0], **CLOSE)
    assert types["FusedLSTM"] == 1 and not any(name.startswith("Cudnn") for name in types)
    loaded = tf.saved_model.load(str(tmp_path / "out"))
    got = loaded.signatures["serving_default"](tf.constant(given))["y"]
    np.testing.assert_allclose(got, problem.wanted()[0], **CLOSE)
