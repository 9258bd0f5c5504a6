"""FusedLSTMStack: one op, equal to its layers one after the other."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_pairs import LIMITS, MASK, assert_close, inputs, outputs_and_gradients, randomise

import tf_fused_lstm as tfl

X = inputs()
UNITS = (4, 5, 3)


def stock_layers(bidirectional: bool, return_sequences: bool = False, units=UNITS, **arguments):
    layers = []
    for index, number in enumerate(units):
        sequences = return_sequences or index + 1 < len(units)
        layer = keras.layers.LSTM(number, return_sequences=sequences, **arguments)
        dtype = arguments.get("dtype")
        wrapped = keras.layers.Bidirectional(layer, dtype=dtype) if bidirectional else layer
        layers.append(wrapped)
    return layers


class Chain(keras.layers.Layer):
    """The layers one after the other; a mask goes to each."""

    def __init__(self, layers, **arguments):
        super().__init__(**arguments)
        self.chain = layers
        self.supports_masking = True

    def build(self, shape):
        for layer in self.chain:
            layer.build(shape)
            shape = layer.compute_output_shape(shape)

    def call(self, x, mask=None, training=False):
        for layer in self.chain:
            x = layer(x, mask=mask, training=training)
        return x


def stack_and_chain(bidirectional: bool, return_sequences: bool = False, **arguments):
    chain = Chain(
        stock_layers(bidirectional, return_sequences, **arguments), dtype=arguments.get("dtype")
    )
    chain.build((3, 5, 2))
    randomise(chain)
    return chain, tfl.FusedLSTMStack.from_layers(chain.chain)


def assert_equal(chain, stack, x=X, dtype: str = "float32", **call) -> None:
    wanted, wanted_grads = outputs_and_gradients(chain, x, **call)
    got, got_grads = outputs_and_gradients(stack, x, **call)
    assert_close(got, wanted, LIMITS[dtype][0])
    assert_close(got_grads, wanted_grads, LIMITS[dtype][1])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("return_sequences", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_equals_its_layers(bidirectional, return_sequences, masked):
    chain, stack = stack_and_chain(bidirectional, return_sequences)
    mask = tf.constant(MASK) if masked else None
    assert_equal(chain, stack, mask=mask)
    assert stack.fused_reason is None


@pytest.mark.parametrize("masked", [False, True])
def test_go_backwards(masked):
    chain, stack = stack_and_chain(False, True, go_backwards=True)
    assert_equal(chain, stack, mask=tf.constant(MASK) if masked else None)
    assert stack.fused_reason is None


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "mixed_float16",
                                   "mixed_bfloat16"])  # fmt: skip
@pytest.mark.parametrize("bidirectional", [False, True])
def test_types(bidirectional, dtype):
    compute = dtype.removeprefix("mixed_")
    chain, stack = stack_and_chain(
        bidirectional, True, dtype=dtype, recurrent_initializer="glorot_uniform"
    )
    assert_equal(chain, stack, inputs(dtype=compute), compute)
    assert stack.fused_reason is None


@pytest.mark.parametrize("bidirectional", [False, True])
def test_dropout_draws_what_the_layers_draw(bidirectional):
    chain, stack = stack_and_chain(bidirectional, True, dropout=0.3, recurrent_dropout=0.2, seed=11)
    for _ in range(3):
        assert_equal(chain, stack, training=True)
    assert stack.fused_reason is None


@pytest.mark.parametrize("bidirectional", [False, True])
def test_one_op_in_the_graph(bidirectional):
    stack = tfl.FusedLSTMStack(UNITS, bidirectional=bidirectional)
    graph = tf.function(stack).get_concrete_function(tf.TensorSpec([None, 5, 2])).graph
    types = [op.type for op in graph.get_operations()]
    assert types.count("FusedLSTM") == 1
    assert not {"While", "StatelessWhile"} & set(types)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_states_and_fallback(bidirectional, fused):
    """initial_state and return_state, by the op and layer by layer."""
    rng = np.random.default_rng(2)
    cells = [u for u in UNITS for _ in range(2 if bidirectional else 1)]
    states = [tf.constant(rng.standard_normal((3, u)), tf.float32) for u in cells for _ in range(2)]
    op, layers = (
        tfl.FusedLSTMStack(
            UNITS, bidirectional=bidirectional, return_state=True, use_fused=use_fused
        )
        for use_fused in ("auto", False)
    )
    for stack in (op, layers):
        stack.build((3, 5, 2))
    randomise(layers)
    op.set_weights(layers.get_weights())

    def with_gradients(stack):
        """Of every output, by x, the states and the weights."""
        with tf.GradientTape() as tape:
            tape.watch([X, *states])
            outputs = stack(X, initial_state=states, mask=tf.constant(MASK))
            loss = tf.add_n([tf.reduce_sum(v * inputs(i, v.shape)) for i, v in enumerate(outputs)])
        weights = [v.value for v in stack.trainable_variables]
        return outputs, tape.gradient(loss, [X, *states, *weights])

    (got, got_grads), (wanted, wanted_grads) = with_gradients(op), with_gradients(layers)
    assert len(got) == 1 + 2 * len(cells)
    assert_close(got, wanted)
    assert_close(got_grads, wanted_grads, LIMITS["float32"][1])
    assert all(np.any(g) for g in got_grads)
    assert op.fused_reason is None
    assert "use_fused=False" in layers.fused_reason
    assert [tuple(v.shape) for v in got] == list(op.compute_output_shape((3, 5, 2)))
    with pytest.raises(ValueError, match=f"initial_state must be {2 * len(cells)} tensors"):
        op(X, initial_state=states[:2])


@pytest.mark.parametrize("bidirectional", [False, True])
def test_stateful(bidirectional):
    stacks = [
        tfl.FusedLSTMStack(UNITS, bidirectional=bidirectional, stateful=True, use_fused=use_fused)
        for use_fused in ("auto", False)
    ]
    for stack in stacks:
        stack.build((3, 5, 2))
    stacks[0].set_weights(stacks[1].get_weights())
    first = None
    for _ in range(3):
        results = [stack(X) for stack in stacks]
        assert_close(results[0], results[1])
        first = results[0] if first is None else first
    stacks[0].reset_state()
    assert_close(stacks[0](X), first)


def test_fit_in_a_functional_model(tmp_path):
    entry = keras.Input((5, 2))
    masked = keras.layers.Masking()(entry)
    hidden = tfl.FusedLSTMStack([6, 4], bidirectional=True, recurrent_dropout=0.1)(masked)
    model = keras.Model(entry, keras.layers.Dense(1)(hidden))
    assert hidden.shape == (None, 8)
    model.compile("adam", "mse")
    x, y = inputs(3, (32, 5, 2)).numpy(), inputs(4, (32, 1)).numpy()
    losses = model.fit(x, y, epochs=15, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    wanted = model(x)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_close(loaded(x), wanted)
    assert loaded.layers[2].fused_reason is None
    model.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(tmp_path / "exported")
    assert_close(exported.serve(x), wanted)
    model.save_weights(tmp_path / "a.weights.h5")
    clone = keras.models.clone_model(model)
    clone.load_weights(tmp_path / "a.weights.h5")
    assert_close(clone(x), wanted)


def test_configuration_round_trip():
    stack = tfl.FusedLSTMStack(
        [3, 2], bidirectional=True, return_sequences=True, return_state=True, activation="relu",
        dropout=0.1, recurrent_dropout=0.2, seed=3, use_bias=False, use_fused=False, name="mine",
        dtype="mixed_bfloat16", kernel_regularizer="l2",
    )  # fmt: skip
    again = tfl.FusedLSTMStack.from_config(stack.get_config())
    assert again.get_config() == stack.get_config()
    assert again.name == "mine" and again.compute_dtype == "bfloat16"


def test_restored_to_stock_layers_it_runs_them():
    _, stack = stack_and_chain(False)
    model = keras.Sequential([keras.Input((5, 2)), stack])
    wanted = model(X)
    tfl.restore_lstm(model)
    assert_close(model(X), wanted)
    assert "keras.layers.LSTM" in stack.fused_reason


def test_bad_arguments():
    with pytest.raises(ValueError, match="units must be"):
        tfl.FusedLSTMStack(3)
    for units in ([], "34", [3.5], [3, "4"], [[3]]):
        with pytest.raises(ValueError, match="units must be"):
            tfl.FusedLSTMStack(units)
    for layers in (["lstm"], [None]):
        with pytest.raises(
            ValueError, match=r"layers must be keras.layers.LSTM, .*got (lstm|None)"
        ):
            tfl.FusedLSTMStack.from_layers(layers)
    with pytest.raises(ValueError, match="go_backwards must be False"):
        tfl.FusedLSTMStack([3], bidirectional=True, go_backwards=True)
    with pytest.raises(ValueError, match="got none"):
        tfl.FusedLSTMStack.from_layers([])
    with pytest.raises(ValueError, match="a Dense"):
        tfl.FusedLSTMStack.from_layers([keras.layers.Dense(3)])
    mixed = [keras.layers.LSTM(3, return_sequences=True), keras.layers.LSTM(3, activation="relu")]
    with pytest.raises(ValueError, match="another activation"):
        tfl.FusedLSTMStack.from_layers(mixed)
    with pytest.raises(ValueError, match="must have return_sequences"):
        tfl.FusedLSTMStack.from_layers([keras.layers.LSTM(3), keras.layers.LSTM(3)])
    with pytest.raises(ValueError, match="by concat"):
        tfl.FusedLSTMStack.from_layers(
            [keras.layers.Bidirectional(keras.layers.LSTM(3), merge_mode="sum")]
        )
    strict = tfl.FusedLSTMStack([3], use_fused=True)
    with pytest.raises(ValueError, match="the input is complex64"):
        strict(tf.zeros((3, 5, 2), tf.complex64))
