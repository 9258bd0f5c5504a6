"""What the cells of the README's support matrix mean: calls that fail unless the cell is true.

Each compares FusedLSTM with the stock layer of the Keras that `tf.keras` is, and looks which ops
ran, and where. They are functions and not tests, so that a process with another Keras or another
device can run them.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import op_checks
import tensorflow as tf
from reference import make_problem
from stock_keras import keep_keras_from_cudnn

import tf_fused_lstm as tfl

K = tf.keras
IS_KERAS_3 = K.layers.LSTM.__module__.startswith("keras.")
if IS_KERAS_3:
    keep_keras_from_cudnn()

SHAPE, UNITS = (3, 5, 2), 4
MASK = np.array([[1, 1, 1, 0, 0], [0, 0, 1, 0, 1], [0, 0, 0, 0, 0]], bool)
# Of ||fused - stock|| / ||stock||: the stock layer rounds too, and in 16 bits at every step.
LIMITS = {"float64": 1e-9, "float32": 2e-5, "float16": 2e-2, "bfloat16": 1e-1}


@dataclass(frozen=True)
class Place:
    """Where a column's checks run."""

    device: str = "CPU"
    jit: bool = False

    def run(
        self, function: Callable[..., Any], *arguments: Any, runs_op: bool | None = True
    ) -> Any:
        """Traces and calls a function here; its graph must hold the op, or must not (None: may)."""
        with tf.device(f"/{self.device}:0"):
            traced = tf.function(function, autograph=False, jit_compile=self.jit or None)
            if runs_op is not None:
                assert self._holds_op(traced, arguments) == runs_op, "which ops run"
            results = traced(*arguments)
            for tensor in tf.nest.flatten(results):
                assert self.device in tensor.device, f"a result on {tensor.device}"
            return results

    def _holds_op(self, traced: Any, arguments: Any) -> bool:
        graph = traced.get_concrete_function(*arguments).graph.as_graph_def()
        nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
        if not {"FusedLSTM"} & {node.op for node in nodes}:
            return False
        if self.jit:  # of the op, or of ordinary ops in its place
            hlo = traced.experimental_get_compiler_ir(*arguments)(stage="hlo")
            return 'custom_call_target="tf_fused_lstm_forward"' in hlo
        return True


CPU = Place()


def normal(seed: int, shape: Any, dtype: str = "float32") -> tf.Tensor:
    return tf.cast(np.random.default_rng(seed).standard_normal(shape), dtype)


def assert_close(got: Any, wanted: Any, limit: float = LIMITS["float32"]) -> None:
    got, wanted = tf.nest.flatten(got), tf.nest.flatten(wanted)
    assert len(got) == len(wanted) > 0
    arrays = ([np.asarray(tf.cast(v, tf.float64)) for v in values] for values in (got, wanted))
    for i, (g, w) in enumerate(zip(*arrays, strict=True)):
        assert g.shape == w.shape and np.all(np.isfinite(g)), f"value {i}"
        assert np.linalg.norm(g - w) <= limit * max(np.linalg.norm(w), 1e-3), f"value {i}"


def give_weights(layers: list[Any], shape: Any = SHAPE) -> None:
    """Builds the layers and gives all of them the same random weights."""
    for layer in layers:
        if not layer.built:
            layer.build(shape)
    rng = np.random.default_rng(3)
    weights = [rng.standard_normal(w.shape) * 0.5 for w in layers[0].get_weights()]
    for layer in layers:
        layer.set_weights(weights)


def pair(wrap: Callable[[Any], Any] = lambda layer: layer, **arguments: Any) -> list[Any]:
    """[stock, fused] of equal weights."""
    layers = [
        wrap(K.layers.LSTM(UNITS, **arguments)), wrap(tfl.FusedLSTM(UNITS, **arguments))
    ]  # fmt: skip
    give_weights(layers)
    return layers


def variables(layer: Any) -> list[tf.Variable]:
    return [v.value if IS_KERAS_3 else v for v in layer.trainable_variables]


def outputs_and_gradients(
    layer: Any, mask: np.ndarray | None = None, **call: Any
) -> Callable[..., Any]:
    """The layer as a function of x and of initial states: outputs, gradients by all arguments and
    weights."""

    def run(x: tf.Tensor, *states: tf.Tensor) -> Any:
        given = {"initial_state": list(states)} if states else {}
        if mask is not None:
            given["mask"] = tf.constant(mask)
        with tf.GradientTape() as tape:
            tape.watch([x, *states])
            outputs = tf.nest.flatten(layer(x, **given, **call))
            loss = tf.add_n(
                [tf.reduce_sum(tf.cast(v, tf.float64) * normal(i, v.shape, "float64"))
                 for i, v in enumerate(outputs)]
            )  # fmt: skip
        return outputs, tape.gradient(loss, [x, *states, *variables(layer)])

    return run


def check_layer(
    place: Place,
    *,
    states: int = 0,
    call: dict[str, Any] | None = None,
    wrap: Callable[[Any], Any] = lambda layer: layer,
    calls: int = 1,
    runs_op: bool = True,
    **arguments: Any,
) -> None:
    """Outputs, dtypes and gradients of both layers; `calls` times, for what changes from call to
    call."""
    stock, fused = pair(wrap, **arguments)
    dtype = fused.compute_dtype
    x = normal(1, SHAPE, dtype)
    given = [normal(i, (SHAPE[0], UNITS), dtype) for i in range(2, 2 + states)]
    for _ in range(calls):
        got = place.run(outputs_and_gradients(fused, **call or {}), x, *given, runs_op=runs_op)
        # Random numbers are others in another place.
        there = place if (call or {}).get("training") else CPU
        wanted = there.run(outputs_and_gradients(stock, **call or {}), x, *given, runs_op=False)
        for g, w in zip(tf.nest.flatten(got), tf.nest.flatten(wanted), strict=True):
            assert g.dtype == w.dtype
        assert_close(got, wanted, LIMITS[dtype])


def full_precision(place: Place) -> None:
    for dtype in ("float32", "float64"):
        check_layer(
            place, dtype=dtype, states=2, call={"mask": MASK}, return_sequences=True,
            return_state=True,
        )  # fmt: skip


def half_precision(place: Place) -> None:
    for dtype in ("float16", "bfloat16", "mixed_float16", "mixed_bfloat16"):
        check_layer(
            place, dtype=dtype, call={"mask": MASK}, return_sequences=True, return_state=True,
            recurrent_initializer="glorot_uniform",
        )  # fmt: skip


def flags(place: Place) -> None:
    for backwards, sequences, masked in itertools.product((False, True), repeat=3):
        check_layer(
            place, states=2 * sequences, call={"mask": MASK} if masked else None,
            go_backwards=backwards, return_sequences=sequences, return_state=True,
            zero_output_for_mask=backwards and sequences,
        )  # fmt: skip


def layouts_and_sizes(place: Place) -> None:
    """Of the function, against the float64 reference."""
    rng = np.random.default_rng(1)
    sizes = ((1, 1, 1, 1), (5, 7, 3, 17), (70, 3, 5, 33), (3, 0, 2, 4), (0, 3, 2, 4))
    for (batch, steps, inputs, hidden), time_major in itertools.product(sizes, (False, True)):
        problem = make_problem(rng, batch, steps, inputs, hidden)
        with tf.device(f"/{place.device}:0"):
            op_checks.check(rng, problem, "float32", time_major=time_major, jit_compile=place.jit)
    arguments = op_checks.op_arguments(make_problem(rng), "float32")
    place.run(lambda: tfl.fused_lstm(**arguments).output)


def activations(place: Place) -> None:
    """Each in either place."""
    names = ("tanh", "sigmoid", "hard_sigmoid", "relu", "linear")
    for i, name in enumerate(names):
        check_layer(
            place, activation=name, recurrent_activation=names[i - 1], return_sequences=True,
            call={"mask": MASK},
        )  # fmt: skip


def dropout_bias_and_state(place: Place) -> None:
    check_layer(place, use_bias=False, return_sequences=True)
    check_layer(place, dropout=0.4, seed=5, call={"training": True}, calls=2)
    for dropout in (0.0, 0.3):
        check_layer(
            place, dropout=dropout, recurrent_dropout=0.4, seed=5, call={"training": True}, calls=2
        )
    layers = pair(stateful=True)
    x = normal(1, SHAPE)
    results = [[CPU.run(layers[0], x, runs_op=False) for _ in range(3)]]
    results.append([place.run(layers[1], x) for _ in range(3)])
    assert_close(results[1], results[0])
    assert not np.allclose(results[1][0], results[1][1])


def dropout(place: Place) -> None:
    """From the same seed in the whole process; unrolled, as tf_keras's loop draws at each step."""
    x = normal(1, SHAPE)
    for rates in ((0.3, 0.0), (0.0, 0.4), (0.3, 0.4)):
        results = []
        for kind in (K.layers.LSTM, tfl.FusedLSTM):
            K.utils.set_random_seed(5)
            layer = kind(UNITS, dropout=rates[0], recurrent_dropout=rates[1], unroll=True)
            give_weights([layer])
            run = outputs_and_gradients(layer, training=True)
            results.append(place.run(run, x, runs_op=kind is tfl.FusedLSTM))
        assert_close(results[1], results[0])
        assert not np.allclose(results[1][0][0], CPU.run(layer, x))


def keras_path(place: Place) -> None:
    check_layer(place, activation="selu", runs_op=False)


def wrappers(place: Place) -> None:
    """Each as one op."""
    made = []

    def wrap(layer: Any, mode: str) -> Any:
        made.append(K.layers.Bidirectional(layer, merge_mode=mode))
        return made[-1]

    for index, merge_mode in enumerate(("concat", "sum", "mul", "ave")):
        check_layer(
            place, call={"mask": MASK}, return_sequences=True, return_state=index % 2 == 0,
            wrap=lambda layer, mode=merge_mode: wrap(layer, mode), states=4 * (index < 2),
        )  # fmt: skip
        assert made[-1].forward_layer.apart_reason is None
    layers = [K.Input(SHAPE[1:], batch_size=SHAPE[0]), K.layers.Masking()]
    layers += [K.layers.LSTM(UNITS, return_sequences=True), K.layers.LSTM(3)]
    chain = K.Sequential(layers)
    give_weights([chain])
    stack = tfl.FusedLSTMStack.from_layers(chain.layers[1:])
    x = tf.where(MASK[..., np.newaxis], normal(1, SHAPE), 0)
    wanted = CPU.run(outputs_and_gradients(chain), x, runs_op=False)
    assert_close(place.run(outputs_and_gradients(stack, mask=MASK), x), wanted)
    assert stack.fused_reason is None


def higher_derivatives(place: Place) -> None:
    """Second order, Jacobian by rows and forward mode, of x and of the weights."""

    def derivatives(layer: Any) -> Callable[[tf.Tensor], Any]:
        def run(x: tf.Tensor) -> Any:
            sources = [x, *variables(layer)]
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    first = layer(x)
                gradient = inner.gradient(first, x)
                penalty = tf.reduce_sum(gradient**2)
            second = outer.gradient(penalty, sources)
            with tf.GradientTape() as tape:
                tape.watch(x)
                output = layer(x)
            jacobian = tape.batch_jacobian(output, x)
            with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
                output = layer(x)
            return second, jacobian, accumulator.jvp(output)

        return run

    # Not unrolled, Keras's own layer fails.
    stock, fused = pair(dtype="float64", unroll=True)
    x = normal(1, SHAPE, "float64")
    got = place.run(derivatives(fused), x)
    assert_close(got, CPU.run(derivatives(stock), x, runs_op=False), LIMITS["float64"])


def training(place: Place) -> None:
    """fit, evaluate and predict of Keras."""
    x, y = np.asarray(normal(1, (16, 5, 2))), np.asarray(normal(2, (16, 1)))
    results = []
    for kind in (K.layers.LSTM, tfl.FusedLSTM):
        K.utils.set_random_seed(1)
        with tf.device(f"/{place.device}:0"):
            model = K.Sequential([K.Input((5, 2)), kind(UNITS), K.layers.Dense(1)])
            model.compile(K.optimizers.SGD(0.1), "mse", jit_compile=place.jit)
            losses = model.fit(x, y, batch_size=4, epochs=3, shuffle=False, verbose=0).history[
                "loss"
            ]
            results.append(
                [losses, model.evaluate(x, y, verbose=0), model.predict(x, verbose=0),
                 *model.get_weights()]
            )  # fmt: skip
    assert results[1][0][-1] < results[1][0][0]
    assert_close(results[1], results[0], 1e-3)


def tensor_float_32(place: Place) -> None:
    """The products round their factors when TensorFlow's switch says so, and only then."""
    layer = tfl.FusedLSTM(128)
    wide = tfl.FusedLSTM(128, dtype="float64")
    give_weights([layer, wide], (16, 50, 128))
    x = normal(1, (16, 50, 128))
    wanted = np.asarray(wide(tf.cast(x, tf.float64)))
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    errors = []
    try:
        for enabled in (False, True):
            tf.config.experimental.enable_tensor_float_32_execution(enabled)
            got = np.asarray(place.run(layer, x), np.float64)
            errors.append(np.linalg.norm(got - wanted) / np.linalg.norm(wanted))
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(before)
    assert errors[0] < 2e-6 and 1e-5 < errors[1] < 1e-2, errors


def _models() -> list[Any]:
    """[stock, fused] models of different weights."""
    models = []
    for kind in (K.layers.LSTM, tfl.FusedLSTM):
        models.append(
            K.Sequential(
                [
                    K.Input(SHAPE[1:]),
                    K.layers.Bidirectional(kind(UNITS, return_sequences=True)),
                    kind(3),
                    K.layers.Dense(1),
                ]
            )
        )
    assert any(np.any(a != b) for a, b in zip(*(m.get_weights() for m in models), strict=True))
    return models


def weights_h5(place: Place) -> None:
    x = normal(1, SHAPE)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "model.weights.h5"))
        for back in (False, True):
            source, target = reversed(_models()) if back else _models()
            source.save_weights(path)
            target.load_weights(path)
            assert_close(place.run(target, x, runs_op=not back), CPU.run(source, x, runs_op=back))


def model_files(place: Place) -> None:
    x = normal(1, SHAPE)
    for suffix in (".keras", ".h5"):
        _, model = _models()
        with tempfile.TemporaryDirectory() as folder:
            path = str(Path(folder, f"model{suffix}"))
            model.save(path)
            loaded = K.models.load_model(path)
        assert isinstance(loaded.layers[-2], tfl.FusedLSTM)
        assert_close(place.run(loaded, x), model(x))


def saved_model(place: Place) -> None:
    x = normal(1, SHAPE)
    _, model = _models()
    with tempfile.TemporaryDirectory() as folder:
        model.export(folder)
        loaded = tf.saved_model.load(folder)
    signature = loaded.signatures["serving_default"]
    got = place.run(lambda x: next(iter(signature(x).values())), x)
    assert_close(got, model(x))


def checkpoint(place: Place) -> None:
    x = normal(1, SHAPE)
    with tempfile.TemporaryDirectory() as folder:
        for back in (False, True):
            source, target = reversed(_models()) if back else _models()
            path = tf.train.Checkpoint(model=source).save(str(Path(folder, "checkpoint")))
            status = tf.train.Checkpoint(model=target).restore(path)
            status.assert_existing_objects_matched()
            assert_close(place.run(target, x, runs_op=not back), CPU.run(source, x, runs_op=back))


def replace_and_restore(place: Place) -> None:
    x = normal(1, SHAPE)
    model, _ = _models()
    before = CPU.run(model, x, runs_op=False)
    tfl.replace_lstm(model)
    assert_close(place.run(model, x), before)
    tfl.restore_lstm(model)
    assert_close(CPU.run(model, x, runs_op=False), before)


def time_major(place: Place) -> None:
    stock, fused = pair(time_major=True, return_sequences=True)
    x = normal(1, (5, 3, 2))
    got = place.run(outputs_and_gradients(fused, mask=MASK.T), x)
    wanted = CPU.run(outputs_and_gradients(stock, mask=MASK.T), x, runs_op=False)
    assert_close(got, wanted)
