"""tf_keras models with FusedLSTM that are saved and loaded, both ways with tf_keras's LSTM."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from keras_pairs import MASK, assert_close, inputs, randomise
from processes import output_of

import tf_fused_lstm as tfl

X = inputs()
LSTM = tf_keras.layers.LSTM


def sequential(kind, wrap=lambda layer: layer):
    tf_keras.backend.clear_session()
    layers = [wrap(kind(4, return_sequences=True)), kind(3), tf_keras.layers.Dense(1)]
    return tf_keras.Sequential([tf_keras.Input((5, 2)), *layers])


def functional():
    """Masks, states as inputs, both directions, what only tf_keras has, and what falls back."""
    entry = tf_keras.Input((5, 2), name="x")
    h, c = tf_keras.Input((4,), name="h"), tf_keras.Input((4,), name="c")
    sequence, *states = tfl.FusedLSTM(4, return_sequences=True, return_state=True)(
        tf_keras.layers.Masking()(entry), initial_state=[h, c]
    )
    wrapped = tf_keras.layers.Bidirectional(tfl.FusedLSTM(3, return_sequences=True))(sequence)
    time_major = tf_keras.layers.Permute((2, 1))(tf_keras.layers.Permute((2, 1))(wrapped))
    last = tfl.FusedLSTM(2, recurrent_activation="hard_sigmoid", unroll=True)(time_major)
    return tf_keras.Model([entry, h, c], [last, *states])


ARGUMENTS = [np.where(MASK[..., None], X, 0), inputs(2, (3, 4)).numpy(), inputs(3, (3, 4)).numpy()]


def fused_layers(model):
    return [layer for layer in model._flatten_layers() if type(layer) is tfl.FusedLSTM]


@pytest.mark.parametrize("direction", ["to_fused", "from_fused"])
@pytest.mark.parametrize("file", ["model.weights.h5", "model.h5", "checkpoint"])
@pytest.mark.parametrize("wrap", [lambda layer: layer, tf_keras.layers.Bidirectional])
def test_weights_are_interchangeable(tmp_path, wrap, file, direction):
    stock, fused = sequential(LSTM, wrap), sequential(tfl.FusedLSTM, wrap)
    randomise(stock)
    randomise(fused, seed=1)
    source, target = (stock, fused) if direction == "to_fused" else (fused, stock)
    assert [w.name for w in source.weights] == [w.name for w in target.weights]
    path = str(tmp_path / file)
    source.save_weights(path)
    status = target.load_weights(path)
    if file == "checkpoint":
        status.assert_consumed()
    assert_close(target(X), source(X))


@pytest.mark.parametrize("direction", ["to_fused", "from_fused"])
def test_checkpoints_with_the_optimizer_are_interchangeable(tmp_path, direction):
    models = [sequential(kind) for kind in (LSTM, tfl.FusedLSTM)]
    for seed, model in enumerate(models):
        randomise(model, seed)
        model.compile(tf_keras.optimizers.Adam(0.01), "mse")
        model.fit(X, np.ones((3, 1)), epochs=2, verbose=0)
    source, target = models if direction == "to_fused" else models[::-1]
    checkpoints = [tf.train.Checkpoint(model=m, optimizer=m.optimizer) for m in (source, target)]
    path = checkpoints[0].write(str(tmp_path / "checkpoint"))
    checkpoints[1].read(path).assert_consumed()
    losses = [
        model.fit(X, np.ones((3, 1)), epochs=3, verbose=0).history["loss"]
        for model in (source, target)
    ]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


@pytest.mark.parametrize("file", ["model.keras", "model.h5", "model"])
def test_models_in_a_fresh_process(tmp_path, file):
    model = functional()
    randomise(model)
    model.compile("adam", "mse")
    model.save(tmp_path / file)
    np.savez(tmp_path / "arguments.npz", *ARGUMENTS)
    output_of(
        f"""
import sys
import numpy as np, tensorflow as tf, tf_fused_lstm
model = tf.keras.models.load_model({str(tmp_path / file)!r})
layers = [l for l in model._flatten_layers() if type(l) is tf_fused_lstm.FusedLSTM]
assert len(layers) == 4, layers
arguments = list(np.load({str(tmp_path / "arguments.npz")!r}).values())
np.savez({str(tmp_path / "outputs.npz")!r}, *[v.numpy() for v in model(arguments)])
assert [l.fused_reason is None for l in layers].count(True) == 3
assert "keras" not in sys.modules
""",
        TF_USE_LEGACY_KERAS="1",
    )
    got = list(np.load(tmp_path / "outputs.npz").values())
    assert_close(got, model(ARGUMENTS), (1e-6, 1e-7))
    assert len(fused_layers(model)) == 4


def test_saved_model_without_python(tmp_path):
    """The functions in the SavedModel hold the op, and run without the layer's class."""
    model = sequential(tfl.FusedLSTM)
    randomise(model)
    model.save(tmp_path / "model")
    np.save(tmp_path / "x.npy", X)
    output_of(
        f"""
import numpy as np, tensorflow as tf
tf.load_op_library({tfl.get_library_path()!r})
loaded = tf.saved_model.load({str(tmp_path / "model")!r})
serve = loaded.signatures["serving_default"]
(output,) = serve(tf.constant(np.load({str(tmp_path / "x.npy")!r}))).values()
np.save({str(tmp_path / "y.npy")!r}, output)
definition = serve.graph.as_graph_def()
ops = [n.op for n in definition.node]
ops += [n.op for f in definition.library.function for n in f.node_def]
assert ops.count("FusedLSTM") >= 2, ops
""",
        TF_USE_LEGACY_KERAS="1",
    )
    assert_close(np.load(tmp_path / "y.npy"), model(X))


def test_saved_model_trains_on(tmp_path):
    model = sequential(tfl.FusedLSTM)
    model.compile("sgd", "mse")
    model.fit(X, np.ones((3, 1)), verbose=0)
    model.save(tmp_path / "model")
    loaded = tf_keras.models.load_model(tmp_path / "model")
    losses = [
        m.fit(X, np.ones((3, 1)), epochs=2, verbose=0).history["loss"] for m in (model, loaded)
    ]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)


@pytest.mark.parametrize("file", ["model.keras", "model.h5", "model"])
def test_a_stock_model_becomes_a_fused_one_and_back(tmp_path, file):
    stock = sequential(LSTM)
    randomise(stock)
    stock.save(tmp_path / file)
    fused = tfl.replace_lstm(tf_keras.models.load_model(tmp_path / file))
    assert len(fused_layers(fused)) == 2
    assert_close(fused(X), stock(X))
    again = tmp_path / "again" / file
    again.parent.mkdir()
    tfl.restore_lstm(fused).save(again)
    loaded = tf_keras.models.load_model(again)
    assert [type(layer) for layer in loaded.layers[:2]] == [LSTM, LSTM]
    assert_close(loaded(X), stock(X))


def test_stateful_model(tmp_path):
    model = tf_keras.Sequential(
        [tf_keras.Input(batch_shape=(3, 5, 2)), tfl.FusedLSTM(4, stateful=True)]
    )
    first = model(X)
    model.save(tmp_path / "model")
    loaded = tf_keras.models.load_model(tmp_path / "model")
    assert type(loaded.layers[0]) is tfl.FusedLSTM
    loaded.reset_states()
    assert_close(loaded(X), first)
    assert_close(loaded(X), model(X))


def wrapped(kind):
    """Every wrapper in which tf_keras looks the class up by its name alone."""
    layers = tf_keras.layers
    entry = tf_keras.Input((2, 5, 2))
    first = layers.TimeDistributed(kind(3, return_sequences=True))(entry)
    second = layers.TimeDistributed(layers.Bidirectional(kind(3, return_sequences=True)))(first)
    inner = tf_keras.Input((5, 6))
    both = layers.Bidirectional(kind(2), backward_layer=kind(2, go_backwards=True))
    model = tf_keras.Model(inner, both(inner))
    return tf_keras.Model(entry, layers.TimeDistributed(model)(second))


@pytest.mark.parametrize("kind", [tfl.FusedLSTM, LSTM])
@pytest.mark.parametrize("way", ["clone", "json", "config", ".keras", ".h5"])
def test_wrappers_come_back_with_the_same_class(tmp_path, way, kind):
    model = wrapped(kind)
    if way == "clone":
        again = tf_keras.models.clone_model(model)
    elif way == "json":
        again = tf_keras.models.model_from_json(model.to_json())
    elif way == "config":
        again = tf_keras.Model.from_config(model.get_config())
    else:
        model.save(tmp_path / f"model{way}")
        again = tf_keras.models.load_model(tmp_path / f"model{way}")
    assert [type(layer) for layer in again._flatten_layers()] == [
        type(layer) for layer in model._flatten_layers()
    ]
    x = inputs(shape=(3, 2, 5, 2))
    again.set_weights(model.get_weights())
    assert_close(again(x), model(x), (1e-6, 1e-7))


@pytest.mark.parametrize("file", ["model.keras", "model.h5"])
def test_users_own_class_of_a_stock_name(tmp_path, file):
    class LSTM(tf_keras.layers.LSTM):
        pass

    entry = tf_keras.Input((2, 5, 2))
    model = tf_keras.Model(entry, tf_keras.layers.TimeDistributed(LSTM(3))(entry))
    model.save(tmp_path / file)
    again = tf_keras.models.load_model(tmp_path / file, custom_objects={"LSTM": LSTM})
    assert type(again.layers[1].layer) is LSTM
