"""Every way to save or copy a model, with every constructor argument away from its default."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_pairs import LIMITS, assert_close, inputs, randomise
from saving_ways import checkpoint, clone, deep_copy, json_and_weights, pickled

import tf_fused_lstm as tfl

X = tf.where([[[False]] * 2 + [[True]] * 3], inputs(), 0)  # two steps of each row are masked

# One value each that is not the default.
ARGUMENTS = {
    "activation": "relu",
    "recurrent_activation": "hard_sigmoid",
    "use_bias": False,
    "kernel_initializer": keras.initializers.HeNormal(seed=3),
    "recurrent_initializer": "he_uniform",
    "bias_initializer": keras.initializers.Constant(0.25),
    "unit_forget_bias": False,
    "kernel_regularizer": keras.regularizers.L1L2(0.01, 0.02),
    "recurrent_regularizer": "l2",
    "bias_regularizer": "l1",
    "activity_regularizer": keras.regularizers.L2(0.05),
    "kernel_constraint": keras.constraints.MaxNorm(1.5),
    "recurrent_constraint": "unit_norm",
    "bias_constraint": "non_neg",
    "dropout": 0.3,
    "recurrent_dropout": 0.2,
    "seed": 11,
    "return_sequences": True,
    "return_state": True,
    "go_backwards": True,
    "stateful": True,
    "unroll": True,
    "zero_output_for_mask": True,
    "dtype": "mixed_bfloat16",
    "trainable": False,
    "name": "odd",
    "use_fused": True,
}
# Of other kinds.
MORE = [
    {"activation": "selu"}, {"activation": None, "recurrent_activation": "relu"},
    {"dtype": "float64"}, {"use_fused": False},
    {"dropout": 0.3, "recurrent_dropout": 0.2, "seed": 4},
    {"stateful": True, "return_sequences": True, "return_state": True, "go_backwards": True},
]  # fmt: skip


def random_combinations(count):
    rng = np.random.default_rng(8)
    for _ in range(count):
        names = rng.choice(list(ARGUMENTS), size=rng.integers(5, 18), replace=False)
        yield {str(name): ARGUMENTS[str(name)] for name in names}


CASES = [{name: value} for name, value in ARGUMENTS.items()] + MORE + list(random_combinations(10))


def name_of(case):
    return "+".join(case)


def make(kind, case, masked=True):
    arguments = dict(case)
    if kind is keras.layers.LSTM:
        arguments.pop("use_fused", None)
        # Unrolled, backwards and with zeros for masked steps, Keras reverses all but the mask.
        arguments.pop("unroll", None)
    entry = keras.Input(batch_shape=X.shape)
    layer = kind(4, **arguments)
    model = keras.Model(entry, layer(keras.layers.Masking()(entry) if masked else entry))
    randomise(layer, seed=2)
    return model


def call(model, x):
    """Twice, since a stateful layer's second call is another."""
    for layer in getattr(model, "layers", ()):
        if getattr(layer, "stateful", False):
            layer.reset_state()
    return [model(x), model(x)]


def keras_file(model, folder):
    model.save(folder / "model.keras")
    return keras.models.load_model(folder / "model.keras")


def h5_file(model, folder):
    model.save(folder / "model.h5")
    return keras.models.load_model(folder / "model.h5", compile=False)


def from_config(model, folder):
    loaded = type(model).from_config(model.get_config())
    loaded.set_weights(model.get_weights())
    return loaded


def exported(model, folder):
    call(model, X)
    reset(model)
    model.export(str(folder / "exported"), verbose=False)
    loaded = tf.saved_model.load(str(folder / "exported"))

    def serve(x):  # keeps what was loaded alive
        return loaded.serve(x)

    return serve


def saved_model(model, folder):
    call(model, X)
    reset(model)
    function = tf.function(model, input_signature=[tf.TensorSpec(X.shape)])
    tf.saved_model.save(model, str(folder / "saved"), signatures=function)
    loaded = tf.saved_model.load(str(folder / "saved"))

    def serve(x):
        results = loaded.signatures["serving_default"](x)
        return [results[name] for name in sorted(results)]

    return serve


def reset(model):
    for layer in model.layers:
        if getattr(layer, "stateful", False):
            layer.reset_state()


WAYS = (keras_file, h5_file, json_and_weights, from_config, clone, checkpoint, pickled, deep_copy,
        exported, saved_model)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=name_of)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_comes_back_the_same(tmp_path, way, case):
    # Keras loads no .h5 file of a functional model with a mask.
    model = make(tfl.FusedLSTM, case, masked=way is not h5_file)
    wanted = call(model, X)
    if way is saved_model and case.keys() & {"dropout", "recurrent_dropout"}:
        # TensorFlow does not find the seed in Keras's layers either; model.export does.
        for kind in (keras.layers.LSTM, tfl.FusedLSTM):
            with pytest.raises(AssertionError, match="seed_generator"):
                way(make(kind, case), tmp_path)
        return
    loaded = way(model, tmp_path)
    is_op = model.layers[-1].fused_reason is None  # else a graph's optimiser may change roundings
    assert_close(call(loaded, X), wanted, (0, 0) if is_op else LIMITS["float32"][0])
    if isinstance(loaded, keras.Model):
        layer, before = loaded.layers[-1], model.layers[-1]
        assert type(layer) is tfl.FusedLSTM and layer is not before
        assert layer.get_config() == before.get_config()
        assert layer.fused_reason == before.fused_reason
        assert [w.path for w in layer.weights] == [w.path for w in before.weights]
        assert len(layer.trainable_weights) == len(before.trainable_weights)
        assert_close(loaded.losses, model.losses)


@pytest.mark.parametrize("case", CASES, ids=name_of)
@pytest.mark.parametrize("file", ["model.weights.h5", "model.keras", "model.h5", "checkpoint"])
def test_weights_go_to_stock_and_back(tmp_path, file, case):
    """And with them the results are Keras's, whatever the arguments."""
    if case.get("dtype") == "mixed_bfloat16":
        limit = LIMITS["bfloat16"][0]
    else:
        limit = LIMITS["float32"][0]
    for source, target in ((tfl.FusedLSTM, keras.layers.LSTM), (keras.layers.LSTM, tfl.FusedLSTM)):
        given, taken = make(source, case), make(target, case)
        taken.set_weights([w * 0 for w in taken.get_weights()])
        path = str(tmp_path / file)
        if file == "checkpoint":
            path = tf.train.Checkpoint(model=given).save(path)
            tf.train.Checkpoint(model=taken).restore(path).assert_existing_objects_matched()
        else:
            given.save_weights(path) if file == "model.weights.h5" else given.save(path)
            taken.load_weights(path)
        assert_close(call(taken, X), call(given, X), limit)


def two_directions(kind, **arguments):
    """A compiled model of a Bidirectional and a layer."""
    layer = keras.layers.Bidirectional(kind(4, return_sequences=True, **arguments))
    model = keras.Sequential([keras.Input((5, 2)), layer, kind(3), keras.layers.Dense(1)])
    randomise(model, seed=3 if kind is tfl.FusedLSTM else 4)
    model.compile(keras.optimizers.Adam(0.02), "mse", run_eagerly=True)
    return model


KINDS = (tfl.FusedLSTM, keras.layers.LSTM)


def losses(model):
    fit = model.fit(X, np.ones((3, 1)), epochs=2, shuffle=False, verbose=0)
    return fit.history["loss"]


@pytest.mark.parametrize("file", ["model.weights.h5", "model.keras", "model.h5", "checkpoint"])
@pytest.mark.parametrize("source", KINDS, ids=lambda kind: kind.__module__)
def test_bidirectional_weights_go_to_stock_and_back(tmp_path, source, file):
    """A checkpoint's with the optimizer, so that training goes on alike."""
    target = KINDS[source is tfl.FusedLSTM]
    given, taken = two_directions(source), two_directions(target)
    path = str(tmp_path / file)
    if file == "checkpoint":
        losses(given), losses(taken)  # so that the optimizers have their variables
        path = tf.train.Checkpoint(model=given, optimizer=given.optimizer).save(path)
        checkpoint = tf.train.Checkpoint(model=taken, optimizer=taken.optimizer)
        checkpoint.restore(path).assert_existing_objects_matched()
    else:
        given.save_weights(path) if file == "model.weights.h5" else given.save(path)
        taken.load_weights(path)
    assert_close(taken(X), given(X))
    if file == "checkpoint":
        np.testing.assert_allclose(losses(taken), losses(given), rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__module__)
def test_training_goes_on_from_a_file(tmp_path, kind):
    """Of a stock model too, after replace_lstm, with the state of the optimizer in the file. (From
    an .h5 file Keras trains no Bidirectional on.)"""
    model = two_directions(kind)
    losses(model)
    model.save(tmp_path / "model.keras")
    loaded = tfl.replace_lstm(keras.models.load_model(tmp_path / "model.keras"))
    assert type(loaded.layers[1]) is tfl.FusedLSTM
    assert loaded.optimizer.iterations == model.optimizer.iterations == 2
    np.testing.assert_allclose(losses(loaded), losses(model), rtol=1e-5)


@pytest.mark.parametrize("bidirectional", [False, True])
def test_weights_of_an_export_go_to_stock_and_back(tmp_path, bidirectional):
    """An export's variables are those of the model, in its order."""

    def model(kind):
        layer = kind(4)
        layer = keras.layers.Bidirectional(layer) if bidirectional else layer
        made = keras.Sequential([keras.Input((5, 2)), layer, keras.layers.Dense(1)])
        randomise(made, seed=3 if kind is tfl.FusedLSTM else 4)
        return made

    for source, target in ((tfl.FusedLSTM, keras.layers.LSTM), (keras.layers.LSTM, tfl.FusedLSTM)):
        given, taken = model(source), model(target)
        path = str(tmp_path / source.__module__)
        given.export(path, verbose=False)
        loaded = tf.saved_model.load(path)
        taken.set_weights([v.numpy() for v in loaded.trainable_variables])
        assert_close(taken(X), given(X))
        assert_close(loaded.serve(X), given(X))


def wrapped(case, bidirectional):
    """A model of a Bidirectional around the layer, or of a stack."""
    arguments = {k: v for k, v in case.items() if k not in ("name", "zero_output_for_mask")}
    entry = keras.Input(batch_shape=X.shape)
    if bidirectional:
        # Keras's wrapper sets the one, and computes no mask of the other in a functional model.
        for name in ("go_backwards", "return_state"):
            arguments.pop(name, None)
        layer = keras.layers.Bidirectional(tfl.FusedLSTM(4, **arguments), name="odd")
    else:
        layer = tfl.FusedLSTMStack([4, 3], name="odd", **arguments)
    model = keras.Model(entry, layer(entry))
    randomise(layer, seed=2)
    return model


@pytest.mark.parametrize("case", [{}, *MORE, *random_combinations(6)], ids=name_of)
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_wrappers_and_stacks_come_back_the_same(tmp_path, way, bidirectional, case):
    if way is saved_model and case.keys() & {"dropout", "recurrent_dropout"}:
        pytest.skip("TensorFlow does not find the seeds of Keras's layers")
    model = wrapped(case, bidirectional)
    wanted = call(model, X)
    loaded = way(model, tmp_path)
    assert_close(call(loaded, X), wanted, LIMITS["float32"][0])
    if isinstance(loaded, keras.Model):
        layer, before = loaded.layers[-1], model.layers[-1]
        assert type(layer) is type(before) and layer is not before
        # Keras turns shapes that it saved into lists.
        assert json.dumps(layer.get_config()) == json.dumps(before.get_config())
        assert [w.shape for w in layer.weights] == [w.shape for w in before.weights]
