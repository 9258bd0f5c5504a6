"""What eager tapes and accumulators make of the op: every nesting of them, and what it costs."""

import functools

import keras
import pytest
import tensorflow as tf
from executed import eager_ops
from keras_pairs import LIMITS, MASK, assert_close, inputs, pair

import tf_fused_lstm as tfl

X = inputs(dtype="float64")
TANGENT = inputs(5, dtype="float64")
LIMIT = LIMITS["float64"][1]


def weights_of(layer):
    return [v.value for v in layer.trainable_variables]


def loss_of(layer, x):
    return tf.add_n([tf.reduce_sum(v**2) for v in keras.tree.flatten(layer(x, mask=MASK))])


def forward_over_backward(layer):
    """Tangents of x and of a variable."""
    kernel = layer.cell.recurrent_kernel.value
    direction = inputs(6, kernel.shape, "float64")
    with tf.autodiff.ForwardAccumulator([X, kernel], [TANGENT, direction]) as accumulator:
        with tf.GradientTape() as tape:
            tape.watch(X)
            loss = loss_of(layer, X)
        gradients = tape.gradient(loss, [X, *weights_of(layer)])
    return [loss, *gradients, accumulator.jvp(loss), *map(accumulator.jvp, gradients)]


def backward_over_forward(layer):
    with tf.GradientTape() as tape:
        tape.watch(X)
        with tf.autodiff.ForwardAccumulator(X, TANGENT) as accumulator:
            loss = loss_of(layer, X)
        product = accumulator.jvp(loss)
    return tape.gradient(product, [X, *weights_of(layer)])


def accumulator_of_something_else(layer):
    """Only what is done with the gradient has a tangent."""
    scale, one = tf.constant(3.0, X.dtype), tf.constant(1.0, X.dtype)
    with tf.autodiff.ForwardAccumulator(scale, one) as accumulator:
        with tf.GradientTape() as tape:
            tape.watch(X)
            loss = scale * loss_of(layer, X)
        gradient = tape.gradient(loss, X)
    return [gradient, accumulator.jvp(gradient)]


def backward_over_backward(layer):
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(X)
        with tf.GradientTape(persistent=True) as inner:
            inner.watch(X)
            loss = loss_of(layer, X)
        first = inner.gradient(loss, X)
        again = inner.gradient(loss, X)
    sources = [X, *weights_of(layer)]
    return [first, again, *outer.gradient(first, sources), *outer.gradient(loss, sources)]


def rows_of_a_jacobian(layer):
    """By pfor, which takes the gradient inside a function, of a call outside of it."""
    with tf.GradientTape() as tape:
        tape.watch(X)
        output = layer(X, mask=MASK)[0]
    return tape.jacobian(output, X)


def forward_over_forward(layer):
    with (
        tf.autodiff.ForwardAccumulator(X, TANGENT) as outer,
        tf.autodiff.ForwardAccumulator(X, TANGENT) as inner,
    ):
        loss = loss_of(layer, X)
    return [loss, inner.jvp(loss), outer.jvp(inner.jvp(loss))]


def forward_over_backward_over_backward(layer):
    with tf.autodiff.ForwardAccumulator(X, TANGENT) as accumulator:
        with tf.GradientTape() as outer:
            outer.watch(X)
            with tf.GradientTape() as inner:
                inner.watch(X)
                loss = loss_of(layer, X)
            penalty = tf.reduce_sum(inner.gradient(loss, X) ** 2)
        second = outer.gradient(penalty, X)
    return [second, accumulator.jvp(second)]


NESTS = (
    forward_over_backward, backward_over_forward, accumulator_of_something_else,
    backward_over_backward, rows_of_a_jacobian, forward_over_forward,
    forward_over_backward_over_backward,
)  # fmt: skip


@pytest.mark.parametrize("derivatives", NESTS, ids=lambda f: f.__name__)
def test_nested(derivatives):
    stock, fused = pair(dtype="float64", return_sequences=True, return_state=True)
    assert_close(derivatives(fused), derivatives(stock), LIMIT)
    assert fused.fused_reason is None


def test_forward_mode_in_a_function():
    """Where Keras's layer has none."""
    stock, fused = pair(dtype="float64", return_sequences=True, return_state=True)
    traced = tf.function(lambda: forward_over_forward(fused), autograph=False)
    assert_close(traced(), forward_over_forward(stock), LIMIT)


def test_what_a_function_does_not_have():
    """Nor with Keras's layer: an error, never a wrong value."""
    for layer in pair(dtype="float64", return_sequences=True, return_state=True):
        call = functools.partial(forward_over_backward_over_backward, layer)
        with pytest.raises((TypeError, ValueError, tf.errors.OpError, LookupError)):
            tf.function(call, autograph=False)()


@pytest.mark.parametrize("kind", ["layer", "function"])
def test_no_zeros_are_made_for_the_reserve(kind):
    """A training step runs the op and its gradient, and nothing as large as what is kept."""
    layer = tfl.FusedLSTM(8, return_sequences=True)
    x = tf.ones((4, 50, 3))
    layer(x)
    weights = weights_of(layer)
    call = layer if kind == "layer" else (lambda x: tfl.fused_lstm(x, *weights).output)

    def train():
        with tf.GradientTape() as tape:
            loss = call(x)
        return tape.gradient(loss, weights)

    ran = eager_ops(train)
    types = [name for name, _ in ran]
    assert types.count("FusedLSTM") == types.count("FusedLSTMGrad") == 1
    assert not any(output.dtype == tf.uint8 for name, outputs in ran if name != "FusedLSTM"
                   for output in outputs)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_an_eager_call_reads_its_variables_and_runs_the_op(dtype):
    """Nothing besides; and a tape learns of the variables."""
    layer = tfl.FusedLSTM(8, dtype=dtype)
    x = tf.ones((4, 5, 3), layer.compute_dtype)
    layer(x)
    types = [name for name, _ in eager_ops(lambda: layer(x))]
    assert types == ["ReadVariableOp"] * 3 + ["FusedLSTM"]
    with tf.GradientTape() as tape:
        layer(x)
    watched = {id(variable) for variable in tape.watched_variables()}
    assert watched == {id(variable) for variable in weights_of(layer)}
