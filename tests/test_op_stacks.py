"""Several directions and layers in one op, and dropout masks, against the float64 reference."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from op_checks import LIMITS
from reference import Stack, make_dropout_mask, make_problem, make_stack, relative_error

import tf_fused_lstm as tfl
import tf_fused_lstm._loader as loader
from tf_fused_lstm import composite

WEIGHTS = ("kernel", "recurrent_kernel", "bias")
LISTS = (*WEIGHTS, "initial_h", "initial_c")
MASKS = ("dropout_mask", "recurrent_dropout_mask")
DTYPES = ("float64", "float32", "float16", "bfloat16")


def swapped(value: np.ndarray, time_major: bool) -> np.ndarray:
    return np.swapaxes(value, 0, 1) if time_major else value


def numpy_type(dtype: str):
    return tf.as_dtype(dtype).as_numpy_dtype


def rounded(stack: Stack, dtype: str, weight_dtype: str) -> None:
    """Rounds the inputs to what the op sees of them."""
    for cell in stack.cells():
        for name in ("x", *LISTS, *MASKS):
            value = getattr(cell, name)
            if value is not None:
                to = numpy_type(weight_dtype if name in WEIGHTS else dtype)
                setattr(cell, name, value.astype(to).astype(np.float64))


def arguments_of(stack: Stack, dtype: str, weight_dtype: str, time_major: bool):
    """(the differentiable arguments of tfl.fused_lstm, the others)."""
    cells = stack.cells()
    first = cells[0]
    sources = {"x": tf.constant(swapped(first.x, time_major), dtype)}
    for name in LISTS:
        if getattr(first, name) is not None:
            to = weight_dtype if name in WEIGHTS else dtype
            sources[name] = [tf.constant(getattr(cell, name), to) for cell in cells]
    rest = {
        "time_major": time_major,
        "return_sequences": cells[-1].return_sequences,
        "bidirectional": len(stack.layers[0]) == 2,
        "go_backwards": first.go_backwards,
        "zero_output_for_mask": first.zero_output_for_mask,
    }
    for name in MASKS:
        if getattr(first, name) is not None:
            rest[name] = [tf.constant(getattr(cell, name), dtype) for cell in cells]
    if first.mask is not None:
        rest["mask"] = swapped(first.mask, time_major)
    return sources, rest


def check(
    rng: np.random.Generator,
    stack: Stack,
    dtype: str = "float64",
    weight_dtype: str | None = None,
    time_major: bool = False,
    training: bool | None = None,
    traced: bool = False,
    jit_compile: bool = False,
) -> None:
    """Every output and every gradient against the reference."""
    weight_dtype = weight_dtype or dtype
    rounded(stack, dtype, weight_dtype)
    output, final_h, final_c = stack.forward()
    wanted = [output, *final_h, *final_c]
    draw = [rng.standard_normal(v.shape).astype(numpy_type(dtype)) for v in wanted]
    cells = len(stack.cells())
    grads = [v.astype(np.float64) for v in draw]
    wanted_grads = stack.backward(grads[0], grads[1 : 1 + cells], grads[1 + cells :])
    sequences = stack.cells()[-1].return_sequences
    wanted[0] = swapped(wanted[0], time_major and sequences)
    draw[0] = swapped(draw[0], time_major and sequences)
    sources, rest = arguments_of(stack, dtype, weight_dtype, time_major)

    def run(sources, draw):
        with tf.GradientTape() as tape:
            tape.watch(sources)
            result = tfl.fused_lstm(**sources, **rest, training=training)
            flat = [result.output, *result.final_h, *result.final_c]
        return flat, tape.gradient(flat, sources, output_gradients=draw)

    if traced or jit_compile:
        run = tf.function(run, autograph=False, jit_compile=jit_compile or None)
    got, got_grads = run(sources, [tf.constant(v) for v in draw])
    for i, (g, w) in enumerate(zip(got, wanted, strict=True)):
        assert g.dtype == dtype
        assert relative_error(g, w) <= 2 * LIMITS[dtype][0], f"output {i}"
    pairs = [("x", got_grads["x"], swapped(wanted_grads[0]["x"], time_major))]
    for name in sources:
        if name != "x":
            pairs += [
                (f"{name}[{i}]", g, wanted_grads[i][name]) for i, g in enumerate(got_grads[name])
            ]
    for name, g, w in pairs:
        assert relative_error(g, w) <= 2 * LIMITS[dtype][1], f"gradient of {name}"


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("sizes", [(1,), (7,), (33,), (5, 3), (17, 65, 9)])
@pytest.mark.parametrize("mask", ["none", "random", "right"])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_sizes(rng, dtype, mask, sizes, bidirectional):
    check(rng, make_stack(rng, sizes, 4, 6, 3, bidirectional, mask), dtype)


@pytest.mark.parametrize("return_sequences", [False, True])
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts_and_types(rng, dtype, bidirectional, time_major, return_sequences):
    stack = make_stack(
        rng, (6, 9), 5, 4, 3, bidirectional, "random", return_sequences=return_sequences,
        zero_output_for_mask=return_sequences,
    )  # fmt: skip
    check(rng, stack, dtype, time_major=time_major)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_float32_weights_under_narrow_inputs(rng, dtype):
    check(rng, make_stack(rng, (5, 4), bidirectional=True), dtype, "float32")


@pytest.mark.parametrize("mask", ["none", "random"])
def test_go_backwards_in_every_layer(rng, mask):
    """As a stack of Keras layers with go_backwards, whose masks are handed on as they are."""
    check(rng, make_stack(rng, (4, 3), mask=mask, go_backwards=True))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("states", [False, True])
def test_optional_inputs(rng, states, bias):
    check(rng, make_stack(rng, (4, 3), bidirectional=True, bias=bias, states=states))


@pytest.mark.parametrize("masks", [(1, 0), (4, 0), (0, 1), (0, 4), (1, 4), (4, 4)])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("sizes", [(7,), (5, 18)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_masks(rng, dtype, sizes, bidirectional, masks):
    stack = make_stack(rng, sizes, 7, 5, 6, bidirectional, "random", masks)
    check(rng, stack, dtype, time_major=len(sizes) == 2)


def test_dropout_in_some_layers(rng):
    """Layers without: [0, batch, size]."""
    stack = make_stack(rng, (4, 3, 5), masks=(4, 4), bidirectional=True)
    for cell in stack.layers[0]:
        cell.dropout_mask = cell.dropout_mask[:0]
    for cell in stack.layers[1]:
        cell.dropout_mask = cell.dropout_mask[:1]
        cell.recurrent_dropout_mask = cell.recurrent_dropout_mask[:0]
    check(rng, stack)
    check(rng, stack, jit_compile=True)


@pytest.mark.parametrize("training", [False, True, None])
@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_gradient_with_and_without_reserve(rng, bidirectional, traced, training):
    stack = make_stack(rng, (4, 6, 3), 3, 5, 2, bidirectional, "random", (1, 4))
    check(rng, stack, "float32", training=training, traced=traced)


@pytest.mark.parametrize("masks", [(0, 0), (4, 4)])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_compiled_by_xla(rng, dtype, training, bidirectional, masks):
    stack = make_stack(rng, (4, 6), 3, 5, 2, bidirectional, "random", masks)
    check(rng, stack, dtype, training=training, jit_compile=True)


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("return_sequences", [False, True])
def test_empty(rng, return_sequences, steps, batch):
    stack = make_stack(
        rng, (4, 3), batch, steps, 2, True, masks=(4, 4), return_sequences=return_sequences
    )
    check(rng, stack)


def test_large(rng):
    """Several panels, tiles and chunks, in each thread's share."""
    check(rng, make_stack(rng, (150, 70), 37, 30, 40, True, "random", (4, 4)), "float32")


@pytest.mark.parametrize("masks", [(0, 0), (1, 4)])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_ordinary_ops_agree(rng, bidirectional, masks):
    """The composite, which differentiates the gradient, is the same function."""
    stack = make_stack(rng, (4, 3), 3, 5, 2, bidirectional, "random", masks)
    sources, rest = arguments_of(stack, "float64", "float64", False)
    wanted = stack.forward()
    inputs = composite.Inputs(
        **sources,
        mask=[tf.constant(rest["mask"])],
        **{name: rest[name] for name in MASKS if name in rest},
    )
    attributes = composite.Attributes(
        time_major=False, go_backwards=False, return_sequences=True, zero_output_for_mask=False,
        activation="tanh", recurrent_activation="sigmoid", bidirectional=bidirectional,
    )  # fmt: skip
    output, final_h, final_c = composite.lstm(inputs, attributes)
    for got, want in zip(
        [output, *final_h, *final_c], [wanted[0], *wanted[1], *wanted[2]], strict=True
    ):
        assert relative_error(got, want) < 1e-12


@pytest.mark.parametrize("masks", [(0, 0), (4, 4)])
def test_second_order(rng, masks):
    """The directional derivative of a gradient against a central difference."""
    stack = make_stack(rng, (3, 2), 2, 4, 2, True, masks=masks)
    sources, rest = arguments_of(stack, "float64", "float64", False)
    flat = tf.nest.flatten(sources)
    direction = [tf.constant(rng.standard_normal(v.shape)) for v in flat]

    def loss(flat):
        result = tfl.fused_lstm(**tf.nest.pack_sequence_as(sources, flat), **rest)
        return tf.reduce_sum(result.output**2) + tf.reduce_sum(result.final_c[1] ** 3)

    def slope(flat):
        with tf.GradientTape() as tape:
            tape.watch(flat)
            value = loss(flat)
        return tf.add_n(
            [
                tf.reduce_sum(g * d)
                for g, d in zip(tape.gradient(value, flat), direction, strict=True)
            ]
        )

    with tf.GradientTape() as tape:
        tape.watch(flat)
        first = slope(flat)
    second = tf.add_n(
        [tf.reduce_sum(g * d) for g, d in zip(tape.gradient(first, flat), direction, strict=True)]
    )
    step = 1e-5
    after = slope([v + step * d for v, d in zip(flat, direction, strict=True)])
    before = slope([v - step * d for v, d in zip(flat, direction, strict=True)])
    np.testing.assert_allclose(second, (after - before) / (2 * step), rtol=1e-6)


def test_masks_have_no_gradient(rng):
    problem = make_problem(rng)
    mask = tf.constant(make_dropout_mask(rng, 4, 3, 4))
    with tf.GradientTape() as tape:
        tape.watch(mask)
        output = tfl.fused_lstm(
            problem.x, problem.kernel, problem.recurrent_kernel, recurrent_dropout_mask=mask
        ).output
    assert tape.gradient(output, mask) is None


def test_one_layer_in_a_list(rng):
    problem = make_problem(rng)
    alone = tfl.fused_lstm(problem.x, problem.kernel, problem.recurrent_kernel)
    listed = tfl.fused_lstm(problem.x, [problem.kernel], [problem.recurrent_kernel])
    np.testing.assert_array_equal(alone.output, listed.output)
    np.testing.assert_array_equal(alone.final_h, listed.final_h[0])


def test_shapes_while_tracing():
    """With every size unknown but the weights', and with all unknown."""
    sizes = [(2, 4), (8, 3)]
    kernels = [tf.zeros((i, 4 * h)) for i, h in sizes for _ in range(2)]
    recurrent = [tf.zeros((h, 4 * h)) for _, h in sizes for _ in range(2)]

    @tf.function(input_signature=[tf.TensorSpec([None, None, None])])
    def traced(x):
        result = tfl.fused_lstm(x, kernels, recurrent, bidirectional=True)
        assert result.output.shape.as_list() == [None, None, 6]
        assert [h.shape.as_list() for h in result.final_h] == [[None, 4]] * 2 + [[None, 3]] * 2
        return result.output

    assert traced(tf.zeros((5, 7, 2))).shape == (5, 7, 6)

    unknown = tf.TensorSpec(None)

    @tf.function(input_signature=[unknown, [unknown] * 4, [unknown] * 4])
    def all_unknown(x, kernels, recurrent):
        result = tfl.fused_lstm(x, kernels, recurrent, bidirectional=True)
        assert result.output.shape.rank == 3
        return result.output

    assert all_unknown(tf.zeros((5, 7, 2)), kernels, recurrent).shape == (5, 7, 6)


def test_graphs_from_before_there_were_stacks(rng):
    """Nodes without the attributes that came later mean what they meant."""
    problem = make_problem(rng, mask="random")
    with tf.Graph().as_default():
        x, kernel, recurrent = (
            tf.constant(v) for v in (problem.x, problem.kernel, problem.recurrent_kernel)
        )
        output = tfl.fused_lstm(x, kernel, recurrent, mask=problem.mask, training=True).output
        fetches = [output, *tf.gradients(output, [x, kernel, recurrent])]
        with tf.compat.v1.Session() as session:
            wanted = session.run(fetches)
        names = [tensor.name for tensor in fetches]
        graph_def = tf.compat.v1.get_default_graph().as_graph_def()
    later = {"bidirectional", "num_dropout_mask", "num_recurrent_dropout_mask"}
    nodes = [node for node in graph_def.node if node.op in ("FusedLSTM", "FusedLSTMGrad")]
    assert len(nodes) == 2
    for node in nodes:
        assert later <= set(node.attr)
        for name in later:
            del node.attr[name]
    with tf.Graph().as_default():
        tf.import_graph_def(graph_def, name="")
        with tf.compat.v1.Session() as session:
            got = session.run(names)
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(g, w)


BATCH, STEPS, INPUT, HIDDEN = 3, 5, 2, (4, 6)
# The argument that is wrong, its cell, its shape.
WRONG = [
    ("kernel", 1, (3, 16)),
    ("kernel", 2, (4, 24)),
    ("kernel", 3, (8, 16)),
    ("recurrent_kernel", 1, (6, 24)),
    ("recurrent_kernel", 2, (6, 20)),
    ("bias", 3, (16,)),
    ("initial_h", 1, (3, 6)),
    ("initial_c", 2, (2, 6)),
    ("dropout_mask", 0, (2, 3, 2)),
    ("dropout_mask", 2, (4, 3, 4)),
    ("dropout_mask", 1, (1, 3, 2)),
    ("recurrent_dropout_mask", 3, (4, 3, 4)),
    ("recurrent_dropout_mask", 0, (3, 4)),
]


def stack_tensors():
    cells = [(i, h) for i, h in zip((INPUT, 2 * HIDDEN[0]), HIDDEN, strict=True) for _ in range(2)]
    return {
        "x": tf.zeros((BATCH, STEPS, INPUT)),
        "kernel": [tf.zeros((i, 4 * h)) for i, h in cells],
        "recurrent_kernel": [tf.zeros((h, 4 * h)) for i, h in cells],
        "bias": [tf.zeros(4 * h) for i, h in cells],
        "initial_h": [tf.zeros((BATCH, h)) for i, h in cells],
        "initial_c": [tf.zeros((BATCH, h)) for i, h in cells],
        "mask": [tf.zeros((BATCH, STEPS), tf.bool)],
        "dropout_mask": [tf.zeros((4, BATCH, i)) for i, h in cells],
        "recurrent_dropout_mask": [tf.zeros((4, BATCH, h)) for i, h in cells],
    }


@pytest.mark.parametrize("how", ["eager", "traced", "run"])
@pytest.mark.parametrize("op", ["forward", "gradient"])
@pytest.mark.parametrize(("name", "cell", "shape"), WRONG)
def test_a_wrong_shape_names_the_cell(name, cell, shape, op, how):
    raw_ops = loader.raw_ops()
    tensors = stack_tensors()
    tensors[name][cell] = tf.zeros(shape)
    attributes = {"bidirectional": True, "time_major": False, "go_backwards": False,
                  "return_sequences": True, "zero_output_for_mask": False,
                  "activation": "tanh", "recurrent_activation": "sigmoid"}  # fmt: skip
    function = raw_ops.fused_lstm
    if op == "gradient":
        function = raw_ops.fused_lstm_grad
        units = 2 * HIDDEN[1]
        states = [tf.zeros((BATCH, h)) for h in HIDDEN for _ in range(2)]
        tensors |= {
            "output": tf.zeros((BATCH, STEPS, units)),
            "reserve": tf.zeros((0,), tf.uint8),
            "grad_output": tf.zeros((BATCH, STEPS, units)),
            "grad_final_h": states,
            "grad_final_c": states,
        }
    else:
        attributes["training"] = True

    def call(tensors):
        return function(**tensors, **attributes)

    if how == "traced":
        call = tf.function(call, autograph=False)
    if how == "run":
        signature = tf.nest.map_structure(lambda v: tf.TensorSpec(None, v.dtype), tensors)
        call = tf.function(call, autograph=False, input_signature=[signature])
    # The sizes of two tensors may disagree: either may be named.
    with pytest.raises(
        (tf.errors.InvalidArgumentError, ValueError), match=r"kernel|bias|_[hc]|mask"
    ):
        call(tensors)


def test_error_messages_have_the_index():
    tensors = stack_tensors()
    tensors["bias"][3] = tf.zeros(16)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"^.*bias\[3\] must have shape \[4 \* h"
    ):
        loader.raw_ops().fused_lstm(**tensors, bidirectional=True)
    traced = tf.function(lambda: loader.raw_ops().fused_lstm(**tensors, bidirectional=True))
    with pytest.raises(ValueError, match=r"bias\[3\] must have 24 in dimension 0"):
        traced()


def test_bad_arguments():
    raw_ops = loader.raw_ops()
    tensors = stack_tensors()
    with pytest.raises(tf.errors.InvalidArgumentError, match="go_backwards must be false"):
        raw_ops.fused_lstm(**tensors, bidirectional=True, go_backwards=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="bias must be no tensor or 4, got 2"):
        raw_ops.fused_lstm(**{**tensors, "bias": tensors["bias"][:2]}, bidirectional=True)
    three = {k: v[:3] if k not in ("x", "mask") else v for k, v in tensors.items()}
    with pytest.raises(tf.errors.InvalidArgumentError, match="kernel must be an even number"):
        raw_ops.fused_lstm(**three, bidirectional=True)
    x, kernel, recurrent = tensors["x"], tensors["kernel"], tensors["recurrent_kernel"]
    with pytest.raises(ValueError, match="kernel must be a list of two kernels a layer"):
        tfl.fused_lstm(x, kernel[0], recurrent[0], bidirectional=True)
    with pytest.raises(ValueError, match=r"recurrent_kernel must be a list of 4 .* got 3"):
        tfl.fused_lstm(x, kernel, recurrent[:3], bidirectional=True)
    with pytest.raises(ValueError, match="bias must be a list of 4 tensors"):
        tfl.fused_lstm(x, kernel, recurrent, tensors["bias"][0], bidirectional=True)
    with pytest.raises(ValueError, match="go_backwards must be False"):
        tfl.fused_lstm(x, kernel, recurrent, bidirectional=True, go_backwards=True)
    with pytest.raises(ValueError, match=r"initial_h\[1\] must be float32"):
        states = [tf.zeros((3, 4), tf.float64 if i == 1 else tf.float32) for i in range(4)]
        tfl.fused_lstm(x, kernel, recurrent, initial_h=states, bidirectional=True)


@pytest.mark.parametrize("steps", [2**50, 2**52, 2**54])
def test_layers_whose_scratch_together_overflows(steps):
    """Each layer alone is a size that exists; no element of x does."""
    layers = 6
    zeros = [tf.zeros([5, 20])] * (layers - 1)
    with pytest.raises(
        (tf.errors.InvalidArgumentError, tf.errors.ResourceExhaustedError),
        match=r"kernel must|OOM when allocating",
    ):
        tfl.fused_lstm(
            tf.zeros([1, steps, 0]), [tf.zeros([0, 20]), *zeros], [tf.zeros([5, 20])] * layers,
            return_sequences=False, training=True,
        )  # fmt: skip
