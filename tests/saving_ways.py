"""Ways to save or copy a model that both Kerases have; each returns the model that comes back."""

import copy
import pickle

import tensorflow as tf


def json_and_weights(model, folder):
    path = str(folder / "model.weights.h5")
    model.save_weights(path)
    loaded = tf.keras.models.model_from_json(model.to_json())
    loaded.load_weights(path)
    return loaded


def clone(model, folder):
    loaded = tf.keras.models.clone_model(model)
    loaded.set_weights(model.get_weights())
    return loaded


def checkpoint(model, folder):
    path = tf.train.Checkpoint(model=model).save(str(folder / "checkpoint"))
    loaded = clone(model, folder)
    loaded.set_weights([w * 0 for w in model.get_weights()])
    tf.train.Checkpoint(model=loaded).restore(path).assert_existing_objects_matched()
    return loaded


def pickled(model, folder):
    return pickle.loads(pickle.dumps(model))


def deep_copy(model, folder):
    return copy.deepcopy(model)
