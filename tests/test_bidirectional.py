"""keras.layers.Bidirectional around FusedLSTM: one op, and equal to Keras's wrapper of its LSTM."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from graph_ops import op_types
from keras_pairs import MASK, assert_close, assert_same, inputs, wrapped_pair

import tf_fused_lstm as tfl

X = inputs()
MERGE_MODES = ["concat", "sum", "mul", "ave", None]


def bidirectional_pair(merge_mode: str | None = "concat", shape=(3, 5, 2), **arguments):
    return wrapped_pair(
        lambda layer: keras.layers.Bidirectional(layer, merge_mode=merge_mode), shape, **arguments
    )


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("return_state", [False, True])
@pytest.mark.parametrize("return_sequences", [False, True])
@pytest.mark.parametrize("merge_mode", MERGE_MODES)
def test_merge_modes(merge_mode, return_sequences, return_state, masked):
    stock, fused = bidirectional_pair(
        merge_mode, return_sequences=return_sequences, return_state=return_state
    )
    mask = tf.constant(MASK) if masked else None
    assert_same(stock, fused, X, mask=mask)
    assert fused.forward_layer.apart_reason is None


@pytest.mark.parametrize("merge_mode", MERGE_MODES)
def test_unrolled_is_as_not_unrolled(merge_mode):
    """With a mask; Keras's, unrolled, has the zeros of its backward half at other steps."""
    stock, fused = bidirectional_pair(merge_mode, return_sequences=True)
    _, unrolled = bidirectional_pair(merge_mode, return_sequences=True, unroll=True)
    unrolled.set_weights(fused.get_weights())
    assert_same(stock, unrolled, X, mask=tf.constant(MASK))
    assert unrolled.forward_layer.apart_reason is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "mixed_float16",
                                   "mixed_bfloat16"])  # fmt: skip
def test_types(dtype):
    stock, fused = wrapped_pair(
        lambda layer: keras.layers.Bidirectional(layer, dtype=dtype), return_sequences=True,
        dtype=dtype, recurrent_initializer="glorot_uniform",
    )  # fmt: skip
    compute = dtype.removeprefix("mixed_")
    assert_same(stock, fused, inputs(dtype=compute), compute, mask=tf.constant(MASK))
    assert fused.forward_layer.apart_reason is None


@pytest.mark.parametrize("training", [False, True])
def test_one_op_in_the_graph(training):
    layer = keras.layers.Bidirectional(tfl.FusedLSTM(4, return_sequences=True))
    layer.build((None, 5, 2))
    spec = tf.TensorSpec([None, 5, 2])
    types = op_types(lambda x: layer(x, training=training), spec)
    assert types.count("FusedLSTM") == 1
    assert not {"While", "StatelessWhile"} & set(types)

    def with_gradient(x):
        with tf.GradientTape() as tape:
            y = layer(x, training=training)
        return tape.gradient(y, [v.value for v in layer.trainable_variables])

    types = op_types(with_gradient, spec)
    assert types.count("FusedLSTM") == types.count("FusedLSTMGrad") == 1


def test_one_op_in_a_model():
    model = keras.Sequential([
        keras.Input((5, 2)), keras.layers.Masking(),
        keras.layers.Bidirectional(tfl.FusedLSTM(4, return_sequences=True)),
        keras.layers.Bidirectional(tfl.FusedLSTM(3)), keras.layers.Dense(1),
    ])  # fmt: skip
    types = op_types(model, tf.TensorSpec([None, 5, 2]))
    assert types.count("FusedLSTM") == 2


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dropouts", [(0.3, 0.0), (0.0, 0.3), (0.3, 0.3)])
def test_dropout(dropouts, training):
    dropout, recurrent_dropout = dropouts
    stock, fused = bidirectional_pair(
        return_sequences=True, dropout=dropout, recurrent_dropout=recurrent_dropout, seed=5
    )
    for _ in range(3):
        assert_same(stock, fused, X, training=training)
    assert fused.forward_layer.apart_reason is None


def test_stateful():
    stock, fused = bidirectional_pair(stateful=True, return_sequences=True)
    for _ in range(3):
        assert_close(fused(X), stock(X))
    assert fused.forward_layer.apart_reason is None
    fused.reset_state()
    stock.reset_state()
    assert_close(fused(X), stock(X))


def custom(lstm, forward, backward, built: bool = True):
    layer = keras.layers.Bidirectional(
        lstm(4, return_sequences=True, **forward),
        backward_layer=lstm(
            **{"units": 4, "return_sequences": True, "go_backwards": True, **backward}
        ),
    )
    if built:
        layer.build((3, 5, 2))
    return layer


@pytest.mark.parametrize(
    ("forward", "backward", "reason"),
    [
        ({}, {}, None),
        ({}, {"activation": "relu"}, "another activation"),
        ({}, {"units": 6}, "another number of units"),
        ({}, {"use_bias": False}, "another use_bias"),
        ({}, {"dropout": 0.5}, "other dropout"),
        ({"go_backwards": True}, {"go_backwards": False}, "runs backward in time"),
        ({}, {"activation": "selu"}, "activation=selu"),
        ({"activation": "selu"}, {}, "activation=selu"),
    ],
)
def test_a_backward_layer_of_ones_own(forward, backward, reason):
    stock = custom(keras.layers.LSTM, forward, backward)
    fused = custom(tfl.FusedLSTM, forward, backward)
    fused.set_weights(stock.get_weights())
    assert_same(stock, fused, X)
    found = fused.forward_layer.apart_reason
    assert found is None if reason is None else reason in found


def test_layers_called_by_themselves_run_alone():
    """Nothing is left over from a wrapper's call, nor taken for one."""
    _, fused = bidirectional_pair(return_sequences=True)
    ahead, behind = fused.forward_layer, fused.backward_layer
    other = inputs(9)
    alone = [np.asarray(ahead(other)), np.asarray(behind(other))]
    both = fused(X)
    assert_close([ahead(other), behind(other)], alone)
    assert_close(fused(X), both)
    ahead(other)
    assert_close(behind(other), alone[1])


def test_a_subclass_with_a_call_of_its_own_is_left_alone():
    class Swapped(keras.layers.Bidirectional):
        def call(self, sequences, training=None):
            return self.backward_layer(sequences) + self.forward_layer(sequences + 1)

    layer = Swapped(tfl.FusedLSTM(4))
    layer.build((3, 5, 2))
    wanted = layer.backward_layer(X) + layer.forward_layer(X + 1)
    assert_close(layer(X), wanted)


def test_a_layer_subclass_with_a_call_of_its_own_runs_apart():
    """What it does with the input in one direction is not to be lost."""

    def twice(base):
        class Twice(base):
            def call(self, sequences, **arguments):
                return super().call(sequences * (2.0 if self.go_backwards else 1.0), **arguments)

        return Twice

    def wrapped(base):
        kind = twice(base)
        with keras.saving.custom_object_scope({"Twice": kind}):
            return keras.layers.Bidirectional(kind(4))

    stock, fused = wrapped(keras.layers.LSTM), wrapped(tfl.FusedLSTM)
    x = inputs()
    stock(x), fused(x)
    fused.set_weights(stock.get_weights())
    assert_close(fused(x), stock(x))
    assert "overrides call" in fused.forward_layer.apart_reason


@pytest.mark.parametrize("jit_compile", [False, True])
def test_compiled_function(jit_compile):
    stock, fused = bidirectional_pair(return_sequences=True)
    function = tf.function(lambda x, m: fused(x, mask=m), jit_compile=jit_compile)
    assert_close(function(X, tf.constant(MASK)), stock(X, mask=tf.constant(MASK)))


def test_fit_and_saving(tmp_path):
    def build(lstm):
        keras.utils.set_random_seed(2)
        return keras.Sequential([
            keras.Input((5, 2)),
            keras.layers.Bidirectional(
                lstm(4, return_sequences=True, recurrent_dropout=0.2, seed=4)
            ),
            keras.layers.Bidirectional(lstm(3, seed=5), merge_mode="ave"), keras.layers.Dense(1),
        ])  # fmt: skip

    x, y = inputs(3, (24, 5, 2)).numpy(), inputs(4, (24, 1)).numpy()
    models = []
    for lstm in (keras.layers.LSTM, tfl.FusedLSTM):
        model = build(lstm)
        # XLA, which Keras would take on a GPU, may draw other numbers.
        model.compile("sgd", "mse", jit_compile=False)
        model.fit(x, y, epochs=3, batch_size=8, shuffle=False, verbose=0)
        models.append(model)
    stock, fused = models
    for got, wanted in zip(fused.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    fused.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert type(loaded.layers[0]) is keras.layers.Bidirectional
    assert_close(loaded(x), fused(x))
    assert loaded.layers[0].forward_layer.apart_reason is None
    fused.export(tmp_path / "exported", verbose=False)
    exported = tf.saved_model.load(tmp_path / "exported")
    assert_close(exported.serve(x), fused(x))
    fused.save_weights(tmp_path / "a.weights.h5")
    stock.load_weights(tmp_path / "a.weights.h5")
    assert_close(stock(x), fused(x))


def test_no_results_are_kept_after_a_call():
    layer = keras.layers.Bidirectional(tfl.FusedLSTM(4))
    layer(X)
    assert layer.backward_layer._together.results is None


def test_tape_sees_states_of_both_directions():
    stock, fused = bidirectional_pair(return_state=True)
    for layer in (stock, fused):
        with tf.GradientTape() as tape:
            tape.watch(X)
            _, *states = layer(X)
            loss = tf.add_n([tf.reduce_sum(s**2) for s in states])
        layer.gradient = tape.gradient(loss, X)
    np.testing.assert_allclose(fused.gradient, stock.gradient, rtol=1e-4, atol=1e-6)
