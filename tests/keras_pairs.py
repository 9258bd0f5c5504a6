"""A stock LSTM layer of tf.keras and ours with the same weights, and their comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

import tf_fused_lstm as tfl

# The standard small input: batch 3, 5 steps, 2 features.
MASK = np.array([[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]], bool)
UNITS = 4

# (rtol, atol) forward, and of gradients.
LIMITS = {
    "float64": ((1e-10, 1e-12), (1e-10, 1e-12)),
    "float32": ((1e-5, 1e-6), (1e-4, 1e-5)),
    "float16": ((1e-2, 4e-3), (3e-2, 1e-2)),
    "bfloat16": ((5e-2, 3e-2), (1e-1, 8e-2)),
}


def randomise(layer: Any, seed: int = 0) -> None:
    """Gives every weight random values, the bias too, which starts at zeros and ones."""
    rng = np.random.default_rng(seed)
    layer.set_weights([rng.standard_normal(w.shape) * 0.5 for w in layer.get_weights()])


def pair(shape=(3, 5, 2), units: int = UNITS, weight_seed: int = 0, **arguments: Any):
    """(stock, fused) layers of equal weights, built for `shape`."""
    stock = tf.keras.layers.LSTM(units, **arguments)
    fused = tfl.FusedLSTM(units, **arguments)
    stock.build(shape)
    fused.build(shape)
    randomise(stock, weight_seed)
    fused.set_weights(stock.get_weights())
    return stock, fused


def wrapped_pair(wrap, shape=(3, 5, 2), units: int = UNITS, **arguments: Any):
    """As pair, of layers inside the wrapper that `wrap` makes of a layer."""
    stock = wrap(tf.keras.layers.LSTM(units, **arguments))
    fused = wrap(tfl.FusedLSTM(units, **arguments))
    stock.build(shape)
    fused.build(shape)
    randomise(stock)
    fused.set_weights(stock.get_weights())
    return stock, fused


def flat(value: Any) -> list[np.ndarray]:
    """Nested tensors as a flat list of float64 arrays (None stays None)."""
    leaves = tf.nest.flatten(value)
    return [None if v is None else np.asarray(tf.cast(v, tf.float64)) for v in leaves]


def assert_close(got: Any, wanted: Any, limit=LIMITS["float32"][0]) -> None:
    got, wanted = flat(got), flat(wanted)
    assert len(got) == len(wanted)
    for i, (g, w) in enumerate(zip(got, wanted, strict=True)):
        assert (g is None) == (w is None), f"value {i}"
        if w is not None:
            assert g.shape == w.shape
            assert np.all(np.isfinite(g) == np.isfinite(w))
            np.testing.assert_allclose(g, w, *limit, err_msg=f"value {i}")


def outputs_and_gradients(layer: Any, x: tf.Tensor, loss_weights=None, **call: Any):
    """(outputs, gradients by x and the trainable weights of a random projection of them)."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        outputs = layer(x, **call)
        leaves = tf.nest.flatten(outputs)
        rng = np.random.default_rng(7)
        projections = [tf.constant(rng.standard_normal(v.shape), v.dtype) for v in leaves]
        loss = tf.add_n(
            [tf.reduce_sum(tf.cast(p * v, tf.float64))
             for i, (p, v) in enumerate(zip(projections, leaves, strict=True))
             if loss_weights is None or loss_weights[i]]
        )  # fmt: skip
    sources = [x, *layer.trainable_variables]
    return outputs, tape.gradient(loss, sources)


def assert_same(stock: Any, fused: Any, x: Any, dtype: str = "float32", **call: Any) -> Any:
    """Outputs and gradients of both layers agree; returns the fused outputs."""
    x = tf.convert_to_tensor(x)
    wanted, wanted_grads = outputs_and_gradients(stock, x, **call)
    got, got_grads = outputs_and_gradients(fused, x, **call)
    for g, w in zip(tf.nest.flatten(got), tf.nest.flatten(wanted), strict=True):
        assert g.dtype == w.dtype
    for g, w in zip(got_grads, wanted_grads, strict=True):
        assert (g is None) == (w is None)
        assert g is None or g.dtype == w.dtype
    assert_close(got, wanted, LIMITS[dtype][0])
    assert_close(got_grads, wanted_grads, LIMITS[dtype][1])
    return got


def inputs(seed: int = 1, shape=(3, 5, 2), dtype: str = "float32") -> tf.Tensor:
    return tf.cast(np.random.default_rng(seed).standard_normal(shape), dtype)
