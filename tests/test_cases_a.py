"""Correctness: what users of LSTM layers have reported, as cases against keras.layers.LSTM."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from graph_ops import op_types
from keras_pairs import (
    LIMITS,
    MASK,
    UNITS,
    assert_close,
    assert_same,
    inputs,
    outputs_and_gradients,
    pair,
    wrapped_pair,
)
from reference import MASKS, make_mask, make_problem

import tf_fused_lstm as tfl

X = inputs()


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("zero_output_for_mask", [False, True])
@pytest.mark.parametrize("return_state", [False, True])
@pytest.mark.parametrize("return_sequences", [False, True])
def test_a1_arbitrary_masks(return_sequences, return_state, zero_output_for_mask, in_graph):
    mask = np.vstack([MASK, [True, False, True, False, True]])
    x = inputs(shape=(4, 5, 2))
    stock, fused = pair(
        return_sequences=return_sequences, return_state=return_state,
        zero_output_for_mask=zero_output_for_mask,
    )  # fmt: skip
    if in_graph:
        assert_close(tf.function(fused)(x, mask=mask), tf.function(stock)(x, mask=mask))
    else:
        assert_same(stock, fused, x, mask=mask)
    assert fused.fused_reason is None


@pytest.mark.parametrize("form", ["int32", "float32", "column", "list", "one_row", "per_unit"])
def test_a1_masks_of_every_form(form):
    x = inputs()
    stock, fused = pair(return_sequences=True)
    mask = tf.constant(MASK)
    if form in ("int32", "float32"):
        mask = tf.cast(mask, form)
    elif form == "column":
        mask = mask[:, :, tf.newaxis]
    elif form == "list":
        mask = [mask]
    elif form == "one_row":
        mask = mask[:1]
    else:
        mask = tf.tile(mask[:, :, tf.newaxis], [1, 1, UNITS])
    assert_same(stock, fused, x, mask=mask)
    assert (fused.fused_reason is None) == (form != "per_unit")


@pytest.mark.parametrize("kind", MASKS)
def test_a1_masks_from_an_embedding(kind):
    mask = make_mask(kind, np.random.default_rng(3), 4, 6)
    tokens = np.ones((4, 6), int) if mask is None else mask.astype(int)
    embedding = keras.layers.Embedding(3, 2, mask_zero=True)
    stock, fused = pair(shape=(4, 6, 2), return_sequences=True)
    x = embedding(tokens)
    got, wanted = fused(x), stock(x)
    assert_close(got, wanted)
    np.testing.assert_array_equal(got._keras_mask, tokens != 0)


@pytest.mark.parametrize("return_sequences", [False, True])
def test_a3_all_rows_masked(return_sequences):
    stock, fused = pair(return_sequences=return_sequences, return_state=True)
    mask = np.zeros((3, 5), bool)
    states = [inputs(2, (3, 4)), inputs(3, (3, 4))]
    output, h, c = assert_same(stock, fused, X, mask=mask, initial_state=states)
    assert not np.any(output)
    assert_close([h, c], states, (0, 0))
    _, grads = outputs_and_gradients(fused, X, mask=mask)
    for grad in grads:
        np.testing.assert_array_equal(grad, np.zeros(grad.shape))


def test_a4_go_backwards_with_mask():
    stock, fused = pair(return_sequences=True, return_state=True, go_backwards=True)
    output, *_ = assert_same(stock, fused, X, mask=MASK)
    assert not np.any(output[0, :2]) and np.all(np.any(output[0, 2:] != 0, axis=-1))
    np.testing.assert_array_equal(output[1, 3], output[1, 2])
    np.testing.assert_array_equal(output[1, 4], output[1, 2])


def test_a4_unrolled_with_zeros_at_masked_steps():
    """As not unrolled. Keras's unrolled layer has its zeros at the steps of the unreversed mask."""
    arguments = {"return_sequences": True, "go_backwards": True, "zero_output_for_mask": True}
    looped, fused = pair(**arguments)
    assert_same(looped, fused, X, mask=MASK)
    _, unrolled = pair(**arguments, unroll=True)
    assert_close(unrolled(X, mask=MASK), fused(X, mask=MASK), (0, 0))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("return_sequences", [False, True])
@pytest.mark.parametrize("merge_mode", ["concat", "sum", "mul", "ave", None])
def test_a5_bidirectional(merge_mode, return_sequences, masked):
    stock, fused = wrapped_pair(
        lambda layer: keras.layers.Bidirectional(layer, merge_mode=merge_mode),
        return_sequences=return_sequences, return_state=True,
    )  # fmt: skip
    assert isinstance(fused.forward_layer, tfl.FusedLSTM)
    assert isinstance(fused.backward_layer, tfl.FusedLSTM)
    got = assert_same(stock, fused, X, mask=MASK if masked else None)
    assert fused.forward_layer.fused_reason is None
    assert fused.backward_layer.fused_reason is None
    if merge_mode == "concat":
        assert [tuple(v.shape) for v in got[1:]] == [(3, 4)] * 4
        if return_sequences and masked:
            assert not np.any(got[0].numpy()[~MASK])


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("seed", range(3))
def test_a8_gradients_of_every_input(batch, steps, seed):
    rng = np.random.default_rng(seed)
    mask = rng.random((batch, steps)) < 0.6
    x = inputs(seed, (batch, steps, 2), "float64")
    states = [inputs(10 + i, (batch, UNITS), "float64") for i in range(2)]
    stock, fused = pair(return_sequences=True, return_state=True, dtype="float64")

    def gradients(layer):
        with tf.GradientTape() as tape:
            tape.watch([x, *states])
            values = layer(x, mask=mask, initial_state=states)
            loss = tf.add_n(
                [tf.reduce_sum(inputs(20 + i, v.shape, "float64") * v)
                 for i, v in enumerate(values)]
            )  # fmt: skip
        return tape.gradient(loss, [x, *states, *(v.value for v in layer.trainable_variables)])

    got = gradients(fused)
    assert len(got) == 6
    assert_close(got, gradients(stock), LIMITS["float64"][1])


@pytest.mark.parametrize("mask", ["none", "random", "left"])
@pytest.mark.parametrize(
    ("batch", "steps", "activations"),
    [(1, 1, ("tanh", "sigmoid")), (1, 5, ("tanh", "sigmoid")), (3, 1, ("tanh", "sigmoid")),
     (3, 5, ("tanh", "sigmoid")), (3, 5, ("sigmoid", "tanh"))],
)  # fmt: skip
def test_a8_gradients_by_central_differences(rng, mask, batch, steps, activations):
    activation, recurrent_activation = activations
    problem = make_problem(rng, batch, steps, mask=mask)
    tensors = {name: tf.constant(getattr(problem, name)) for name in problem.present()}
    projections = None

    def loss(tensors):
        nonlocal projections
        values = tfl.fused_lstm(
            **tensors, mask=problem.mask, activation=activation,
            recurrent_activation=recurrent_activation,
        )  # fmt: skip
        if projections is None:
            projections = [rng.standard_normal(v.shape) for v in values]
        return tf.add_n([tf.reduce_sum(p * v) for p, v in zip(projections, values, strict=True)])

    with tf.GradientTape() as tape:
        tape.watch(tensors)
        value = loss(tensors)
    grads = tape.gradient(value, tensors)
    assert len(grads) == 6
    for name, grad in grads.items():
        direction = rng.standard_normal(grad.shape)
        high = loss({**tensors, name: tensors[name] + 1e-5 * direction})
        low = loss({**tensors, name: tensors[name] - 1e-5 * direction})
        difference = (high - low) / 2e-5
        np.testing.assert_allclose(np.vdot(grad, direction), difference, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("in_graph", [False, True])
def test_a9_gradient_through_one_output_only(which, in_graph):
    stock, fused = pair(return_sequences=True, return_state=True)
    weights = [i == which for i in range(3)]

    def gradients(layer):
        def run(x):
            return outputs_and_gradients(layer, x, weights, mask=MASK)[1]

        return (tf.function(run, autograph=False) if in_graph else run)(X)

    got = gradients(fused)
    assert all(g is not None and np.all(np.isfinite(g)) for g in got)
    assert_close(got, gradients(stock), LIMITS["float32"][1])


def test_a15_called_twice_in_one_model():
    _, layer = pair()
    entry = keras.Input((5, 2))
    model = keras.Model(entry, keras.layers.add([layer(entry), layer(entry)]))
    np.testing.assert_allclose(model(X), 2 * layer(X), rtol=1e-6)
    _, twice = outputs_and_gradients(model, X)
    _, once = outputs_and_gradients(layer, X)
    assert_close(twice, [2 * g for g in once])


def test_a15_stateful_layer_in_two_models():
    results = []
    for layer in pair(stateful=True):
        entry = keras.Input(batch_shape=(3, 5, 2))
        output = layer(entry)
        one, two = keras.Model(entry, output), keras.Model(entry, output * 2)
        results.append([one(X), two(X), one(X), *layer.states])
    assert_close(results[1], results[0])


@pytest.mark.parametrize("training", [True, False, None])
@pytest.mark.parametrize("implementation", [1, 2])
@pytest.mark.parametrize("dropouts", [(0.5, 0.0), (0.0, 0.5), (0.4, 0.3), (1.0, 0.0)])
def test_a16_dropout_is_drawn_as_keras_draws_it(dropouts, implementation, training):
    """The same seed gives the same masks, call after call, whichever calls train."""
    dropout, recurrent_dropout = dropouts
    stock, fused = pair(
        dropout=dropout, recurrent_dropout=recurrent_dropout, seed=7, return_sequences=True,
        implementation=implementation,
    )  # fmt: skip
    for train in (training, False, True, training):
        try:
            wanted = stock(X, training=train)
        except tf.errors.InvalidArgumentError:  # Keras fails on a mask for each gate of x alone
            assert implementation == 1 and not recurrent_dropout
            assert np.all(np.isfinite(fused(X, training=train)))
            return
        assert_close(fused(X, training=train), wanted)
    if training:
        other = fused(X, training=True)
        assert (dropout == 1) == np.allclose(other, fused(X, training=True))


@pytest.mark.parametrize("argument", ["dropout", "recurrent_dropout"])
def test_a16_what_users_count_on(argument):
    """Resampled at each call, constant over time, seeded, only in training, of Keras's mean."""
    layer, twin = (
        tfl.FusedLSTM(4, return_sequences=True, seed=7, **{argument: 0.5}) for _ in range(2)
    )
    layer.build(X.shape)
    twin.build(X.shape)
    twin.set_weights(layer.get_weights())
    plain = layer(X, training=False)
    first, second = layer(X, training=True), layer(X, training=True)
    assert np.abs(first - plain).max() > 1e-2 and np.abs(first - second).max() > 1e-2
    twin(X, training=False)  # both seeds have then moved on as often
    assert_close([twin(X, training=True), twin(X, training=True)], [first, second], (0, 0))
    assert_close([layer(X), layer(X, training=False), layer(X, training=None)], [plain] * 3, (0, 0))

    # Of ones, i = o = m or 1 and f = 0, where m, what is dropped, 0 or 2, is that of all steps.
    means = []
    for kind, seed in ((keras.layers.LSTM, 3), (tfl.FusedLSTM, 4)):
        linear = kind(
            1, "linear", "linear", use_bias=False, return_sequences=True, seed=seed,
            **{argument: 0.5},
        )  # fmt: skip
        x = tf.ones((20000, 3, 1))
        linear.build(x.shape)
        linear.set_weights([np.array([[1.0, 0, 1, 1]]), np.array([[0.0, 0, 1, 0]])])
        if argument == "dropout":
            linear.cell.recurrent_kernel.assign([[0.0] * 4])
        output = linear(x, training=True).numpy()[..., 0]
        rows = {tuple(row) for row in output.tolist()}
        # m^3 at every step; or h = 1 + m h: 1, 1 + m, 1 + m + m^2.
        assert rows == ({(0, 0, 0), (8, 8, 8)} if argument == "dropout" else {(1, 1, 1), (1, 3, 7)})
        means.append(output.mean())
    np.testing.assert_allclose(means[1], means[0], rtol=0.05)


def test_a16_input_dropout_runs_the_op_and_has_its_gradient():
    stock, fused = pair(dropout=0.5, seed=7, return_sequences=True)
    assert_same(stock, fused, X, training=True, mask=MASK)
    assert fused.fused_reason is None


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "mixed_float16"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a16_recurrent_dropout_runs_the_op_and_has_its_gradient(dropout, dtype):
    """A mask for each gate, of h and then of x too; call after call from the same seed."""
    stock, fused = pair(
        dropout=dropout, recurrent_dropout=0.4, seed=7, return_sequences=True, return_state=True,
        dtype=dtype, recurrent_initializer="glorot_uniform",
    )  # fmt: skip
    kind = "float16" if dtype == "mixed_float16" else dtype
    for _ in range(2):
        assert_same(stock, fused, tf.cast(X, kind), kind, training=True, mask=MASK)
    assert fused.fused_reason is None


@pytest.mark.parametrize(("dropouts", "count"), [((0.3, 0.2), 8), ((0, 0.2), 4), ((0.3, 0), 1)])
def test_a16_masks_are_drawn_in_few_ops(dropouts, count):
    """One update of the seed for all of them; a call that does not train draws none."""
    layer = tfl.FusedLSTM(4, dropout=dropouts[0], recurrent_dropout=dropouts[1])
    layer(X)
    types = op_types(lambda x: layer(x, training=True), X)
    assert types.count("StatelessRandomUniform") == count
    assert types.count("AssignVariableOp") == 1
    assert len([name for name in types if name != "Const"]) <= 26 + count
    types = op_types(layer, X)
    assert types.count("StatelessRandomUniform") == 0
    assert types.count("AssignVariableOp") == 1


def test_a16_training_with_dropout_gives_the_same_weights():
    """Model.fit, some epochs of it."""
    results = []
    for lstm in (keras.layers.LSTM, tfl.FusedLSTM):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([
            keras.Input((5, 2)), lstm(6, dropout=0.2, recurrent_dropout=0.3, seed=1),
            keras.layers.Dense(1),
        ])  # fmt: skip
        # XLA, which Keras would take on a GPU, may draw other numbers.
        model.compile("sgd", "mse", jit_compile=False)
        rng = np.random.default_rng(1)
        model.fit(rng.standard_normal((40, 5, 2)), rng.standard_normal(40), epochs=3, batch_size=8,
                  shuffle=False, verbose=0)  # fmt: skip
        results.append(model.get_weights())
    for got, wanted in zip(*reversed(results), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)


SPELLINGS = {
    "name": ("tanh", "sigmoid"),
    "keras": (keras.activations.tanh, keras.activations.sigmoid),
    "tensorflow": (tf.tanh, tf.sigmoid),
    "tf.nn": (tf.nn.tanh, tf.nn.sigmoid),
    "keras.ops": (keras.ops.tanh, keras.ops.sigmoid),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a17_activation_spellings(spelling):
    activation, recurrent_activation = SPELLINGS[spelling]
    stock, fused = pair(activation=activation, recurrent_activation=recurrent_activation)
    assert_same(stock, fused, X)
    assert fused.fused_reason is None
    assert fused.get_config()["activation"] == "tanh"
    assert fused.get_config()["recurrent_activation"] == "sigmoid"


@pytest.mark.parametrize(
    ("activation", "is_fused"),
    [("relu", True), ("linear", True), (None, True), ("sigmoid", True), ("hard_sigmoid", True),
     (tf.nn.relu, True), (keras.ops.relu, True), (keras.ops.hard_sigmoid, True),
     ("softsign", False), ("selu", False), (lambda x: x * 0.5, False)],
)  # fmt: skip
@pytest.mark.parametrize("argument", ["activation", "recurrent_activation"])
def test_a17_other_activations(argument, activation, is_fused):
    stock, fused = pair(**{argument: activation}, return_sequences=True)
    assert_same(stock, fused, X, mask=MASK)
    assert (fused.fused_reason is None) == is_fused
    if not is_fused:
        assert argument in fused.fused_reason


@pytest.mark.parametrize("unit_forget_bias", [False, True])
@pytest.mark.parametrize("bias_initializer", ["zeros", "ones", "glorot"])
def test_a18_bias_initialisers(unit_forget_bias, bias_initializer):
    if bias_initializer == "glorot":
        bias_initializer = keras.initializers.RandomNormal(seed=3)
    biases = []
    for kind in (keras.layers.LSTM, tfl.FusedLSTM):
        layer = kind(4, unit_forget_bias=unit_forget_bias, bias_initializer=bias_initializer)
        layer.build((3, 5, 2))
        biases.append(layer.cell.bias.numpy())
    np.testing.assert_array_equal(biases[0], biases[1])
    if unit_forget_bias:
        np.testing.assert_array_equal(biases[1][4:8], np.ones(4))


def test_a18_without_bias():
    stock, fused = pair(use_bias=False, return_sequences=True)
    assert len(fused.weights) == 2
    assert_same(stock, fused, X, mask=MASK)
    assert fused.fused_reason is None


@pytest.mark.parametrize("go_backwards", [False, True])
def test_a19_stateful_chunks_reset_and_initial_state(go_backwards):
    stock, fused = pair(stateful=True, return_sequences=True, go_backwards=go_backwards)
    whole, _ = pair(return_sequences=True)
    first, second = fused(X[:, :2]), fused(X[:, 2:])
    assert_close([first, second], [stock(X[:, :2]), stock(X[:, 2:])])
    if not go_backwards:
        assert_close(tf.concat([first, second], 1), whole(X))
    assert_close([v.value for v in fused.states], [v.value for v in stock.states])
    fused.reset_state()
    assert_close(fused(X[:, :2]), first)
    fused.reset_states()
    assert not np.any(fused.states[0]) and not np.any(fused.states[1])
    states = [inputs(2, (3, 4)), inputs(3, (3, 4))]
    stock.reset_state()
    assert_close(fused(X, initial_state=states), stock(X, initial_state=states))
    assert_close(fused(X), stock(X))


def test_a19_bidirectional_reset():
    stock, fused = wrapped_pair(keras.layers.Bidirectional, stateful=True)
    first = [layer(X) for layer in (stock, fused)]
    assert_close(first[1], first[0])
    assert_close(fused(X), stock(X))
    fused.reset_state()
    assert_close(fused(X), first[1])
