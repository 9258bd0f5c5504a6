"""Speed: what does not depend on the machine. Figures are the benchmark's."""

import time

import keras
import pytest
import tensorflow as tf
from keras_pairs import inputs, pair
from processes import output_of

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


def quickest(*calls, rounds=5):
    """The least time of each, taken in turn, in seconds."""
    times = [[] for _ in calls]
    for call in calls:
        call()
    for _ in range(rounds):
        for call, taken in zip(calls, times, strict=True):
            begin = time.perf_counter()
            call()
            taken.append(time.perf_counter() - begin)
    return [min(taken) for taken in times]


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("shape", [(1, 50, 16), (32, 100, 64)])
def test_e1_eager_calls(shape, train):
    """One op instead of a loop of ops: at least ten times as fast."""
    layers = pair(shape, 32, return_sequences=True)
    x = inputs(shape=shape)

    def call(layer):
        with tf.GradientTape() as tape:
            y = layer(x)
        if train:
            tape.gradient(y, [v.value for v in layer.trainable_variables])

    stock, fused = quickest(*(lambda layer=layer: call(layer) for layer in layers), rounds=3)
    assert fused * 10 < stock, (fused, stock)


def test_e2_single_row_in_a_graph():
    layers = pair((1, 500, 7), 64, return_sequences=True)
    x = inputs(shape=(1, 500, 7))
    traced = [tf.function(layer) for layer in layers]
    stock, fused = quickest(*(lambda f=f: f(x).numpy() for f in traced), rounds=20)
    assert fused * 2 < stock, (fused, stock)


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [({"dropout": 0.3}, 2.5), ({"recurrent_dropout": 0.3}, 2.5), ({"activation": "relu"}, 2.5),
     ({"mask": True}, 1.3)],
)  # fmt: skip
def test_e3_no_cliff(arguments, limit):
    """As many times as long as the plain layer; a fifth more for what else the machine does."""
    shape = (32, 100, 64)
    x = inputs(shape=shape)
    mask = None
    if arguments.pop("mask", False):
        mask = tf.sequence_mask([50 + i for i in range(32)], 100)
    calls = []
    for others, its_mask in (({}, None), (arguments, mask)):
        _, layer = pair(shape, 128, return_sequences=True, **others)
        call = tf.function(lambda layer=layer, m=its_mask: layer(x, mask=m, training=True))
        calls.append(lambda call=call: call().numpy())
    plain, variant = quickest(*calls, rounds=20)
    assert variant < 1.2 * limit * plain, (plain, variant)


def test_e6_fit():
    """fit takes no longer than with Keras's layer."""
    x, y = inputs(shape=(128, 100, 16)).numpy(), inputs(shape=(128, 1)).numpy()
    calls = []
    for layer in pair((32, 100, 16), 32):
        model = keras.Sequential([keras.Input((100, 16)), layer, keras.layers.Dense(1)])
        model.compile("adam", "mse", jit_compile=False)
        calls.append(lambda model=model: model.fit(x, y, verbose=0))
    stock, fused = quickest(*calls, rounds=4)
    assert fused < stock, (fused, stock)
