"""tf_keras.layers.Bidirectional around FusedLSTM: one op, and equal to that of tf_keras's LSTM."""

import copy
import pickle

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from graph_ops import op_types
from keras_pairs import MASK, assert_close, assert_same, inputs, wrapped_pair

import tf_fused_lstm as tfl

X = inputs()
STATES = [inputs(i, (3, 4)) for i in (2, 3, 4, 5)]
Bidirectional = tf_keras.layers.Bidirectional


def bidirectional_pair(merge_mode="concat", **arguments):
    return wrapped_pair(lambda layer: Bidirectional(layer, merge_mode=merge_mode), **arguments)


def op_count(function):
    return op_types(function).count("FusedLSTM")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("return_state", [False, True])
@pytest.mark.parametrize("return_sequences", [False, True])
@pytest.mark.parametrize("merge_mode", ["concat", "sum", "mul", "ave", None])
def test_merge_modes(merge_mode, return_sequences, return_state, masked):
    stock, fused = bidirectional_pair(
        merge_mode, return_sequences=return_sequences, return_state=return_state
    )
    mask = tf.constant(MASK) if masked else None
    for states in (None, STATES):
        assert_same(stock, fused, X, mask=mask, initial_state=states)
        assert fused.forward_layer.apart_reason is None
    for layer in (fused.forward_layer, fused.backward_layer):
        assert type(layer) is tfl.FusedLSTM
        assert layer.fused_reason is None
    assert op_count(lambda: fused(X, mask=mask, initial_state=STATES)) == 1


@pytest.mark.parametrize("dtype", ["float16", "float64", "mixed_bfloat16"])
def test_types(dtype):
    compute = dtype.removeprefix("mixed_")
    stock, fused = wrapped_pair(
        lambda layer: Bidirectional(layer, dtype=dtype), return_sequences=True, dtype=dtype
    )
    assert_same(stock, fused, inputs(dtype=compute), compute, mask=tf.constant(MASK))
    assert fused.forward_layer.apart_reason is None


@pytest.mark.parametrize("return_sequences", [False, True])
def test_time_major(return_sequences):
    stock, fused = wrapped_pair(
        Bidirectional, (5, 3, 2), time_major=True, return_sequences=return_sequences
    )
    x = tf.transpose(X, [1, 0, 2])
    assert_same(stock, fused, x, mask=tf.constant(MASK.T), initial_state=STATES)
    assert fused.forward_layer.apart_reason is None


def test_ragged_sequences():
    stock, fused = bidirectional_pair()
    x = tf.RaggedTensor.from_tensor(X, [2, 5, 1])
    assert_close(fused(x), stock(x))
    assert fused.forward_layer.apart_reason is None


@pytest.mark.parametrize(
    "arguments",
    [{"recurrent_dropout": 0.4}, {"dropout": 0.3, "recurrent_dropout": 0.4}, {"dropout": 0.3}],
    ids=str,
)
def test_dropout(arguments):
    results = []
    for kind in (tf_keras.layers.LSTM, tfl.FusedLSTM):
        tf_keras.utils.set_random_seed(5)
        layer = Bidirectional(kind(4, return_sequences=True, **arguments))
        results.append([layer(X, training=True), layer(X, training=True)])
    assert_close(results[1], results[0])
    reason = layer.forward_layer.apart_reason
    if "recurrent_dropout" in arguments:
        assert reason is None
        assert op_count(lambda: layer(X, training=True)) == 1
    else:
        assert "drops other inputs at each step" in reason
        layer(X)
        assert layer.forward_layer.apart_reason is None


def test_stateful():
    stock, fused = bidirectional_pair(stateful=True, return_sequences=True)
    for states in (None, None, STATES):
        assert_close(fused(X, initial_state=states), stock(X, initial_state=states))
        assert fused.forward_layer.apart_reason is None
    for layer in (stock, fused):
        layer.reset_states()
    assert_close(fused(X, initial_state=STATES), stock(X, initial_state=STATES))
    for layer in ("forward_layer", "backward_layer"):
        assert_close(getattr(fused, layer).states, getattr(stock, layer).states)


@pytest.mark.parametrize(
    ("forward", "backward", "reason"),
    [
        ({}, {}, None),
        ({}, {"activation": "relu"}, "another activation"),
        ({}, {"units": 6}, "another number of units"),
        ({}, {"recurrent_dropout": 0.5}, "other dropout"),
        ({"go_backwards": True}, {"go_backwards": False}, "runs backward in time"),
        ({}, {"activation": "selu"}, "activation=selu"),
        ({"activation": "selu"}, {}, "activation=selu"),
    ],
)
def test_a_backward_layer_of_ones_own(forward, backward, reason):
    layers = []
    for kind in (tf_keras.layers.LSTM, tfl.FusedLSTM):
        own = {"units": 4, "return_sequences": True, "go_backwards": True, **backward}
        layer = Bidirectional(kind(4, return_sequences=True, **forward), backward_layer=kind(**own))
        layer.build(X.shape)
        layers.append(layer)
    stock, fused = layers
    fused.set_weights(stock.get_weights())
    assert_same(stock, fused, X)
    found = fused.forward_layer.apart_reason
    assert found is None if reason is None else reason in found


def functional(kind):
    """An encoder whose states are inputs, and a decoder that starts from its states."""
    tf_keras.utils.set_random_seed(2)
    entry = tf_keras.Input((5, 2))
    states = [tf_keras.Input((4,)) for _ in range(4)]
    x = tf_keras.layers.Masking()(entry)
    x, *encoded = Bidirectional(kind(4, return_sequences=True, return_state=True))(
        x, initial_state=states
    )
    x = Bidirectional(kind(4), merge_mode="ave")(x, initial_state=encoded)
    return tf_keras.Model([entry, *states], tf_keras.layers.Dense(1)(x))


@pytest.mark.parametrize("file", ["model.keras", "model.h5", "model"])
def test_functional_model(tmp_path, file):
    data = [inputs(i, (8, *shape)).numpy() for i, shape in enumerate([(5, 2)] + [(4,)] * 4)]
    data[0][::2, 3:] = 0
    models = [functional(kind) for kind in (tf_keras.layers.LSTM, tfl.FusedLSTM)]
    for model in models:
        model.compile("sgd", "mse")
        model.fit(data, inputs(7, (8, 1)), batch_size=4, epochs=2, shuffle=False, verbose=0)
    stock, fused = models
    assert_close(fused.get_weights(), stock.get_weights(), (1e-4, 1e-5))
    assert_close(fused.predict(data, verbose=0), stock.predict(data, verbose=0), (1e-4, 1e-5))
    assert op_count(lambda: fused(data)) == 2
    fused.save(tmp_path / file)
    loaded = tf_keras.models.load_model(tmp_path / file)
    assert_close(loaded(data), fused(data))
    assert op_count(lambda: loaded(data)) == 2


def test_compiled_function():
    stock, fused = bidirectional_pair(return_sequences=True)
    function = tf.function(lambda x, s: fused(x, initial_state=s), jit_compile=True)
    assert_close(function(X, STATES), stock(X, initial_state=STATES))


def test_layers_called_by_themselves_run_alone():
    _, fused = bidirectional_pair(return_sequences=True)
    ahead, behind = fused.forward_layer, fused.backward_layer
    other = inputs(9)
    alone = [np.asarray(ahead(other)), np.asarray(behind(other))]
    both = fused(X)
    assert_close([ahead(other), behind(other)], alone)
    assert_close(fused(X), both)
    assert behind._together.results is None


def test_a_replaced_layer_and_copies():
    stock, _ = bidirectional_pair(return_sequences=True)
    wanted = stock(X)
    fused = tfl.replace_lstm(stock)
    assert_close(fused(X), wanted)
    assert fused.forward_layer.apart_reason is None
    layer = copy.deepcopy(fused)
    assert_close(layer(X), wanted)
    model = tf_keras.Sequential([tf_keras.Input((5, 2)), fused])
    assert_close(pickle.loads(pickle.dumps(model))(X), wanted)
    tfl.restore_lstm(fused)
    assert not hasattr(fused.forward_layer, "_together")
    assert_close(fused(X), wanted)
