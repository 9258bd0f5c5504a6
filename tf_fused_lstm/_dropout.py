"""Masks as Keras's and tf_keras's dropout of ones draw them, each mask from a seed of its own."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_fused_lstm import _keras, _tensorflow

# How many masks tf_keras's LSTM cell draws of either kind, however many it uses.
_TF_KERAS_DRAWS = 4


class Kind(NamedTuple):
    """Masks of one rate and shape, which are concatenated."""

    number: int
    rate: float
    shape: Sequence[Any]


Masks = list[tf.Tensor | None]


def next_seeds(generator: Any, count: int) -> list[tf.Tensor]:
    """What `count` draws from a `keras.random.SeedGenerator` get, by one update of its state."""
    state = tf.convert_to_tensor(generator.state.value)
    seeds, after = _seeds(state, count)
    generator.state.assign(after)
    return seeds


def skip(generator: Any, count: int) -> None:
    """Moves the generator on as `count` draws do."""
    variable = _keras.eager_variable(generator.state)
    if variable is None:
        next_seeds(generator, count)
    else:
        step = np.array([0, count], variable.dtype.as_numpy_dtype)
        tf.raw_ops.AssignAddVariableOp(resource=variable.handle, value=step)


def draw(seeds: Sequence[tf.Tensor], kinds: Sequence[Kind], dtype: tf.DType) -> Masks:
    """The masks of each kind, from the seeds of all; None where there are none."""
    rest = list(seeds)
    return [
        _drawn([rest.pop(0) for _ in range(kind.number)], kind.rate, kind.shape, dtype)
        if kind.number
        else None
        for kind in kinds
    ]


def draw_eagerly(generator: Any, kinds: Sequence[Kind], dtype: tf.DType) -> Masks | None:
    """The same from the generator's next seeds, by one op; None where it takes more."""
    variable = _keras.eager_variable(generator.state)
    if variable is None:
        return None
    some = [kind for kind in kinds if kind.number]
    function = _function(_draws_next, some, dtype, variable.dtype)
    if function is None:
        return None
    arguments = [variable.handle, *(_shape(*kind.shape) for kind in some)]
    return _run(function, arguments, kinds, dtype)


def draw_in_tf_keras(generator: Any, kinds: Sequence[Kind], dtype: tf.DType) -> Masks | None:
    """As an LSTM cell draws them eagerly from a `tf_keras.backend.RandomGenerator`, by few ops;
    None where it takes more.
    """
    if not tf.executing_eagerly() or getattr(generator, "_rng_type", None) != "legacy_stateful":
        return None
    some = [kind for kind in kinds if kind.number]
    function = _function(_draws_of_uniform, some, dtype)
    if function is None:
        return None
    own = [generator.make_legacy_seed() for _ in range(_TF_KERAS_DRAWS * len(some))]
    seeds = [tf.compat.v1.get_seed(seed) for seed in own]
    if all(seed == (None, None) for seed in seeds):  # any numbers do
        unseeded = _function(_draws_unseeded, some, dtype)
        if unseeded is not None:
            return _run(unseeded, [_shape(*kind.shape) for kind in some], kinds, dtype)
    uniform = []
    for index, (seed, other) in enumerate(seeds):
        kind, draw = some[index // _TF_KERAS_DRAWS], index % _TF_KERAS_DRAWS
        # What nobody uses must be drawn where other draws may have the same seed: TensorFlow keeps
        # an eager op's generator.
        if draw < kind.number or own[index] is not None:
            numbers = tf.raw_ops.RandomUniform(
                shape=_shape(*kind.shape), dtype=dtype, seed=seed or 0, seed2=other or 0
            )
            uniform += [numbers] if draw < kind.number else []
    return _run(function, uniform, kinds, dtype)


def _seeds(state: tf.Tensor, count: int) -> tuple[list[tf.Tensor], tf.Tensor]:
    """The seeds of `count` draws, and the state after them."""
    draws = np.array([[0, i] for i in range(count + 1)], state.dtype.as_numpy_dtype)
    seeds = tf.cast((state + draws[:-1]) % (tf.int32.max - 1), tf.int32)
    return tf.unstack(seeds, num=count), state + draws[-1]


def _drawn(seeds: Sequence[tf.Tensor], rate: float, shape: Any, dtype: tf.DType) -> tf.Tensor:
    shape = tf.convert_to_tensor(shape)
    # One op where StatelessRandomUniformV2 wants another one for its key; the same numbers.
    return _masks(
        [tf.raw_ops.StatelessRandomUniform(shape=shape, seed=seed, dtype=dtype) for seed in seeds],
        rate,
        dtype,
    )


def _masks(uniform: Sequence[tf.Tensor], rate: float, dtype: tf.DType) -> tf.Tensor:
    is_kept = (uniform[0] if len(uniform) == 1 else tf.concat(uniform, 0)) >= rate
    return tf.cast(is_kept, dtype) * tf.constant(1 / (1 - rate), dtype)


# An eager call draws by a function, which it runs as an op: its own call would take several times
# as long, for gradients that masks do not have. The functions are kept for good by what they draw;
# a call without one is only slower, but rates that change all the time would all be traced.
_MOST_FUNCTIONS = 64
_functions: dict[Any, Any] = {}

# Of (number, rate) of each kind.
_Draws = tuple[tuple[int, float], ...]


def _function(make: Callable[..., Any], kinds: Sequence[Kind], *dtypes: tf.DType) -> Any | None:
    key = make, tuple((kind.number, kind.rate) for kind in kinds), *dtypes
    if not all(isinstance(kind.rate, float) for kind in kinds) or not _tensorflow.can_run():
        return None
    function = _functions.get(key)
    if function is None and len(_functions) < _MOST_FUNCTIONS:
        with tf.device(None):  # it runs on the device of each call
            function = _functions.setdefault(key, make(*key[1:]))
    return function


def _run(function: Any, arguments: list[Any], kinds: Sequence[Kind], dtype: tf.DType) -> Masks:
    outputs = [dtype for kind in kinds if kind.number]
    masks = iter(_tensorflow.run(function, arguments, outputs))
    return [next(masks) if kind.number else None for kind in kinds]


def _draws_next(draws: _Draws, dtype: tf.DType, state_dtype: tf.DType) -> Any:
    """Of a seed generator's state's handle, which it moves on, and of a shape for each kind."""

    def masks(handle: tf.Tensor, *shapes: tf.Tensor) -> list[tf.Tensor]:
        state = tf.raw_ops.ReadVariableOp(resource=handle, dtype=state_dtype)
        seeds, after = _seeds(state, sum(number for number, _ in draws))
        tf.raw_ops.AssignVariableOp(resource=handle, value=after)
        return [
            _drawn([seeds.pop(0) for _ in range(number)], rate, shape, dtype)
            for (number, rate), shape in zip(draws, shapes, strict=True)
        ]

    return tf.function(masks, autograph=False).get_concrete_function(
        tf.TensorSpec([], tf.resource), *(tf.TensorSpec([None], tf.int32) for _ in draws)
    )


def _draws_unseeded(draws: _Draws, dtype: tf.DType) -> Any:
    """Of a shape for each kind."""

    def masks(*shapes: tf.Tensor) -> list[tf.Tensor]:
        return [
            _masks(
                [tf.raw_ops.RandomUniform(shape=shape, dtype=dtype) for _ in range(number)],
                rate,
                dtype,
            )
            for (number, rate), shape in zip(draws, shapes, strict=True)
        ]

    return tf.function(masks, autograph=False).get_concrete_function(
        *(tf.TensorSpec([None], tf.int32) for _ in draws)
    )


def _draws_of_uniform(draws: _Draws, dtype: tf.DType) -> Any:
    """Of the uniform numbers of each mask."""

    def masks(*uniform: tf.Tensor) -> list[tf.Tensor]:
        rest = list(uniform)
        return [_masks([rest.pop(0) for _ in range(number)], rate, dtype) for number, rate in draws]

    return tf.function(masks, autograph=False).get_concrete_function(
        *(tf.TensorSpec(None, dtype) for number, _ in draws for _ in range(number))
    )


@functools.lru_cache(maxsize=256)
def _shape(*dimensions: int) -> tf.Tensor:
    """An eager tensor, as to make one takes as long as an op."""
    with tf.device("CPU:0"):
        return tf.constant(dimensions, tf.int32)
