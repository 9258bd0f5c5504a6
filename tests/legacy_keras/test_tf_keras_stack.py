"""FusedLSTMStack in tf_keras: one op, equal to its layers one after the other."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from graph_ops import op_types
from keras_pairs import LIMITS, MASK, assert_close, inputs, randomise

import tf_fused_lstm as tfl

X = inputs()
UNITS = (4, 5, 3)


def stock_layers(bidirectional, return_sequences=False, **arguments):
    layers = []
    for index, units in enumerate(UNITS):
        sequences = return_sequences or index + 1 < len(UNITS)
        layer = tf_keras.layers.LSTM(units, return_sequences=sequences, **arguments)
        dtype = arguments.get("dtype")
        layers.append(tf_keras.layers.Bidirectional(layer, dtype=dtype) if bidirectional else layer)
    return layers


def call_all(layers, x, mask=None, training=None):
    for layer in layers:
        x = layer(x, mask=mask, training=training)
    return x


def stack_and_layers(bidirectional, return_sequences=False, shape=(3, 5, 2), **arguments):
    layers = stock_layers(bidirectional, return_sequences, **arguments)
    call_all(layers, tf.zeros(shape))
    for index, layer in enumerate(layers):
        randomise(layer, index)
    return tfl.FusedLSTMStack.from_layers(layers), layers


def outputs_and_gradients(function, x, weights):
    with tf.GradientTape() as tape:
        tape.watch(x)
        output = function(x)
        loss = tf.reduce_sum(tf.cast(output, tf.float64) * inputs(7, output.shape, "float64"))
    return output, tape.gradient(loss, [x, *weights])


def assert_equal(stack, layers, x=X, dtype="float32", **call):
    stock = [w for layer in layers for w in layer.trainable_weights]
    wanted = outputs_and_gradients(lambda v: call_all(layers, v, **call), x, stock)
    got = outputs_and_gradients(lambda v: stack(v, **call), x, stack.trainable_weights)
    assert_close(got[0], wanted[0], LIMITS[dtype][0])
    assert_close(got[1], wanted[1], LIMITS[dtype][1])
    assert stack.fused_reason is None


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("return_sequences", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_equals_its_layers(bidirectional, return_sequences, masked):
    stack, layers = stack_and_layers(bidirectional, return_sequences)
    assert_equal(stack, layers, mask=tf.constant(MASK) if masked else None)
    types = op_types(stack, X)
    assert types.count("FusedLSTM") == 1
    assert not {"While", "StatelessWhile"} & set(types)
    assert stack.compute_output_shape(X.shape) == stack(X).shape


@pytest.mark.parametrize("bidirectional", [False, True])
def test_time_major(bidirectional):
    stack, layers = stack_and_layers(bidirectional, True, (5, 3, 2), time_major=True)
    x = tf.transpose(X, [1, 0, 2])
    assert_equal(stack, layers, x, mask=tf.constant(MASK.T))
    fallback = tfl.FusedLSTMStack.from_layers(layers, use_fused=False)
    assert_close(fallback(x), stack(x))
    assert stack.compute_output_shape(x.shape) == stack(x).shape


@pytest.mark.parametrize("dtype", ["float16", "float64", "mixed_bfloat16"])
def test_types(dtype):
    stack, layers = stack_and_layers(True, True, dtype=dtype)
    compute = dtype.removeprefix("mixed_")
    assert_equal(stack, layers, inputs(dtype=compute), compute)
    assert stack(X).dtype == compute


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(
    "arguments",
    [{"recurrent_dropout": 0.3}, {"dropout": 0.3, "recurrent_dropout": 0.3}, {"dropout": 0.3}],
    ids=str,
)
def test_dropout_draws_what_the_layers_draw(bidirectional, arguments):
    stack, layers = stack_and_layers(bidirectional, True, **arguments)
    results = []
    for call in (lambda: call_all(layers, X, training=True), lambda: stack(X, training=True)):
        tf_keras.utils.set_random_seed(5)
        results.append([call(), call()])
    assert_close(results[1], results[0])
    assert np.any(np.abs(results[1][0] - results[1][1]) > 1e-3)
    if "recurrent_dropout" in arguments:
        assert stack.fused_reason is None
    else:
        assert "drops other inputs at each step" in stack.fused_reason
        stack(X)
        assert stack.fused_reason is None


@pytest.mark.parametrize("fused", ["auto", False])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_states(bidirectional, fused):
    """initial_state, return_state and stateful, by the op and layer by layer."""
    arguments = {"bidirectional": bidirectional, "return_state": True, "use_fused": fused}
    stack = tfl.FusedLSTMStack(UNITS, **arguments)
    stack(X)
    stateful = tfl.FusedLSTMStack(UNITS, **arguments, stateful=True)
    stateful(X)
    stateful.reset_states()
    stateful.set_weights(stack.get_weights())
    halves = [X[:, :2], X[:, 2:]]
    first = stack(halves[0])
    second = stack(halves[1], initial_state=first[1:])
    assert_close(stateful(halves[0]), first)
    assert_close(stateful(halves[1]), second)
    if not bidirectional:
        assert_close(second, stack(X))
    assert (stack.fused_reason is None) == (fused == "auto")
    with pytest.raises(ValueError, match="initial_state must be"):
        stack(X, initial_state=first[1:3])


def model_with_stack():
    """Masks, symbolic states of a stack, and a stack in training."""
    entry = tf_keras.Input((5, 2))
    masked = tf_keras.layers.Masking()(entry)
    arguments = {"bidirectional": True, "recurrent_dropout": 0.1}
    hidden, *states = tfl.FusedLSTMStack(
        [6, 4], return_sequences=True, return_state=True, **arguments
    )(masked)
    hidden = tfl.FusedLSTMStack([6, 4], **arguments)(hidden, initial_state=states)
    return tf_keras.Model(entry, tf_keras.layers.Dense(1)(hidden))


@pytest.mark.parametrize("file", ["model.keras", "model.h5", "model"])
def test_fit_and_saving(tmp_path, file):
    tf_keras.utils.set_random_seed(1)
    model = model_with_stack()
    model.compile(tf_keras.optimizers.SGD(0.1), "mse")
    x = np.array(inputs(3, (16, 5, 2)))
    x[::2, 3:] = 0
    losses = model.fit(x, x[:, 0, :1], epochs=4, batch_size=4, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    assert op_types(model, tf.constant(x)).count("FusedLSTM") == 2
    model.save(tmp_path / file)
    loaded = tf_keras.models.load_model(tmp_path / file)
    assert [type(layer) for layer in loaded.layers] == [type(layer) for layer in model.layers]
    assert_close(loaded(x), model(x))
    assert len({w.name for w in model.weights}) == len(model.weights)
    for weights in ("weights.weights.h5", "weights.h5", "checkpoint"):
        again = model_with_stack()
        model.save_weights(str(tmp_path / weights))
        again.load_weights(str(tmp_path / weights))
        assert_close(again(x), model(x))


def test_configuration():
    stack = tfl.FusedLSTMStack(
        [3, 2], bidirectional=True, return_sequences=True, activation="relu", dropout=0.1,
        recurrent_dropout=0.2, implementation=1, use_bias=False, name="mine", dtype="float64",
    )  # fmt: skip
    again = tfl.FusedLSTMStack.from_config(stack.get_config())
    assert again.get_config() == stack.get_config()
    assert again.name == "mine"
    with pytest.raises(ValueError, match="go_backwards must be False"):
        tfl.FusedLSTMStack([3], bidirectional=True, go_backwards=True)
    mixed = [tf_keras.layers.LSTM(3, return_sequences=True), tf_keras.layers.LSTM(3, "relu")]
    with pytest.raises(ValueError, match="another activation"):
        tfl.FusedLSTMStack.from_layers(mixed)
