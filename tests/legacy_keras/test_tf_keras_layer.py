"""FusedLSTM as a tf_keras layer: equal to tf_keras.layers.LSTM in every observable way."""

import inspect
import re

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from graph_ops import op_types
from keras_pairs import MASK, UNITS, assert_close, assert_same, inputs, pair, wrapped_pair

import tf_fused_lstm as tfl

X = inputs()
LSTM = tf_keras.layers.LSTM


def swapped(value):
    """Batch-major as time-major and back."""
    value = tf.convert_to_tensor(value)
    return tf.transpose(value, [1, 0, *range(2, value.shape.rank)])


def test_it_is_a_layer_of_tf_keras():
    layer = tfl.FusedLSTM(4)
    assert isinstance(layer, LSTM)
    assert tf.keras.layers.LSTM is LSTM
    assert tf_keras.saving.get_registered_name(tfl.FusedLSTM) == "tf_fused_lstm>FusedLSTM"
    stock_call = inspect.signature(LSTM.call).parameters
    assert list(inspect.signature(tfl.FusedLSTM.call).parameters) == list(stock_call)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("go_backwards", [False, True])
@pytest.mark.parametrize("return_sequences", [False, True])
def test_outputs_and_gradients(return_sequences, go_backwards, time_major, masked):
    shape = (5, 3, 2) if time_major else (3, 5, 2)
    stock, fused = pair(
        shape, return_sequences=return_sequences, return_state=True, go_backwards=go_backwards,
        time_major=time_major,
    )  # fmt: skip
    x, call = X, {}
    if masked:
        call["mask"] = tf.constant(MASK)
    if time_major:
        x, call = swapped(x), {name: swapped(value) for name, value in call.items()}
    output = assert_same(stock, fused, x, **call)[0]
    assert fused.fused_reason is None
    states = [inputs(2, (3, 4)), inputs(3, (3, 4))]
    assert_same(stock, fused, x, initial_state=states, **call)
    assert fused.fused_reason is None
    expected = [tuple(shape) for shape in stock.compute_output_shape(x.shape)]
    assert tuple(output.shape) == expected[0]
    assert [tuple(shape) for shape in fused.compute_output_shape(x.shape)] == expected


@pytest.mark.parametrize("unroll", [False, True])
@pytest.mark.parametrize("zero_output_for_mask", [False, True])
@pytest.mark.parametrize("return_sequences", [False, True])
def test_masks_in_every_path(return_sequences, zero_output_for_mask, unroll):
    arguments = {
        "return_sequences": return_sequences, "return_state": True,
        "zero_output_for_mask": zero_output_for_mask,
    }  # fmt: skip
    stock, fused = pair(unroll=unroll, **arguments)
    if unroll and zero_output_for_mask and not return_sequences:
        # tf_keras fails on this one; the answer is that of its loop.
        stock, _ = pair(**arguments)
    assert_same(stock, fused, X, mask=MASK)
    assert fused.fused_reason is None
    assert_close(tf.function(fused)(X, mask=MASK), tf.function(stock)(X, mask=MASK))


@pytest.mark.parametrize("form", ["int32", "float32", "column", "list", "per_unit"])
def test_masks_of_every_form(form):
    stock, fused = pair(return_sequences=True)
    mask = tf.constant(MASK)
    if form in ("int32", "float32"):
        mask = tf.cast(mask, form)
    elif form == "column":
        mask = mask[:, :, tf.newaxis]
    elif form == "list":
        mask = [mask]
    else:
        mask = tf.tile(mask[:, :, tf.newaxis], [1, 1, UNITS])
    assert_same(stock, fused, X, mask=mask)
    assert (fused.fused_reason is None) == (form != "per_unit")


@pytest.mark.parametrize("dtype", ["float64", "float16", "mixed_float16", "mixed_bfloat16"])
def test_dtypes(dtype):
    compute = dtype.removeprefix("mixed_")
    stock, fused = pair(dtype=dtype, return_sequences=True, return_state=True)
    assert [v.dtype for v in fused.weights] == [v.dtype for v in stock.weights]
    assert_same(stock, fused, inputs(dtype=compute), compute, mask=MASK)
    assert fused.fused_reason is None


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float16", "float64"])
@pytest.mark.parametrize("kind", ["layer", "bidirectional", "stack"])
def test_global_policy_keeps_casts_away_from_the_op(kind, policy):
    """Of variables and of their gradients."""
    tf_keras.mixed_precision.set_global_policy(policy)
    arguments = {"recurrent_initializer": "glorot_uniform"}
    if kind == "stack":
        layer = tfl.FusedLSTMStack([4, 3], bidirectional=True, **arguments)
    else:
        layer = tfl.FusedLSTM(4, return_sequences=True, **arguments)
        layer = tf_keras.layers.Bidirectional(layer) if kind == "bidirectional" else layer
    layer.build(X.shape)
    weights = layer.trainable_variables
    assert {w.dtype.name for w in weights} == {"float32" if "mixed" in policy else policy}

    def train(x, mask):
        with tf.GradientTape() as tape:
            output = layer(x, mask=mask)
        gradients = tape.gradient(output, weights)
        assert [g.dtype for g in gradients] == [w.dtype for w in weights]
        return output, gradients

    types = op_types(train, tf.cast(X, policy.removeprefix("mixed_")), tf.constant(MASK))
    assert types.count("FusedLSTM") == types.count("FusedLSTMGrad") == 1
    assert "Cast" not in types


@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("go_backwards", [False, True])
@pytest.mark.parametrize("arguments", [
    {"unroll": True}, {"implementation": 0}, {"implementation": 1}, {"implementation": 2},
    {"unroll": True, "implementation": 1},
], ids=str)  # fmt: skip
def test_arguments_of_tf_keras_alone(arguments, go_backwards, time_major):
    """With a bias and without, where tf_keras takes other paths; the op runs."""
    shape = (5, 3, 2) if time_major else (3, 5, 2)
    for use_bias in (True, False):
        stock, fused = pair(
            shape, return_sequences=True, return_state=True, go_backwards=go_backwards,
            time_major=time_major, use_bias=use_bias, **arguments,
        )  # fmt: skip
        x, mask = (swapped(X), swapped(MASK)) if time_major else (X, tf.constant(MASK))
        assert_same(stock, fused, x, mask=mask)
        assert fused.fused_reason is None


def test_stateful():
    stock, fused = pair(stateful=True, return_sequences=True)
    for part in (X[:, :2], X[:, 2:]):
        assert_close(fused(part), stock(part))
    assert fused.fused_reason is None
    # tf_keras prefers the states that it has kept to those of the call.
    states = [inputs(2, (3, 4)), inputs(3, (3, 4))]
    assert_close(fused(X, initial_state=states), stock(X, initial_state=states))
    for layer in (stock, fused):
        layer.reset_states()
    assert_close(fused(X, initial_state=states), stock(X, initial_state=states))
    assert_close(fused.states, stock.states)
    for layer in (stock, fused):
        layer.reset_states([state.numpy() for state in states])
    assert_close(fused(X), stock(X))


@pytest.mark.parametrize("go_backwards", [False, True])
@pytest.mark.parametrize("return_sequences", [False, True])
def test_ragged_sequences(return_sequences, go_backwards):
    stock, fused = pair(
        return_sequences=return_sequences, return_state=True, go_backwards=go_backwards
    )
    x = tf.RaggedTensor.from_tensor(X, [2, 5, 1])
    got, wanted = fused(x), stock(x)
    if return_sequences:
        assert isinstance(got[0], tf.RaggedTensor)
        assert_close(got[0].row_lengths(), wanted[0].row_lengths())
        got, wanted = [got[0].flat_values, *got[1:]], [wanted[0].flat_values, *wanted[1:]]
    assert_close(got, wanted)
    assert fused.fused_reason is None
    with pytest.raises(ValueError, match="cannot be applied to RaggedTensor"):
        fused(x, mask=MASK)


@pytest.mark.parametrize(
    ("activation", "recurrent_activation", "fused"),
    [
        ("tanh", "sigmoid", True), ("relu", "sigmoid", True), (None, None, True),
        (tf.tanh, tf_keras.activations.sigmoid, True), (tf.nn.relu, tf.nn.sigmoid, True),
        ("tanh", "hard_sigmoid", False), ("hard_sigmoid", "sigmoid", False),
        ("softsign", "sigmoid", False), (lambda z: 0.5 * z, "sigmoid", False),
    ],
)  # fmt: skip
def test_activations(activation, recurrent_activation, fused):
    arguments = {"activation": activation, "recurrent_activation": recurrent_activation}
    stock, layer = pair(return_sequences=True, **arguments)
    assert_same(stock, layer, X)
    assert (layer.fused_reason is None) == fused
    if not fused:
        assert re.search("is not one of|another hard_sigmoid than the op's", layer.fused_reason)
        with pytest.raises(ValueError, match="activation"):
            tfl.FusedLSTM(4, use_fused=True, **arguments)


def test_hard_sigmoid_by_name_is_keras_3s_in_the_function():
    """Of the function, hard_sigmoid is one thing; a tf_keras function of that name is refused."""
    kernel, recurrent = inputs(2, (2, 16)), inputs(3, (4, 16))
    hard = tfl.fused_lstm(X, kernel, recurrent, recurrent_activation="hard_sigmoid")
    assert np.all(np.isfinite(hard.output))
    with pytest.raises(ValueError, match="recurrent_activation must be one of"):
        tfl.fused_lstm(X, kernel, recurrent, recurrent_activation=tf_keras.activations.hard_sigmoid)


EVERY_ARGUMENT = {
    "activation": "relu", "recurrent_activation": "hard_sigmoid", "use_bias": False,
    "kernel_initializer": "he_normal", "recurrent_initializer": "he_uniform",
    "bias_initializer": "ones", "unit_forget_bias": False, "kernel_regularizer": "l1",
    "recurrent_regularizer": "l2", "bias_regularizer": "l1", "activity_regularizer": "l2",
    "kernel_constraint": "max_norm", "recurrent_constraint": "unit_norm",
    "bias_constraint": "non_neg", "dropout": 0.1, "recurrent_dropout": 0.2,
    "return_sequences": True, "return_state": True, "go_backwards": True, "stateful": True,
    "time_major": True, "unroll": True, "implementation": 1, "zero_output_for_mask": True,
    "dtype": "mixed_bfloat16", "trainable": False, "name": "mine",
}  # fmt: skip


@pytest.mark.parametrize("arguments", [{}, EVERY_ARGUMENT])
def test_every_argument_survives_its_configuration(arguments):
    layer = tfl.FusedLSTM(4, use_fused=False, **arguments)
    config = layer.get_config()
    stock = LSTM(4, **{"name": layer.name, **arguments}).get_config()
    assert config == {**stock, "use_fused": False}
    assert set(arguments) <= set(config)
    assert tfl.FusedLSTM.from_config(layer.get_config()).get_config() == config


def test_use_fused():
    layer = tfl.FusedLSTM(4, use_fused=False)
    assert layer.fused_reason == "use_fused=False"
    stock = LSTM(4)
    layer.build(X.shape)
    stock.build(X.shape)
    stock.set_weights(layer.get_weights())
    assert_close(layer(X), stock(X), (0, 0))
    with pytest.raises(ValueError, match='use_fused must be "auto", True or False'):
        tfl.FusedLSTM(4, use_fused="yes")
    assert tfl.FusedLSTM(4, return_runtime=True).fused_reason.startswith("return_runtime=True")
    assert tfl.FusedLSTM(4, use_fused=True)(X).shape == (3, 4)


def test_time_distributed():
    stock, fused = wrapped_pair(tf_keras.layers.TimeDistributed, shape=(2, 3, 5, 2))
    assert_same(stock, fused, inputs(shape=(2, 3, 5, 2)))


def test_weights_and_names():
    models = [
        tf_keras.Sequential(
            [tf_keras.Input((5, 2)), kind(4, name="here"), tf_keras.layers.Dense(1)]
        )
        for kind in (LSTM, tfl.FusedLSTM)
    ]
    stock, fused = ([w.name for w in m.layers[0].weights] for m in models)
    assert (
        fused == stock == [f"here/lstm_cell/{n}:0" for n in ("kernel", "recurrent_kernel", "bias")]
    )
    tf_keras.backend.clear_session()
    assert tfl.FusedLSTM(4).name == "lstm"
    assert_close(
        models[1].layers[0].get_weights()[2], np.repeat([0, 1, 0, 0], 4).astype(np.float32), (0, 0)
    )


def test_bad_input_is_refused():
    _, fused = pair()
    with pytest.raises(ValueError, match=r"\(batch, steps\) = \(3, 5\)"):
        fused(X, mask=np.ones((3, 4), bool))
    with pytest.raises(ValueError, match="incompatible"):
        fused(X[:, :, :1])
    with pytest.raises(ValueError, match="2 states but was passed 1"):
        fused(X, initial_state=[inputs(2, (3, 4))])
    _, unrolled = pair(unroll=True)
    with pytest.raises(ValueError, match="fixed number of timesteps"):
        unrolled(tf_keras.Input((None, 2)))
    assert fused(X[:0]).shape == (0, 4)
