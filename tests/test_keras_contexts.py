"""The layer inside what else Keras and TensorFlow offer: strategies, wrappers, stateless calls."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_pairs import MASK, assert_close, assert_same, inputs, pair, wrapped_pair
from processes import output_of

import tf_fused_lstm as tfl

X = inputs()


def test_e8_mirrored_strategy_trains_alike():
    """Two replicas, here of one CPU, run the op, and train to the weights of one device."""
    printed = output_of("""
import keras, numpy as np, tensorflow as tf
import tf_fused_lstm as tfl
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
x = np.linspace(-1, 1, 80, dtype=np.float32).reshape(8, 5, 2)
losses, weights = [], []
mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
for kind, strategy in (
    (keras.layers.LSTM, mirrored), (tfl.FusedLSTM, mirrored),
    (tfl.FusedLSTM, tf.distribute.get_strategy()),
):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layer = kind(4)
        model = keras.Sequential([keras.Input((5, 2)), layer, keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=False)
    losses.append(model.fit(x, x.sum((1, 2)), batch_size=8, epochs=2, verbose=0).history["loss"])
    weights.append(np.concatenate([w.ravel() for w in model.get_weights()]))
    if strategy is mirrored and kind is tfl.FusedLSTM:
        step = tf.function(lambda batch: strategy.run(model.train_step, (batch,)))
        batch = next(iter(strategy.experimental_distribute_dataset(
            tf.data.Dataset.from_tensor_slices((x, x.sum((1, 2)))).batch(8)
        )))
        graph = step.get_concrete_function(batch).graph
        ops = [op.type for op in graph.get_operations()]
        assert ops.count("FusedLSTM") == ops.count("FusedLSTMGrad") == 2, ops
assert layer.fused_reason is None
np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
np.testing.assert_allclose(losses[1], losses[2], rtol=1e-5)
np.testing.assert_allclose(weights[1], weights[2], rtol=1e-5, atol=1e-6)
print("equal")
""")
    assert printed.splitlines()[-1] == "equal"


def test_time_distributed():
    stock, fused = wrapped_pair(keras.layers.TimeDistributed, shape=(2, 3, 5, 2))
    assert_same(stock, fused, inputs(shape=(2, 3, 5, 2)))


def test_stacked_layers_pass_the_mask_on():
    models = []
    for kind in (keras.layers.LSTM, tfl.FusedLSTM):
        models.append(
            keras.Sequential(
                [
                    keras.Input((5, 2)),
                    keras.layers.Masking(),
                    kind(4, return_sequences=True),
                    kind(3, return_sequences=True),
                    kind(2),
                ]
            )
        )
    models[1].set_weights(models[0].get_weights())
    assert_same(*models, tf.constant(np.where(MASK[..., None], X, 0)))


@pytest.mark.parametrize("training", [False, True])
def test_stateless_call(training):
    results = []
    for layer in pair(dropout=0.5, seed=1):
        trainable = [v.value + 0.1 for v in layer.trainable_variables]
        others = [v.value for v in layer.non_trainable_variables]
        outputs, _ = layer.stateless_call(trainable, others, X, training=training)
        results.append(outputs)
    assert_close(results[1], results[0])


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_fit_evaluate_and_predict(run_eagerly):
    results = []
    for kind in (keras.layers.LSTM, tfl.FusedLSTM):
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [keras.Input((5, 2)), kind(4, dropout=0.3, seed=2), keras.layers.Dense(1)]
        )
        model.compile("adam", "mse", run_eagerly=run_eagerly, jit_compile=False)
        losses = model.fit(X, np.ones((3, 1)), epochs=3, shuffle=False, verbose=0).history["loss"]
        evaluated = model.evaluate(X, np.ones((3, 1)), verbose=0)
        results.append([losses, evaluated, model.predict(X, verbose=0), model.get_weights()])
    assert_close(results[1], results[0], (1e-4, 1e-5))


def test_predict_keeps_no_reserve_and_a_training_step_does():
    """Keras's training flag alone keeps nothing; a watching tape does."""
    model = keras.Sequential([keras.Input((5, 2)), tfl.FusedLSTM(4)])
    step = tf.function(lambda x: model(x, training=True))
    assert training_attributes_of(step) == {False}

    @tf.function
    def train(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True))
        return tape.gradient(loss, [v.value for v in model.trainable_variables])

    assert training_attributes_of(train) == {True}


def training_attributes_of(function):
    graph = function.get_concrete_function(tf.TensorSpec([3, 5, 2])).graph
    return {op.get_attr("training") for op in graph.get_operations() if op.type == "FusedLSTM"}


def test_checkpoint(tmp_path):
    layers = [pair(weight_seed=seed)[1] for seed in (1, 2)]
    path = tf.train.Checkpoint(layer=layers[0]).save(str(tmp_path / "checkpoint"))
    tf.train.Checkpoint(layer=layers[1]).restore(path).assert_existing_objects_matched()
    assert_close(layers[1](X), layers[0](X), (0, 0))


def test_subclass_that_overrides_inner_loop_takes_keras_path():
    class Doubled(tfl.FusedLSTM):
        def inner_loop(self, sequences, initial_state, mask, training=False):
            return super().inner_loop(sequences * 2, initial_state, mask, training)

    layer = Doubled(4)
    stock, fused = pair()
    layer.build(X.shape)
    layer.set_weights(stock.get_weights())
    assert_close(layer(X), fused(X * 2))
    assert "inner_loop" in layer.fused_reason


def test_inner_loop_replaced_in_one_layer():
    stock, fused = pair()
    before = fused(X)

    def doubled(original):
        return lambda sequences, **rest: original(2 * sequences, **rest)

    for layer in (stock, fused):
        layer.inner_loop = doubled(layer.inner_loop)
    assert_close(fused(X), stock(X))
    assert float(tf.reduce_max(tf.abs(fused(X) - before))) > 1e-2


def test_initial_state_replaced_in_one_layer():
    stock, fused = pair()
    before = fused(X)
    for layer in (stock, fused):
        layer.get_initial_state = lambda *_, **__: [tf.fill((3, 4), v) for v in (0.5, 2.0)]
    assert_close(fused(X), stock(X))
    assert fused.fused_reason is None
    assert float(tf.reduce_max(tf.abs(fused(X) - before))) > 1e-2


def test_legacy_graph_mode():
    """A session of TensorFlow 1: the gradient runs the forward pass again where it must."""
    x, weights = X.numpy(), [w * 1.0 for w in pair()[1].get_weights()]
    with tf.GradientTape() as tape:
        watched = tf.constant(x)
        tape.watch(watched)
        output = tfl.fused_lstm(watched, *weights).output
    wanted = [output, tape.gradient(output, watched)]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        placeholder = tf.compat.v1.placeholder(tf.float32, [None, 5, 2])
        output = tfl.fused_lstm(placeholder, *weights).output
        first = session.run(output, {placeholder: x})
        (gradient,) = tf.compat.v1.gradients(output, placeholder)
        got = [first, session.run(gradient, {placeholder: x})]
    assert_close(got, wanted)
