"""Further derivatives (cases A12, A13) and control flow (A14), against keras.layers.LSTM."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from graph_ops import op_types
from keras_pairs import (
    LIMITS,
    MASK,
    assert_close,
    inputs,
    outputs_and_gradients,
    pair,
    randomise,
    wrapped_pair,
)
from reference import make_problem

import tf_fused_lstm as tfl

X = inputs(dtype="float64")
LIMIT = LIMITS["float64"][1]


def float64_pair(**arguments):
    return pair(dtype="float64", **arguments)


def weights_of(layer):
    return [v.value for v in layer.trainable_variables]


def both(run, stock, fused, in_graph=False, run_stock=None):
    """run(layer, x) for both layers, ours in a function if in_graph; compares, returns ours.

    Keras's layer always runs eagerly: its loop's derivatives take long to trace.
    """
    wanted = (run_stock or run)(stock, X)

    def call(x):
        return run(fused, x)

    got = (tf.function(call, autograph=False) if in_graph else call)(X)
    assert_close(got, wanted, LIMIT)
    return got


@pytest.mark.parametrize(
    ("masked", "return_sequences", "go_backwards", "in_graph"),
    [(False, False, False, False), (True, True, True, False), (True, False, False, False),
     (False, True, False, True)],
)  # fmt: skip
def test_a12_gradient_penalty(masked, return_sequences, go_backwards, in_graph):
    def penalty(layer, x):
        sources = [x, *(v.value for v in layer.trainable_variables)]
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(layer(x, mask=MASK if masked else None))
            loss = tf.reduce_sum(inner.gradient(y, x) ** 2)
        return outer.gradient(loss, sources)

    layers = float64_pair(return_sequences=return_sequences, go_backwards=go_backwards)
    grads = both(penalty, *layers, in_graph=in_graph)
    assert len(grads) == 4
    assert all(np.any(g) for g in grads)
    assert layers[1].fused_reason is None


def gradient_penalty(x, kernel, recurrent_kernel, bias, mask=None, **masks):
    """The gradient of ||d sum(output^2) / dx||^2, which differentiates FusedLSTMGrad."""
    sources = [x, kernel, recurrent_kernel, bias]
    with tf.GradientTape() as outer:
        outer.watch(sources)
        with tf.GradientTape() as inner:
            inner.watch(x)
            result = tfl.fused_lstm(x, kernel, recurrent_kernel, bias, mask=mask, **masks)
            loss = tf.reduce_sum(result.output**2)
        penalty = tf.reduce_sum(inner.gradient(loss, x) ** 2)
    return outer.gradient(penalty, sources)


def penalty_arguments(rng):
    problem = make_problem(rng, mask="holes")
    names = ("x", "kernel", "recurrent_kernel", "bias", "mask")
    masks = {"dropout_mask": (4, 3, 2), "recurrent_dropout_mask": (1, 3, 4)}
    return {name: tf.constant(getattr(problem, name)) for name in names} | {
        name: tf.constant((rng.random(shape) < 0.6) / 0.6) for name, shape in masks.items()
    }


@pytest.mark.parametrize("jit_compile", [None, True])
@pytest.mark.parametrize("known", ["rank", "nothing"])
def test_a12_of_a_function_traced_without_shapes(rng, known, jit_compile):
    arguments = penalty_arguments(rng)
    signature = {
        name: tf.TensorSpec([None] * len(v.shape) if known == "rank" else None, v.dtype)
        for name, v in arguments.items()
    }

    @tf.function(input_signature=[signature], autograph=False, jit_compile=jit_compile)
    def traced(arguments):
        return gradient_penalty(**arguments)

    assert_close(traced(arguments), gradient_penalty(**arguments), LIMIT)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a12_of_x_that_is_not_finite_at_masked_steps(rng, value):
    arguments = penalty_arguments(rng)
    wanted = gradient_penalty(**arguments)
    arguments["x"] = tf.where(arguments["mask"][..., None], arguments["x"], value)
    assert_close(gradient_penalty(**arguments), wanted, LIMIT)


@pytest.mark.parametrize("how", ["eager", "graph", "xla"])
@pytest.mark.parametrize(
    "sizes", [(0, 5, 2, 4), (3, 0, 2, 4), (3, 5, 0, 4), (3, 5, 2, 0), (0, 0, 0, 0)]
)
def test_a12_of_empty_tensors(sizes, how):
    batch, steps, inputs, units = sizes
    shapes = [(batch, steps, inputs), (inputs, 4 * units), (units, 4 * units), (4 * units,)]
    run = gradient_penalty
    if how != "eager":
        run = tf.function(run, autograph=False, jit_compile=how == "xla" or None)
    for gradient, shape in zip(run(*(tf.ones(s) for s in shapes)), shapes, strict=True):
        assert gradient.shape == shape
        assert np.all(np.isfinite(gradient))
        if 0 in (batch, steps, units):  # what there is to differentiate does not depend on it
            assert not np.any(gradient)


@pytest.mark.parametrize("in_graph", [False, True])
def test_a12_maml_step(in_graph):
    """A gradient step on the weights, then the gradient of the loss after it."""
    rng = np.random.default_rng(0)
    problem = make_problem(rng, mask="random")
    start = {name: tf.constant(getattr(problem, name)) for name in problem.present()}

    def meta(start):
        with tf.GradientTape() as outer:
            outer.watch(start)
            with tf.GradientTape() as inner:
                inner.watch(start)
                loss = tf.reduce_sum(tfl.fused_lstm(**start, mask=problem.mask).output ** 2)
            steps = inner.gradient(loss, start)
            after = {name: value - 0.1 * steps[name] for name, value in start.items()}
            value = tf.reduce_sum(tfl.fused_lstm(**after, mask=problem.mask).output ** 2)
        return value, outer.gradient(value, start)

    run = tf.function(meta) if in_graph else meta
    _, grads = run(start)
    for name, grad in grads.items():
        direction = rng.standard_normal(grad.shape)
        high, _ = run({**start, name: start[name] + 1e-5 * direction})
        low, _ = run({**start, name: start[name] - 1e-5 * direction})
        np.testing.assert_allclose(
            np.vdot(grad, direction), (high - low) / 2e-5, rtol=2e-6, atol=1e-7, err_msg=name
        )


def test_a12_sizes_unknown_while_tracing(rng):
    problem = make_problem(rng)
    names = ("x", "kernel", "recurrent_kernel")
    values = [tf.constant(getattr(problem, name)) for name in names]

    def penalty(x, kernel, recurrent_kernel):
        with tf.GradientTape() as outer:
            outer.watch([x, kernel, recurrent_kernel])
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(tfl.fused_lstm(x, kernel, recurrent_kernel).output ** 2)
            loss = tf.reduce_sum(inner.gradient(y, x) ** 2)
        return outer.gradient(loss, [x, kernel, recurrent_kernel])

    unknown = [tf.TensorSpec([None] * value.shape.rank, value.dtype) for value in values]
    got = tf.function(penalty, input_signature=unknown, autograph=False)(*values)
    assert_close(got, penalty(*values), LIMIT)


def test_a12_third_order(rng):
    def third(layer, x):
        values = [x]
        with tf.GradientTape() as a:
            a.watch(x)
            with tf.GradientTape() as b:
                b.watch(x)
                with tf.GradientTape() as c:
                    c.watch(x)
                    values = tf.reduce_sum(layer(x) ** 2)
                first = tf.reduce_sum(c.gradient(values, x) ** 2)
            second = tf.reduce_sum(b.gradient(first, x) ** 2)
        return a.gradient(second, x)

    assert np.any(both(third, *float64_pair()))


# Eager Jacobians exist with pfor only.
@pytest.mark.parametrize(("pfor", "in_graph"), [(True, False), (True, True), (False, True)])
@pytest.mark.parametrize("kind", ["jacobian", "batch_jacobian"])
def test_a13_jacobians(kind, pfor, in_graph):
    def jacobian(layer, x, pfor=pfor):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = layer(x, mask=MASK)
        if kind == "batch_jacobian":
            return tape.batch_jacobian(y, x, experimental_use_pfor=pfor)
        weights = [v.value for v in layer.trainable_variables]
        return tape.jacobian(y, [x, *weights], experimental_use_pfor=pfor)

    both(
        jacobian,
        *float64_pair(),
        in_graph=in_graph,
        run_stock=lambda layer, x: jacobian(layer, x, pfor=True),
    )


@pytest.mark.parametrize("in_graph", [False, True])
def test_a13_hessian_by_jacobian(in_graph):
    """Many second derivatives at once, of x and of a weight, with pfor."""

    def hessian(layer, x):
        kernel = layer.cell.recurrent_kernel.value
        with tf.GradientTape(persistent=True) as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(layer(x, mask=MASK) ** 3)
            gradient, of_kernel = inner.gradient(y, [x, kernel])
        return outer.batch_jacobian(gradient, x), outer.jacobian(of_kernel, x)

    layers = float64_pair(return_sequences=True, go_backwards=True)
    both(hessian, *layers, in_graph=in_graph)


@pytest.mark.parametrize("in_graph", [False, True])
def test_a13_hessian_of_a_stack(in_graph):
    """The op itself, of two layers in both directions, against differences of its gradient."""
    rng = np.random.default_rng(3)
    shapes = [(2, 12), (2, 12), (6, 8), (6, 8)]
    kernels = [tf.constant(rng.standard_normal(s)) for s in shapes]
    recurrent = [tf.constant(rng.standard_normal((s[1] // 4, s[1]))) for s in shapes]

    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tfl.fused_lstm(x, kernels, recurrent, bidirectional=True, mask=MASK).output
            y = tf.reduce_sum(y**3)
        return tape.gradient(y, x)

    def hessian(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            first = gradient(x)
        return tape.jacobian(first, x)

    got = (tf.function(hessian) if in_graph else hessian)(X)
    direction = rng.standard_normal(X.shape)
    step = 1e-5
    wanted = (gradient(X + step * direction) - gradient(X - step * direction)) / (2 * step)
    np.testing.assert_allclose(
        np.tensordot(got, direction, 3), wanted, rtol=1e-6, atol=1e-8 * np.abs(wanted).max()
    )


@pytest.mark.parametrize("in_graph", [False, True])
def test_a13_per_example_gradients(in_graph):
    mask = tf.constant(MASK)

    def gradient(layer, example, mask):
        with tf.GradientTape() as tape:
            y = tf.reduce_sum(layer(example[tf.newaxis], mask=mask[tf.newaxis]) ** 2)
        return tape.gradient(y, [v.value for v in layer.trainable_variables])

    def vectorized(layer, x):
        return tf.vectorized_map(lambda args: gradient(layer, *args), (x, mask))

    def one_by_one(layer, x):
        rows = [gradient(layer, x[i], mask[i]) for i in range(3)]
        return [tf.stack(row) for row in zip(*rows, strict=True)]

    both(vectorized, *float64_pair(), in_graph=in_graph, run_stock=one_by_one)


@pytest.mark.parametrize("in_graph", [False, True])
def test_a13_forward_mode(in_graph):
    tangent = inputs(5, dtype="float64")

    def jvp(layer, x):
        kernel = layer.cell.recurrent_kernel.value
        with tf.autodiff.ForwardAccumulator(
            [x, kernel], [tangent, tf.ones(kernel.shape, kernel.dtype)]
        ) as accumulator:
            outputs = layer(x, mask=MASK)
        return [accumulator.jvp(v) for v in keras.tree.flatten(outputs)]

    stock, fused = float64_pair(return_sequences=True, return_state=True)
    wanted = jvp(stock, X)  # eager: TensorFlow has no forward mode of a while loop in a graph
    got = tf.function(lambda x: jvp(fused, x))(X) if in_graph else jvp(fused, X)
    assert len(got) == 3
    assert_close(got, wanted, LIMIT)


def test_a13_hessian_vector_product_by_forward_over_backward():
    tangent = inputs(5, dtype="float64")

    def product(layer, x):
        with tf.autodiff.ForwardAccumulator(x, tangent) as accumulator:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.reduce_sum(layer(x) ** 2)
            gradient = tape.gradient(y, x)
        return accumulator.jvp(gradient)

    both(product, *float64_pair())


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("of_gradient", [False, True])
def test_a13_forward_mode_inside_a_tape(of_gradient, persistent):
    """The product's gradient by a tape around the accumulator."""
    tangent = inputs(5, dtype="float64")

    def run(layer, x):
        with tf.GradientTape(persistent=persistent) as outer:
            outer.watch(x)
            with tf.autodiff.ForwardAccumulator(x, tangent) as accumulator:
                with tf.GradientTape(persistent=persistent) as inner:
                    inner.watch(x)
                    y = layer(x, mask=MASK)
                    loss = tf.reduce_sum(y**2)
                result = inner.gradient(loss, x) if of_gradient else y
            product = accumulator.jvp(result)
            loss = tf.reduce_sum(product**2)
        weights = [v.value for v in layer.trainable_variables]
        return [product, *outer.gradient(loss, [x, *weights])]

    assert all(np.any(value) for value in both(run, *float64_pair()))


def test_a14_gradients_accumulated_in_a_while_loop():
    def accumulate(layer, x):
        variables = [v.value for v in layer.trainable_variables]

        def body(i, totals):
            with tf.GradientTape() as tape:
                y = tf.reduce_sum(layer(x[i : i + 1], mask=tf.constant(MASK)[i : i + 1]) ** 2)
            grads = tape.gradient(y, variables)
            return i + 1, [t + g for t, g in zip(totals, grads, strict=True)]

        return tf.while_loop(
            lambda i, _: i < 3,
            body,
            (tf.constant(0), [tf.zeros(v.shape, v.dtype) for v in variables]),
        )[1]

    both(accumulate, *float64_pair(), in_graph=True)


@pytest.mark.parametrize("training", [None, False])
def test_a14_gradient_of_a_while_loop(training):
    """The loop's gradient is taken from outside: the op inside is switched to keep its reserve."""

    def run(layer, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            _, y = tf.while_loop(
                lambda i, _: i < 3,
                lambda i, y: (i + 1, layer(y, training=training)),
                (tf.constant(0), x),
            )
            loss = tf.reduce_sum(y**2)
        return y, tape.gradient(loss, [x, *(v.value for v in layer.trainable_variables)])

    both(run, *float64_pair(units=2, return_sequences=True), in_graph=True)


@pytest.mark.parametrize("flag", [True, False])
def test_a14_gradient_of_a_branch(flag):
    def run(layer, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.cond(
                tf.constant(flag), lambda: layer(x), lambda: x[:, 0] @ tf.ones([2, 4], x.dtype)
            )
        return y, tape.gradient(y, x)

    both(run, *float64_pair(), in_graph=True)


def test_a14_dataset_map():
    stock, fused = float64_pair()
    dataset = tf.data.Dataset.from_tensor_slices(X).batch(2)
    for got, wanted in zip(dataset.map(fused), dataset.map(stock), strict=True):
        assert_close(got, wanted, LIMIT)


def test_gradient_through_nested_functions():
    """A function within a function, the tape outside of both."""
    stock, fused = float64_pair(return_sequences=True)
    results = []
    for layer in (stock, fused):
        inner = tf.function(lambda x, layer=layer: layer(x, mask=MASK))
        outer = tf.function(lambda x, inner=inner: inner(x) * 2)
        results.append(outputs_and_gradients(_Callable(outer, layer), X)[1])
    assert_close(results[1], results[0], LIMIT)


class _Callable:
    def __init__(self, function, layer):
        self.trainable_variables = layer.trainable_variables
        self.function = function

    def __call__(self, x):
        return self.function(x)


@pytest.mark.parametrize("in_graph", [False, True])
def test_recompute_grad(in_graph):
    """By the input and the weights; the op runs again for it."""

    _, fused = layers = float64_pair(return_sequences=True)
    both(recomputed, *layers, in_graph=in_graph)
    if in_graph:
        types = op_types(functools.partial(recomputed, fused), X)
        assert types.count("FusedLSTM") == 2 and types.count("FusedLSTMGrad") == 1


HOW = {
    "eager": lambda run: run,
    "graph": lambda run: tf.function(run, autograph=False),
    "xla": lambda run: tf.function(run, autograph=False, jit_compile=True),
}


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("kind", ["layer", "bidirectional", "stack"])
def test_gradients_with_training_false(kind, how):
    """Of layers with dropout, which then drop nothing; of one layer the second order too."""
    stock, fused = layers_of(kind, dropout=0.5, recurrent_dropout=0.4, seed=3)

    def run(layer, x):
        sources = [x, *weights_of(layer)]
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                output = layer(x, mask=tf.constant(MASK), training=False)
                loss = tf.reduce_sum(output**2)
            first = inner.gradient(loss, sources)
            penalty = tf.reduce_sum(first[0] ** 2)
        return output, first, outer.gradient(penalty, sources) if kind == "layer" else []

    got = HOW[how](functools.partial(run, fused))(X)
    assert_close(got, run(stock, X), LIMIT)
    assert all(np.any(g) for g in tf.nest.flatten(got[1:]))


def layers_of(kind, **arguments):
    """(stock, fused): a layer, both directions of one, or two layers, of equal weights."""
    if kind == "layer":
        return float64_pair(return_sequences=True, **arguments)
    if kind == "bidirectional":
        return wrapped_pair(
            functools.partial(keras.layers.Bidirectional, dtype="float64"), dtype="float64",
            return_sequences=True, **arguments,
        )  # fmt: skip
    stock = Chain(
        [keras.layers.LSTM(n, return_sequences=True, dtype="float64", **arguments) for n in (4, 3)]
    )
    stock(X)
    randomise(stock)
    return stock, tfl.FusedLSTMStack.from_layers(stock.chain)


class Chain(keras.layers.Layer):
    """Layers one after the other, each with the mask and the flag of the call."""

    def __init__(self, chain):
        super().__init__(dtype="float64")
        self.chain = chain
        self.supports_masking = True

    def call(self, x, mask=None, training=None):
        for layer in self.chain:
            x = layer(x, mask=mask, training=training)
        return x


def jacobians(layer, x):
    """Of a persistent tape, by x and the weights."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        output = layer(x, mask=MASK)
    return tape.batch_jacobian(output, x), tape.jacobian(output, weights_of(layer))


def per_example(layer, x):
    """By vectorized_map; one by one of Keras's layers, whose loops take it many seconds."""

    def gradients(example):
        row, mask = example
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(row[tf.newaxis], mask=mask[tf.newaxis]) ** 2)
        return tape.gradient(loss, weights_of(layer))

    examples = x, tf.constant(MASK)
    if any(type(v) is tfl.FusedLSTM for v in layer._flatten_layers()):
        return tf.vectorized_map(gradients, examples)
    rows = [gradients(example) for example in zip(*examples, strict=True)]
    return [tf.stack(row) for row in zip(*rows, strict=True)]


def forward_products(layer, x):
    """Of the output and of its gradient."""
    with tf.autodiff.ForwardAccumulator(x, inputs(5, dtype="float64")) as accumulator:
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = layer(x, mask=MASK)
            loss = tf.reduce_sum(output**2)
        gradient = tape.gradient(loss, x)
    return accumulator.jvp(output), accumulator.jvp(gradient)


def recomputed(layer, x):
    function = tf.recompute_grad(lambda x: layer(x, mask=tf.constant(MASK)))
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(function(x) ** 2)
    return tape.gradient(loss, [x, *weights_of(layer)])


@pytest.mark.parametrize("kind", ["bidirectional", "stack"])
@pytest.mark.parametrize(
    "derivatives", [jacobians, per_example, forward_products, recomputed], ids=lambda f: f.__name__
)
def test_derivatives_of_several_cells_in_one_op(derivatives, kind):
    """What the tests above take of one layer, eagerly."""
    stock, fused = layers_of(kind)
    assert_close(derivatives(fused, X), derivatives(stock, X), LIMIT)
    assert fused.fused_reason is None if kind == "stack" else not fused.forward_layer.apart_reason
