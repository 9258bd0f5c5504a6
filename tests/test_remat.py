"""Rematerialisation by Keras: the op runs again in the backward pass, with the same gradients."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from graph_ops import all_op_types
from keras_pairs import MASK, assert_close, inputs

import tf_fused_lstm as tfl

X = inputs()


def layers(bidirectional: bool = False, **arguments):
    """The layer as it is, and rematerialised, of equal weights."""
    made = []
    for mode in (None, "full"):
        with keras.RematScope(mode=mode):
            layer = tfl.FusedLSTM(4, return_sequences=True, **arguments)
            made.append(keras.layers.Bidirectional(layer) if bidirectional else layer)
            made[-1].build(X.shape)
    made[1].set_weights(made[0].get_weights())
    return made


@pytest.mark.parametrize("in_function", [False, True])
@pytest.mark.parametrize("dropouts", [(0.5, 0.0), (0.0, 0.5), (0.3, 0.4)])
def test_remat_scope_with_dropout(dropouts, in_function):
    """The gradient is of what the call dropped; Keras's layer drops something else for it."""
    plain, remat = layers(dropout=dropouts[0], recurrent_dropout=dropouts[1], seed=7)
    results = []
    for layer in (plain, remat):
        run = gradients(lambda x, layer=layer: layer(x, training=True), layer)
        run = tf.function(run) if in_function else run
        results.append([run(X), run(X), layer.cell.seed_generator.state.value])
    for got, wanted in zip(*reversed(results), strict=True):
        assert_close(got, wanted, (1e-4, 1e-5))
    assert not np.allclose(results[1][0][0], results[1][1][0])


@pytest.mark.parametrize("in_function", [False, True])
def test_remat_scope_of_a_stateful_layer(in_function):
    """The gradient is of the states that the call began with, and they move on once."""
    plain, remat = layers(stateful=True)
    results = []
    for layer in (plain, remat):
        run = gradients(layer, layer)
        run = tf.function(run) if in_function else run
        results.append([run(X), run(X), [v.value for v in layer.states]])
    for got, wanted in zip(*reversed(results), strict=True):
        assert_close(got, wanted, (1e-4, 1e-5))
    assert not np.allclose(results[1][0][0], results[1][1][0])


def gradients(call, layer):
    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = call(x)
            loss = tf.reduce_sum(output * inputs(7, output.shape))
        return output, tape.gradient(loss, [x, *(v.value for v in layer.trainable_variables)])

    return run


@pytest.mark.parametrize(
    # In a graph Keras's wrapper itself cannot be recomputed.
    ("bidirectional", "in_function"),
    [(False, False), (False, True), (True, False)],
)
def test_remat_scope(bidirectional, in_function):
    plain, remat = layers(bidirectional)
    mask = tf.constant(MASK)
    wanted = gradients(lambda x: plain(x, mask=mask), plain)(X)
    run = gradients(lambda x: remat(x, mask=mask), remat)
    if in_function:
        run = tf.function(run)
        assert (
            all_op_types(run.get_concrete_function(X).graph).count("FusedLSTM") >= 2
        )  # again in the backward pass
    got = run(X)
    assert_close(got[0], wanted[0])
    assert_close(got[1], wanted[1], (1e-4, 1e-5))


@pytest.mark.parametrize("in_function", [False, True])
def test_remat_of_a_call(in_function):
    plain, _ = layers(False)
    wanted = gradients(plain, plain)(X)
    run = gradients(keras.remat(plain.__call__), plain)
    got = (tf.function(run) if in_function else run)(X)
    assert_close(got[0], wanted[0])
    assert_close(got[1], wanted[1], (1e-4, 1e-5))


def test_fit():
    weights = []
    for mode in (None, "full"):
        keras.utils.set_random_seed(1)
        with keras.RematScope(mode=mode):
            lstm = tfl.FusedLSTM(4)
        model = keras.Sequential([keras.Input((5, 2)), lstm, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        x = np.array(inputs(3, (8, 5, 2)))
        model.fit(x, x[:, 0, :1], epochs=2, batch_size=4, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    assert_close(weights[1], weights[0], (1e-4, 1e-5))
