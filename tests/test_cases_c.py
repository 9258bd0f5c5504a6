"""Numbers: precision policies, odd sizes, saturation, determinism."""

import concurrent.futures
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from graph_ops import op_types
from keras_pairs import LIMITS, MASK, assert_close, assert_same, inputs, pair
from processes import output_of

import tf_fused_lstm as tfl

X = inputs()
NARROW = {"mixed_float16": "float16", "mixed_bfloat16": "bfloat16"}


@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("policy", NARROW)
def test_c3_mixed_precision(policy, stateful):
    dtype = NARROW[policy]
    keras.config.set_dtype_policy(policy)
    stock, fused = pair(stateful=stateful, return_sequences=True, return_state=True)
    for _ in range(2):
        got = assert_same(stock, fused, tf.cast(X, dtype), dtype=dtype, mask=MASK)
    assert fused.fused_reason is None
    assert all(v.dtype == dtype for v in got)
    assert all(v.dtype == "float32" for v in fused.weights)
    if stateful:
        assert all(v.dtype == "float32" for v in fused.states)


@pytest.mark.parametrize("policy", [*NARROW, "float16", "bfloat16", "float64", "float32"])
@pytest.mark.parametrize("kind", ["layer", "bidirectional", "stack"])
@pytest.mark.parametrize("train", [False, True])
def test_c3_weights_are_not_cast_around_the_op(policy, kind, train):
    """Nor are their gradients: float32 ones are the op's own. With a mask and initial states."""
    keras.config.set_dtype_policy(policy)
    arguments = {"recurrent_initializer": "glorot_uniform"}
    if kind == "stack":
        layer = tfl.FusedLSTMStack([4, 4], bidirectional=True, **arguments)
    else:
        layer = tfl.FusedLSTM(4, return_sequences=True, **arguments)
        layer = keras.layers.Bidirectional(layer) if kind == "bidirectional" else layer
    layer.build(X.shape)
    weights = [v.value for v in layer.trainable_variables]
    assert {w.dtype.name for w in weights} == {"float32" if policy in NARROW else policy}

    def call(x, mask, *states):
        with tf.GradientTape() as tape:
            output = layer(x, mask=mask, initial_state=list(states))
        gradients = tape.gradient(output, weights) if train else []
        assert [g.dtype for g in gradients] == [w.dtype for w in weights] * train
        return output, gradients

    states = [tf.TensorSpec((3, 4), layer.compute_dtype)] * {
        "layer": 2, "bidirectional": 4, "stack": 8
    }[kind]  # fmt: skip
    types = op_types(
        call, tf.TensorSpec(X.shape, layer.compute_dtype), tf.TensorSpec((3, 5), tf.bool), *states
    )
    assert "Cast" not in types
    assert types.count("FusedLSTM") == 1 and types.count("FusedLSTMGrad") == train


@pytest.mark.parametrize(("policy", "limit"), [("mixed_float16", 5e-3), ("mixed_bfloat16", 3e-2)])
def test_c3_long_sequence_stays_near_float32(policy, limit):
    x = inputs(shape=(2, 2000, 8))
    wide = tfl.FusedLSTM(32)
    narrow = tfl.FusedLSTM(32, dtype=policy)
    wide.build(x.shape)
    narrow.build(x.shape)
    narrow.set_weights(wide.get_weights())
    error = np.abs(narrow(x).numpy().astype(np.float32) - wide(x).numpy())
    assert error.max() <= limit


@pytest.mark.parametrize("policy", NARROW)
def test_c3_fit_under_mixed_precision(policy):
    keras.config.set_dtype_policy(policy)
    model = keras.Sequential(
        [keras.Input((5, 2)), tfl.FusedLSTM(4), keras.layers.Dense(1, dtype="float32")]
    )
    model.compile("adam", "mse")
    history = model.fit(X, np.ones((3, 1)), epochs=3, verbose=0)
    assert np.all(np.isfinite(history.history["loss"]))


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_c4_pure_types(dtype):
    arguments = {}
    if dtype != "float64":
        arguments = {"recurrent_initializer": "glorot_uniform"}
    stock, fused = pair(dtype=dtype, return_sequences=True, return_state=True, **arguments)
    got = assert_same(stock, fused, inputs(dtype=dtype), dtype=dtype, mask=MASK)
    assert all(v.dtype == dtype for v in got)
    assert fused.fused_reason is None


def test_c4_orthogonal_bfloat16():
    """The default initialiser, for which TensorFlow has no bfloat16: rounded float32."""
    narrow = tfl.FusedLSTM(4, dtype="bfloat16", recurrent_initializer=orthogonal())
    wide = tfl.FusedLSTM(4, recurrent_initializer=orthogonal())
    config = narrow.get_config()
    for layer in (narrow, wide):
        layer.build(X.shape)
    got, wanted = (layer.cell.recurrent_kernel for layer in (narrow, wide))
    assert got.dtype == "bfloat16"
    np.testing.assert_array_equal(got, tf.cast(wanted, "bfloat16"))
    assert narrow.get_config() == config
    wrapper = keras.layers.Bidirectional(tfl.FusedLSTM(4, dtype="bfloat16"), dtype="bfloat16")
    output = wrapper(inputs(dtype="bfloat16"))
    assert output.dtype == "bfloat16" and np.all(np.isfinite(tf.cast(output, "float32")))


def orthogonal():
    return keras.initializers.Orthogonal(seed=3)


@pytest.mark.parametrize("dtype", ["complex64", "mixed_bfloat16_from_float64"])
def test_c4_types_without_a_kernel_say_so(dtype):
    policy = keras.DTypePolicy(dtype) if dtype == "complex64" else keras.DTypePolicy("float64")
    if dtype != "complex64":
        policy._compute_dtype = "bfloat16"
    layer = tfl.FusedLSTM(4, dtype=policy)
    assert "the op has no kernel for" in layer.fused_reason
    with pytest.raises(ValueError, match="the op has no kernel for"):
        tfl.FusedLSTM(4, dtype=policy, use_fused=True)


@pytest.mark.parametrize("units", [1, 3, 7, 17, 33, 65, 129])
@pytest.mark.parametrize("features", [1, 5, 13])
def test_c6_odd_sizes(units, features):
    layers = pair((None, None, features), units, dtype="float64", return_sequences=True)
    signature = [tf.TensorSpec([None, None, size], tf.float64) for size in (features, units)]

    def with_gradients(layer):
        @tf.function(input_signature=signature)
        def call(x, weights):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x)
            sources = [x, *(v.value for v in layer.trainable_variables)]
            return y, tape.gradient(y, sources, output_gradients=weights)

        return call

    def of_float32(x, weights, *cell):
        with tf.GradientTape() as tape:
            tape.watch([x, *cell])
            y = tfl.fused_lstm(x, *cell).output
        return [y, *tape.gradient(y, [x, *cell], output_gradients=weights)]

    stock, fused = (with_gradients(layer) for layer in layers)
    cell = layers[1].get_weights()
    for batch, steps in itertools.product([1, 2, 3, 11], [1, 2, 9]):
        x = inputs(shape=(batch, steps, features), dtype="float64")
        weights = inputs(2, (batch, steps, units), "float64")
        (got, got_grads), (wanted, wanted_grads) = fused(x, weights), stock(x, weights)
        assert_close([got, *got_grads], [wanted, *wanted_grads], LIMITS["float64"][1])
        # The default type has kernels of its own.
        narrow = [tf.cast(v, tf.float32) for v in (x, weights, *cell)]
        for value, want in zip(of_float32(*narrow), [got, *got_grads], strict=True):
            error = np.linalg.norm(value - tf.cast(want, tf.float32))
            assert error <= 1e-5 * np.linalg.norm(want)


@pytest.mark.parametrize("huge", ["inputs", "weights"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_c7_saturation(huge, dtype):
    stock, fused = pair(dtype=dtype, return_sequences=True)
    x = inputs(dtype=dtype)
    if huge == "inputs":
        x = x * 1e30
    else:
        for layer in (stock, fused):
            layer.set_weights([100 * w for w in layer.get_weights()])
    assert_same(stock, fused, x, dtype=dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = fused(x)
    assert np.all(np.isfinite(y)) and np.all(np.isfinite(tape.gradient(y, x)))


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_c7_non_finite_inputs_stay_in_their_row(value):
    _, fused = pair(return_sequences=True)
    x = X.numpy()
    wanted = fused(x).numpy()
    x[1, 2] = value
    got = fused(x).numpy()
    np.testing.assert_array_equal(got[[0, 2]], wanted[[0, 2]])
    np.testing.assert_array_equal(got[1, :2], wanted[1, :2])


def test_non_finite_inputs_at_masked_steps_reach_no_gradient():
    """Where keras.layers.LSTM's gradient of the kernel is NaN."""
    _, fused = pair(return_sequences=True)

    def gradients(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(fused(x, mask=MASK) ** 2)
        return tape.gradient(loss, fused.trainable_weights)

    padded = np.where(np.asarray(MASK, bool)[..., None], X.numpy(), np.nan).astype(np.float32)
    for got, wanted in zip(gradients(tf.constant(padded)), gradients(X), strict=True):
        np.testing.assert_array_equal(got, wanted)


TRAIN = """
import keras, numpy as np, tensorflow as tf
import tf_fused_lstm as tfl
tf.config.threading.set_intra_op_parallelism_threads({threads})
tf.config.experimental.enable_op_determinism()
keras.utils.set_random_seed(5)
model = keras.Sequential([
    keras.Input((5, 2)),
    tfl.FusedLSTM(4, dropout=0.2, return_sequences=True),
    tfl.FusedLSTM(4, dropout=0.2, recurrent_dropout=0.2),
    keras.layers.Dense(1),
])
model.compile("adam", "mse")
x = np.linspace(-1, 1, 30, dtype=np.float32).reshape(3, 5, 2)
print(model.fit(x, np.ones((3, 1)), epochs=3, verbose=0).history["loss"])
"""


def test_c9_equal_from_run_to_run():
    """Three epochs in fresh processes, with operation determinism, whatever the threads."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        programs = [TRAIN.format(threads=threads) for threads in (1, 2, 8, 8)]
        histories = list(pool.map(output_of, programs))
    assert histories[0].startswith("[") and len(set(histories)) == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_c9_equal_from_call_to_call(dtype):
    _, fused = pair((20, 30, 40), 70, dtype=dtype, recurrent_initializer="glorot_uniform")
    x = inputs(shape=(20, 30, 40), dtype=dtype)

    def run():
        with tf.GradientTape() as tape:
            y = fused(x)
        return [y, *tape.gradient(y, [v.value for v in fused.trainable_variables])]

    first = run()
    for _ in range(10):
        for got, wanted in zip(run(), first, strict=True):
            np.testing.assert_array_equal(got, wanted)


def test_gradient_limits_are_tight_enough_to_fail():
    """The comparison itself: a weight moved by one part in a thousand is found."""
    stock, fused = pair()
    fused.set_weights([w * 1.001 for w in fused.get_weights()])
    with pytest.raises(AssertionError):
        assert_close(fused(X), stock(X), LIMITS["float32"][0])
