"""Every way to save or copy a model of tf_keras, with every constructor argument away from its
default."""

import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from keras_pairs import LIMITS, assert_close, inputs, randomise
from saving_ways import checkpoint, clone, deep_copy, json_and_weights, pickled

import tf_fused_lstm as tfl

X = tf.where([[[False]] * 2 + [[True]] * 3], inputs(), 0)  # two steps of each row are masked

# One value each that is not the default.
ARGUMENTS = {
    "activation": "relu",
    "recurrent_activation": "tanh",
    "use_bias": False,
    "kernel_initializer": tf_keras.initializers.HeNormal(seed=3),
    "recurrent_initializer": "he_uniform",
    "bias_initializer": tf_keras.initializers.Constant(0.25),
    "unit_forget_bias": False,
    "kernel_regularizer": tf_keras.regularizers.L1L2(0.01, 0.02),
    "recurrent_regularizer": "l2",
    "bias_regularizer": "l1",
    "activity_regularizer": tf_keras.regularizers.L2(0.05),
    "kernel_constraint": tf_keras.constraints.MaxNorm(1.5),
    "recurrent_constraint": "unit_norm",
    "bias_constraint": "non_neg",
    "dropout": 0.3,
    "recurrent_dropout": 0.2,
    "implementation": 1,
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
MORE = [
    {"activation": "selu"}, {"activation": None, "recurrent_activation": "relu"},
    {"recurrent_activation": "hard_sigmoid"}, {"dtype": "float64"}, {"use_fused": False},
    {"time_major": True}, {"time_major": True, "return_sequences": True, "go_backwards": True},
    {"stateful": True, "return_sequences": True, "return_state": True, "go_backwards": True},
]  # fmt: skip


def random_combinations(count):
    rng = np.random.default_rng(8)
    for _ in range(count):
        names = rng.choice(list(ARGUMENTS), size=rng.integers(5, 18), replace=False)
        yield {str(name): ARGUMENTS[str(name)] for name in names}


CASES = MORE + list(random_combinations(8))


def test_every_argument_is_in_some_combination():
    assert {name for case in CASES for name in case} >= ARGUMENTS.keys()


def name_of(case):
    return "+".join(case)


def make(kind, case):
    arguments = dict(case)
    if kind is tf_keras.layers.LSTM:
        arguments.pop("use_fused", None)
        # Unrolled, with zeros for masked steps, tf_keras fails, or reverses all but the mask.
        arguments.pop("unroll", None)
    entry = tf_keras.Input(batch_shape=X.shape)
    layer = kind(4, **arguments)
    is_masked = not arguments.get("time_major")
    model = tf_keras.Model(entry, layer(tf_keras.layers.Masking()(entry) if is_masked else entry))
    randomise(layer, seed=2)
    return model


def call(model, x):
    """Twice, since a stateful layer's second call is another."""
    reset(model)
    return [model(x), model(x)]


def reset(model):
    if getattr(model, "stateful", False):
        model.reset_states()


def keras_file(model, folder):
    model.save(folder / "model.keras")
    return tf_keras.models.load_model(folder / "model.keras")


def h5_file(model, folder):
    model.save(str(folder / "model.h5"))
    return tf_keras.models.load_model(str(folder / "model.h5"))


def saved_model(model, folder):
    reset(model)
    model.save(str(folder / "model"), save_format="tf")
    return tf_keras.models.load_model(str(folder / "model"))


def exported(model, folder):
    call(model, X)
    reset(model)
    model.export(str(folder / "exported"))
    loaded = tf.saved_model.load(str(folder / "exported"))

    def serve(x):  # keeps what was loaded alive
        return loaded.serve(x)

    return serve


WAYS = (keras_file, h5_file, saved_model, exported, json_and_weights, clone, checkpoint, pickled,
        deep_copy)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=name_of)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_comes_back_the_same(tmp_path, way, case):
    model = make(tfl.FusedLSTM, case)
    wanted = call(model, X)
    loaded = way(model, tmp_path)
    limit = LIMITS["bfloat16" if case.get("dtype") == "mixed_bfloat16" else "float32"][0]
    assert_close(call(loaded, X), wanted, limit)
    if isinstance(loaded, tf_keras.Model):
        layer, before = loaded.layers[-1], model.layers[-1]
        assert type(layer) is tfl.FusedLSTM and layer is not before
        assert layer.get_config() == before.get_config()
        assert layer.fused_reason == before.fused_reason
        assert [w.shape for w in layer.weights] == [w.shape for w in before.weights]
        assert len(layer.trainable_weights) == len(before.trainable_weights)


@pytest.mark.parametrize("case", CASES, ids=name_of)
@pytest.mark.parametrize("file", ["model.weights.h5", "model.keras", "model.h5", "checkpoint"])
def test_weights_go_to_stock_and_back(tmp_path, file, case):
    """And with them the results are tf_keras's, whatever the arguments."""
    limit = LIMITS["bfloat16" if case.get("dtype") == "mixed_bfloat16" else "float32"][0]
    kinds = (tfl.FusedLSTM, tf_keras.layers.LSTM)
    for source, target in (kinds, kinds[::-1]):
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


@pytest.mark.parametrize("step", [1, -1])
def test_weights_of_an_export_go_to_stock_and_back(tmp_path, step):
    """An export's variables are those of the model, in its order."""

    def model(kind, seed):
        layer = tf_keras.layers.Bidirectional(kind(4, return_sequences=True))
        made = tf_keras.Sequential([tf_keras.Input((5, 2)), layer, kind(3)])
        randomise(made, seed)
        return made

    kinds = (tfl.FusedLSTM, tf_keras.layers.LSTM)
    given, taken = (model(kind, i) for i, kind in enumerate(kinds[::step]))
    given.export(str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    taken.set_weights([v.numpy() for v in loaded.trainable_variables])
    assert_close(taken(X), given(X))
    assert_close(loaded.serve(X), given(X))
