"""Weight conversion, against the frameworks that the weights come from."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from stacks import keras_stack, random_cell, random_cells
from tf_keras.src.layers.rnn import legacy_cells
from tf_keras.src.layers.rnn.gru_lstm_utils import canonical_to_params
from tf_keras.src.saving.legacy.hdf5_format import preprocess_weights_for_loading

import tf_fused_lstm as tfl
from tf_fused_lstm import convert

BATCH, STEPS, INPUTS, UNITS = 3, 6, 5, 7
CLOSE = {"rtol": 1e-5, "atol": 2e-6}


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="PyTorch is not installed")


def cell_of(rng):
    return random_cell(rng, INPUTS, UNITS)


def cells_of(rng, layers, directions, bias=True):
    return random_cells(rng, layers, directions, INPUTS, UNITS, bias)


def random_x(rng):
    return rng.standard_normal((BATCH, STEPS, INPUTS)).astype(np.float32)


def assert_cells_equal(got, wanted):
    assert len(got) == len(wanted)
    for g, w in zip(got, wanted, strict=True):
        for a, b in zip(g, w, strict=True):
            assert (a is None) == (b is None)
            if b is not None:
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_torch(rng, torch, layers, bidirectional, bias):
    module = torch.nn.LSTM(
        INPUTS, UNITS, layers, bias=bias, batch_first=True, bidirectional=bidirectional
    )
    x = random_x(rng)
    with torch.no_grad():
        wanted, (h, c) = module(torch.from_numpy(x))
    cells = convert.from_torch(module.state_dict())
    got, final_h, final_c = keras_stack(cells, 1 + bidirectional, x)
    np.testing.assert_allclose(got, wanted, **CLOSE)
    np.testing.assert_allclose(final_h, h, **CLOSE)
    np.testing.assert_allclose(final_c, c, **CLOSE)


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_to_torch(rng, torch, layers, bidirectional):
    cells = cells_of(rng, layers, 1 + bidirectional)
    state_dict = convert.to_torch(cells, bidirectional=bidirectional)
    module = torch.nn.LSTM(INPUTS, UNITS, layers, batch_first=True, bidirectional=bidirectional)
    module.load_state_dict({name: torch.from_numpy(v) for name, v in state_dict.items()})
    x = random_x(rng)
    with torch.no_grad():
        got, _ = module(torch.from_numpy(x))
    np.testing.assert_allclose(got, keras_stack(cells, 1 + bidirectional, x)[0], **CLOSE)
    assert_cells_equal(convert.from_torch(state_dict), cells)


def test_torch_prefix(rng):
    cells = cells_of(rng, 2, 1, bias=False)
    state_dict = convert.to_torch(cells, prefix="encoder.lstm.")
    assert all(name.startswith("encoder.lstm.weight") for name in state_dict)
    assert_cells_equal(convert.from_torch(state_dict, "encoder.lstm."), cells)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_torch_state_dict_that_lacks_one(rng, bidirectional):
    """Whatever is missing, nothing of the rest is dropped in silence."""
    state_dict = convert.to_torch(cells_of(rng, 3, 1 + bidirectional), bidirectional=bidirectional)
    for missing in state_dict:
        if missing.endswith("_l2") or missing.endswith("_l2_reverse"):
            continue
        rest = {name: v for name, v in state_dict.items() if name != missing}
        with pytest.raises(ValueError, match=f"state_dict must hold {missing}"):
            convert.from_torch(rest)


def test_torch_bfloat16(rng, torch):
    module = torch.nn.LSTM(INPUTS, UNITS)
    wanted = convert.from_torch(module.bfloat16().state_dict())
    assert wanted[0].kernel.dtype == np.float32
    assert_cells_equal(wanted, convert.from_torch(module.float().state_dict()))


def run_onnx(w, r, b, direction, x):
    onnx = pytest.importorskip("onnx", reason="ONNX is not installed")
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
    tensors = {"W": w, "R": r, "B": b}
    tensors = {name: v for name, v in tensors.items() if v is not None}
    node = onnx.helper.make_node(
        "LSTM", ["X", *tensors], ["Y"], hidden_size=r.shape[2], direction=direction
    )
    graph = onnx.helper.make_graph(
        [node], "g",
        [onnx.helper.make_tensor_value_info("X", onnx.TensorProto.FLOAT, None)],
        [onnx.helper.make_tensor_value_info("Y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(np.ascontiguousarray(v), n) for n, v in tensors.items()],
    )  # fmt: skip
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 14)], ir_version=8
    )
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (y,) = session.run(["Y"], {"X": np.ascontiguousarray(x.transpose(1, 0, 2))})
    return y.transpose(2, 0, 1, 3)  # [batch, steps, directions, hidden_size]


@pytest.mark.parametrize("direction", ["forward", "bidirectional", "reverse"])
@pytest.mark.parametrize("bias", [False, True])
def test_onnx(rng, direction, bias):
    count = 2 if direction == "bidirectional" else 1
    shapes = [(count, 4 * UNITS, INPUTS), (count, 4 * UNITS, UNITS), (count, 8 * UNITS)]
    w, r, b = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    b = b if bias else None
    x = random_x(rng)
    wanted = run_onnx(w, r, b, direction, x)
    cells = convert.from_onnx(w, r, b)
    assert len(cells) == count
    if direction == "reverse":
        got = keras_stack(cells, 1, x[:, ::-1])[0][:, ::-1]
    else:
        got = keras_stack(cells, count, x)[0]
    np.testing.assert_allclose(got, wanted.reshape(BATCH, STEPS, -1), **CLOSE)


@pytest.mark.parametrize("directions", [1, 2])
def test_to_onnx(rng, directions):
    cells = cells_of(rng, 1, directions)
    w, r, b = convert.to_onnx(cells)
    x = random_x(rng)
    direction = "bidirectional" if directions == 2 else "forward"
    got = run_onnx(w, r, b, direction, x).reshape(BATCH, STEPS, -1)
    np.testing.assert_allclose(got, keras_stack(cells, directions, x)[0], **CLOSE)
    assert_cells_equal(convert.from_onnx(w, r, b), cells)


@pytest.mark.filterwarnings("ignore:.*deprecated")
@pytest.mark.parametrize("cell_class", ["BasicLSTMCell", "LSTMCell"])
@pytest.mark.parametrize("forget_bias", [0.0, 1.0, 2.5])
def test_basic_lstm_cell(rng, cell_class, forget_bias):
    """TensorFlow 1's own cells, in a graph, with random variables."""
    x = random_x(rng)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        cell = getattr(legacy_cells, cell_class)(UNITS, forget_bias=forget_bias)
        state = cell.zero_state(BATCH, tf.float32)
        outputs = []
        for t in range(STEPS):
            out, state = cell(tf.constant(x[:, t]), state)
            outputs.append(out)
        shapes = [v.shape for v in cell.variables]
        kernel, bias = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
        cell.variables[0].load(kernel, session)
        cell.variables[1].load(bias, session)
        wanted, (c, h) = session.run([tf.stack(outputs, 1), state])
    weights = convert.from_basic_lstm_cell(kernel, bias, forget_bias=forget_bias)
    got, final_h, final_c = keras_stack([weights], 1, x)
    np.testing.assert_allclose(got, wanted, **CLOSE)
    np.testing.assert_allclose(final_h[0], h, **CLOSE)
    np.testing.assert_allclose(final_c[0], c, **CLOSE)


@pytest.mark.parametrize("forget_bias", [0.0, 1.0])
def test_to_lstm_block_cell(rng, forget_bias):
    """TensorFlow's LSTMBlockCell op, fed with converted weights."""
    cell = cell_of(rng)
    x = random_x(rng)
    kernel, bias = convert.to_basic_lstm_cell(cell, forget_bias=forget_bias)
    c = h = tf.zeros([BATCH, UNITS])
    peephole = tf.zeros([UNITS])
    outputs = []
    for t in range(STEPS):
        step = tf.raw_ops.LSTMBlockCell(
            x=x[:, t], cs_prev=c, h_prev=h, w=kernel, wci=peephole, wcf=peephole, wco=peephole,
            b=bias, forget_bias=forget_bias, cell_clip=-1,
        )  # fmt: skip
        c, h = step.cs, step.h
        outputs.append(h)
    np.testing.assert_allclose(tf.stack(outputs, 1), keras_stack([cell], 1, x)[0], **CLOSE)
    back = convert.from_basic_lstm_cell(kernel, bias, forget_bias=forget_bias)
    for got, wanted in zip(back, cell, strict=True):
        np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6)


def test_keras_cudnn_lstm_against_keras(rng):
    """Keras converts CuDNNLSTM weights too, when it loads old files."""
    layer = tf_keras.layers.LSTM(UNITS)
    layer.build((None, None, INPUTS))
    shapes = [(INPUTS, 4 * UNITS), (UNITS, 4 * UNITS), (8 * UNITS,)]
    cudnn = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    wanted = preprocess_weights_for_loading(layer, [v.copy() for v in cudnn])
    for g, w in zip(convert.from_keras_cudnn_lstm(*cudnn), wanted, strict=True):
        np.testing.assert_array_equal(g, w)

    cell = cell_of(rng)
    back = preprocess_weights_for_loading(layer, list(convert.to_keras_cudnn_lstm(cell)))
    for g, w in zip(back, cell, strict=True):
        np.testing.assert_array_equal(g, w)
    assert_cells_equal([convert.from_keras_cudnn_lstm(*convert.to_keras_cudnn_lstm(cell))], [cell])


def test_cudnn_params_against_keras(rng):
    """tf_keras builds the blob of a single layer itself, for CudnnRNNV3."""
    cell = cell_of(rng)
    bias = np.zeros(4 * UNITS, np.float32)
    wanted = canonical_to_params(
        weights=np.split(cell.kernel, 4, 1) + np.split(cell.recurrent_kernel, 4, 1),
        biases=np.split(np.concatenate([cell.bias, bias]), 8),
        shape=tf.constant([-1]),
        transpose_weights=True,
    )
    np.testing.assert_array_equal(convert.to_cudnn_params(cell), wanted)


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_cudnn_params_round_trip(rng, layers, bidirectional):
    cells = cells_of(rng, layers, 1 + bidirectional)
    sizes = {"num_layers": layers, "num_units": UNITS, "input_size": INPUTS}
    params = convert.to_cudnn_params(cells, bidirectional=bidirectional)
    assert params.shape == (convert.cudnn_params_size(**sizes, bidirectional=bidirectional),)
    got = convert.from_cudnn_params(params, **sizes, bidirectional=bidirectional)
    assert_cells_equal(got, cells)
    canonical = convert.to_cudnn_canonical(cells, bidirectional=bidirectional)
    assert_cells_equal(convert.from_cudnn_canonical(*canonical, bidirectional=bidirectional), cells)


@pytest.mark.gpu
@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_cudnn_params_against_cudnn(rng, torch, layers, bidirectional):
    """PyTorch lays its weights out in one buffer where cuDNN says that each belongs."""
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    module = torch.nn.LSTM(INPUTS, UNITS, layers, bidirectional=bidirectional).cuda()
    buffer = torch.empty(0, device="cuda").set_(module.weight_ih_l0.untyped_storage())
    values = buffer.cpu().numpy()
    got = convert.from_cudnn_params(
        values, num_layers=layers, num_units=UNITS, input_size=INPUTS, bidirectional=bidirectional
    )
    assert_cells_equal(got, convert.from_torch(module.state_dict()))


def test_into_the_fused_layer(rng, torch):
    """D1: a PyTorch LSTM's weights in our layer give PyTorch's results."""
    module = torch.nn.LSTM(INPUTS, UNITS, batch_first=True)
    x = random_x(rng)
    layer = tfl.FusedLSTM(UNITS, return_sequences=True)
    layer.build(x.shape)
    layer.set_weights(convert.from_torch(module.state_dict())[0])
    with torch.no_grad():
        wanted, _ = module(torch.from_numpy(x))
    np.testing.assert_allclose(layer(x), wanted, **CLOSE)


ZEROS = {name: np.zeros(shape) for name, shape in {
    "kernel": (5, 28), "recurrent": (7, 28), "bias": (28,), "joint": (12, 28),
}.items()}  # fmt: skip


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: convert.from_basic_lstm_cell(np.zeros((12, 27)), ZEROS["bias"]),
         r"kernel must have shape .*4 divides, got \(12, 27\)"),
        (lambda: convert.from_basic_lstm_cell(np.zeros((7, 28)), ZEROS["bias"]),
         r"kernel must have shape .*more than 7 rows, got \(7, 28\)"),
        (lambda: convert.from_basic_lstm_cell(ZEROS["joint"], np.zeros(27)),
         r"bias must have shape .*= \(28\), got \(27,\)"),
        (lambda: convert.to_basic_lstm_cell([ZEROS["kernel"]]),
         r"weights must be kernel, .* got 1 arrays"),
        (lambda: convert.to_basic_lstm_cell((ZEROS["kernel"], np.zeros((6, 28)), None)),
         r"weights: recurrent_kernel must have shape .*= \(6, 24\), got \(6, 28\)"),
        (lambda: convert.from_cudnn_params(np.zeros(9), num_layers=1, num_units=2, input_size=3),
         r"params must have shape .*= \(56\), got \(9,\)"),
        (lambda: convert.to_cudnn_params([(ZEROS["kernel"], ZEROS["recurrent"])] * 2),
         r"cells\[1\]: kernel must have shape .*layer 1 = \(7, 28\), got \(5, 28\)"),
        (lambda: convert.to_cudnn_params([(ZEROS["kernel"], ZEROS["recurrent"])],
                                         bidirectional=True),
         r"cells must be LSTMWeights, two for each layer, got 1"),
        (lambda: convert.from_cudnn_canonical([np.zeros((2, 3))] * 7, [np.zeros(2)] * 8),
         "weights must be 8 arrays for each layer, got 7"),
        (lambda: convert.from_cudnn_canonical([np.zeros((2, 3))] * 8, [np.zeros(3)] * 8),
         r"biases\[0\] must have shape .*= \(2\), got \(3,\)"),
        (lambda: convert.from_keras_cudnn_lstm(ZEROS["kernel"], ZEROS["recurrent"], ZEROS["bias"]),
         r"bias must have shape \(8 \* hidden_size\)"),
        (lambda: convert.from_torch({"x": 1}), "state_dict must hold weight_ih_l0, got x"),
        (lambda: convert.from_torch({"weight_ih_l0": np.zeros((8, 3)),
                                     "weight_hh_l0": np.zeros((9, 2))}),
         r"weight_hh_l0 must have shape .*= \(8, 2\), got \(9, 2\)"),
        (lambda: convert.from_onnx(np.zeros((1, 8, 3)), np.zeros((1, 12, 2))),
         r"r must have shape .*= \(1, 12, 3\), got \(1, 12, 2\)"),
        (lambda: convert.from_onnx(np.zeros((1, 8, 3)), np.zeros((1, 8, 2)), p=np.ones((1, 6))),
         "no peepholes"),
        (lambda: convert.from_onnx(np.zeros((3, 8, 3)), np.zeros((3, 8, 2))),
         r"r must have shape .* of one or two directions, got \(3, 8, 2\)"),
        (lambda: convert.from_torch(3), "state_dict must be a mapping.*, got a int"),
        (lambda: convert.from_torch({"weight_ih_l0": np.zeros((8, 3))}),
         "state_dict must hold weight_hh_l0"),
        (lambda: convert.from_torch({"weight_ih_l0": np.zeros((8, 3)), "weight_hh_l0": 0.0}),
         r"weight_hh_l0 must have shape .*got \(\)"),
        (lambda: convert.from_cudnn_canonical([0.0] * 8, [np.zeros(2)] * 8),
         r"weights\[0\] must have shape .*got \(\)"),
        (lambda: convert.from_cudnn_params(np.zeros(0), num_layers=0, num_units=2, input_size=3),
         "num_layers must be an integer of at least 1, got 0"),
        (lambda: convert.cudnn_params_size(1, 2.0, 3),
         "num_units must be an integer of at least 1, got 2.0"),
        (lambda: convert.to_torch(None), "cells must hold LSTM weights, got None"),
        (lambda: convert.to_onnx([3]), r"cells\[0\] must hold LSTM weights, got 3"),
    ],
)  # fmt: skip
def test_errors_name_argument_and_shapes(call, message):
    with pytest.raises(ValueError, match=message):
        call()
