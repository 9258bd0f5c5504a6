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


def layers(bidirectional: bool):
    """The layer as it is, and rematerialised, of equal weights."""
    made = []
    for mode in (None, "full"):
        with keras.RematScope(mode=mode):
            layer = tfl.FusedLSTM(4, return_sequences=True)
            made.append(keras.layers.Bidirectional(layer) if bidirectional else layer)
            made[-1].build(X.shape)
    made[1].set_weights(made[0].get_weights())
    return made


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
