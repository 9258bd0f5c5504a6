"""Eager calls that skip Keras's own way to `call`, and those that must not."""

import traceback
from unittest import mock

import keras
import pytest
import tensorflow as tf
from keras_pairs import MASK, assert_close, assert_same, inputs, pair

import tf_fused_lstm as tfl

X = inputs()


def keras_calls(call) -> int:
    """How many calls of layers Keras itself answers."""
    original = keras.layers.Layer.__call__
    with mock.patch.object(
        keras.layers.Layer, "__call__", autospec=True, side_effect=original
    ) as keras_call:
        call()
    return keras_call.call_count


@pytest.mark.parametrize(
    "policy", ["float32", "float64", "float16", "mixed_bfloat16", "mixed_float16"]
)
@pytest.mark.parametrize(
    "arguments",
    [{}, {"return_sequences": True, "return_state": True}, {"use_bias": False, "unroll": True}],
)
def test_plain_calls_skip_keras(policy, arguments):
    stock, fused = pair(dtype=policy, **arguments)
    x = tf.cast(X, fused.compute_dtype)
    fused(x)
    assert keras_calls(lambda: fused(x)) == keras_calls(lambda: fused(x, training=True)) == 0
    assert_same(stock, fused, x, fused.compute_dtype)
    assert fused.fused_reason is None


def test_only_the_first_call_builds_and_names_the_layer():
    layer = tfl.FusedLSTM(4)
    assert keras_calls(lambda: layer(X)) == 1
    assert layer.path == layer.name
    assert keras_calls(lambda: layer(X)) == 0


def test_stateful_layers_keep_their_states():
    stock, fused = pair(stateful=True)
    for seed in range(3):
        x = inputs(seed)
        assert keras_calls(lambda x=x: fused(x)) == (seed == 0)
        stock(x)
    assert_close(fused.states, stock.states)


@pytest.mark.parametrize("autocast", [True, False])
def test_states_are_read_as_stored_in_a_mixed_model(autocast):
    """Of these, float16 would make infinities."""

    class Model(keras.Model):
        def __init__(self, layer):
            super().__init__(dtype="mixed_float16")
            self.layer = layer

        def call(self, x):
            return self.layer(1e5 * keras.ops.cast(x, "float32"))

    layers = pair(stateful=True, activation="linear", dtype="float32", autocast=autocast)
    models = [Model(layer) for layer in layers]
    for _ in range(3):
        outputs = [model(X) for model in models]
    assert_close(*outputs)
    assert_close(layers[0].states, layers[1].states)
    assert float(tf.reduce_max(tf.abs(layers[0].states[1]))) > 65504


def test_a_model_s_layer():
    model = keras.Sequential([keras.Input((5, 2)), tfl.FusedLSTM(4), keras.layers.Dense(1)])
    model(X)
    # Those of Sequential, the functional model in it, and Dense.
    assert keras_calls(lambda: model(X, training=True)) == 3


@pytest.mark.parametrize(
    ("x", "call"),
    [
        (X.numpy(), {}),
        (tf.cast(X, tf.float64), {}),
        (X, {"mask": tf.constant(MASK)}),
        (X, {"initial_state": [tf.ones((3, 4)), tf.zeros((3, 4))]}),
    ],
    ids=["array", "other_type", "mask", "initial_state"],
)
def test_other_arguments_are_keras_s(x, call):
    stock, fused = pair(return_sequences=True)
    fused(x, **call)
    assert keras_calls(lambda: fused(x, **call)) == 1
    assert_close(fused(x, **call), stock(x, **call))


def test_masks_of_the_input_pass_on():
    stock, fused = pair(return_sequences=True)
    fused(X)
    masked = keras.layers.Masking()(tf.where(MASK[..., None], X, 0.0))
    output, wanted = fused(masked), stock(masked)
    assert_close(output, wanted)
    assert_close(output._keras_mask, MASK)


@pytest.mark.parametrize("dropout", ["dropout", "recurrent_dropout"])
def test_dropout_follows_the_outer_call(dropout):
    model = keras.Sequential([keras.Input((5, 2)), tfl.FusedLSTM(4, **{dropout: 0.5})])
    assert_close(model(X), model(X))
    assert float(tf.reduce_max(tf.abs(model(X, training=True) - model(X)))) > 1e-3


def test_added_losses_end_with_the_next_call():
    for layer in pair():
        layer(X)
        layer.add_loss(tf.constant(2.0))
        layer.cell.add_loss(tf.constant(3.0))
        assert len(layer.losses) == 2
        layer(X)
        assert layer.losses == []


@pytest.mark.parametrize("part", ["layer", "cell"])
def test_losses_of_added_layers_end_with_the_next_call(part):
    for layer in (keras.layers.LSTM(4), tfl.FusedLSTM(4)):
        holder = layer if part == "layer" else layer.cell
        holder.extra = keras.layers.Dense(3, activity_regularizer="l2")
        layer(X)
        holder.extra(X)
        assert len(layer.losses) == 1
        layer(X)
        assert layer.losses == []


def test_losses_of_a_stateless_scope_end_with_the_next_call():
    for layer in pair():
        layer(X)
        with keras.StatelessScope(collect_losses=True) as scope:
            layer.add_loss(tf.constant(1.0))
            layer(X)
            assert layer.losses == []
        assert scope.losses == []


def test_activity_regularizer():
    stock, fused = pair(activity_regularizer="l2")
    for _ in range(2):
        stock(X), fused(X)
        assert_close(fused.losses, stock.losses)
        assert len(fused.losses) == 1


def test_a_call_that_someone_replaced():
    layer = tfl.FusedLSTM(4)
    layer(X)
    layer.call = lambda sequences, **_: sequences + 1
    assert_close(layer(X), X + 1)


def test_a_mask_that_someone_computes():
    for layer in pair(return_sequences=True):
        layer(X)
        layer.compute_mask = lambda *_: tf.constant(MASK)
        assert_close(layer(X)._keras_mask, MASK)


@pytest.mark.parametrize("name", ["call", "compute_mask"])
def test_methods_patched_in_the_class(name):
    layer = tfl.FusedLSTM(4)
    layer(X)
    original = getattr(tfl.FusedLSTM, name)
    with mock.patch.object(tfl.FusedLSTM, name, autospec=True, side_effect=original) as patched:
        layer(X)
    assert patched.call_count == 1


def test_quantization_is_refused_each_time():
    for layer in pair():
        layer(X)
        with pytest.raises(NotImplementedError, match="quantize"):
            layer.dtype_policy = "int8_from_float32"
        for _ in range(2):
            with pytest.raises(NotImplementedError):
                layer(X)


def test_training_must_be_one_value():
    for layer in pair():
        layer(X)
        with pytest.raises(ValueError, match="tensor"):
            layer(X, training=[True, tf.constant(1.0)])


def test_a_subclass_is_keras_s():
    class Doubled(tfl.FusedLSTM):
        def call(self, sequences, initial_state=None, mask=None, training=False):
            return 2 * super().call(sequences, initial_state, mask, training)

    layer = Doubled(4)
    layer(X)
    assert keras_calls(lambda: layer(X)) == 1


def test_a_configuration_that_left_the_op_runs_by_keras():
    stock, fused = pair()
    fused(X)
    for layer in (stock, fused):
        layer.cell.activation = keras.activations.elu
    assert_close(fused(X), stock(X))
    assert "elu" in fused.fused_reason


@pytest.mark.parametrize(
    "x", [tf.ones((3, 2)), tf.ones((3, 5, 4)), tf.ones((3, 5, 2, 1))], ids=["2d", "width", "4d"]
)
def test_errors_are_keras_s(x):
    errors = []
    _, layer = pair()
    layer(X)
    for call in (layer, lambda x: keras.layers.Layer.__call__(layer, x)):
        with pytest.raises(ValueError, match=layer.name) as caught:
            call(x)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_in_a_function_nothing_is_skipped():
    layer = tfl.FusedLSTM(4)
    layer(X)
    assert keras_calls(tf.function(lambda: layer(X))) == 1  # X is an eager tensor there


def test_autograph_leaves_the_call_as_it_is():
    """As Keras's own: what it calls is not converted then."""
    layer = tfl.FusedLSTM(4)
    layer(X)
    files = []

    def call(sequences, **_):
        files.extend(frame.filename for frame in traceback.extract_stack())
        return sequences

    layer.call = call
    tf.function(lambda: layer(X) + 0)()
    at = next(i for i, name in enumerate(files) if name.endswith("tf_fused_lstm/layers/keras3.py"))
    assert any("autograph" in name for name in files[:at])
    assert not any("autograph" in name for name in files[at:])


def test_autograph_converts_a_subclass_s_own_call():
    class Doubling(tfl.FusedLSTM):
        def __call__(self, x, **kwargs):
            if tf.reduce_sum(x) > 0:
                x = x * 2.0
            return super().__call__(x, **kwargs)

    layer = Doubling(4)
    layer(X)
    for x in (tf.abs(X), -tf.abs(X)):
        assert_close(tf.function(layer)(x), layer(x))
