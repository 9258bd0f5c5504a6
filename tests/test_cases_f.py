"""Robustness: wrong arguments, sizes at the edges, threads, memory, log noise."""

import concurrent.futures
import gc
import json
import re
from pathlib import Path

import keras
import malformed
import numpy as np
import pytest
import tensorflow as tf
from keras_pairs import MASK, assert_close, inputs, pair
from processes import run_python

import tf_fused_lstm as tfl
from tf_fused_lstm import _loader

X = inputs()


@pytest.fixture(scope="module")
def malformed_results():
    """What every wrong call raised; the process must end by itself."""
    result = run_python(Path(malformed.__file__).read_text())
    assert result.returncode == 0, result.stderr[-4000:]
    return json.loads(result.stdout)


# Of several arguments that disagree any may be named: a feature size is x's and kernel's alike.
ALSO_NAMED = {
    "x": ("kernel", "mask", "initial_h", "dropout_mask"),
    "kernel": ("x", "recurrent_kernel", "dropout_mask"),
    "recurrent_kernel": ("kernel", "bias", "initial_h", "recurrent_dropout_mask"),
}


@pytest.mark.parametrize("how", ["eager", "traced", "run"])
@pytest.mark.parametrize("kind", ["forward", "gradient"])
@pytest.mark.parametrize("name", [*malformed.WRONG, *malformed.GRADIENT_WRONG])
def test_f1_malformed_arguments_are_named(malformed_results, kind, name, how):
    results = {
        key: value
        for key, value in malformed_results.items()
        if key.startswith(f"{kind} {name} ") and key.endswith(how)
    }
    if kind == "forward" and name in malformed.GRADIENT_WRONG:
        assert not results
        return
    wrong = {**malformed.WRONG, **malformed.GRADIENT_WRONG}[name]
    assert len(results) == len(wrong)
    for key, (error, message) in results.items():
        # While tracing TensorFlow makes ValueErrors of InvalidArgumentErrors.
        assert error in ("InvalidArgumentError", "ValueError"), f"{key}: {error} {message}"
        names = "|".join((name, *ALSO_NAMED.get(name, ())))
        # In so many words: TensorFlow appends the node, which holds every argument's name.
        assert re.search(rf"(?<!\w)({names})(: | must (have|be) )", message), f"{key}: {message}"
        if how == "eager":
            assert "got" in message, f"{key}: {message}"


# In a process of its own: TensorFlow ends the process at a shape whose product overflows.
OVERFLOWING = """
import tensorflow as tf
from tf_fused_lstm import _loader

raw_ops = _loader.raw_ops()
for shape, hidden, time_major in (
    ((0, 1, 2**62), 1, False), ((1, 0, 2**62), 1, True), ((2**62, 0, 0), 4, False),
    ((0, 2**62, 0), 4, True), ((2**40, 2**22, 0), 4, False), ((2**40, 2**22, 0), 4, True),
):
    values = {
        "x": tf.zeros(shape), "kernel": [tf.zeros((0, 4 * hidden))],
        "recurrent_kernel": [tf.zeros((hidden, 4 * hidden))],
        "bias": [], "initial_h": [], "initial_c": [], "mask": [], "dropout_mask": [],
        "recurrent_dropout_mask": [],
    }
    none = tf.zeros((0,))
    gradient_values = {
        "output": none, "reserve": tf.zeros((0,), tf.uint8), "grad_output": none,
        "grad_final_h": [none], "grad_final_c": [none],
    }
    for op, more in ((raw_ops.fused_lstm, {}), (raw_ops.fused_lstm_grad, gradient_values)):
        try:
            op(**values, **more, time_major=time_major)
        except tf.errors.InvalidArgumentError as error:
            print(error.message)
"""


def test_f1_sizes_whose_products_overflow():
    result = run_python(OVERFLOWING)
    assert result.returncode == 0, result.stderr[-4000:]
    messages = result.stdout.strip().splitlines()
    assert len(messages) == 12
    assert all("products fit" in message and "got" in message for message in messages), messages


@pytest.mark.parametrize("shape", [(), (4,), (4, 8), (3, 9), (4, 9, 1, 1)])
def test_f1_layer_names_a_mask_of_a_wrong_shape(shape):
    layer = tfl.FusedLSTM(6)
    with pytest.raises(ValueError, match=r"mask must have shape \(batch, steps\) = \(4, 9\)"):
        layer(tf.zeros((4, 9, 5)), mask=tf.ones(shape, tf.bool))


@pytest.mark.parametrize("convert", [tf.RaggedTensor.from_tensor, tf.sparse.from_dense])
def test_f1_x_must_be_dense(convert):
    x = convert(tf.ones((4, 9, 5)))
    with pytest.raises(ValueError, match=f"x must be a dense tensor, got a {type(x).__name__}"):
        tfl.fused_lstm(x, tf.zeros((5, 24)), tf.zeros((6, 24)))


@pytest.mark.parametrize("dtypes", [("float32", "float64"), ("float64", "float32"),
                                    ("float32", "float16"), ("float16", "bfloat16")])  # fmt: skip
def test_f1_types_that_do_not_go_together(dtypes):
    raw_ops = _loader.raw_ops()
    x = tf.zeros((3, 5, 2), dtypes[0])
    kernel, recurrent_kernel = tf.zeros((2, 16), dtypes[1]), tf.zeros((4, 16), dtypes[1])
    with pytest.raises(tf.errors.InvalidArgumentError, match="kernel must be"):
        raw_ops.fused_lstm(
            x=x, kernel=[kernel], recurrent_kernel=[recurrent_kernel], bias=[], initial_h=[],
            initial_c=[], mask=[], dropout_mask=[], recurrent_dropout_mask=[],
        )  # fmt: skip
    with pytest.raises(ValueError, match="kernel must be"):
        tfl.fused_lstm(x, kernel, recurrent_kernel)


@pytest.mark.parametrize("argument", ["bias", "mask"])
def test_f1_lists_of_wrong_length(argument):
    raw_ops = _loader.raw_ops()
    lists = {
        "kernel": [tf.zeros((2, 16))], "recurrent_kernel": [tf.zeros((4, 16))], "bias": [],
        "initial_h": [], "initial_c": [], "mask": [], "dropout_mask": [],
        "recurrent_dropout_mask": [],
    }  # fmt: skip
    value = tf.zeros([16]) if argument == "bias" else tf.ones((3, 5), tf.bool)
    lists[argument] = [value, value]
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"{argument} must be"):
        raw_ops.fused_lstm(x=tf.zeros((3, 5, 2)), **lists)


def test_f1_function_names_what_is_wrong():
    with pytest.raises(ValueError, match=r"x must be float16.*got dtype int32"):
        tfl.fused_lstm(np.ones((3, 5, 2), np.int32), np.ones((2, 16)), np.ones((4, 16)))
    with pytest.raises(ValueError, match=r"activation must be one of tanh.*got 'selu'"):
        tfl.fused_lstm(X, np.ones((2, 16)), np.ones((4, 16)), activation="selu")
    with pytest.raises(ValueError, match="initial_c must be float32, got dtype float64"):
        tfl.fused_lstm(
            X, np.ones((2, 16)), np.ones((4, 16)), initial_c=tf.zeros((3, 4), tf.float64)
        )


@pytest.mark.parametrize("shape", [(70000, 1, 2), (1, 70000, 2)])
def test_f5_long_and_wide(shape):
    _, layer = pair(return_sequences=True)

    def with_gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = layer(x)
            loss = tf.reduce_sum(output**2)
        return output.numpy(), tape.gradient(loss, x).numpy()

    x = inputs(shape=shape)
    output, gradient = with_gradient(x)
    assert np.all(np.isfinite(output)) and np.all(np.isfinite(gradient))
    if shape[0] > 1:
        picked = [0, 65535, 65536, 69999]
        few, few_gradient = with_gradient(tf.gather(x, picked))
        assert_close(output[picked], few)
        assert_close(gradient[picked], few_gradient, (1e-4, 1e-5))
    else:
        np.testing.assert_allclose(output[:, :20], layer(x[:, :20]), rtol=1e-5, atol=1e-6)
        tail = layer(x[:, -200:])  # an LSTM of small weights forgets its start
        np.testing.assert_allclose(output[:, -1], tail[:, -1], rtol=1e-3, atol=1e-4)
        _, few_gradient = with_gradient(x[:, :300])  # and its gradient what is far ahead
        np.testing.assert_allclose(gradient[:, :20], few_gradient[:, :20], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("layers", [1, 2])
def test_f6_threads(layers):
    """8 threads of 20 calls each, with mixed lengths, forward and gradient.

    On the CPU: on a GPU, TensorFlow 2.21 itself hands eager ops of one thread tensors of another
    (a Dense layer in the place of ours fails in the same way, in a reshape).
    """
    made = [pair((2, 3, 8), 40, return_sequences=True)[1] for _ in range(layers)]
    jobs = [(made[i % layers], inputs(i, (1 + i % 5, 1 + i % 7, 8))) for i in range(20)]

    def run(job):
        layer, x = job
        with tf.device("/CPU:0"):
            with tf.GradientTape() as tape:
                y = layer(x)
            return [y, *tape.gradient(y, [v.value for v in layer.trainable_variables])]

    wanted = [run(job) for job in jobs]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        for results in pool.map(lambda _: [run(job) for job in jobs], range(8)):
            assert_close(results, wanted, (1e-5, 1e-6))


def resident_bytes():
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.parametrize("how", ["call", "gradient", "predict", "train"])
def test_f8_memory_does_not_grow(how):
    _, layer = pair((4, 5, 8), 32, return_sequences=True)
    model = keras.Sequential([keras.Input((None, 8)), layer])
    model.compile("sgd", "mse")

    def call(i):
        x = tf.zeros((4, 20 + i % 30, 8))
        if how == "predict":
            return model.predict_on_batch(x)
        if how == "train":
            return model.train_on_batch(x, tf.ones((4, 20 + i % 30, 32)))
        if how == "call":
            return layer(x)
        with tf.GradientTape() as tape:
            y = layer(x)
        return tape.gradient(y, [v.value for v in layer.trainable_variables])

    for i in range(60):
        call(i)
    gc.collect()
    before = resident_bytes()
    for i in range(300):
        call(i)
    gc.collect()
    assert resident_bytes() - before < 20e6


PEAKS = """
import re
import keras, numpy as np, tensorflow as tf
import tf_fused_lstm as tfl

layer = tfl.FusedLSTM(256)
model = keras.Sequential([keras.Input((None, 1)), layer])
traced, compiled = tf.function(model), tf.function(model, jit_compile=True)

def train(x):
    with tf.GradientTape() as tape:
        output = layer(x)
    return tape.gradient(output, [v.value for v in layer.trainable_variables])

def peak():
    with open("/proc/self/status") as file:
        return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", file.read())[1])

for call in (layer, traced, lambda x: model.predict(x, verbose=0), compiled, train):
    call(tf.zeros((32, 1, 1)))
    before = peak()
    call(tf.zeros((32, 1000, 1)))
    print(peak() - before)
"""
# Of i, f, g, o and c of each step.
KEPT_BYTES = 32 * 1000 * 256 * 5 * 4


def test_f8_inference_has_no_memory_for_a_reserve():
    """The peak of a process that infers, eagerly, in a function, in predict, under XLA, and one
    that trains."""
    result = run_python(PEAKS)
    assert result.returncode == 0, result.stderr[-4000:]
    *inference, training = [int(line) for line in result.stdout.split()]
    assert len(inference) == 4 and max(inference) < 0.25 * KEPT_BYTES, inference
    assert training > KEPT_BYTES


def test_f8_inference_keeps_no_reserve(monkeypatch):
    """The op's output `reserve` is empty wherever no gradient is taken."""
    raw_ops, size = _loader.raw_ops(), tf.Variable(-1)
    forward = raw_ops.fused_lstm

    def noting(**arguments):
        results = forward(**arguments)
        size.assign(tf.size(results.reserve))
        return results

    monkeypatch.setattr(raw_ops, "fused_lstm", noting)
    layer = tfl.FusedLSTM(4, dropout=0.3)
    model = keras.Sequential([keras.Input((5, 2)), layer])

    def train(x, watch=True):
        with tf.GradientTape(watch_accessed_variables=watch) as tape:
            loss = tf.reduce_sum(layer(x, training=True))
        return tape.gradient(loss, layer.cell.kernel.value)

    def size_of(call):
        size.assign(-1)
        call(X)
        return int(size)

    calls = [
        layer, tf.function(layer), lambda x: layer(x, training=True),
        lambda x: model.predict(x, verbose=0), lambda x: model.predict_on_batch(x.numpy()),
        lambda x: train(x, watch=False),
    ]  # fmt: skip
    assert [size_of(call) for call in calls] == [0] * len(calls)
    floats = 3 * 5 * 4 * 4  # i, f, g and o of each step; in two bytes each, or more
    assert size_of(train) >= 2 * floats and size_of(tf.function(train)) >= 2 * floats


def test_f11_no_log_noise():
    """fit, with masks and mixed lengths, logs no line that Keras's layer does not."""
    source = """
import keras, numpy as np, warnings
import tf_fused_lstm as tfl
warnings.simplefilter("always")
model = keras.Sequential([
    keras.Input((None, 2)), keras.layers.Masking(), {layer}(4), keras.layers.Dense(1),
])
model.compile("sgd", "mse", jit_compile=False)
for steps in (3, 4):
    model.fit(np.ones((4, steps, 2)), np.ones((4, 1)), verbose=0)
"""
    lines = []
    for layer in ("keras.layers.LSTM", "tfl.FusedLSTM"):
        result = run_python(source.format(layer=layer), TF_CPP_MIN_LOG_LEVEL=None)
        assert result.returncode == 0, result.stderr
        # without times, process numbers and addresses
        lines.append({line.split("] ")[-1] for line in result.stderr.splitlines()})
    assert not lines[1] - lines[0]


def test_f_masked_training_step_equals_stock():
    """A whole optimiser step on masked data, weights compared after it."""
    stock, fused = pair(return_sequences=True)
    for layer in (stock, fused):
        optimizer = keras.optimizers.SGD(0.1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(layer(X, mask=MASK) ** 2)
        optimizer.apply(tape.gradient(loss, layer.trainable_variables), layer.trainable_variables)
    assert_close(fused.get_weights(), stock.get_weights())


# TensorFlow's allocator asks again for 10 seconds each time.
OUT_OF_MEMORY = """
import tensorflow as tf
import tf_fused_lstm as tfl

kernel, recurrent_kernel = tf.zeros((0, 4)), tf.zeros((1, 4))

def call(batch, steps, training=False):
    return tfl.fused_lstm(
        tf.zeros((batch, steps, 0)), kernel, recurrent_kernel, return_sequences=not training,
        training=training,
    )

def train(batch, steps):
    return call(batch, steps, training=True)

for function in (call, tf.function(train), tf.function(call, jit_compile=True)):
    try:
        function(2**20, 2**20)
    except tf.errors.ResourceExhaustedError as error:
        print(error.message)
    assert not tf.reduce_any(function(3, 5).output != 0)
"""


def test_f12_out_of_memory():
    """Terabytes of output, of reserve, under XLA: an error says how much; smaller calls go on."""
    result = run_python(OUT_OF_MEMORY)
    assert result.returncode == 0, result.stderr[-4000:]
    messages = result.stdout.strip()
    assert "OOM when allocating tensor with shape[1048576,1048576,1]" in messages
    assert re.search(r"OOM when allocating tensor with shape\[\d{13,}\]", messages)
    assert re.search(r"Out of memory while trying to allocate [\d.]+TiB", messages)
