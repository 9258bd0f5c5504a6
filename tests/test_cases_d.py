"""Weights, configurations and models that are saved and loaded."""

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from executed import graph_kernels
from keras_pairs import MASK, assert_close, inputs, pair, randomise, wrapped_pair
from processes import output_of, run_python

import tf_fused_lstm as tfl

X = inputs()


def sequential(layer, **entry):
    return keras.Sequential([keras.Input((5, 2), **entry), layer])


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("direction", ["to_fused", "from_fused"])
def test_d1_weights_are_interchangeable(tmp_path, direction, bidirectional):
    wrap = keras.layers.Bidirectional if bidirectional else (lambda layer: layer)
    stock, fused = (sequential(wrap(kind(4))) for kind in (keras.layers.LSTM, tfl.FusedLSTM))
    randomise(stock)
    randomise(fused, seed=1)
    source, target = (stock, fused) if direction == "to_fused" else (fused, stock)
    assert [w.name for w in source.weights] == [w.name for w in target.weights]
    assert [tuple(w.shape) for w in source.weights] == [tuple(w.shape) for w in target.weights]
    path = str(tmp_path / "model.weights.h5")
    source.save_weights(path)
    target.load_weights(path)
    assert_close(target(X), source(X))
    target.set_weights([w + 1 for w in source.get_weights()])
    source.set_weights(target.get_weights())
    assert_close(target(X), source(X))


def test_d1_a_stock_model_becomes_a_fused_one(tmp_path):
    """By clone_model, after loading a file that knows nothing of us."""
    stock = keras.Sequential(
        [keras.Input((5, 2)), keras.layers.LSTM(4, return_sequences=True), keras.layers.LSTM(3)]
    )
    stock.save(tmp_path / "stock.keras")

    def fuse(layer):
        if type(layer) is keras.layers.LSTM:
            return tfl.FusedLSTM.from_config(layer.get_config())
        return type(layer).from_config(layer.get_config())

    loaded = keras.models.load_model(tmp_path / "stock.keras")
    fused = keras.models.clone_model(loaded, clone_function=fuse)
    fused.set_weights(loaded.get_weights())
    assert all(type(layer) is tfl.FusedLSTM for layer in fused.layers)
    assert_close(fused(X), stock(X))


def test_d1_names_and_shapes():
    _, layer = pair()
    assert [(w.name, tuple(w.shape)) for w in layer.weights] == [
        ("kernel", (2, 16)), ("recurrent_kernel", (4, 16)), ("bias", (16,)),
    ]  # fmt: skip


def test_d1_paths_in_a_weight_file(tmp_path):
    contents = []
    for kind in (keras.layers.LSTM, tfl.FusedLSTM):
        path = tmp_path / f"{kind.__module__}.weights.h5"
        sequential(kind(4)).save_weights(path)
        names = []
        with h5py.File(path) as file:
            file.visit(names.append)
            items = {name: file[name] for name in names}
            contents.append({n: v.shape for n, v in items.items() if isinstance(v, h5py.Dataset)})
    assert contents[1] == contents[0]
    assert list(contents[1].items()) == [
        (f"layers/lstm/cell/vars/{i}", shape) for i, shape in enumerate([(2, 16), (4, 16), (16,)])
    ]


EVERY_ARGUMENT = {
    "activation": "relu", "recurrent_activation": "hard_sigmoid", "use_bias": False,
    "kernel_initializer": "he_normal", "recurrent_initializer": "he_uniform",
    "bias_initializer": "ones", "unit_forget_bias": False, "kernel_regularizer": "l1",
    "recurrent_regularizer": "l2", "bias_regularizer": "l1", "activity_regularizer": "l2",
    "kernel_constraint": "max_norm", "recurrent_constraint": "unit_norm",
    "bias_constraint": "non_neg", "dropout": 0.1, "recurrent_dropout": 0.2, "seed": 3,
    "return_sequences": True, "return_state": True, "go_backwards": True, "stateful": True,
    "unroll": True, "zero_output_for_mask": True, "dtype": "mixed_bfloat16", "trainable": False,
    "name": "mine",
}  # fmt: skip


def test_d2_every_argument_survives_its_configuration():
    layer = tfl.FusedLSTM(4, use_fused=False, **EVERY_ARGUMENT)
    config = layer.get_config()
    assert config == {**keras.layers.LSTM(4, **EVERY_ARGUMENT).get_config(), "use_fused": False}
    assert tfl.FusedLSTM.from_config(config).get_config() == config
    assert set(EVERY_ARGUMENT) <= set(config)


@pytest.mark.parametrize("use_fused", ["auto", True, False])
def test_d2_use_fused_survives_copies(use_fused):
    wrapper = keras.layers.Bidirectional(tfl.FusedLSTM(4, use_fused=use_fused))
    assert wrapper.forward_layer.use_fused == wrapper.backward_layer.use_fused == use_fused
    model = sequential(tfl.FusedLSTM(4, use_fused=use_fused))
    assert keras.models.clone_model(model).layers[0].use_fused == use_fused


def functional_model():
    entry = keras.Input((5, 2), name="x")
    h, c = keras.Input((4,), name="h"), keras.Input((4,), name="c")
    sequence, *states = tfl.FusedLSTM(4, return_sequences=True, return_state=True)(
        keras.layers.Masking()(entry), initial_state=[h, c]
    )
    wrapped = keras.layers.Bidirectional(tfl.FusedLSTM(3, activation="relu"))(sequence)
    return keras.Model([entry, h, c], [wrapped, *states])


def test_d2_keras_file_in_a_fresh_process(tmp_path):
    model = functional_model()
    randomise(model)
    arguments = [
        np.where(MASK[..., None], X, 0),
        inputs(2, (3, 4)).numpy(),
        inputs(3, (3, 4)).numpy(),
    ]
    model.save(tmp_path / "model.keras")
    np.savez(tmp_path / "arguments.npz", *arguments)
    output_of(f"""
import keras, numpy as np, tf_fused_lstm
model = keras.models.load_model({str(tmp_path / "model.keras")!r})
assert sum(type(l) is tf_fused_lstm.FusedLSTM for l in model._flatten_layers()) == 3
arguments = list(np.load({str(tmp_path / "arguments.npz")!r}).values())
np.savez({str(tmp_path / "outputs.npz")!r}, *[v.numpy() for v in model(arguments)])
""")
    got = list(np.load(tmp_path / "outputs.npz").values())
    assert_close(got, model(arguments))  # that process has no GPU, this one may


def test_d2_constant_mask(tmp_path):
    layer = tfl.FusedLSTM(4, return_sequences=True)
    entry = keras.Input((5, 2))
    model = keras.Model(entry, layer(entry, mask=tf.constant(MASK)))
    randomise(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_close(loaded(X), model(X), (0, 0))
    assert_close(loaded(X), layer(X, mask=MASK), (0, 0))
    assert not np.allclose(loaded(X), layer(X))


def exported(tmp_path, **arguments):
    model = sequential(tfl.FusedLSTM(4, return_sequences=True, **arguments))
    randomise(model)
    path = str(tmp_path / "exported")
    model.export(path, verbose=False)
    np.save(tmp_path / "x.npy", X)
    return model, path


@pytest.mark.parametrize("device", ["CPU", pytest.param("GPU", marks=pytest.mark.gpu)])
def test_d4_trained_here_served_on_a_cpu(tmp_path, device):
    """The process that serves sees no GPU."""
    with tf.device(f"/{device}:0"):
        model = sequential(tfl.FusedLSTM(4, return_sequences=True))
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(X, np.ones((3, 5, 4)), epochs=2, verbose=0)
        wanted = model(X)
    model.export(str(tmp_path / "exported"), verbose=False)
    np.save(tmp_path / "x.npy", X)
    x, out = str(tmp_path / "x.npy"), str(tmp_path / "out.npy")
    prepare = "import tf_fused_lstm; assert not tf.config.list_physical_devices('GPU')"
    output_of(SERVE.format(prepare=prepare, path=str(tmp_path / "exported"), x=x, out=out))
    assert_close(np.load(out), wanted, (1e-5, 1e-5))


SERVE = """
import numpy as np, tensorflow as tf
{prepare}
loaded = tf.saved_model.load({path!r})
np.save({out!r}, loaded.serve(tf.constant(np.load({x!r}))).numpy())
"""


@pytest.mark.parametrize("prepare", ["import", "load_op_library"])
def test_d5_saved_model_in_a_fresh_process(tmp_path, prepare):
    model, path = exported(tmp_path)
    prepare = {
        "import": "import tf_fused_lstm",
        "load_op_library": f"tf.load_op_library({tfl.get_library_path()!r})",
    }[prepare]
    x, out = str(tmp_path / "x.npy"), str(tmp_path / "out.npy")
    output_of(SERVE.format(prepare=prepare, path=path, x=x, out=out))
    assert_close(np.load(out), model(X))


def test_d5_without_the_library(tmp_path):
    _, path = exported(tmp_path)
    x, out = str(tmp_path / "x.npy"), str(tmp_path / "out.npy")
    result = run_python(SERVE.format(prepare="", path=path, x=x, out=out))
    assert result.returncode > 0
    assert "Op type not registered 'FusedLSTM'" in result.stderr


def test_d5_export_of_ordinary_ops_needs_no_library(tmp_path):
    model, path = exported(tmp_path, use_fused=False)
    x, out = str(tmp_path / "x.npy"), str(tmp_path / "out.npy")
    output_of(SERVE.format(prepare="", path=path, x=x, out=out))
    assert_close(np.load(out), model(X))


def test_d6_fine_tuning_a_loaded_saved_model(tmp_path):
    """Gradients by the input and the weights; the forward pass inside keeps its reserve."""
    model, path = exported(tmp_path)
    loaded = tf.saved_model.load(path)
    variables = loaded.trainable_variables

    def gradients(call, weights):
        with tf.GradientTape() as tape:
            tape.watch(X)
            loss = tf.reduce_sum(call(X) ** 2)
        return tape.gradient(loss, [X, *weights])

    by_name = {v.name.split("/")[-1].split(":")[0]: v for v in variables}
    ordered = [by_name[w.name] for w in model.weights]
    got = gradients(loaded.serve, ordered)
    assert_close(got, gradients(model, [w.value for w in model.weights]), (1e-5, 1e-6))
    (concrete,) = loaded.serve.concrete_functions
    forward, _ = concrete._delayed_rewrite_functions.forward_backward()
    for definition, training in ((concrete.function_def, False), (forward.cached_definition, True)):
        (node,) = [n for n in definition.node_def if n.op == "FusedLSTM"]
        assert node.attr["training"].b is training


def test_d7_stateful_export_moves_its_state_on(tmp_path):
    results = []
    for kind in (keras.layers.LSTM, tfl.FusedLSTM):
        model = keras.Sequential([keras.Input(batch_shape=(3, 5, 2)), kind(4, stateful=True)])
        randomise(model)
        path = str(tmp_path / kind.__name__)
        model.export(path, verbose=False)
        loaded = tf.saved_model.load(path)
        results.append([loaded.serve(X), loaded.serve(X)])
    assert_close(results[1], results[0])
    assert not np.allclose(results[1][0], results[1][1])


def test_d7_an_export_begins_with_the_states_that_there_were(tmp_path):
    results = []
    for kind in (keras.layers.LSTM, tfl.FusedLSTM):
        model = keras.Sequential([keras.Input(batch_shape=(3, 5, 2)), kind(4, stateful=True)])
        randomise(model)
        first = model(X)
        path = str(tmp_path / kind.__module__)
        model.export(path, verbose=False)
        second = model(X)
        loaded = tf.saved_model.load(path)
        results.append([first, second, loaded.serve(X), loaded.serve(X)])
    assert_close(results[1], results[0])
    assert_close(results[1][2], results[1][1])
    assert not np.allclose(results[1][0], results[1][1])


@pytest.mark.parametrize("file", ["model.keras", "model.weights.h5"])
def test_d7_files_hold_no_states(tmp_path, file):
    """As with Keras's layer, of whose variables they are none."""
    for kind in (keras.layers.LSTM, tfl.FusedLSTM):

        def make(kind=kind):
            return keras.Sequential([keras.Input(batch_shape=(3, 5, 2)), kind(4, stateful=True)])

        model = make()
        first, second = model(X), model(X)
        assert not np.allclose(first, second)
        if file == "model.keras":
            model.save(tmp_path / file)
            loaded = keras.models.load_model(tmp_path / file)
        else:
            model.save_weights(tmp_path / file)
            loaded = make()
            loaded.load_weights(tmp_path / file)
        assert_close(loaded(X), first)
        assert not {id(v) for v in model.layers[0].states} & {id(v) for v in model.variables}


def test_d8_switch_gives_a_graph_of_ordinary_ops():
    stock, fused = wrapped_pair(keras.layers.Bidirectional)
    ordinary = keras.layers.Bidirectional(tfl.FusedLSTM(4, use_fused=False))
    ordinary.build((3, 5, 2))
    ordinary.set_weights(fused.get_weights())

    def types(layer):
        graph = tf.function(layer).get_concrete_function(tf.TensorSpec([None, 5, 2])).graph
        return sorted({op.type for op in graph.get_operations()})

    assert types(ordinary) == types(stock)
    assert_close(ordinary(X), stock(X))


def test_d8_tflite():
    model = keras.Sequential(
        [keras.Input((5, 2), batch_size=3), tfl.FusedLSTM(4, use_fused=False, unroll=True)]
    )
    content = tf.lite.TFLiteConverter.from_keras_model(model).convert()
    interpreter = tf.lite.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], X.numpy())
    interpreter.invoke()
    got = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    assert_close(got, model(X), (1e-4, 1e-5))


def ordinary_pair(bidirectional, batch=None):
    """A model of Keras's layer, and one of ours with use_fused=False."""
    models = []
    for kind, arguments in ((keras.layers.LSTM, {}), (tfl.FusedLSTM, {"use_fused": False})):
        layer = kind(4, return_sequences=True, **arguments)
        models.append(
            keras.Sequential(
                [
                    keras.Input((5, 2), batch_size=batch),
                    keras.layers.Bidirectional(layer) if bidirectional else layer,
                ]
            )
        )
    randomise(models[0])
    models[1].set_weights(models[0].get_weights())
    return models


def tflite_converter(model, source, path):
    kind = tf.lite.TFLiteConverter
    if source == "keras":
        return kind.from_keras_model(model)
    if source == "concrete":
        return kind.from_concrete_functions([concrete_of(model)], model)
    model.export(path, verbose=False)
    return kind.from_saved_model(path)


def tflite_ops(interpreter):
    return [op["op_name"] for op in interpreter._get_ops_details()]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_d8_tflite_of_a_loop(bidirectional):
    """With the batch's size known, built-in ops alone: the same as Keras's, result for result."""
    results = []
    for model in ordinary_pair(bidirectional, batch=3):
        content = tf.lite.TFLiteConverter.from_keras_model(model).convert()
        interpreter = tf.lite.Interpreter(model_content=content)
        interpreter.allocate_tensors()
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], X.numpy())
        interpreter.invoke()
        output = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
        assert_close(output, model(X), (1e-4, 1e-5))
        results.append((output, tflite_ops(interpreter)))
    assert "WHILE" in results[1][1]
    assert results[1][1] == results[0][1]
    np.testing.assert_array_equal(results[1][0], results[0][0])


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("source", ["keras", "concrete", "saved"])
def test_d8_tflite_of_any_batch(tmp_path, source, bidirectional):
    """Keras's loop needs TensorFlow's own ops then, for which the interpreter in TensorFlow's
    package has no delegate: what can be compared is what is converted."""
    converted = []
    for i, model in enumerate(ordinary_pair(bidirectional)):
        converter = tflite_converter(model, source, str(tmp_path / str(i)))
        converter.target_spec.supported_ops = [
            tf.lite.OpsSet.TFLITE_BUILTINS, tf.lite.OpsSet.SELECT_TF_OPS,
        ]  # fmt: skip
        converter._experimental_lower_tensor_list_ops = False
        converted.append(tflite_ops(tf.lite.Interpreter(model_content=converter.convert())))
    assert "FlexTensorListReserve" in converted[1]
    assert converted[1] == converted[0]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_d8_onnx(bidirectional):
    """tf2onnx, where it is installed, finds the loop and makes ONNX's own LSTM of it."""
    tf2onnx = pytest.importorskip("tf2onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    graphs = []
    for model in ordinary_pair(bidirectional):
        function = tf.function(
            lambda x, model=model: model(x), input_signature=[tf.TensorSpec((None, 5, 2), name="x")]
        )
        proto, _ = tf2onnx.convert.from_function(function, function.input_signature, opset=15)
        session = onnxruntime.InferenceSession(
            proto.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        (output,) = session.run(None, {"x": X.numpy()})
        assert_close(output, model(X), (1e-4, 1e-5))
        graphs.append([node.op_type for node in proto.graph.node])
    assert graphs[1].count("LSTM") == 1
    assert graphs[1] == graphs[0]


def test_d9_loaded_graph_still_holds_the_op(tmp_path):
    model, path = exported(tmp_path)
    loaded = tf.saved_model.load(path)
    functions = loaded.signatures["serving_default"].graph.as_graph_def().library.function
    nodes = [node.op for function in functions for node in function.node_def]
    graph = loaded.signatures["serving_default"].graph
    assert "FusedLSTM" in nodes + [op.type for op in graph.get_operations()]
    # And nothing besides that the model's own graph does not run.
    kernels = [
        graph_kernels(call, [X.numpy()])
        for call in (loaded.signatures["serving_default"], concrete_of(model))
    ]
    assert kernels[0] <= kernels[1] + 2 <= 12


def concrete_of(model):
    return tf.function(model).get_concrete_function(tf.TensorSpec((None, 5, 2)))
