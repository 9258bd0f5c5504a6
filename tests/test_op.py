"""The op against the float64 reference: every output, every gradient, every flag and type."""

import numpy as np
import pytest
import tensorflow as tf
from op_checks import check
from reference import ACTIVATIONS, MASKS, make_problem

import tf_fused_lstm as tfl

DTYPES = ("float64", "float32", "float16", "bfloat16")


@pytest.mark.parametrize("hidden_size", [1, 3, 7, 17, 33, 65, 129])
@pytest.mark.parametrize(
    ("batch", "steps", "input_size"), [(1, 1, 1), (2, 9, 5), (3, 2, 13), (11, 5, 1)]
)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_odd_sizes(rng, dtype, hidden_size, batch, steps, input_size):
    problem = make_problem(rng, batch, steps, input_size, hidden_size, mask="random")
    check(rng, problem, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_masks_and_layouts(rng, mask, time_major, dtype):
    problem = make_problem(rng, batch=5, steps=7, input_size=3, hidden_size=9, mask=mask)
    check(rng, problem, dtype, time_major=time_major)


@pytest.mark.parametrize("zero_output_for_mask", [False, True])
@pytest.mark.parametrize("return_sequences", [False, True])
@pytest.mark.parametrize("go_backwards", [False, True])
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_flags(rng, dtype, time_major, go_backwards, return_sequences, zero_output_for_mask):
    problem = make_problem(
        rng, batch=4, steps=6, input_size=5, hidden_size=7, mask="random",
        go_backwards=go_backwards, return_sequences=return_sequences,
        zero_output_for_mask=zero_output_for_mask,
    )  # fmt: skip
    check(rng, problem, dtype, time_major=time_major)


@pytest.mark.parametrize("recurrent_activation", ACTIVATIONS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_activations(rng, dtype, activation, recurrent_activation):
    problem = make_problem(
        rng, mask="random", activation=activation, recurrent_activation=recurrent_activation
    )
    # Gates that are not bounded cancel and grow, and so do rounding errors.
    bounded = {activation, recurrent_activation} <= {"tanh", "sigmoid", "hard_sigmoid"}
    limits = None if bounded or dtype == "float64" else (2e-5, 2e-4)
    check(rng, problem, dtype, limits=limits)


@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_optional_inputs(rng, dtype, bias, states):
    check(rng, make_problem(rng, hidden_size=8, bias=bias, states=states), dtype)


@pytest.mark.parametrize("only", ["initial_h", "initial_c"])
def test_one_initial_state_alone(rng, only):
    problem = make_problem(rng)
    setattr(problem, "initial_c" if only == "initial_h" else "initial_h", None)
    check(rng, problem)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("hidden_size", [5, 32])
def test_float32_weights_under_narrow_inputs(rng, dtype, hidden_size):
    problem = make_problem(rng, 3, 6, 4, hidden_size, mask="random")
    check(rng, problem, dtype, weight_dtype="float32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("training", [False, True, None])
def test_gradient_with_and_without_reserve(rng, dtype, training):
    check(rng, make_problem(rng, mask="random"), dtype, training=training)


@pytest.mark.parametrize("dtype", DTYPES)
def test_in_graph(rng, dtype):
    problem = make_problem(rng, mask="random", hidden_size=6)
    check(rng, problem, dtype, in_graph=True)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_larger_than_a_tile(rng, dtype):
    """Sizes beyond one tile, panel or thread's share."""
    check(rng, make_problem(rng, 37, 12, 70, 150, mask="random"), dtype)


@pytest.mark.parametrize("return_sequences", [False, True])
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_empty_batch_and_no_steps(rng, dtype, steps, batch, time_major, return_sequences):
    """F3: no steps give an empty sequence, a last output of 0, and the initial states."""
    problem = make_problem(rng, batch=batch, steps=steps, return_sequences=return_sequences)
    problem.mask = np.ones((batch, steps), bool)
    check(rng, problem, dtype, time_major=time_major)


@pytest.mark.parametrize("input_size", [0, 2])
def test_no_input_features(rng, input_size):
    problem = make_problem(rng, input_size=2)
    problem.x, problem.kernel = problem.x[..., :input_size], problem.kernel[:input_size]
    check(rng, problem)


def test_inputs_that_are_masked_are_not_read(rng):
    problem = make_problem(rng, mask="random")
    wanted = tfl.fused_lstm(problem.x, problem.kernel, problem.recurrent_kernel, mask=problem.mask)
    poisoned = np.where(problem.mask[..., None], problem.x, np.nan)
    got = tfl.fused_lstm(poisoned, problem.kernel, problem.recurrent_kernel, mask=problem.mask)
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(g, w)


def test_numpy_lists_and_variables_are_accepted(rng):
    problem = make_problem(rng, states=False)
    wanted = problem.forward()
    got = tfl.fused_lstm(
        problem.x.tolist(), tf.Variable(problem.kernel.astype(np.float32)),
        problem.recurrent_kernel, problem.bias.tolist(),
    )  # fmt: skip
    assert got.output.dtype == tf.float32
    np.testing.assert_allclose(got.output, wanted[0], rtol=1e-5, atol=1e-6)


def test_mask_of_numbers(rng):
    problem = make_problem(rng, mask="random")
    args = (problem.x, problem.kernel, problem.recurrent_kernel)
    wanted = tfl.fused_lstm(*args, mask=problem.mask).output
    for dtype in (np.int32, np.float32):
        got = tfl.fused_lstm(*args, mask=problem.mask.astype(dtype) * 2).output
        np.testing.assert_array_equal(got, wanted)


def test_reserve_is_kept_only_while_a_tape_watches(rng):
    """The op's output `reserve` is empty in inference, in a tape that watches nothing too."""
    problem = make_problem(rng)
    args = [tf.constant(v) for v in (problem.x, problem.kernel, problem.recurrent_kernel)]

    def training_attributes(watch):
        @tf.function
        def traced():
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                if watch:
                    tape.watch(args[1])
                output = tfl.fused_lstm(*args).output
            return output, tape.gradient(output, args[1])

        graph = traced.get_concrete_function().graph
        return [op.get_attr("training") for op in graph.get_operations() if op.type == "FusedLSTM"]

    assert training_attributes(watch=True) == [True]
    assert training_attributes(watch=False) == [False]


def test_gradient_of_a_traced_function_keeps_the_reserve(rng):
    """The inference function keeps nothing; the one made for a gradient does."""
    problem = make_problem(rng)
    x, *weights = [tf.constant(v) for v in (problem.x, problem.kernel, problem.recurrent_kernel)]
    function = tf.function(lambda x: tfl.fused_lstm(x, *weights).output)
    concrete = function.get_concrete_function(x)

    def attribute(definition):
        (node,) = [n for n in definition.node_def if n.op == "FusedLSTM"]
        return node.attr["training"].b

    assert attribute(concrete.function_def) is False
    with tf.GradientTape() as tape:
        tape.watch(x)
        output = function(x)
    got = tape.gradient(output, x)
    forward, _ = concrete._delayed_rewrite_functions.forward_backward()
    assert attribute(forward.cached_definition) is True
    assert attribute(concrete.function_def) is False
    problem.bias = problem.initial_h = problem.initial_c = None
    _, h, _ = problem.forward()
    wanted = problem.backward(np.ones(output.shape), np.zeros(h.shape), np.zeros(h.shape))["x"]
    np.testing.assert_allclose(got, wanted, rtol=1e-10)
