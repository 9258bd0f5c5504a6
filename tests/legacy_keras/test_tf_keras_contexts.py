"""FusedLSTM in what else tf_keras and TensorFlow offer: fit, XLA, strategies, derivatives."""

import copy
import pickle

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from keras_pairs import MASK, assert_close, inputs, pair

import tf_fused_lstm as tfl
from tf_fused_lstm import _xla

# Two replicas, of one CPU each, for the strategy.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

X = inputs()
LSTM = tf_keras.layers.LSTM
TOKENS = np.array([[1, 2, 3, 0, 0], [4, 1, 0, 0, 0], [2, 2, 1, 3, 4], [3, 0, 0, 0, 0]] * 2)
LABELS = np.linspace(-1, 1, 8, dtype=np.float32)


def language_model(kind, **arguments):
    tf_keras.utils.set_random_seed(3)
    return tf_keras.Sequential(
        [
            tf_keras.layers.Embedding(5, 3, mask_zero=True),
            tf_keras.layers.Bidirectional(kind(4, return_sequences=True, **arguments)),
            kind(3, dropout=0.1, **arguments),
            tf_keras.layers.Dense(1),
        ]
    )


def fused_layers(model):
    return [layer for layer in model._flatten_layers() if type(layer) is tfl.FusedLSTM]


def losses(kind, epochs=3, scope=None, **compiled):
    def build():
        model = language_model(kind)
        model.compile(tf_keras.optimizers.Adam(0.02), "mse", **compiled)
        return model

    if scope is None:
        model = build()
    else:
        with scope():
            model = build()
    history = model.fit(TOKENS, LABELS, batch_size=4, shuffle=False, epochs=epochs, verbose=0)
    return model, history.history["loss"]


@pytest.mark.parametrize("compiled", [{}, {"run_eagerly": True}, {"steps_per_execution": 2}])
def test_fit(compiled):
    _, wanted = losses(LSTM, **compiled)
    model, got = losses(tfl.FusedLSTM, **compiled)
    assert [layer.fused_reason for layer in fused_layers(model)] == [None] * 3
    np.testing.assert_allclose(got, wanted, rtol=1e-4)
    assert got[-1] < got[0]


def test_fit_compiled_by_xla():
    assert _xla.available()
    model, got = losses(tfl.FusedLSTM, jit_compile=True)
    assert [layer.fused_reason for layer in fused_layers(model)] == [None] * 3
    assert len(set(got)) == len(got)
    assert np.all(np.isfinite(got))
    stock, fused = pair(return_sequences=True, return_state=True)
    compiled = tf.function(fused, jit_compile=True)
    assert_close(compiled(X, mask=tf.constant(MASK)), stock(X, mask=MASK))
    assert fused.fused_reason is None


def test_mirrored_strategy():
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    results = []
    for kind in (LSTM, tfl.FusedLSTM):
        tf_keras.utils.set_random_seed(1)
        with strategy.scope():
            layers = [tf_keras.Input((5, 2)), kind(4), tf_keras.layers.Dense(1)]
            model = tf_keras.Sequential(layers)
            model.compile("sgd", "mse")
        x = inputs(shape=(8, 5, 2))
        fit = model.fit(x, LABELS, batch_size=8, epochs=3, shuffle=False, verbose=0)
        results.append(fit.history["loss"])
    assert model.layers[0].fused_reason is None
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5)


def test_bidirectional_passes_the_mask_of_an_embedding_on():
    stock, fused = language_model(LSTM), language_model(tfl.FusedLSTM)
    assert_close(fused(TOKENS), stock(TOKENS))
    fused.set_weights([w + 0.1 for w in stock.get_weights()])
    stock.set_weights(fused.get_weights())
    assert_close(fused.predict(TOKENS, verbose=0), stock.predict(TOKENS, verbose=0))


def test_functional_with_symbolic_states():
    models = []
    for kind in (LSTM, tfl.FusedLSTM):
        tf_keras.utils.set_random_seed(1)
        entry = tf_keras.Input((None, 2))
        encoded, *states = kind(4, return_sequences=True, return_state=True)(entry)
        decoded = kind(4)(encoded, initial_state=states)
        models.append(tf_keras.Model(entry, [decoded, *states]))
    assert [t.shape.as_list() for t in models[1].outputs] == [[None, 4]] * 3
    assert_close(models[1](X), models[0](X))
    assert_close(models[1](X[:, :2]), models[0](X[:, :2]))


def test_second_derivatives():
    stock, fused = pair(dtype="float64")
    x = inputs(dtype="float64")

    def penalty(layer):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                loss = tf.reduce_sum(layer(x))
            loss = tf.reduce_sum(inner.gradient(loss, x) ** 2)
        return outer.gradient(loss, layer.trainable_variables)

    assert_close(penalty(fused), penalty(stock), (1e-9, 1e-12))


def jacobians(layer, x):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        output = layer(x, mask=tf.constant(MASK))
    return tape.batch_jacobian(output, x), tape.jacobian(output, layer.trainable_variables)


def per_example(layer, x):
    def gradients(row):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(row[tf.newaxis]) ** 2)
        return tape.gradient(loss, layer.trainable_variables)

    return tf.vectorized_map(gradients, x)


def forward_products(layer, x):
    """Of the output and of its gradient."""
    with tf.autodiff.ForwardAccumulator(x, inputs(5, dtype="float64")) as accumulator:
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = layer(x, mask=tf.constant(MASK))
            loss = tf.reduce_sum(output**2)
        gradient = tape.gradient(loss, x)
    return accumulator.jvp(output), accumulator.jvp(gradient)


def recomputed_without_training(layer, x):
    function = tf.recompute_grad(lambda x: layer(x, training=False))
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(function(x) ** 2)
    return tape.gradient(loss, [x, *layer.trainable_variables])


@pytest.mark.parametrize(
    "derivatives", [jacobians, per_example, forward_products, recomputed_without_training],
    ids=lambda f: f.__name__,
)  # fmt: skip
def test_other_derivatives(derivatives):
    """Against tf_keras's layer unrolled: not unrolled it has no forward mode."""
    stock, _ = pair(dtype="float64", unroll=True, recurrent_dropout=0.5)
    _, fused = pair(dtype="float64", recurrent_dropout=0.5)
    x = inputs(dtype="float64")
    assert_close(derivatives(fused, x), derivatives(stock, x), (1e-9, 1e-12))
    assert fused.fused_reason is None


def test_initial_state_replaced_in_one_layer():
    stock, fused = pair()
    before = fused(X)
    for layer in (stock, fused):
        layer.get_initial_state = lambda *_, **__: [tf.fill((3, 4), v) for v in (0.5, 2.0)]
    assert_close(fused(X), stock(X))
    assert fused.fused_reason is None
    assert float(tf.reduce_max(tf.abs(fused(X) - before))) > 1e-2


def test_copies():
    _, layer = pair(return_sequences=True)
    model = tf_keras.Sequential([tf_keras.Input((5, 2)), layer])
    wanted = model(X)
    assert_close(copy.deepcopy(model)(X), wanted)
    again = pickle.loads(pickle.dumps(model))
    assert type(again.layers[0]) is tfl.FusedLSTM
    assert_close(again(X), wanted)


def test_regularizers_and_constraints():
    results = []
    for kind in (LSTM, tfl.FusedLSTM):
        tf_keras.utils.set_random_seed(1)
        layer = kind(
            4, kernel_regularizer="l2", bias_regularizer="l1", activity_regularizer="l2",
            recurrent_constraint="unit_norm",
        )  # fmt: skip
        model = tf_keras.Sequential([tf_keras.Input((5, 2)), layer])
        model.compile("sgd", "mse")
        model.fit(X, np.ones((3, 4)), epochs=2, verbose=0)
        model(X)
        results.append([*model.get_weights(), *layer.losses])
    assert_close(results[1], results[0], (1e-4, 1e-5))


def test_tf_keras_in_version_1_graphs():
    """tf_keras's layers in a graph and a session, as programs of TensorFlow 1 build them."""
    weights = [inputs(i, shape).numpy() for i, shape in enumerate([(2, 16), (4, 16), (16,)])]
    results = []
    for kind in (LSTM, tfl.FusedLSTM):
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            entry = tf.compat.v1.placeholder(tf.float32, (3, 5, 2))
            layer = kind(4, return_sequences=True)
            output = layer(entry)
            (gradient,) = tf.gradients(output, entry)
            session.run(tf.compat.v1.global_variables_initializer())
            for variable, value in zip(layer.weights, weights, strict=True):
                variable.load(value, session)
            results.append(session.run([output, gradient], {entry: X.numpy()}))
    assert layer.fused_reason is None
    assert_close(results[1], results[0], (1e-4, 1e-5))
