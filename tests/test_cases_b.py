"""Shape and API: what a keras.layers.LSTM accepts, returns and refuses."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_pairs import MASK, assert_close, assert_same, inputs, pair, wrapped_pair

import tf_fused_lstm as tfl
from tf_fused_lstm import _xla

X = inputs()
REFUSED = (ValueError, tf.errors.InvalidArgumentError)


@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize("mask_shape", [(4, 5), (4, 7), (3, 6), (6, 4), (4,)])
def test_b1_mask_of_wrong_shape(mask_shape, in_graph):
    layer = tfl.FusedLSTM(4)
    x, mask = np.ones((4, 6, 4), np.float32), np.ones(mask_shape, bool)
    layer(x)
    call = tf.function(layer) if in_graph else layer
    with pytest.raises(REFUSED) as error:
        call(tf.constant(x), mask=tf.constant(mask))
    assert str(mask_shape) in str(error.value) and "(4, 6)" in str(error.value)


def test_b1_mask_of_wrong_shape_known_only_at_run_time():
    layer = tfl.FusedLSTM(4)

    @tf.function(
        input_signature=[tf.TensorSpec([None, None, 4]), tf.TensorSpec([None, None], tf.bool)]
    )
    def call(x, mask):
        return layer(x, mask=mask)

    with pytest.raises(tf.errors.InvalidArgumentError, match=r"mask .*\[4,6\].*\[4,5\]"):
        call(tf.ones([4, 6, 4]), tf.ones([4, 5], tf.bool))


@pytest.mark.parametrize("shape", [(3, 5), (3, 5, 2, 2)])
def test_b3_wrong_rank(shape):
    with pytest.raises(ValueError, match="ndim"):
        tfl.FusedLSTM(4)(np.ones(shape, np.float32))


def test_b3_feature_size_changed_after_build():
    _, layer = pair()
    with pytest.raises(ValueError, match=r"2 features.*\(3, 5, 3\)"):
        layer(np.ones((3, 5, 3), np.float32))


def test_b4_stateful_with_a_smaller_batch():
    stock, fused = pair(stateful=True)
    for layer in (stock, fused):
        layer(X)
        with pytest.raises(ValueError, match=r"(?s)size: 3.*size: 2"):
            layer(X[:2])
    before = [v.numpy() for v in fused.states]

    @tf.function(input_signature=[tf.TensorSpec([None, 5, 2])])
    def call(x):
        return fused(x)

    assert call(X).shape == (3, 4)
    before = [v.numpy() for v in fused.states]
    with pytest.raises(REFUSED):
        call(X[:2])
    assert_close([v.value for v in fused.states], before, (0, 0))


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_b4_fit_whose_last_batch_is_smaller(run_eagerly):
    """5 rows in batches of 3: an error, as Keras's layer gives, and no state of another batch."""

    def mean_output(_, output):  # a loss that compares no batches: the layer alone can refuse
        return tf.reduce_mean(output)

    errors = []
    for kind in (keras.layers.LSTM, tfl.FusedLSTM):
        layer = kind(4, stateful=True)
        model = keras.Sequential([keras.Input(batch_shape=(3, 5, 2)), layer])
        model.compile("sgd", mean_output, run_eagerly=run_eagerly, jit_compile=False)
        with pytest.raises(REFUSED) as error:
            model.fit(np.ones((5, 5, 2)), np.ones((5, 4)), batch_size=3, shuffle=False, verbose=0)
        errors.append(str(error.value))
        assert [tuple(v.shape) for v in layer.states] == [(3, 4)] * 2
    if run_eagerly:
        assert all("batch size: 3" in e and "batch size: 2" in e for e in errors)
    else:
        assert "FusedLSTM" in errors[1] and "initial_h" in errors[1]


def test_b4_stateful_with_unknown_batch():
    with pytest.raises(ValueError, match="batch size must be static"):
        tfl.FusedLSTM(4, stateful=True)(keras.Input((5, 2)))


@pytest.mark.parametrize("return_state", [False, True])
@pytest.mark.parametrize("return_sequences", [False, True])
@pytest.mark.parametrize("go_backwards", [False, True])
@pytest.mark.parametrize("steps", [None, 5])
def test_b5_symbolic_shapes(return_sequences, return_state, go_backwards, steps):
    layers = pair(
        return_sequences=return_sequences, return_state=return_state, go_backwards=go_backwards
    )
    described, mask = [], tf.constant(MASK)
    for layer in layers:
        symbolic = layer(keras.Input((steps, 2)))
        described.append(
            (
                [(v.shape, v.dtype) for v in keras.tree.flatten(symbolic)],
                type(symbolic) is tuple,
                layer.compute_output_shape((None, steps, 2)),
                [m is mask or m for m in tf.nest.flatten(layer.compute_mask(X, mask))],
            )
        )
    assert described[0] == described[1]
    assert described[1][3] == [True if return_sequences else None] + [None] * 2 * return_state
    entry = keras.Input((steps, 2))
    model = keras.Model(entry, layers[1](entry))
    assert_close(model(X), layers[0](X))
    assert_close(model.predict(X, verbose=0), layers[0](X))


def test_b5_static_shapes_while_tracing():
    layer = tfl.FusedLSTM(4, return_sequences=True, return_state=True)

    @tf.function(input_signature=[tf.TensorSpec([None, 7, 2])])
    def call(x):
        shapes.append([tuple(v.shape) for v in layer(x)])

    shapes = []
    call.get_concrete_function()
    assert shapes[-1] == [(None, 7, 4), (None, 4), (None, 4)]


def test_b6_bidirectional_initial_state():
    stock, fused = wrapped_pair(keras.layers.Bidirectional, return_sequences=True)
    states = [inputs(i, (3, 4)) for i in range(4)]
    assert_same(stock, fused, X, initial_state=states)
    with pytest.raises(ValueError, match=r"initial_state must be two tensors, \[h, c\]"):
        fused(X, initial_state=states[:2])


def test_b7_variable_length_without_retracing():
    _, layer = pair(return_sequences=True)
    traces = []

    @tf.function(reduce_retracing=True)
    def call(x):
        traces.append(x.shape)
        return layer(x)

    for steps in range(2, 12):
        assert call(tf.ones([2, steps, 2])).shape == (2, steps, 4)
    assert len(traces) <= 2


def test_b7_fit_over_lengths():
    def batches():
        for steps in range(1, 20):
            yield np.ones((2, steps, 2), np.float32), np.zeros((2, 1), np.float32)

    traces = []

    class Noting(tfl.FusedLSTM):
        def call(self, sequences, initial_state=None, mask=None, training=False):
            traces.append(sequences.shape)
            return super().call(sequences, initial_state, mask, training)

    model = keras.Sequential([keras.Input((None, 2)), Noting(4), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    traces.clear()
    signature = (tf.TensorSpec([None, None, 2]), tf.TensorSpec([None, 1]))
    dataset = tf.data.Dataset.from_generator(batches, output_signature=signature)
    history = model.fit(dataset, verbose=0)
    assert np.isfinite(history.history["loss"][0])
    assert not model.jit_compile
    assert len(traces) <= 2 and traces[-1][1] is None


def test_b7_unroll():
    stock, fused = pair(unroll=True, return_sequences=True)
    assert_same(stock, fused, X, mask=MASK)
    assert_same(stock, fused, X[:, :1])
    with pytest.raises(ValueError, match="Cannot unroll"):
        tf.function(fused).get_concrete_function(tf.TensorSpec([3, None, 2]))


@pytest.mark.parametrize(
    "keywords",
    [{"batch_input_shape": (3, 5, 2)}, {"time_major": False}, {"implementation": 1},
     {"implementation": 2}, {"use_cudnn": "auto"}, {"use_cudnn": False}],
)  # fmt: skip
def test_b8_legacy_keywords(keywords):
    try:
        keras.layers.LSTM(4, **keywords)
    except (TypeError, ValueError) as error:
        with pytest.raises(type(error), match=next(iter(keywords))):
            tfl.FusedLSTM(4, **keywords)
        return
    stock, fused = pair(**keywords)
    assert_same(stock, fused, X)
    assert fused.fused_reason is None


def test_b8_use_cudnn_true_is_what_keras_makes_of_it():
    stock, fused = pair(use_cudnn=True)
    assert "use_cudnn" in fused.fused_reason
    if not tf.config.list_physical_devices("GPU"):
        for layer in (stock, fused):
            with pytest.raises(ValueError, match="use_cudnn=True"):
                layer(X)


def test_b9_reasons_and_strict_mode():
    assert tfl.FusedLSTM(4).fused_reason is None
    assert tfl.FusedLSTM(4, use_fused=False).fused_reason == "use_fused=False"
    with pytest.raises(ValueError, match="activation=selu"):
        tfl.FusedLSTM(4, activation="selu", use_fused=True)
    strict = tfl.FusedLSTM(4, recurrent_dropout=0.5, use_fused=True)
    assert strict(X, training=True).shape == (3, 4)
    with pytest.raises(ValueError, match="the input is string"):
        strict(tf.fill((3, 5, 2), "a"))
    with pytest.raises(ValueError, match="the input is float64"):
        tfl.FusedLSTM(4, use_fused=True, autocast=False)(tf.cast(X, tf.float64))
    for use_fused in ("yes", 1, None):
        with pytest.raises(ValueError, match="use_fused must be"):
            tfl.FusedLSTM(4, use_fused=use_fused)


def test_b9_which_ops_run():
    def op_types(layer):
        graph = tf.function(layer).get_concrete_function(tf.TensorSpec([3, 5, 2])).graph
        return {op.type for op in graph.get_operations()}

    assert "FusedLSTM" in op_types(tfl.FusedLSTM(4))
    assert "FusedLSTM" not in op_types(tfl.FusedLSTM(4, use_fused=False))


def test_b11_ragged_input():
    ragged = tf.RaggedTensor.from_row_lengths(np.ones((3, 2), np.float32), [2, 1])
    _, layer = pair()
    with pytest.raises(ValueError, match="to_tensor"):
        layer(ragged)
    mask = tf.sequence_mask(ragged.row_lengths())
    assert layer(ragged.to_tensor(shape=[2, 2, 2]), mask=mask).shape == (2, 4)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float64", "float16", "bool"])
def test_b12_inputs_of_other_types(dtype):
    stock, fused = pair(return_sequences=True)
    x = tf.cast(tf.reshape(tf.range(30) % 3, [3, 5, 2]), dtype)
    if dtype == "bool":
        assert fused(x).dtype == tf.float32
        return
    got, wanted = fused(x), stock(x)
    assert got.dtype == wanted.dtype == tf.float32
    assert_close(got, wanted)
    assert fused.fused_reason is None


@pytest.mark.parametrize("shape", [(4,), (1, 4)])
def test_b12_one_initial_state_for_all_rows(shape):
    stock, fused = pair()
    states = [np.random.default_rng(5).normal(size=shape).astype(np.float32)] * 2
    assert_same(stock, fused, X, initial_state=states)


def test_b1_mask_that_is_no_numbers():
    with pytest.raises(ValueError, match="mask must be bool or real numbers, got dtype string"):
        tfl.FusedLSTM(4)(X, mask=tf.constant([["a"] * X.shape[1]] * X.shape[0]))


def test_b12_initial_states_of_other_types():
    """Among them float64 arrays, which become the layer's float32."""
    stock, fused = pair(return_sequences=True, return_state=True)
    h, c = inputs(2, (3, 4)), inputs(3, (3, 4))
    for states in ([h, c], (h, c), [h.numpy().astype(np.float64), c.numpy()],
                   [tf.cast(h, tf.float64), tf.cast(c, tf.float64)],
                   [tf.Variable(h), keras.Variable(c)]):  # fmt: skip
        got = fused(X, initial_state=states)
        assert [v.dtype for v in got] == [tf.float32] * 3
        assert_close(got, stock(X, initial_state=[h, c]))


def test_b12_layer_that_does_not_cast():
    stock, fused = pair(autocast=False)
    x = tf.cast(X, "float64")
    try:
        wanted = stock(x)
    except Exception as error:
        with pytest.raises(type(error)):
            fused(x)
    else:
        assert_close(fused(x), wanted)
    assert "float64" in fused.fused_reason


@pytest.mark.parametrize("go_backwards", [False, True])
def test_b13_function_compiled_by_xla(go_backwards):
    stock, fused = pair(return_sequences=True, return_state=True, go_backwards=go_backwards)
    call = tf.function(fused, jit_compile=True)
    assert_close(call(X, mask=tf.constant(MASK)), stock(X, mask=MASK))
    if not _xla.available():
        assert "XLA" in fused.fused_reason
    fused(X)
    assert fused.fused_reason is None


def test_b13_strict_layer_under_xla_without_its_kernels(monkeypatch):
    monkeypatch.setattr(_xla, "available", lambda: False)
    layer = tfl.FusedLSTM(4, use_fused=True)
    layer(X)
    with pytest.raises(ValueError, match="XLA"):
        tf.function(layer, jit_compile=True)(X)


def test_b13_fallback_without_xla_kernels(monkeypatch):
    monkeypatch.setattr(_xla, "available", lambda: False)
    stock, fused = pair(return_sequences=True)
    assert_close(tf.function(fused, jit_compile=True)(X), stock(X))
    assert "XLA" in fused.fused_reason


def test_b13_fused_lstm_function_under_xla():
    _, layer = pair(use_bias=True)
    weights = [v.value for v in layer.trainable_variables]

    def gradients(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            output = tfl.fused_lstm(x, *weights, mask=MASK).output
        return output, tape.gradient(output, [x, *weights])

    assert_close(tf.function(gradients, jit_compile=True)(X), gradients(X))


@pytest.mark.parametrize("jit_compile", ["auto", True, False])
def test_b13_compiled_models_train_alike(jit_compile):
    losses = []
    for kind in (keras.layers.LSTM, tfl.FusedLSTM):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((5, 2)), kind(4), keras.layers.Dense(1)])
        model.compile("sgd", "mse", jit_compile=jit_compile)
        losses.append(
            model.fit(X, np.ones((3, 1)), epochs=3, shuffle=False, verbose=0).history["loss"]
        )
    assert model.jit_compile is (jit_compile is True and _xla.available())
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_b13_jit_stays_on_where_the_op_is_off():
    assert tfl.FusedLSTM(4, use_fused=False).supports_jit
    assert tfl.FusedLSTM(4, activation="selu").supports_jit
    wrapped = keras.Sequential([keras.Input((5, 2)), keras.layers.Bidirectional(tfl.FusedLSTM(4))])
    wrapped.compile("sgd", "mse")
    assert not wrapped.jit_compile


def test_b15_regularisers_constraints_and_trainable():
    arguments = {
        "kernel_regularizer": "l2", "recurrent_regularizer": "l2", "bias_regularizer": "l2",
        "activity_regularizer": "l2", "kernel_constraint": "max_norm",
        "recurrent_constraint": "unit_norm", "bias_constraint": "non_neg",
    }  # fmt: skip
    stock, fused = pair(**arguments)
    assert_close(fused(X), stock(X))
    assert len(fused.losses) == 4
    assert_close(fused.losses, stock.losses)
    for ours, theirs in zip(fused.weights, stock.weights, strict=True):
        assert type(ours.constraint) is type(theirs.constraint) is not type(None)


def test_b15_trainable_flags():
    assert not pair(trainable=False)[1].trainable_weights
    _, layer = pair()
    layer.cell.recurrent_kernel.trainable = False
    assert [v.name for v in layer.trainable_weights] == ["kernel", "bias"]
    layer.trainable = False
    assert not layer.trainable_weights


@pytest.mark.parametrize("wrap", ["layer", "bidirectional", "stack"])
@pytest.mark.parametrize(("batch", "steps"), [(2, 0), (0, 3), (0, 0)])
@pytest.mark.parametrize("in_graph", [False, True])
def test_f3_no_steps(in_graph, batch, steps, wrap):
    """Nor rows: outputs of the right shape, zeros, and the states as they were; no gradient."""
    arguments = {"return_sequences": True, "return_state": True}
    if wrap == "stack":
        layer = tfl.FusedLSTMStack([4], **arguments)
    else:
        layer = tfl.FusedLSTM(4, **arguments)
    if wrap == "bidirectional":
        layer = keras.layers.Bidirectional(layer)
    layer.build((None, None, 2))
    count = 4 if wrap == "bidirectional" else 2
    weights = [v.value for v in layer.trainable_variables]

    def call(x, *states):
        with tf.GradientTape() as tape:
            output, *final = layer(x, initial_state=list(states))
            loss = tf.reduce_sum(output) + tf.add_n([tf.reduce_sum(s) for s in final])
        return output, final, tape.gradient(loss, weights, unconnected_gradients="zero")

    x, states = tf.zeros((batch, steps, 2)), [inputs(i, (batch, 4)) for i in range(count)]
    output, final, gradients = (tf.function(call) if in_graph else call)(x, *states)
    assert output.shape == (batch, steps, 2 * count)
    assert_close(final, states, (0, 0))
    for gradient, weight in zip(gradients, weights, strict=True):
        np.testing.assert_array_equal(gradient, np.zeros(weight.shape))


def test_f3_no_steps_has_a_last_output_of_zeros():
    _, layer = pair(return_state=True)
    states = [inputs(2, (3, 4)), inputs(3, (3, 4))]
    output, h, c = layer(X[:, :0], initial_state=states)
    np.testing.assert_array_equal(output, np.zeros((3, 4)))
    assert_close([h, c], states, (0, 0))


def test_g8_a_real_keras_layer():
    _, layer = pair()
    assert isinstance(layer, keras.Layer) and isinstance(layer, keras.layers.LSTM)
    assert layer.count_params() == 112
    model = keras.Sequential([keras.Input((5, 2)), tfl.FusedLSTM(4)])
    lines = []
    model.summary(print_fn=lambda line, **_: lines.append(line))
    assert any("LSTM" in line for line in lines) and any("112" in line for line in lines)
