"""Trains a small model, as one process or as a worker of the cluster in TF_CONFIG, and saves what
it did to the .npz file that the command line names. A program of its own, for tests.

Keras's fit refuses this strategy (with every layer), so its train_step runs in a loop of ours.
"""

import os
import signal
import sys

import keras
import numpy as np
import tensorflow as tf

import tf_fused_lstm as tfl

SECONDS = 150  # at the most: nobody may be left of a worker whose peer is gone
BATCH, STEPS, FEATURES, BATCHES = 8, 7, 3, 4


def make_strategy() -> tf.distribute.Strategy:
    if "TF_CONFIG" not in os.environ:
        return tf.distribute.get_strategy()
    ring = tf.distribute.experimental.CommunicationImplementation.RING
    options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def make_data() -> tf.data.Dataset:
    """The same batches everywhere; a strategy gives each worker its share of every batch."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((BATCHES * BATCH, STEPS, FEATURES), dtype=np.float32)
    x[rng.random(x.shape[:2]) < 0.3] = 0  # masked
    data = tf.data.Dataset.from_tensor_slices((x, x.sum((1, 2)))).batch(BATCH)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return data.with_options(options)


def make_model() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((STEPS, FEATURES)),
            keras.layers.Masking(),
            keras.layers.Bidirectional(tfl.FusedLSTM(5, return_sequences=True)),
            tfl.FusedLSTM(4),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
    model.optimizer.build(model.trainable_variables)
    return model


def main(path: str) -> None:
    signal.alarm(SECONDS)
    strategy = make_strategy()  # before any op runs
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = make_model()
    before = model.get_weights()

    @tf.function
    def step(batch):
        return strategy.run(model.train_step, (batch,))["loss"]

    losses = []
    for batch in strategy.experimental_distribute_dataset(make_data()):
        model.reset_metrics()
        losses.append(float(step(batch)))
    graph = step.get_concrete_function(batch).graph
    np.savez(
        path,
        replicas=strategy.num_replicas_in_sync,
        losses=losses,
        op_types=[op.type for op in graph.get_operations()],
        before=np.concatenate([w.ravel() for w in before]),
        after=np.concatenate([w.ravel() for w in model.get_weights()]),
    )


if __name__ == "__main__":
    main(sys.argv[1])
