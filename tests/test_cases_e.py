"""Speed: what does not depend on the machine. Figures are the benchmark's."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from executed import eager_ops, graph_kernels
from graph_ops import op_types
from keras_pairs import MASK, inputs, pair
from processes import output_of

import tf_fused_lstm as tfl

COUNT_THREADS = """
import os, time
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads({threads})
tf.config.threading.set_inter_op_parallelism_threads(1)
import tf_fused_lstm as tfl

layer = tfl.FusedLSTM(128, return_sequences=True)
x = tf.random.stateless_normal((64, 50, 64), [1, 2])

def train():
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(x))
    return tape.gradient(loss, [v.value for v in layer.trainable_variables])

tf.linalg.matmul(tf.ones((500, 500)), tf.ones((500, 500)))  # TensorFlow's own threads begin
layer.build(x.shape)
before = len(os.listdir("/proc/self/task"))
train()
wall, cpu = time.perf_counter(), time.process_time()
for _ in range(20):
    train()
print((time.process_time() - cpu) / (time.perf_counter() - wall))
print(len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_e9_uses_the_threads_it_is_given(threads):
    """CPU time over wall time; and no pool of threads of its own."""
    used, more_threads = output_of(COUNT_THREADS.format(threads=threads)).split()
    assert float(used) <= threads + 0.1
    assert int(more_threads) == 0


ON_ONE_CORE = """
import os
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
import numpy as np, tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads({threads})
import tf_fused_lstm as tfl

def call(x, weights, jit_compile):
    @tf.function(jit_compile=jit_compile)
    def train(x):
        with tf.GradientTape() as tape:
            tape.watch([x, *weights])
            output = tfl.fused_lstm(x, *weights).output
        return output, tape.gradient(output, [x, *weights])
    return train(x)

given = np.load({path!r})
for shape in ("rows", "row"):
    tensors = [tf.constant(given[f"{{shape}}_{{i}}"]) for i in range(4)]
    wanted = [given[f"{{shape}}_wanted_{{i}}"] for i in range(5)]
    for jit_compile in (None, True):
        for _ in range(5):
            got = tf.nest.flatten(call(tensors[0], tensors[1:], jit_compile))
            for g, w in zip(got, wanted, strict=True):
                np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4)
print(len(os.sched_getaffinity(0)))
"""


@pytest.fixture(scope="module")
def calls_and_results(tmp_path_factory):
    """Many rows, which threads share; and one, whose units they share at every step."""
    path = str(tmp_path_factory.mktemp("calls") / "calls.npz")
    arrays = {}
    for name, shape, units in (("rows", (64, 20, 32), 64), ("row", (1, 50, 64), 256)):
        _, layer = pair(shape, units)
        x, weights = inputs(shape=shape), [v.value * 0.2 for v in layer.trainable_variables]
        with tf.GradientTape() as tape, tf.device("/CPU:0"):
            tape.watch([x, *weights])
            output = tfl.fused_lstm(x, *weights).output
        results = [output, *tape.gradient(output, [x, *weights])]
        arrays |= {f"{name}_{i}": v.numpy() for i, v in enumerate([x, *weights])}
        arrays |= {f"{name}_wanted_{i}": v.numpy() for i, v in enumerate(results)}
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_e9_on_one_core(calls_and_results, threads):
    """As under taskset: more threads than cores get through, with the same results."""
    assert output_of(ON_ONE_CORE.format(threads=threads, path=calls_and_results)) == "1"


MORE_THREADS_THAN_CORES = """
import os, pathlib, re
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(8)
import tf_fused_lstm as tfl

x, kernel, recurrent_kernel = (0.1 * tf.ones(s) for s in ([1, 200, 64], [64, 1024], [256, 1024]))

def call(x):
    return tfl.fused_lstm(x, kernel, recurrent_kernel).output

def ticks():
    stats = (p.read_text() for p in pathlib.Path("/proc/self/task").glob("*/stat"))
    return {s.split()[0]: sum(map(int, s.rpartition(")")[2].split()[11:13])) for s in stats}

call(x)
before = ticks()
while sum(ticks().values()) < sum(before.values()) + 100:
    call(x)
used = [n - before.get(thread, 0) for thread, n in ticks().items()]
print(sum(10 * n > sum(used) for n in used))
hlo = tf.function(call, jit_compile=True).experimental_get_compiler_ir(x)(stage="hlo")
print(*re.findall("num_threads = ([0-9]+)", hlo))
"""


def test_e2_no_more_threads_work_than_there_are_cores():
    """At one row, where they would wait for each other at every step, 8 threads on one core are no
    slower than one: of them only one runs, in XLA too."""
    assert output_of(MORE_THREADS_THAN_CORES).split() == ["1", "1"]


@pytest.mark.parametrize("train", [False, True])
def test_e1_an_eager_call_is_one_op(train):
    """And one for its gradient, however many the steps, but for the reading of three weights."""
    counts = []
    for steps in (50, 500):
        for layer in pair((1, steps, 16), 32, return_sequences=True):
            x = inputs(shape=(1, steps, 16))

            def call(layer=layer, x=x):
                with tf.GradientTape() as tape:
                    output = layer(x)
                if train:
                    tape.gradient(output, [v.value for v in layer.trainable_variables])

            call()
            counts.append([name for name, _ in eager_ops(call)])
    stock, fused, longer_stock, longer_fused = counts
    assert sorted(set(fused) - {"Fill"}) == sorted(
        {"ReadVariableOp", "FusedLSTM"} | ({"FusedLSTMGrad"} if train else set())
    )
    assert fused.count("FusedLSTM") == 1 and fused.count("FusedLSTMGrad") == train
    assert len(fused) <= 4 + 4 * train and longer_fused == fused
    assert len(stock) > 100 * len(fused) and len(longer_stock) > 1000 * len(fused)


def test_e1_eager_gives_the_op_what_a_graph_does():
    """Nothing else runs: no copy, cast or transposition."""
    _, layer = pair((2, 5, 3), 4, return_sequences=True)
    x = inputs(shape=(2, 5, 3))
    in_graph = tf.function(layer).get_concrete_function(x).graph
    types = {op.type for op in in_graph.get_operations()} - {"Placeholder", "Identity", "NoOp"}
    assert types == {name for name, _ in eager_ops(lambda: layer(x))}


def test_e2_kernels_of_a_graph_do_not_grow_with_the_steps():
    """Where Keras's loop starts some fifty a step."""
    counts = []
    for layer in pair((1, 500, 7), 64, return_sequences=True):
        concrete = tf.function(layer).get_concrete_function(tf.TensorSpec([1, None, 7]))
        for steps in (10, 500):
            counts.append(graph_kernels(concrete, [inputs(shape=(1, steps, 7)).numpy()]))
    _, stock, short, fused = counts
    assert fused == short <= 10
    assert stock > 1000 * fused


@pytest.mark.parametrize(
    ("arguments", "more"),
    [({"dropout": 0.3}, 14), ({"recurrent_dropout": 0.3}, 20),
     ({"dropout": 0.3, "recurrent_dropout": 0.3}, 36), ({"activation": "relu"}, 0),
     ({"recurrent_activation": "hard_sigmoid"}, 0), ({"use_bias": False}, -1),
     ({"mask": MASK}, 0), ({"stateful": True}, 6)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("train", [False, True])
def test_e3_variants_are_one_op_too(arguments, more, train):
    """What they run besides it is small, and the same for any number of steps."""

    def types(mask=None, **arguments):
        _, layer = pair((3, 5, 2), return_sequences=True, **arguments)

        def call(x):
            with tf.GradientTape() as tape:
                output = layer(x, mask=mask, training=True)
            return tape.gradient(output, layer.cell.kernel.value) if train else output

        return [name for name in op_types(call, tf.TensorSpec([3, None, 2])) if name != "Const"]

    plain, variant = types(), types(**arguments)
    assert variant.count("FusedLSTM") == 1 and variant.count("FusedLSTMGrad") == train
    assert len(variant) <= len(plain) + more, variant


@pytest.mark.parametrize(
    ("batch", "steps", "features", "units"),
    [(1, 1, 16, 64), (1, 50, 16, 32), (1, 500, 7, 64), (32, 100, 64, 128), (64, 200, 64, 256)],
)
def test_e6_a_step_of_fit_runs_fewer_ops(batch, steps, features, units):
    """Of the whole train step and its optimizer, counted in the graph, where Keras's loop is one
    op; so that at a single step, too, there is nothing that could be slower."""
    counts = []
    for kind in (keras.layers.LSTM, tfl.FusedLSTM):
        model = keras.Sequential(
            [keras.Input((steps, features)), kind(units), keras.layers.Dense(1)]
        )
        model.compile("adam", "mse", jit_compile=False)
        shapes = [tf.TensorSpec((batch, steps, features)), tf.TensorSpec((batch, 1))]
        types = op_types(lambda x, y, model=model: model.train_step((x, y)), *shapes)
        counts.append(len(types))
    assert types.count("FusedLSTM") == types.count("FusedLSTMGrad") == 1
    assert not {"While", "StatelessWhile", "Transpose"} & set(types)
    assert counts[1] < counts[0] - 20
