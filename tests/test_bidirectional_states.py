"""keras.layers.Bidirectional around FusedLSTM with an initial_state: one op, equal to stock."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from graph_ops import all_op_types
from keras_pairs import MASK, assert_close, inputs, wrapped_pair

import tf_fused_lstm as tfl
from tf_fused_lstm import _keras

X = inputs()
STATES = [inputs(i, (3, 4)) for i in (2, 3, 4, 5)]
GRADIENT_LIMIT = (1e-4, 1e-5)


def bidirectional_pair(merge_mode: str | None = "concat", **arguments):
    return wrapped_pair(
        lambda layer: keras.layers.Bidirectional(layer, merge_mode=merge_mode), **arguments
    )


def outputs_and_gradients(layer, states=STATES, **call):
    """(outputs, gradients by x, the states and the weights)."""
    states = [tf.convert_to_tensor(state) for state in states]
    with tf.GradientTape() as tape:
        tape.watch([X, *states])
        outputs = tf.nest.flatten(layer(X, initial_state=states, **call))
        loss = tf.add_n(
            [
                tf.reduce_sum(tf.cast(v, tf.float32) * inputs(i, v.shape))
                for i, v in enumerate(outputs)
            ]
        )
    weights = [v.value for v in layer.trainable_variables]
    return outputs, tape.gradient(loss, [X, *states, *weights])


def assert_equal(stock, fused, **call):
    got, wanted = (outputs_and_gradients(layer, **call) for layer in (fused, stock))
    assert_close(got[0], wanted[0])
    assert_close(got[1], wanted[1], GRADIENT_LIMIT)
    assert fused.forward_layer.apart_reason is None


def op_count(function) -> int:
    return all_op_types(tf.function(function).get_concrete_function().graph).count("FusedLSTM")


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("return_state", [False, True])
@pytest.mark.parametrize("return_sequences", [False, True])
@pytest.mark.parametrize("merge_mode", ["concat", "sum", "mul", "ave", None])
def test_merge_modes(merge_mode, return_sequences, return_state, masked):
    stock, fused = bidirectional_pair(
        merge_mode, return_sequences=return_sequences, return_state=return_state
    )
    assert_equal(stock, fused, mask=tf.constant(MASK) if masked else None)


@pytest.mark.parametrize("return_sequences", [False, True])
def test_in_a_function(return_sequences):
    stock, fused = bidirectional_pair(return_sequences=return_sequences, return_state=True)
    function = tf.function(lambda: outputs_and_gradients(fused, mask=tf.constant(MASK)))
    got, wanted = function(), outputs_and_gradients(stock, mask=tf.constant(MASK))
    assert_close(got[0], wanted[0])
    assert_close(got[1], wanted[1], GRADIENT_LIMIT)
    types = all_op_types(function.get_concrete_function().graph)
    assert types.count("FusedLSTM") == types.count("FusedLSTMGrad") == 1


@pytest.mark.parametrize("kind", ["tuple", "numpy", "float64", "positional"])
def test_states_of_every_kind(kind):
    stock, fused = bidirectional_pair(return_state=True)
    states = {
        "tuple": tuple(STATES),
        "numpy": [state.numpy() for state in STATES],
        "float64": [tf.cast(state, tf.float64) for state in STATES],
        "positional": STATES,
    }[kind]
    for layer in (stock, fused):
        layer.results = layer(X, states) if kind == "positional" else layer(X, initial_state=states)
    assert_close(fused.results, stock.results)
    assert fused.forward_layer.apart_reason is None


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_policies_cast_the_states(policy):
    fused, wide = (
        keras.layers.Bidirectional(tfl.FusedLSTM(4, return_state=True, dtype=dtype), dtype=dtype)
        for dtype in (policy, "float32")
    )
    fused.build(X.shape)
    wide.build(X.shape)
    fused.set_weights(wide.get_weights())
    results = fused(X, initial_state=STATES)
    assert {v.dtype.name for v in results} == {policy.removeprefix("mixed_")}
    assert_close(results, wide(X, initial_state=STATES), (3e-2, 3e-2))
    assert fused.forward_layer.apart_reason is None


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_a_wrong_number_of_states_is_refused(count):
    layer = keras.layers.Bidirectional(tfl.FusedLSTM(4))
    with pytest.raises(ValueError, match="initial_state must be two tensors"):
        layer(X, initial_state=(STATES * 2)[:count])


def test_stateful():
    stock, fused = bidirectional_pair(stateful=True)
    for states in (None, STATES, None, STATES):
        assert_close(fused(X, initial_state=states), stock(X, initial_state=states))
        assert fused.forward_layer.apart_reason is None


def test_dropout():
    stock, fused = bidirectional_pair(dropout=0.3, recurrent_dropout=0.3, seed=5)
    for _ in range(2):
        results = [layer(X, initial_state=STATES, training=True) for layer in (fused, stock)]
        assert_close(*results)
    assert fused.forward_layer.apart_reason is None


def test_states_that_change_from_call_to_call():
    stock, fused = bidirectional_pair()
    for states in (STATES, None, STATES[::-1], None):
        assert_close(fused(X, initial_state=states), stock(X, initial_state=states))
        assert fused.backward_layer._together.results is None


def encoder_decoder(lstm):
    """A model whose decoder starts from its encoder's states, and whose encoder from inputs."""
    keras.utils.set_random_seed(2)
    entry = keras.Input((5, 2))
    states = [keras.Input((4,)) for _ in range(4)]
    x = keras.layers.Masking()(entry)
    x, *encoded = keras.layers.Bidirectional(lstm(4, return_sequences=True, return_state=True))(
        x, initial_state=states
    )
    x = keras.layers.Bidirectional(lstm(4), merge_mode="ave")(x, initial_state=encoded)
    return keras.Model([entry, *states], keras.layers.Dense(1)(x))


def test_functional_model(tmp_path):
    data = [np.array(inputs(i, (8, *shape))) for i, shape in enumerate([(5, 2)] + [(4,)] * 4)]
    data[0][::2, 3:] = 0
    models = [encoder_decoder(lstm) for lstm in (keras.layers.LSTM, tfl.FusedLSTM)]
    for model in models:
        model.compile("sgd", "mse")
        model.fit(data, inputs(7, (8, 1)), batch_size=4, epochs=2, shuffle=False, verbose=0)
    stock, fused = models
    for got, wanted in zip(fused.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    assert_close(fused.predict(data, verbose=0), stock.predict(data, verbose=0), GRADIENT_LIMIT)
    assert op_count(lambda: fused(data)) == 2
    fused.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_close(loaded(data), fused(data))
    assert op_count(lambda: loaded(data)) == 2
    fused.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(tmp_path / "exported")
    assert_close(exported.serve(data), fused(data))
    types = all_op_types(exported.serve.concrete_functions[0].graph)
    assert "FusedLSTM" in types
    assert not {"While", "StatelessWhile"} & set(types)


def test_compiled_function():
    stock, fused = bidirectional_pair(return_sequences=True)
    function = tf.function(lambda x, s: fused(x, initial_state=s), jit_compile=True)
    assert_close(function(X, STATES), stock(X, initial_state=STATES))


def test_a_subclass_that_calls_the_wrappers_own_call():
    """Its layers get what it passes on, not what it got."""

    class Doubled(keras.layers.Bidirectional):
        def call(self, sequences, initial_state=None, mask=None, training=None):
            states = [2 * state for state in initial_state]
            return super().call(sequences, initial_state=states, mask=mask, training=training)

    _, fused = bidirectional_pair()
    doubled = Doubled(tfl.FusedLSTM(4))
    doubled.build(X.shape)
    doubled.set_weights(fused.get_weights())
    wanted = fused(X, initial_state=[2 * state for state in STATES])
    assert_close(doubled(X, initial_state=STATES), wanted)
    assert doubled.forward_layer.apart_reason is None


def test_a_function_around_a_direction_keeps_its_tensors():
    stock, fused = bidirectional_pair()
    fused.forward_layer.call = tf.function(fused.forward_layer.call)
    for _ in range(2):
        assert_close(fused(X, initial_state=STATES), stock(X, initial_state=STATES))


def test_without_frames_the_directions_run_apart(monkeypatch):
    stock, fused = bidirectional_pair(return_state=True)
    monkeypatch.setattr(_keras, "_BIDIRECTIONAL_CALL", None)
    assert_close(fused(X, initial_state=STATES), stock(X, initial_state=STATES))
    assert op_count(lambda: fused(X, initial_state=STATES)) == 2


def test_states_that_the_wrapper_does_not_show(monkeypatch):
    """Such as where another release of Keras names its arguments otherwise."""
    stock, fused = bidirectional_pair(return_state=True)
    monkeypatch.setattr(_keras, "calling_bidirectional", lambda _: (fused, None))
    assert_close(fused(X, initial_state=STATES), stock(X, initial_state=STATES))
    assert "initial_state is not known" in fused.forward_layer.apart_reason
