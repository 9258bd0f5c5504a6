"""The halves of the cases that need a GPU. Other cases run on one by themselves, where there is."""

import gc
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_pairs import MASK, assert_close, inputs, outputs_and_gradients, pair
from processes import ON_GPU, output_of

import tf_fused_lstm as tfl

pytestmark = pytest.mark.gpu

X = inputs()
# (rtol, atol) between devices.
NEAR = (1e-4, 1e-5)
REFUSED = (ValueError, tf.errors.InvalidArgumentError)
# Logical devices set their own limits, which growth excludes.
ON_TWO = {**ON_GPU, "TF_FORCE_GPU_ALLOW_GROWTH": None}


def on(device, call, *arguments, **keywords):
    """The call's results, which must lie on the device; its arguments are copied to it."""
    with tf.device(f"/{device}:0"):
        results = call(*(tf.identity(a) for a in arguments), **keywords)
    for tensor in tf.nest.flatten(results):
        assert device in tensor.device, tensor.device
    return results


@pytest.mark.parametrize("zero_output_for_mask", [False, True])
@pytest.mark.parametrize("go_backwards", [False, True])
def test_a6_same_result_on_cpu_and_gpu(zero_output_for_mask, go_backwards):
    """Keras's layer on the CPU, ours on either: outputs carried over padded steps, or zeros."""
    mask = tf.sequence_mask([5, 3, 1], 5)
    stock, fused = pair(
        return_sequences=True, return_state=True, go_backwards=go_backwards,
        zero_output_for_mask=zero_output_for_mask,
    )  # fmt: skip
    wanted = on("CPU", lambda x: outputs_and_gradients(stock, x, mask=mask), X)
    for device in ("CPU", "GPU"):
        got = on(device, lambda x: outputs_and_gradients(fused, x, mask=mask), X)
        assert_close(got, wanted, NEAR)
    if not go_backwards:
        carried = got[0][0].numpy()[1]
        for step in (3, 4):
            last = 0 * carried[2] if zero_output_for_mask else carried[2]
            np.testing.assert_array_equal(carried[step], last)
    assert fused.fused_reason is None


@pytest.mark.parametrize("device", ["CPU", "GPU"])
@pytest.mark.parametrize("mask_shape", [(4, 5), (4, 7), (3, 6)])
def test_b1_mask_of_wrong_shape(mask_shape, device):
    layer = tfl.FusedLSTM(4)
    layer.build((4, 6, 4))
    signature = [tf.TensorSpec([None, None, 4]), tf.TensorSpec([None, None], tf.bool)]
    dynamic = tf.function(lambda x, mask: layer(x, mask=mask), input_signature=signature)
    with tf.device(f"/{device}:0"):
        x, mask = tf.ones([4, 6, 4]), tf.ones(mask_shape, tf.bool)
        for call in (layer, tf.function(layer)):
            with pytest.raises(REFUSED) as error:
                call(x, mask=mask)
            assert str(mask_shape) in str(error.value) and "(4, 6)" in str(error.value)
        shape = ",".join(map(str, mask_shape))
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"mask .*\[4,6\].*\[{shape}\]"):
            dynamic(x, mask)
        assert dynamic(x, tf.ones([4, 6], tf.bool)).shape == (4, 4)


@pytest.mark.parametrize("device", ["CPU", "GPU"])
@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("return_sequences", [False, True])
def test_f3_no_steps(return_sequences, in_graph, device):
    _, layer = pair(return_sequences=return_sequences, return_state=True)
    states = [inputs(2, (3, 4)), inputs(3, (3, 4))]

    def gradients(x, h, c):
        with tf.GradientTape() as tape:
            tape.watch([x, h, c])
            outputs = layer(x, initial_state=[h, c])
            loss = tf.add_n([tf.reduce_sum(v) for v in outputs])
        return *outputs, *tape.gradient(loss, [x, h, c, layer.cell.kernel.value])

    call = tf.function(gradients) if in_graph else gradients
    output, h, c, grad_x, grad_h, grad_c, grad_kernel = on(device, call, X[:, :0], *states)
    assert output.shape == ((3, 0, 4) if return_sequences else (3, 4))
    assert grad_x.shape == (3, 0, 2) and not np.any(output) and not np.any(grad_kernel)
    assert_close([h, c], states, (0, 0))
    assert_close([grad_h, grad_c], [np.ones((3, 4))] * 2, (0, 0))


DETERMINISTIC = """
import keras, numpy as np, tensorflow as tf
import tf_fused_lstm as tfl
assert tf.config.list_physical_devices("GPU")
tf.config.experimental.enable_op_determinism()
keras.utils.set_random_seed(5)
model = keras.Sequential([
    keras.Input((20, 8)),
    tfl.FusedLSTM({units}, dropout=0.2, return_sequences=True),
    tfl.FusedLSTM({units}, dropout=0.2, recurrent_dropout=0.2),
    keras.layers.Dense(1),
])
model.compile("adam", "mse", jit_compile=False)
rng = np.random.default_rng(1)
x, y = rng.standard_normal((96, 20, 8), np.float32), rng.standard_normal((96, 1), np.float32)
print([loss.hex() for loss in model.fit(x, y, batch_size=32, epochs=3, verbose=0).history["loss"]])
print(model.layers[0].fused_reason, float(sum(np.abs(w).sum() for w in model.get_weights())).hex())
"""


@pytest.mark.parametrize("units", [24, 256])
def test_c9_equal_from_run_to_run(units):
    """Three epochs in two fresh processes, under operation determinism."""
    first, second = (output_of(DETERMINISTIC.format(units=units), **ON_GPU) for _ in range(2))
    assert first == second
    assert first.startswith("['0x") and "\nNone " in first


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("batch", "units"), [(1, 64), (20, 70), (64, 256), (8, 1100)])
def test_c9_equal_from_call_to_call(batch, units, dtype):
    """Of every family of kernels."""
    _, layer = pair((batch, 30, 40), units, dtype=dtype, recurrent_initializer="glorot_uniform")
    x = inputs(shape=(batch, 30, 40), dtype=dtype)
    first = on("GPU", lambda x: outputs_and_gradients(layer, x), x)
    for _ in range(5):
        again = on("GPU", lambda x: outputs_and_gradients(layer, x), x)
        for got, wanted in zip(*map(tf.nest.flatten, (again, first)), strict=True):
            np.testing.assert_array_equal(got, wanted)


# Two logical devices of one GPU, between which NCCL cannot reduce.
SEVERAL_GPUS = """
import keras, numpy as np, tensorflow as tf
import tf_fused_lstm as tfl
gpu = tf.config.list_physical_devices("GPU")[0]
half = tf.config.LogicalDeviceConfiguration(memory_limit=2048)
tf.config.set_logical_device_configuration(gpu, [half, half])
tf.config.experimental.enable_tensor_float_32_execution(False)
x = np.linspace(-1, 1, 80, dtype=np.float32).reshape(8, 5, 2)
"""

MIRRORED = (
    SEVERAL_GPUS
    + """
reduce = tf.distribute.ReductionToOneDevice()
mirrored = tf.distribute.MirroredStrategy(["GPU:0", "GPU:1"], cross_device_ops=reduce)
weights = []
for strategy in (mirrored, tf.distribute.get_strategy()):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layer = tfl.FusedLSTM(4)
        model = keras.Sequential([keras.Input((5, 2)), layer, keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
    model.fit(x, x.sum((1, 2)), batch_size=8, epochs=3, shuffle=False, verbose=0)
    weights.append(np.concatenate([w.ravel() for w in model.get_weights()]))
    if strategy is mirrored:
        step = tf.function(lambda batch: strategy.run(model.train_step, (batch,)))
        data = tf.data.Dataset.from_tensor_slices((x, x.sum((1, 2)))).batch(8)
        batch = next(iter(strategy.experimental_distribute_dataset(data)))
        operations = step.get_concrete_function(batch).graph.get_operations()
        for name in ("FusedLSTM", "FusedLSTMGrad"):
            devices = sorted(op.device[-5:] for op in operations if op.type == name)
            assert devices == ["GPU:0", "GPU:1"], devices
    assert layer.fused_reason is None
np.testing.assert_allclose(weights[0], weights[1], rtol=1e-4, atol=1e-5)
print("equal")
"""
)


def test_e8_several_gpus_keep_the_op():
    """MirroredStrategy: the op on each of two devices, and the weights of one."""
    assert output_of(MIRRORED, **ON_TWO).splitlines()[-1] == "equal"


def test_f9_second_gpu():
    """Each device's own stream: a process that uses both, by turns and in one function."""
    printed = output_of(SEVERAL_GPUS + """
layer = tfl.FusedLSTM(64, return_sequences=True)
x = tf.random.stateless_normal((8, 50, 64), [3, 4])
with tf.device("/GPU:0"):
    wanted = layer(x).numpy()

@tf.function
def both(x):
    results = []
    for index in (0, 1):
        with tf.device(f"/GPU:{index}"):
            results.append(layer(tf.identity(x)))
    return results

for _ in range(20):
    with tf.device("/GPU:1"):
        output = layer(tf.identity(x))
    assert output.device.endswith("GPU:1")
    for result in (output, *both(x)):
        np.testing.assert_array_equal(result, wanted)
print("equal")
""", **ON_TWO)  # fmt: skip
    assert printed.splitlines()[-1] == "equal"


LATE = """
import numpy as np, tensorflow as tf
import tf_fused_lstm as tfl
tf.config.experimental.enable_tensor_float_32_execution(False)
tf.keras.utils.set_random_seed(3)
with tf.device("/GPU:0"):
    layer = tfl.FusedLSTM(64, return_sequences=True)
    layer.build((8, 50, 64))
    weights = [v.value for v in layer.trainable_variables]
    matrix = tf.random.stateless_normal((1500, 1500), [1, 2])

    @tf.function
    def late(x, i):
        product = matrix
        for _ in range(4):
            product = matrix @ product / 1500.0
        x = x * (1.0 + i / 256.0) + 0.0 * tf.reduce_mean(product)
        with tf.GradientTape() as tape:
            output = layer(x)
            loss = tf.reduce_sum(output[:, ::-1] ** 2)
        return output, tape.gradient(loss, weights)

    x = tf.random.stateless_normal((8, 50, 64), [3, 4])
    results = [tf.nest.flatten(late(x, tf.constant(float(i)))) for i in range(200)]
    np.savez({path!r}, *[np.stack(values) for values in zip(*results)])
"""


def test_f9_op_waits_for_its_inputs(tmp_path):
    """200 steps whose neighbours on the stream are late, as where every launch is waited for."""
    results = []
    for blocking in ("0", "1"):
        path = str(tmp_path / f"{blocking}.npz")
        output_of(LATE.format(path=path), CUDA_LAUNCH_BLOCKING=blocking, **ON_GPU)
        results.append(list(np.load(path).values()))
    assert len(results[0]) == 4 and results[0][0].shape == (200, 8, 50, 64)
    for got, wanted in zip(*results, strict=True):
        assert np.all(np.isfinite(wanted)) and np.any(wanted[0] != wanted[-1])
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("shape", [(70000, 1, 2), (1, 70000, 2)])
def test_f5_long_and_wide(shape):
    """Forward and gradient; the CPU's results."""
    _, layer = pair(return_sequences=True)
    x = inputs(shape=shape)
    got, wanted = (
        on(device, lambda x: outputs_and_gradients(layer, x), x) for device in ("GPU", "CPU")
    )
    assert_close(got[0], wanted[0], NEAR)
    for g, w in zip(got[1], wanted[1], strict=True):  # sums over 70 000
        assert np.linalg.norm(g - w) <= 1e-4 * np.linalg.norm(w)


@pytest.mark.parametrize("training", [False, True])
def test_f5_more_elements_than_an_int32_counts(training):
    """4 batch steps units beyond 2^31."""
    batch, steps, units = 1024, 1040, 512
    assert 4 * batch * steps * units > 2**31
    _, layer = pair((batch, steps, 3), units, return_sequences=True)
    layer.set_weights([0.05 * w for w in layer.get_weights()])
    x = inputs(shape=(batch, steps, 3))
    picked = [0, 1, batch // 2, batch - 1]

    def call(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = layer(x)
            loss = tf.reduce_sum(output**2)
        return output, tape.gradient(loss, x) if training else tf.zeros([batch])

    try:
        output, grad_x = on("GPU", call, x)
    except tf.errors.ResourceExhaustedError:
        output, grad_x = on("GPU", call, x[: batch // 16])
        picked = picked[:2]
    wanted, wanted_grad = on("GPU", call, tf.gather(x, picked))
    assert_close(tf.gather(output, picked), wanted, (1e-3, 1e-4))
    if training:
        assert_close(tf.gather(grad_x, picked), wanted_grad, (1e-3, 1e-3))


def test_f8_peak_memory():
    """Inference takes what it returns and a projection; training keeps more."""
    steps_bytes = 32 * 1000 * 256 * 4
    with tf.device("/GPU:0"):
        layer = tfl.FusedLSTM(256)
        x = tf.zeros((32, 1000, 1))

        def train():
            with tf.GradientTape() as tape:
                output = layer(x)
            return tape.gradient(output, [v.value for v in layer.trainable_variables])

        peaks = []
        for call in (lambda: layer(x), tf.function(lambda: layer(x)), train):
            call()[0].numpy()
            gc.collect()
            tf.config.experimental.reset_memory_stats("GPU:0")
            before = tf.config.experimental.get_memory_info("GPU:0")["current"]
            call()[0].numpy()
            peaks.append(tf.config.experimental.get_memory_info("GPU:0")["peak"] - before)
    # 4 for the gates' part of x, 1 for h; training keeps i, f, g, o and c.
    assert max(peaks[:2]) < 6 * steps_bytes, peaks
    assert peaks[2] > max(peaks[:2]) and peaks[2] > 5 * steps_bytes, peaks


@pytest.mark.parametrize("train", [False, True])
def test_f8_memory_does_not_grow(train):
    """Calls of many lengths, of the GPU's memory."""
    with tf.device("/GPU:0"):
        _, layer = pair((4, 5, 8), 32, return_sequences=True)

        def call(i):
            x = tf.zeros((4, 20 + i % 30, 8))
            if not train:
                return layer(x).numpy()
            with tf.GradientTape() as tape:
                y = layer(x)
            return tape.gradient(y, [v.value for v in layer.trainable_variables])[0].numpy()

        def used():
            gc.collect()
            return tf.config.experimental.get_memory_info("GPU:0")["current"]

        for i in range(60):
            call(i)
        before = used()
        for i in range(300):
            call(i)
        assert used() - before < 1e6


def test_g6_code_for_this_gpu():
    """The library says which GPUs it holds code for; this one is among them, and runs."""
    gpu = tf.config.list_physical_devices("GPU")[0]
    major, minor = tf.config.experimental.get_device_details(gpu)["compute_capability"]
    architectures = [a.rstrip("a") for a in tfl.build_info().cuda_architectures]
    if architectures:  # a library of a developer's folder has no record
        numbers = [int(a.replace(".", "")) for a in architectures]
        assert any(n // 10 == major and n <= 10 * major + minor for n in numbers), architectures
    stock, fused = pair(return_sequences=True)
    got = on("GPU", lambda x: outputs_and_gradients(fused, x, mask=MASK), X)
    wanted = on("CPU", lambda x: outputs_and_gradients(stock, x, mask=MASK), X)
    assert_close(got, wanted, NEAR)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_d4_every_way_from_gpu_to_cpu(tmp_path, bidirectional):
    """Files of a model that trained on a GPU: weights, checkpoint, model, export."""

    def make():
        layer = tfl.FusedLSTM(4)
        layer = keras.layers.Bidirectional(layer) if bidirectional else layer
        return keras.Sequential([keras.Input((5, 2)), layer, keras.layers.Dense(1)])

    with tf.device("/GPU:0"):
        model = make()
        model.compile("adam", "mse", jit_compile=False)
        model.fit(X, np.ones((3, 1)), epochs=2, verbose=0)
        wanted = model(X)
    model.save_weights(tmp_path / "model.weights.h5")
    model.save(tmp_path / "model.keras")
    model.export(str(tmp_path / "exported"), verbose=False)
    checkpoint = tf.train.Checkpoint(model=model).save(str(tmp_path / "checkpoint"))
    with tf.device("/CPU:0"):
        weights, restored = make(), make()
        weights.load_weights(tmp_path / "model.weights.h5")
        tf.train.Checkpoint(model=restored).restore(checkpoint).assert_existing_objects_matched()
        loaded = keras.models.load_model(tmp_path / "model.keras")
        served = tf.saved_model.load(str(tmp_path / "exported"))
        for call in (weights, restored, loaded):
            assert_close(on("CPU", call, X), wanted, (1e-5, 1e-5))
        assert_close(served.serve(tf.identity(X)), wanted, (1e-5, 1e-5))


@pytest.mark.parametrize(
    ("batch", "units"), list(itertools.product([1, 32, 256], [64, 256, 1024])), ids=str
)
def test_e7_small_models_are_right(batch, units):
    """At the sizes of the case, whose times docs/performance.md reports: the CPU's results."""
    _, layer = pair((batch, 12, 16), units, return_sequences=True)
    layer.set_weights([w * (8 / units**0.5) ** (w.ndim == 2) * 0.2 for w in layer.get_weights()])
    x = inputs(shape=(batch, 12, 16))
    got, wanted = (
        on(device, lambda x: outputs_and_gradients(layer, x), x) for device in ("GPU", "CPU")
    )
    for g, w in zip(*map(tf.nest.flatten, (got, wanted)), strict=True):
        assert np.linalg.norm(g - w) <= 1e-4 * np.linalg.norm(w)


@pytest.mark.parametrize("in_graph", [False, True])
def test_gradient_runs_where_forward_ran(in_graph):
    """The tape's gradient is outside of the scope that chose the device."""
    _, fused = pair(return_sequences=True)

    def call(x):
        with tf.GradientTape() as tape, tf.device("/CPU:0"):
            tape.watch(x)
            output = fused(x)
        return tape.gradient(output, [x, fused.cell.kernel.value])

    got = (tf.function(call) if in_graph else call)(X)
    assert_close(got, on("CPU", call, X))
