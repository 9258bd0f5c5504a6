"""replace_lstm and restore_lstm: equal models of every kind."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from graph_ops import op_types

import tf_fused_lstm as tfl

STEPS, INPUTS = 6, 5
CLOSE = {"rtol": 1e-5, "atol": 2e-6}
LSTM = keras.layers.LSTM


def sequential():
    return keras.Sequential(
        [
            keras.Input((STEPS, INPUTS)),
            keras.layers.Masking(),
            keras.layers.Bidirectional(LSTM(4, return_sequences=True), name="both"),
            LSTM(3, go_backwards=True, recurrent_activation="hard_sigmoid"),
            keras.layers.Dense(2),
        ]
    )


def functional():
    x = keras.Input((STEPS, INPUTS))
    mask = keras.layers.Lambda(lambda v: v[:, :, 0] > -0.5, output_shape=(STEPS,))(x)
    shared = LSTM(5, return_sequences=True, name="shared")
    y, h, c = LSTM(5, return_sequences=True, return_state=True, name="first")(x, mask=mask)
    y = shared(y, initial_state=[h, c])
    y = keras.layers.add([shared(y), y])
    inner_x = keras.Input((STEPS, 5))
    inner = keras.Model(inner_x, LSTM(3, use_bias=False, name="inner")(inner_x), name="nested")
    return keras.Model(x, [inner(y), c])


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.first = LSTM(4, return_sequences=True)
        self.rest = [LSTM(3, return_sequences=True), {"last": LSTM(2)}]
        self.inner = sequential()

    def call(self, x):
        return self.rest[1]["last"](self.rest[0](self.first(x))), self.inner(x)


def time_distributed():
    x = keras.Input((2, STEPS, INPUTS))
    return keras.Model(x, keras.layers.TimeDistributed(LSTM(4))(x))


MODELS = {
    "sequential": (sequential, 3),
    "functional": (functional, 3),
    "subclassed": (Subclassed, 6),
    "time_distributed": (time_distributed, 1),
}


def make(name, rng):
    build, count = MODELS[name]
    shape = (7, 2, STEPS, INPUTS) if name == "time_distributed" else (7, STEPS, INPUTS)
    x = rng.standard_normal(shape).astype(np.float32)
    x[:, ..., 4:, :] = 0
    model = build()
    model(x)
    model.set_weights([rng.standard_normal(w.shape) for w in model.get_weights()])
    return model, x, count


def lstms(model, kind):
    return [layer for layer in model._flatten_layers() if type(layer) is kind]


def assert_close(got, wanted):
    for g, w in zip(keras.tree.flatten(got), keras.tree.flatten(wanted), strict=True):
        np.testing.assert_allclose(g, w, **CLOSE)


@pytest.mark.parametrize("name", MODELS)
def test_equal_model_and_back(rng, name):
    model, x, count = make(name, rng)
    wanted = model(x)
    variables = [(v.path, id(v)) for v in model.variables]
    stock_config = None if name == "subclassed" else model.to_json()

    assert tfl.replace_lstm(model) is model
    assert len(lstms(model, tfl.FusedLSTM)) == count
    assert len(model.lstm_report.replaced) == count
    assert model.lstm_report.left == ()
    assert not lstms(model, LSTM)
    assert_close(model(x), wanted)
    assert_close(model.predict(x, verbose=0), wanted)
    assert [(v.path, id(v)) for v in model.variables] == variables
    assert "FusedLSTM" in op_types(model, tf.constant(x))
    assert all(layer.fused_reason is None for layer in lstms(model, tfl.FusedLSTM))

    assert tfl.restore_lstm(model) is model
    assert len(lstms(model, LSTM)) == count
    assert not lstms(model, tfl.FusedLSTM)
    assert "FusedLSTM" not in op_types(model, tf.constant(x))
    assert_close(model(x), wanted)
    assert_close(model.predict(x, verbose=0), wanted)
    if stock_config is not None:
        assert model.to_json() == stock_config


@pytest.mark.parametrize("name", ["sequential", "functional"])
def test_saves_and_loads(rng, name, tmp_path):
    """The replaced model is a model of FusedLSTM layers, in its file too."""
    keras.config.enable_unsafe_deserialization()
    model, x, count = make(name, rng)
    wanted = model(x)
    tfl.replace_lstm(model).save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert len(lstms(loaded, tfl.FusedLSTM)) == count
    assert_close(loaded(x), wanted)
    model.save_weights(tmp_path / "model.weights.h5")
    stock = MODELS[name][0]()
    stock.load_weights(tmp_path / "model.weights.h5")
    assert_close(stock(x), wanted)


def test_training_goes_on(rng):
    """Compiled state and optimizer slots stay; the trained weights are a stock model's."""
    model, x, _ = make("sequential", rng)
    y = rng.standard_normal((7, 2)).astype(np.float32)
    twin = sequential()
    weights = [0.1 * w for w in model.get_weights()]
    model.set_weights(weights)
    twin.set_weights(weights)
    history = {}
    for m in (model, twin):
        m.compile(keras.optimizers.Adam(0.01), "mse")
        first = m.fit(x, y, epochs=2, batch_size=7, shuffle=False, verbose=0)
        if m is model:
            optimizer = m.optimizer
            tfl.replace_lstm(m)
            assert m.optimizer is optimizer
        rest = m.fit(x, y, epochs=3, batch_size=7, shuffle=False, verbose=0)
        history[m] = first.history["loss"] + rest.history["loss"]
    assert model.optimizer.iterations == 5
    np.testing.assert_allclose(history[model], history[twin], rtol=1e-5)
    for got, wanted in zip(model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-4)


class Ones:
    """No Keras initializer, which no configuration can hold."""

    def __call__(self, shape, dtype=None):
        return tf.ones(shape, dtype)


@pytest.mark.parametrize(
    "arguments",
    [
        {"kernel_initializer": Ones()},
        {"recurrent_initializer": lambda shape, dtype=None: tf.ones(shape, dtype) / 8},
        {"kernel_regularizer": lambda w: tf.reduce_sum(w**2)},
        {"bias_constraint": lambda w: tf.abs(w) + 0},
        {"activity_regularizer": lambda y: tf.reduce_sum(y**2)},
    ],
)
def test_functions_of_the_user_stay(rng, arguments):
    """Of which Keras could not make a layer again from its configuration."""
    x = rng.standard_normal((2, STEPS, INPUTS)).astype(np.float32)
    model = keras.Sequential([keras.Input((STEPS, INPUTS)), LSTM(4, name="lstm", **arguments)])
    wanted, losses = model(x), model.losses
    attributes = vars(model.layers[0]).keys()
    tfl.replace_lstm(model)
    assert type(model.layers[0]) is tfl.FusedLSTM
    assert_close(model(x), wanted)
    assert_close(model.losses, losses)
    for name, value in arguments.items():
        assert getattr(model.layers[0], name) is value
    tfl.restore_lstm(model)
    assert vars(model.layers[0]).keys() == attributes
    assert_close(model(x), wanted)


@pytest.mark.parametrize("supports_jit", [False, True])
def test_own_supports_jit_and_cell_stay(supports_jit):
    layer = LSTM(4)
    layer.supports_jit = supports_jit
    tfl.restore_lstm(tfl.replace_lstm(layer))
    assert layer.supports_jit is supports_jit
    layer.cell = keras.layers.GRUCell(4)
    attributes = dict(vars(layer))
    with pytest.warns(UserWarning, match="the cell is a GRUCell"):
        tfl.replace_lstm(layer)
    assert type(layer) is LSTM
    assert vars(layer).keys() == attributes.keys()
    del attributes["lstm_report"]
    assert all(getattr(layer, name) is value for name, value in attributes.items())


class MyLSTM(LSTM):
    pass


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (lambda: LSTM(3, activation="selu"), "activation=selu"),
        (lambda: LSTM(3, use_cudnn=True), "cuDNN"),
        (lambda: MyLSTM(3), "MyLSTM is a subclass of LSTM"),
        (lambda: keras.layers.RNN(keras.layers.LSTMCell(3)), "RNN around LSTMCells"),
        (
            lambda: keras.layers.RNN([keras.layers.GRUCell(3), keras.layers.LSTMCell(3)]),
            "RNN around LSTMCells",
        ),
    ],
)
def test_says_what_it_leaves(layer, reason):
    left = layer()
    kind = type(left)
    model = keras.Sequential([keras.Input((STEPS, INPUTS)), LSTM(4, return_sequences=True), left])
    with pytest.warns(UserWarning, match=reason):
        tfl.replace_lstm(model)
    assert type(left) is kind
    ((path, why),) = model.lstm_report.left
    assert left.name in path
    assert reason in why
    assert len(model.lstm_report.replaced) == 1
    assert f"left: {why}" in str(model.lstm_report)


def test_conv_lstm_is_left(rng):
    model = keras.Sequential([keras.layers.ConvLSTM1D(2, 3)])
    with pytest.warns(UserWarning, match="convolves in its cell"):
        tfl.replace_lstm(model)
    assert model.lstm_report.replaced == ()


def test_layer_alone_unbuilt_and_stateful(rng):
    x = rng.standard_normal((2, STEPS, INPUTS)).astype(np.float32)
    layer = tfl.replace_lstm(LSTM(4, stateful=True, return_sequences=True, name="alone"))
    assert type(layer) is tfl.FusedLSTM
    assert layer.lstm_report.replaced == ("alone",)
    first, second = layer(x[:, :3]), layer(x[:, 3:])
    tfl.restore_lstm(layer).reset_state()
    whole = layer(x)
    np.testing.assert_allclose(np.concatenate([first, second], 1), whole, **CLOSE)


def test_states_survive(rng):
    x = rng.standard_normal((2, STEPS, INPUTS)).astype(np.float32)
    stock = LSTM(4, stateful=True, return_sequences=True)
    stock(x[:, :3])
    rest = np.asarray(stock(x[:, 3:]))
    stock.reset_state()
    stock(x[:, :3])
    np.testing.assert_allclose(tfl.replace_lstm(stock)(x[:, 3:]), rest, **CLOSE)


def test_model_of_fused_layers_goes_back(rng):
    x = rng.standard_normal((2, STEPS, INPUTS)).astype(np.float32)
    model = keras.Sequential([keras.Input((STEPS, INPUTS)), tfl.FusedLSTM(4, use_fused=True)])
    wanted = model(x)
    tfl.restore_lstm(model)
    assert "use_fused" not in model.layers[0].get_config()
    assert model.layers[0].supports_jit
    np.testing.assert_allclose(model(x), wanted, **CLOSE)


def test_wrong_type():
    with pytest.raises(
        TypeError, match=r"model must be a keras.Layer of Keras 3.*got builtins.int"
    ):
        tfl.replace_lstm(3)
