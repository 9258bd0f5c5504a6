"""Dropout of eager calls: Keras's numbers by one op, in every context that a call may have."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf
from executed import eager_ops
from keras_pairs import LIMITS, assert_close, inputs, outputs_and_gradients, pair
from processes import output_of

import tf_fused_lstm as tfl
from tf_fused_lstm import _dropout

X = inputs()
KINDS = [{"dropout": 0.4}, {"recurrent_dropout": 0.3}, {"dropout": 0.4, "recurrent_dropout": 0.3}]


def state_of(layer):
    return layer.cell.seed_generator.state.value


def trained(layer, x=X):
    """Two calls that train, with gradients, one that does not, and where the seed is then."""
    return [
        outputs_and_gradients(layer, x, training=True),
        layer(x),
        outputs_and_gradients(layer, x, training=True),
        tf.cast(state_of(layer), tf.float64),
    ]


@pytest.mark.parametrize("dropouts", KINDS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "mixed_bfloat16"])
def test_eager_and_in_a_function_as_keras(dropouts, dtype):
    kind = "bfloat16" if dtype == "mixed_bfloat16" else dtype
    stock, fused = pair(**dropouts, seed=7, return_sequences=True, dtype=dtype)
    _, traced = pair(**dropouts, seed=7, return_sequences=True, dtype=dtype)
    x = tf.cast(X, kind)
    wanted, got = trained(stock, x), trained(fused, x)
    in_function = [tf.function(lambda x: outputs_and_gradients(traced, x, training=True))]
    in_function.append(tf.function(traced))
    also = [in_function[0](x), in_function[1](x), in_function[0](x)]
    assert_close(got, wanted, LIMITS[kind][1])
    assert_close(also, got[:3], LIMITS[kind][1])
    assert_close(state_of(traced), state_of(fused), (0, 0))


@pytest.mark.parametrize("dropouts", KINDS, ids=str)
def test_dropout_is_one_op_more(dropouts):
    """With the update of the seed in it; a call that does not train only updates that."""
    names = []
    for arguments in ({}, dropouts):
        layer = tfl.FusedLSTM(4, **arguments)
        layer(X)
        for training in (True, False):
            ran = eager_ops(lambda layer=layer, training=training: layer(X, training=training))
            names.append([name for name, _ in ran])
    plain, plain_inference, dropping, inference = names
    assert len(dropping) == len(plain) + 1
    (extra,) = Counter(dropping) - Counter(plain)
    alone = len(tf.config.list_logical_devices()) == 1
    assert extra == "StatefulPartitionedCall" if alone else extra.startswith("__inference_masks")
    assert sorted(inference) == sorted([*plain_inference, "AssignAddVariableOp"])


def test_a_step_of_training_is_one_op_more():
    """No tape sees the masks."""
    ran = []
    for arguments in ({}, KINDS[2]):
        layer = tfl.FusedLSTM(4, **arguments)
        layer(X)
        step = eager_ops(lambda layer=layer: outputs_and_gradients(layer, X, training=True))
        ran.append([name for name, _ in step])
    assert len(ran[1]) == len(ran[0]) + 1


def test_batch_sizes_and_layers_share_a_function():
    stock, fused = pair(**KINDS[2], seed=3)
    assert_close(fused(X, training=True), stock(X, training=True))
    count = len(_dropout._functions)
    for batch in range(1, 20):
        x = inputs(shape=(batch, 5, 2))
        assert_close(fused(x, training=True), stock(x, training=True))
    other = tfl.FusedLSTM(7, **KINDS[2])
    other(inputs(shape=(3, 5, 6)), training=True)
    assert len(_dropout._functions) == count


def test_rates_that_keep_changing_leave_few_functions(monkeypatch):
    monkeypatch.setattr(_dropout, "_MOST_FUNCTIONS", len(_dropout._functions) + 2)
    stock, fused = pair(dropout=0.5, seed=3)
    for rate in np.linspace(0.31, 0.39, 6).tolist():
        stock.cell.dropout = fused.cell.dropout = rate
        assert_close(fused(X, training=True), stock(X, training=True))
    assert len(_dropout._functions) <= _dropout._MOST_FUNCTIONS
    assert_close(state_of(fused), state_of(stock), (0, 0))


def test_threads(monkeypatch):
    """Each with a layer of its own, from the first call on."""
    monkeypatch.setattr(_dropout, "_functions", {})
    made = [[pair(**KINDS[2], seed=seed)[1] for seed in range(8)] for _ in range(2)]

    def run(layer):
        return [layer(X, training=True) for _ in range(10)]

    wanted = [run(layer) for layer in made[0]]
    _dropout._functions.clear()
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(run, made[1]))
    assert_close(got, wanted, (0, 0))


TWO_DEVICES = """
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import tensorflow as tf

cpu, = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
from tf_fused_lstm import _dropout

KINDS = [_dropout.Kind(4, 0.4, (3, 20))]

def draws(seed):
    with tf.device("CPU:0"):
        generator = keras.random.SeedGenerator(seed)
    with tf.device("CPU:1"):
        drawn = [_dropout.draw_eagerly(generator, KINDS, tf.float32)[0] for _ in range(50)]
    assert all("CPU:1" in mask.device for mask in drawn)
    return np.array([mask.numpy() for mask in drawn])

alone = [draws(seed) for seed in range(8)]
with ThreadPoolExecutor(8) as pool:
    together = list(pool.map(draws, range(8)))
print([seed for seed in range(8) if not np.array_equal(alone[seed], together[seed])])
"""


def test_threads_whose_draws_cross_devices():
    """The generators' states lie on one device and the draws are made on another."""
    assert output_of(TWO_DEVICES) == "[]"


ONE_THREAD = """
import keras
import numpy as np
import tensorflow as tf

cpu, = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
tf.config.threading.set_inter_op_parallelism_threads(1)
import tf_fused_lstm as tfl

x = np.ones((2, 3, 4), np.float32)
results = []
for kind in keras.layers.LSTM, tfl.FusedLSTM:
    keras.utils.set_random_seed(1)
    layer = kind(5, dropout=0.4, recurrent_dropout=0.3, seed=2)
    layer(x)
    call = tf.function(
        lambda: tf.py_function(lambda: layer(x, training=True), [], tf.float32), autograph=False
    )
    results.append(call().numpy())
print(np.allclose(*results, rtol=1e-5, atol=1e-6))
"""


def test_in_a_py_function_that_holds_the_only_thread():
    assert output_of(ONE_THREAD) == "True"


def test_threads_that_share_a_layer():
    """Each call has the numbers of some call in turn: threads may read the same seed."""
    shared, alone = (pair(**KINDS[2], seed=1)[1] for _ in range(2))
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda _: shared(X, training=True).numpy(), range(40)))
    in_turn = [alone(X, training=True).numpy() for _ in range(40)]
    assert all(any(np.array_equal(output, one) for one in in_turn) for output in outputs)


RATES = [
    {"dropout": np.float32(0.3)}, {"dropout": np.float64(0.3), "recurrent_dropout": 0.2},
    {"dropout": 1e-7, "recurrent_dropout": 1 - 1e-6}, {"dropout": 1, "recurrent_dropout": 0.5},
]  # fmt: skip


@pytest.mark.parametrize("rates", RATES, ids=str)
def test_rates_of_other_types_and_at_the_ends(rates):
    stock, fused = pair(**rates, seed=7)
    assert_close(trained(fused), trained(stock), LIMITS["float32"][1])


def test_layers_that_share_a_generator():
    results = []
    for which in range(2):
        layers = [pair(**KINDS[2], seed=5)[which] for _ in range(2)]
        # Keras lets nobody give a built layer another generator.
        object.__setattr__(layers[1].cell, "seed_generator", layers[0].cell.seed_generator)
        calls = [layer(X, training=True) for _ in range(2) for layer in layers]
        results.append([*calls, state_of(layers[0])])
    assert_close(results[1], results[0])


def run_eagerly(call):
    tf.config.run_functions_eagerly(True)
    try:
        return call()
    finally:
        tf.config.run_functions_eagerly(False)


def scoped(scope, call):
    with scope:
        return call()


CONTEXTS = {
    "run_functions_eagerly": run_eagerly,
    "device": lambda call: scoped(tf.device("CPU:0"), call),
    "one_device_strategy": lambda call: scoped(
        tf.distribute.OneDeviceStrategy("CPU:0").scope(), call
    ),
    "tape": lambda call: scoped(tf.GradientTape(persistent=True), call),
    "accumulator": lambda call: scoped(tf.autodiff.ForwardAccumulator(X, X), call),
    "init_scope": lambda call: scoped(tf.init_scope(), call),
    "py_function": lambda call: tf.function(lambda: tf.py_function(call, [], tf.float32))(),
    "stateless_scope": lambda call: scoped(keras.StatelessScope(), call),
}


@pytest.mark.parametrize("first_use", [False, True])
@pytest.mark.parametrize("context", CONTEXTS)
def test_contexts(context, first_use, monkeypatch):
    """A function made in one context serves any other, or Keras's way is taken."""
    if first_use:
        monkeypatch.setattr(_dropout, "_functions", {})
    results = []
    for layer in pair(**KINDS[2], seed=5):
        calls = [CONTEXTS[context](lambda layer=layer: layer(X, training=True))]
        calls += [layer(X, training=True), CONTEXTS[context](lambda layer=layer: layer(X))]
        results.append([*calls, state_of(layer)])
    assert_close(results[1], results[0])


def test_mirrored_strategy():
    """Whose seed is no variable of one device; two replicas draw as Keras's, eagerly too."""
    output_of("""
import keras, numpy as np, tensorflow as tf
import tf_fused_lstm as tfl
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
x = tf.constant(np.linspace(-1, 1, 30, dtype=np.float32).reshape(3, 5, 2))
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
for in_function in (False, True):
    results = []
    for kind in (keras.layers.LSTM, tfl.FusedLSTM):
        keras.utils.set_random_seed(3)
        with strategy.scope():
            layer = kind(4, dropout=0.4, recurrent_dropout=0.3, seed=5)
            layer.build(x.shape)
        run = lambda: strategy.run(lambda: layer(x, training=True))
        run = tf.function(run) if in_function else run
        calls = [strategy.experimental_local_results(run()) for _ in range(3)]
        results.append([*calls, layer(x, training=True)])
    assert len(results[0][0]) == 2
    for got, wanted in zip(tf.nest.flatten(results[1]), tf.nest.flatten(results[0]), strict=True):
        np.testing.assert_allclose(got, wanted, 1e-5, 1e-6)
""")


def saved_in_keras_format(model, folder):
    model.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras")


def saved_with_weights(model, folder):
    model.save_weights(folder / "model.weights.h5")
    other = keras.models.clone_model(model)
    other.load_weights(folder / "model.weights.h5")
    return other


def in_a_checkpoint(model, folder):
    path = tf.train.Checkpoint(model=model).save(str(folder / "checkpoint"))
    other = keras.models.clone_model(model)
    tf.train.Checkpoint(model=other).restore(path).assert_consumed()
    return other


def exported(model, folder):
    model.export(folder / "exported", verbose=False)
    loaded = tf.saved_model.load(folder / "exported")
    return lambda x, **_: loaded.serve(x)


WAYS = [
    saved_in_keras_format, saved_with_weights, in_a_checkpoint, exported,
    lambda model, _: copy.deepcopy(model), lambda model, _: pickle.loads(pickle.dumps(model)),
]  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
def test_saved_after_an_eager_call(way, tmp_path):
    """As Keras's a copy starts from the layer's seed, and draws by itself; an export never does."""
    model = keras.Sequential([keras.Input((5, 2)), tfl.FusedLSTM(4, **KINDS[2], seed=5)])
    first = model(X, training=True)
    found = way(model, tmp_path)
    assert_close(found(X, training=True), model(X) if way is exported else first)
    if way is not exported:
        assert_close(state_of(found.layers[0]), state_of(model.layers[0]))
    assert_close(found(X), model(X))
