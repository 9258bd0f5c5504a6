"""replace_lstm and restore_lstm on tf_keras's models, CuDNNLSTM and version 1 layers among them."""

import gc
import weakref

import keras_pairs
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from keras_pairs import assert_close, inputs, randomise

import tf_fused_lstm as tfl

X = inputs()
LSTM = tf_keras.layers.LSTM
V1 = tf.compat.v1.keras.layers
layers = tf_keras.layers


def sequential():
    return tf_keras.Sequential(
        [
            tf_keras.Input((5, 2)),
            layers.Masking(),
            layers.Bidirectional(LSTM(4, return_sequences=True), name="both"),
            LSTM(3, go_backwards=True, activation="relu"),
            layers.Dense(2),
        ]
    )


def functional():
    x = tf_keras.Input((5, 2))
    shared = LSTM(4, return_sequences=True, name="shared")
    y, h, c = LSTM(4, return_sequences=True, return_state=True, name="first")(x)
    y = shared(y, initial_state=[h, c])
    y = layers.add([shared(y), y])
    y = layers.Bidirectional(
        LSTM(3, return_sequences=True),
        backward_layer=LSTM(3, return_sequences=True, go_backwards=True, name="custom"),
    )(y)
    inner_x = tf_keras.Input((5, 6))
    inner = tf_keras.Model(inner_x, LSTM(3, use_bias=False, unroll=True)(inner_x), name="nested")
    return tf_keras.Model(x, [inner(y), c])


class Subclassed(tf_keras.Model):
    def __init__(self):
        super().__init__()
        self.first = LSTM(4, return_sequences=True)
        self.rest = [LSTM(3, return_sequences=True), {"last": LSTM(2)}]
        self.inner = tf_keras.Sequential([layers.Masking(), LSTM(2)])

    def call(self, x):
        return self.rest[1]["last"](self.rest[0](self.first(x))), self.inner(x)


MODELS = {
    "sequential": (sequential, 3),
    "functional": (functional, 5),
    "subclassed": (Subclassed, 4),
}


def of(model, kind):
    return [layer for layer in model._flatten_layers() if type(layer) is kind]


def make(name):
    build, count = MODELS[name]
    model = build()
    model(X)
    randomise(model)
    return model, count


@pytest.mark.parametrize("name", MODELS)
def test_equal_model_and_back(name):
    model, count = make(name)
    wanted = model(X)
    if name == "sequential":
        assert_close(model.predict(X, verbose=0), wanted)
    variables = [(v.name, id(v)) for v in model.variables]
    stock_config = None if name == "subclassed" else model.to_json()

    assert tfl.replace_lstm(model) is model
    assert len(of(model, tfl.FusedLSTM)) == len(model.lstm_report.replaced) == count
    assert len(set(model.lstm_report.replaced)) == count
    assert model.lstm_report.left == ()
    assert not of(model, LSTM)
    assert_close(model(X), wanted)
    if name == "sequential":
        assert_close(model.predict(X, verbose=0), wanted)
    assert [(v.name, id(v)) for v in model.variables] == variables
    assert all(layer.fused_reason is None for layer in of(model, tfl.FusedLSTM))
    if stock_config is not None:
        again = tf_keras.models.model_from_json(model.to_json())
        assert len(of(again, tfl.FusedLSTM)) == count
        again.set_weights(model.get_weights())
        assert_close(again(X), wanted)

    assert tfl.restore_lstm(model) is model
    assert len(of(model, LSTM)) == count
    assert not of(model, tfl.FusedLSTM)
    assert_close(model(X), wanted)
    if name == "sequential":
        assert_close(model.predict(X, verbose=0), wanted)
    if stock_config is not None:
        assert model.to_json() == stock_config


def test_training_goes_on():
    model, twin = (tf_keras.Sequential([tf_keras.Input((5, 2)), LSTM(2)]) for _ in range(2))
    twin.set_weights(model.get_weights())
    history = {}
    for m in (model, twin):
        m.compile(tf_keras.optimizers.Adam(0.01), "mse")
        first = m.fit(X, np.ones((3, 2)), epochs=2, verbose=0)
        if m is model:
            optimizer = m.optimizer
            tfl.replace_lstm(m)
            assert m.optimizer is optimizer
        rest = m.fit(X, np.ones((3, 2)), epochs=3, verbose=0)
        history[m] = first.history["loss"] + rest.history["loss"]
    assert model.optimizer.iterations == 5
    np.testing.assert_allclose(history[model], history[twin], rtol=1e-4)


def cudnn_weights(seed=0):
    """Of a CuDNNLSTM of 4 units and 2 features, and the same as a keras.layers.LSTM has them."""
    rng = np.random.default_rng(seed)
    weights = [rng.standard_normal(shape).astype(np.float32) for shape in ((2, 16), (4, 16), 32)]
    return weights, tfl.convert.from_keras_cudnn_lstm(*weights)


@pytest.mark.parametrize("go_backwards", [False, True])
@pytest.mark.parametrize("built", [False, True])
def test_cudnn_lstm_runs_without_a_gpu(built, go_backwards):
    arguments = {"return_sequences": True, "go_backwards": go_backwards, "name": "cudnn"}
    layer = V1.CuDNNLSTM(4, **arguments)
    weights, canonical = cudnn_weights()
    if built:
        layer.build((None, 5, 2))
        layer.set_weights(weights)
    assert tfl.replace_lstm(layer) is layer
    assert type(layer) is tfl.FusedLSTM
    assert layer.lstm_report.replaced == ("cudnn",)
    stock = LSTM(4, **{**arguments, "name": "stock"})
    stock.build((None, 5, 2))
    layer(X)
    for each in (layer, stock):
        each.set_weights(canonical) if not built or each is stock else None
    assert_close(layer(X), stock(X))
    assert layer.fused_reason is None
    assert type(tfl.restore_lstm(layer)) is LSTM
    assert_close(layer(X), stock(X))


def test_cudnn_lstm_in_a_model(tmp_path):
    """Connections, states, wrappers and the file of the new model are as they should be."""
    entry = tf_keras.Input((5, 2))
    sequence, *states = V1.CuDNNLSTM(4, return_sequences=True, return_state=True)(entry)
    sequence = layers.Bidirectional(V1.CuDNNLSTM(4, return_sequences=True))(sequence)
    model = tf_keras.Model(entry, [V1.CuDNNLSTM(4)(sequence[:, :, :4], initial_state=states)])
    names = [layer.name for layer in model._flatten_layers()]
    randomise(model)
    originals = [layer.get_weights() for layer in of(model, V1.CuDNNLSTM)]
    assert len(originals) == 4
    model.lstm_report = None
    before = [weakref.ref(layer) for layer in of(model, V1.CuDNNLSTM)]

    tfl.replace_lstm(model)
    assert len(model.lstm_report.replaced) == 4
    fused = of(model, tfl.FusedLSTM)
    assert [ref() for ref in before] == fused
    assert [layer.name for layer in model._flatten_layers() if layer.name in names] == names
    for layer, weights in zip(fused, originals, strict=True):
        assert_close(layer.get_weights(), list(tfl.convert.from_keras_cudnn_lstm(*weights)))
    wanted = model(X)

    stock = tfl.restore_lstm(tf_keras.models.clone_model(model))
    stock.set_weights(model.get_weights())
    assert len(of(stock, LSTM)) == 4
    assert_close(wanted, stock(X))
    model.compile("adam", "mse")
    model.fit(X, np.ones((3, 4)), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = tf_keras.models.load_model(tmp_path / "model.keras")
    assert len(of(loaded, tfl.FusedLSTM)) == 4
    assert_close(loaded(X), model(X))


def test_cudnn_weight_file_goes_through_an_lstm_model(tmp_path):
    """tf_keras converts the weights of a CuDNNLSTM model's .h5 file to those of LSTM layers."""

    def build(kind):
        lstm = [layers.Bidirectional(kind(4, return_sequences=True)), kind(3)]
        return tf_keras.Sequential([tf_keras.Input((5, 2)), *lstm, layers.Dense(1)])

    saved = build(V1.CuDNNLSTM)
    randomise(saved)
    path = str(tmp_path / "weights.h5")
    saved.save_weights(path)
    model = build(LSTM)
    model.load_weights(path)
    tfl.replace_lstm(model)
    assert len(of(model, tfl.FusedLSTM)) == 3
    wanted = tfl.replace_lstm(saved)  # the other way: its weights are converted in place
    assert_close(model(X), wanted(X))


def test_cudnn_lstm_keeps_its_states():
    layer = V1.CuDNNLSTM(4, stateful=True)
    layer.build((3, 5, 2))
    weights, canonical = cudnn_weights()
    states = [inputs(2, (3, 4)).numpy(), inputs(3, (3, 4)).numpy()]
    layer.set_weights(weights)
    layer.reset_states(states)
    tfl.replace_lstm(layer)
    stock = LSTM(4, stateful=True)
    stock.build((3, 5, 2))
    stock.set_weights(canonical)
    stock.reset_states(states)
    assert_close(layer(X), stock(X))
    assert_close(layer(X), stock(X))


def test_nothing_is_left_of_the_layer_that_was_built_for_it():
    made = []
    original = tfl.FusedLSTM.build

    def build(self, shape):
        made.append(weakref.ref(self))
        original(self, shape)

    tfl.FusedLSTM.build = build
    try:
        layer = V1.CuDNNLSTM(4)
        layer.build((None, 5, 2))
        tfl.replace_lstm(layer)
    finally:
        tfl.FusedLSTM.build = original
    gc.collect()
    assert [ref() for ref in made] == [None]


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (
            lambda: LSTM(3, recurrent_activation="hard_sigmoid"),
            "recurrent_activation is another hard_sigmoid",
        ),
        (lambda: V1.LSTM(3), "recurrent_activation is another hard_sigmoid"),
        (lambda: V1.LSTM(3, recurrent_activation="sigmoid", dropout=0.1), "same at every step"),
        (lambda: V1.CuDNNLSTM(3, bias_regularizer="l2"), "both biases"),
        (lambda: V1.CuDNNLSTM(3, go_backwards=True, time_major=True), "reverses the batch"),
        (lambda: type("Mine", (LSTM,), {})(3), "Mine is a subclass of LSTM"),
        (lambda: layers.ConvLSTM1D(3, 2), "convolves"),
        (lambda: layers.RNN([layers.GRUCell(3), layers.LSTMCell(3)]), "RNN around LSTMCells"),
    ],
)
def test_says_what_it_leaves(layer, reason):
    left = layer()
    kind = type(left)
    model = tf_keras.Sequential([LSTM(4, return_sequences=True), left])
    with pytest.warns(UserWarning, match=reason):
        tfl.replace_lstm(model)
    assert type(left) is kind
    ((path, why),) = model.lstm_report.left
    assert path == f"{model.name}/{left.name}"
    assert reason in why
    assert len(model.lstm_report.replaced) == 1


def test_stateful_cudnn_lstm_with_states_of_its_own_is_left():
    entry, h, c = (tf_keras.Input(batch_shape=(3, *shape)) for shape in ((5, 2), (4,), (4,)))
    layer = V1.CuDNNLSTM(4, stateful=True)
    model = tf_keras.Model([entry, h, c], layer(entry, initial_state=[h, c]))
    with pytest.warns(UserWarning, match="prefers an initial_state"):
        tfl.replace_lstm(model)
    assert type(layer) is V1.CuDNNLSTM


def test_cudnn_lstm_with_functions_of_the_user():
    layer = V1.CuDNNLSTM(
        4,
        kernel_initializer=lambda shape, dtype=None, **_: tf.ones(shape, dtype) / 8,
        recurrent_regularizer=lambda w: tf.reduce_sum(w**2),
    )
    layer.build((None, None, 2))
    tfl.replace_lstm(layer)
    assert type(layer) is tfl.FusedLSTM
    (loss,) = layer.losses
    np.testing.assert_allclose(loss, np.sum(layer.get_weights()[1] ** 2), rtol=1e-5)


def test_version_1_lstm():
    layer = V1.LSTM(4, recurrent_activation="sigmoid", return_sequences=True)
    layer.build((None, 5, 2))
    randomise(layer)
    wanted = layer(X, mask=keras_pairs.MASK)
    tfl.replace_lstm(layer)
    assert type(layer) is tfl.FusedLSTM
    assert_close(layer(X, mask=keras_pairs.MASK), wanted)
    assert layer.fused_reason is None


def test_wrong_type():
    with pytest.raises(TypeError, match=r"must be a tf_keras.layers.Layer .* got builtins.int"):
        tfl.replace_lstm(3)
