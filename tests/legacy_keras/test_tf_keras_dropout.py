"""Dropout of FusedLSTM in tf_keras: by the op, and what tf_keras drops from the same seed."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from keras_pairs import MASK, assert_close, inputs

import tf_fused_lstm as tfl

X = inputs()
LSTM = tf_keras.layers.LSTM
# Where tf_keras calls its cell, and where it does not: there it drops others at each step.
IN_CELL = [
    {"recurrent_dropout": 0.4},
    {"dropout": 0.4, "recurrent_dropout": 0.4},
    {"dropout": 0.4, "recurrent_dropout": 0.4, "go_backwards": True, "activation": "relu"},
    {"dropout": 0.4, "recurrent_dropout": 0.4, "time_major": True, "return_state": True},
    {"dropout": 0.4, "use_bias": False},
    {"dropout": 0.4, "use_bias": False, "implementation": 1, "recurrent_activation": "linear"},
    {"dropout": 0.4, "activation": "relu", "time_major": True},
]
AT_EACH_STEP = [{"dropout": 0.4}, {"dropout": 0.4, "time_major": True, "implementation": 1}]


@pytest.fixture(params=["legacy_stateful", "stateful"])
def generator(request):
    """Both of tf_keras's generators of random numbers."""
    experimental = tf_keras.backend.experimental
    if request.param == "stateful":
        experimental.enable_tf_random_generator()
    yield
    experimental.disable_tf_random_generator()


def seeded(kind, arguments, call=lambda layer: layer):
    """Two calls with gradients of a layer from the same seed each time, and the layer."""
    tf_keras.utils.set_random_seed(5)
    layer = kind(4, return_sequences=True, **arguments)
    time_major = arguments.get("time_major", False)
    x = tf.transpose(X, [1, 0, 2]) if time_major else X
    mask = tf.constant(MASK.T if time_major else MASK)
    layer.build(x.shape)
    layer.set_weights([inputs(i, w.shape).numpy() * 0.5 for i, w in enumerate(layer.weights)])

    @call
    def run():
        with tf.GradientTape() as tape:
            output = layer(x, mask=mask, training=True)
            loss = tf.add_n([tf.reduce_sum(v**2) for v in tf.nest.flatten(output)])
        return output, tape.gradient(loss, layer.trainable_variables)

    return [run(), run()], layer


@pytest.mark.parametrize("arguments", [*IN_CELL, *AT_EACH_STEP], ids=str)
@pytest.mark.usefixtures("generator")
def test_eager(arguments):
    wanted, _ = seeded(LSTM, arguments)
    got, layer = seeded(tfl.FusedLSTM, {**arguments, "use_fused": True})
    assert layer.fused_reason is None
    assert_close(got, wanted, (1e-4, 1e-5))
    assert np.any(np.abs(got[0][1][0] - got[1][1][0]) > 1e-3)


@pytest.mark.parametrize("arguments", IN_CELL, ids=str)
@pytest.mark.usefixtures("generator")
def test_in_a_function_as_where_tf_keras_unrolls(arguments):
    """In its loop tf_keras draws masks at each step, in an order that is not always the same."""
    wanted, _ = seeded(LSTM, {**arguments, "unroll": True}, tf.function)
    got, layer = seeded(tfl.FusedLSTM, arguments, tf.function)
    assert layer.fused_reason is None
    assert_close(got, wanted, (1e-4, 1e-5))


@pytest.mark.parametrize("arguments", AT_EACH_STEP, ids=str)
def test_in_a_function_at_each_step(arguments):
    wanted, _ = seeded(LSTM, arguments, tf.function)
    got, layer = seeded(tfl.FusedLSTM, arguments, tf.function)
    assert layer.fused_reason is None
    assert_close(got, wanted, (1e-4, 1e-5))


@pytest.mark.parametrize("arguments", [*IN_CELL[:2], AT_EACH_STEP[0]], ids=str)
def test_when_it_drops(arguments):
    tf_keras.utils.set_random_seed(6)  # else two calls may, seldom, draw the same few masks
    layer = tfl.FusedLSTM(4, use_fused=True, **arguments)
    layer.build(X.shape)
    plain = layer(X, training=False)
    assert_close(layer(X), plain, (0, 0))
    function = tf.function(lambda training: layer(X, training=training))
    assert_close(function(tf.constant(False)), plain, (1e-6, 1e-7))
    first, second = (function(tf.constant(True)) for _ in range(2))
    assert np.any(np.abs(first - plain) > 1e-3)
    assert np.any(np.abs(first - second) > 1e-3)
    types = [
        op.type for op in function.get_concrete_function(tf.constant(True)).graph.get_operations()
    ]
    assert types.count("FusedLSTM") == 1
    assert not {"While", "StatelessWhile"} & set(types)


def test_the_mean_over_many_masks():
    """No bias of the estimate: linear in what is dropped, it has the plain layer's mean."""
    arguments = {"activation": "linear", "recurrent_activation": "linear", "dropout": 0.5}
    layer = tfl.FusedLSTM(3, use_bias=False, kernel_initializer="ones", **arguments)
    x = tf.ones((4000, 1, 1))
    layer.build(x.shape)
    layer.set_weights([np.full((1, 12), 0.5), np.zeros((3, 12))])
    # o * i * g is a product of three gates of one mask: the mean of its cube, (2 ** 3) / 2.
    mean = tf.reduce_mean(layer(x, training=True)) / tf.reduce_mean(layer(x))
    np.testing.assert_allclose(mean, 4, rtol=0.1)


def test_fit():
    results = []
    for kind, arguments in ((LSTM, {"unroll": True}), (tfl.FusedLSTM, {"use_fused": True})):
        tf_keras.utils.set_random_seed(3)
        model = tf_keras.Sequential(
            [
                tf_keras.Input((5, 2)),
                kind(4, recurrent_dropout=0.3, dropout=0.2, return_sequences=True, **arguments),
                kind(3, recurrent_dropout=0.3, **arguments),
                tf_keras.layers.Dense(1),
            ]
        )
        model.compile(tf_keras.optimizers.SGD(0.1), "mse")
        x = inputs(4, (16, 5, 2))
        fit = model.fit(x, x[:, 0, :1], batch_size=4, epochs=4, shuffle=False, verbose=0)
        results.append([fit.history["loss"], *model.get_weights()])
    assert_close(results[1], results[0], (1e-3, 1e-4))
    assert results[1][0][-1] < results[1][0][0]


@pytest.mark.parametrize(
    "arguments", [{**IN_CELL[0]}, {**IN_CELL[1], "implementation": 1}, *AT_EACH_STEP], ids=str
)
@pytest.mark.parametrize("own_seed", [None, 11])
def test_draws_of_other_layers_stay_theirs(arguments, own_seed):
    """Layers of one seed share TensorFlow's generators, and what follows them draws on."""
    results = []
    for kind in (LSTM, tfl.FusedLSTM):
        tf_keras.utils.set_random_seed(5)
        layers = []
        for i in range(2):
            layer = kind(4, **arguments)
            layer.build(X.shape)
            layer.set_weights([inputs(i, w.shape).numpy() * 0.5 for w in layer.weights])
            for owner in (layer, layer.cell):
                owner._random_generator._seed = own_seed
            layers.append(layer)
        got = [layer(X, training=True) for _ in range(3) for layer in layers]
        results.append(
            [*got, tf_keras.layers.Dropout(0.5)(X, training=True), tf.random.uniform([3])]
        )
    assert_close(results[1], results[0])


def test_a_rate_of_one_is_refused_as_by_tf_keras():
    for arguments in ({"dropout": 1.0}, {"recurrent_dropout": 1.0, "dropout": 0.5}):
        for kind in (LSTM, tfl.FusedLSTM):
            with pytest.raises(ValueError, match="rate"):
                kind(4, **arguments)(X, training=True)


@pytest.mark.parametrize("arguments", [*IN_CELL, *AT_EACH_STEP], ids=str)
def test_without_any_seed(arguments):
    """Masks of the rates, others at each call and in each row."""
    tf.random.set_seed(None)
    layer = tfl.FusedLSTM(40, return_sequences=True, **arguments)
    x = tf.ones((60, 60, 30))
    layer.build(x.shape)

    def masks():
        if layer._drops_each_step(True):
            return [layer._dropped_each_step(x, True).numpy()]
        return [mask.numpy() for mask in layer._dropout_masks(x, True) if mask is not None]

    rates = [rate for name, rate in arguments.items() if name.endswith("dropout")]
    for first, second, rate in zip(masks(), masks(), rates, strict=True):
        assert set(np.unique(first)) == {0, np.float32(1 / (1 - rate))}
        np.testing.assert_allclose(first.mean(), 1, atol=0.1)
        assert np.any(first != second)
        assert np.any(first[..., 0, :] != first[..., 1, :])
