"""F1: what `fused_lstm` and the raw op say of an argument that is not the tensor they take."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_fused_lstm as tfl
from tf_fused_lstm import _loader

X = np.zeros((3, 5, 2), np.float32)
WEIGHTS = {"kernel": (2, 16), "recurrent_kernel": (4, 16), "bias": (16,)}
ARGUMENTS = {**WEIGHTS, "initial_h": (3, 4), "initial_c": (3, 4), "mask": (3, 5)}

# What is not a float32 tensor, and what the error says.
NOT_FLOAT32 = {
    "float64 tensor": (lambda s: tf.zeros(s, "float64"), "float32, got dtype float64"),
    "int32 tensor": (lambda s: tf.zeros(s, "int32"), "float32, got dtype int32"),
    "string tensor": (lambda s: tf.fill(s, "a"), "float32, got dtype string"),
    "variable": (lambda s: tf.Variable(tf.zeros(s, "float64")), "float32, got dtype float64"),
    "keras variable": (
        lambda s: keras.Variable(np.zeros(s), dtype="float16"), "float32, got dtype float16"
    ),
    "complex array": (lambda s: np.zeros(s, "complex64"), "float32, got dtype complex64"),
    "array of None": (lambda s: np.full(s, None), "float32, got dtype object"),
    "ragged": (lambda s: tf.ragged.constant([[1.0], []]), "a dense tensor, got a RaggedTensor"),
    "sparse": (lambda s: tf.sparse.from_dense(tf.ones(s)), "a dense tensor, got a SparseTensor"),
    "slices": (
        lambda s: tf.IndexedSlices(tf.ones(s), tf.range(s[0])),
        "a dense tensor, got a IndexedSlices",
    ),
    "uneven list": (lambda s: [[1.0], [1.0, 2.0]], "a tensor, or numbers .* got a list"),
    "text": (lambda s: "abc", "a tensor, or numbers .* got a str"),
    "object": (lambda s: object(), "a tensor, or numbers .* got a object"),
}  # fmt: skip
NOT_A_MASK = {
    "string tensor": (lambda s: tf.fill(s, "a"), "bool or real numbers, got dtype string"),
    "complex array": (
        lambda s: np.zeros(s, "complex64"), "bool or real numbers, got dtype complex64"
    ),
    **{kind: NOT_FLOAT32[kind] for kind in ("ragged", "sparse", "slices", "uneven list", "object")},
}  # fmt: skip
KINDS = [
    (argument, kind)
    for argument in ARGUMENTS
    for kind in (NOT_A_MASK if argument == "mask" else NOT_FLOAT32)
]


@pytest.fixture(params=[False, True], ids=["eager", "graph"])
def call(request):
    """Calls a function, or traces it: the arguments are then tensors from outside of it, which
    TensorFlow captures before it looks at their types."""

    def run(function, **arguments):
        if request.param:
            return tf.function(lambda: function(**arguments), autograph=False)()
        return function(**arguments)

    return run


@pytest.mark.parametrize(("argument", "kind"), KINDS)
def test_f1_function_names_an_argument_of_another_type(call, argument, kind):
    make, message = (NOT_A_MASK if argument == "mask" else NOT_FLOAT32)[kind]
    values = {name: np.zeros(shape, np.float32) for name, shape in ARGUMENTS.items()}
    values[argument] = make(ARGUMENTS[argument])
    with pytest.raises(ValueError, match=f"^{argument} must be {message}"):
        call(tfl.fused_lstm, x=X, **values)


@pytest.mark.parametrize("argument", ["x", "kernel", "recurrent_kernel"])
def test_f1_function_names_a_missing_argument(call, argument):
    values = {"x": X, **{name: np.zeros(shape, np.float32) for name, shape in WEIGHTS.items()}}
    values[argument] = None
    with pytest.raises(ValueError, match=f"^{argument} must be a tensor, got None"):
        call(tfl.fused_lstm, **values)


@pytest.mark.parametrize("dtype", ["float64", "int32", "string", "complex64"])
@pytest.mark.parametrize("argument", ["x", *ARGUMENTS])
def test_f1_raw_op_refuses_other_types(call, argument, dtype):
    """In its own words ("Unreachable" of a captured tensor), but as an exception."""
    values = {"x": tf.constant(X), **{name: tf.zeros(shape) for name, shape in ARGUMENTS.items()}}
    values["mask"] = tf.ones(ARGUMENTS["mask"], tf.bool)
    shape = values[argument].shape
    values[argument] = tf.fill(shape, "a") if dtype == "string" else tf.zeros(shape, dtype)
    lists = {name: value if name == "x" else [value] for name, value in values.items()}
    lists |= {"dropout_mask": [], "recurrent_dropout_mask": []}
    with pytest.raises((TypeError, AssertionError, tf.errors.InvalidArgumentError)):
        call(_loader.raw_ops().fused_lstm, **lists)


FLAGS = ("time_major", "go_backwards", "bidirectional", "return_sequences",
         "zero_output_for_mask", "training")  # fmt: skip


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("value", [1, 0, np.True_, np.False_])
def test_f1_function_takes_other_bools(call, flag, value):
    kernels, recurrent_kernels = [np.ones((2, 16), np.float32)] * 2, [np.ones((4, 16))] * 2
    if flag != "bidirectional":
        kernels, recurrent_kernels = kernels[0], recurrent_kernels[0]
    elif not value:
        kernels, recurrent_kernels = kernels[:1], recurrent_kernels[:1]
    arguments = {"x": X + 1, "kernel": kernels, "recurrent_kernel": recurrent_kernels}
    got, wanted = (
        call(tfl.fused_lstm, **arguments, **{flag: v}).output for v in (value, bool(value))
    )
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("value", [None, "yes", 2, [], tf.constant(True)], ids=str)
def test_f1_function_names_a_flag_that_is_none(call, flag, value):
    if flag == "training" and value is None:
        value = 0.5
    weights = {name: np.zeros(shape, np.float32) for name, shape in WEIGHTS.items()}
    with pytest.raises(ValueError, match=f"^{flag} must be True or False, got "):
        call(tfl.fused_lstm, x=X, **weights, **{flag: value})


@pytest.mark.parametrize("value", [None, 1, 0, np.True_, "yes", ""], ids=repr)
@pytest.mark.parametrize("flag", ["return_sequences", "go_backwards", "zero_output_for_mask"])
def test_layer_reads_flags_as_keras_does(flag, value):
    """By their truth: return_sequences=None gives the last output."""
    x, mask = np.ones((3, 5, 2), np.float32), np.ones((3, 5), bool)
    mask[1, 2:] = False
    stock, fused = (
        kind(4, **{"return_sequences": True, flag: value})
        for kind in (keras.layers.LSTM, tfl.FusedLSTM)
    )
    wanted = stock(x, mask=mask)
    fused.build(x.shape)
    fused.set_weights(stock.get_weights())
    np.testing.assert_allclose(fused(x, mask=mask), wanted, rtol=1e-5, atol=1e-6)
    assert fused.fused_reason is None
