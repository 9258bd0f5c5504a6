"""Functions compiled by XLA (`jit_compile=True`) run the same kernels: every result, and Keras."""

import shutil
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_pairs import MASK, assert_close, pair
from op_checks import check, op_arguments
from processes import output_of
from reference import MASKS, make_problem, relative_error

import tf_fused_lstm as tfl
from tf_fused_lstm import _loader, _xla

DTYPES = ("float64", "float32", "float16", "bfloat16")


@pytest.fixture(params=["CPU", pytest.param("GPU", marks=pytest.mark.gpu)])
def device(request):
    with tf.device(f"/{request.param}:0"):
        yield request.param


def hlo(function, *args) -> str:
    return function.experimental_get_compiler_ir(*args)(stage="hlo")


def test_library_loads():
    assert _xla.load_error() is None


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("mask", MASKS)
def test_masks_layouts_and_types(device, rng, mask, time_major, dtype):
    problem = make_problem(rng, batch=5, steps=7, input_size=3, hidden_size=9, mask=mask)
    check(rng, problem, dtype, time_major=time_major, jit_compile=True)


@pytest.mark.parametrize("hidden_size", [1, 7, 33, 130])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (2, 9, 5), (11, 5, 13)])
def test_odd_sizes(device, rng, hidden_size, sizes):
    problem = make_problem(rng, *sizes, hidden_size, mask="random")
    check(rng, problem, "float32", jit_compile=True)


@pytest.mark.parametrize("zero_output_for_mask", [False, True])
@pytest.mark.parametrize("return_sequences", [False, True])
@pytest.mark.parametrize("go_backwards", [False, True])
def test_flags(device, rng, go_backwards, return_sequences, zero_output_for_mask):
    problem = make_problem(
        rng, batch=4, steps=6, input_size=5, hidden_size=7, mask="random",
        go_backwards=go_backwards, return_sequences=return_sequences,
        zero_output_for_mask=zero_output_for_mask, activation="relu",
        recurrent_activation="hard_sigmoid",
    )  # fmt: skip
    check(rng, problem, jit_compile=True)


@pytest.mark.parametrize("absent", ["bias", "initial_h", "initial_c"])
def test_optional_inputs(device, rng, absent):
    problem = make_problem(rng)
    setattr(problem, absent, None)
    check(rng, problem, jit_compile=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_float32_weights_under_narrow_inputs(device, rng, dtype):
    problem = make_problem(rng, 3, 6, 4, 32, mask="random")
    check(rng, problem, dtype, weight_dtype="float32", jit_compile=True)


@pytest.mark.parametrize("training", [False, True, None])
def test_gradient_with_and_without_reserve(device, rng, training):
    check(rng, make_problem(rng, mask="random"), training=training, jit_compile=True)


@pytest.mark.parametrize("training", [False, True])
def test_runs_the_core_and_no_loop(device, rng, training):
    arguments = op_arguments(make_problem(rng), "float32")

    @tf.function(jit_compile=True, autograph=False)
    def gradient(arguments):
        with tf.GradientTape() as tape:
            tape.watch(arguments)
            output = tfl.fused_lstm(**arguments, training=training).output
        return tape.gradient(output, arguments)

    text = hlo(gradient, arguments)
    # Without a reserve the forward pass runs twice.
    calls = text.count('custom_call_target="tf_fused_lstm_forward"')
    assert calls == (1 if training else 2)
    assert text.count('custom_call_target="tf_fused_lstm_backward"') == 1
    assert " while(" not in text


def test_equals_the_op_outside_xla(device, rng):
    arguments = op_arguments(make_problem(rng, 6, 20, 10, 40), "float32")
    wanted = tfl.fused_lstm(**arguments)
    got = tf.function(tfl.fused_lstm, jit_compile=True)(**arguments)
    for name, value in wanted._asdict().items():
        assert relative_error(getattr(got, name).numpy(), value.numpy()) < 1e-6, name


def test_operands_made_by_xla_have_the_right_layout(device, rng):
    problem = make_problem(rng, 4, 6, 5, 8)
    arguments = op_arguments(problem, "float64")
    arguments["x"] = tf.transpose(arguments["x"], [2, 1, 0])
    arguments["kernel"] = tf.transpose(arguments["kernel"])

    @tf.function(jit_compile=True)
    def function(x, kernel, **rest):
        output = tfl.fused_lstm(tf.transpose(x, [2, 1, 0]), tf.transpose(kernel), **rest).output
        return tf.transpose(output, [2, 0, 1]) * 2.0

    wanted = np.transpose(problem.forward()[0], [2, 0, 1]) * 2
    assert relative_error(function(**arguments).numpy(), wanted) < 1e-12


def test_tape_outside_the_compiled_function(device, rng):
    problem = make_problem(rng, mask="random")
    arguments = op_arguments(problem, "float64")
    function = tf.function(lambda a: tfl.fused_lstm(**a, mask=problem.mask), jit_compile=True)
    with tf.GradientTape() as tape:
        tape.watch(arguments)
        output, final_h, final_c = function(arguments)
        loss = tf.reduce_sum(output) + tf.reduce_sum(final_h) + tf.reduce_sum(final_c)
    grads = tape.gradient(loss, arguments)
    wanted = problem.backward(*(np.ones_like(v) for v in problem.forward()))
    for name, value in wanted.items():
        assert relative_error(grads[name].numpy(), value) < 1e-11, name


def test_second_derivative(device, rng):
    arguments = op_arguments(make_problem(rng), "float64")

    def norm_of_gradient(arguments):
        with tf.GradientTape() as outer:
            outer.watch(arguments)
            with tf.GradientTape() as inner:
                inner.watch(arguments)
                loss = tf.reduce_sum(tfl.fused_lstm(**arguments).output ** 2)
            grads = inner.gradient(loss, arguments)
            norm = tf.add_n([tf.reduce_sum(g * g) for g in grads.values()])
        return outer.gradient(norm, arguments)

    wanted = norm_of_gradient(arguments)
    got = tf.function(norm_of_gradient, jit_compile=True)(arguments)
    for name, value in wanted.items():
        assert relative_error(got[name].numpy(), value.numpy()) < 1e-10, name


@pytest.mark.parametrize(("batch", "steps"), [(0, 5), (3, 0), (0, 0)])
def test_nothing_to_do(device, rng, batch, steps):
    check(rng, make_problem(rng, batch=batch, steps=steps), jit_compile=True)


def test_wrong_shape_names_the_argument(device, rng):
    arguments = op_arguments(make_problem(rng), "float32")
    spec = tf.TensorSpec([None, None], tf.float32)

    @tf.function(jit_compile=True, input_signature=[spec])
    def function(kernel):
        return tfl.fused_lstm(**{**arguments, "kernel": kernel}).output

    with pytest.raises(tf.errors.InvalidArgumentError, match="kernel must have"):
        function(tf.zeros([3, 16]))
    function(tf.zeros([2, 16]))  # the process and the function still work


def test_dynamic_shape_names_the_argument(device, rng):
    """XLA knows of boolean_mask's result only how large it may be."""
    problem = make_problem(rng)

    @tf.function(jit_compile=True, autograph=False)
    def run(x, states):
        picked = tf.reduce_sum(x, [1, 2]) > 0
        return tfl.fused_lstm(
            x if states else tf.boolean_mask(x, picked), [problem.kernel] * 2,
            [problem.recurrent_kernel] * 2, bidirectional=True,
            initial_h=[problem.initial_h, tf.boolean_mask(problem.initial_h, picked)]
            if states else None,
        ).output  # fmt: skip

    for states, name in ((False, "x"), (True, r"initial_h\[1\]")):
        message = rf"(^|\s){name} must have a static shape under XLA, got f64\[<=3,"
        with pytest.raises(tf.errors.UnimplementedError, match=message):
            run(tf.constant(problem.x), states)


@pytest.mark.parametrize("shape", [(1, 2**60, 0), (2**20, 2**38, 0)])
def test_sizes_that_overflow_are_refused(shape):
    """By the core, which then says nothing of the scratch it needs."""

    @tf.function(jit_compile=True, autograph=False)
    def run(x):
        return tfl.fused_lstm(x, tf.zeros([0, 20]), tf.zeros([5, 20]), return_sequences=False)

    message = "x and recurrent_kernel must have sizes whose scratch fits in 63 bits"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        run(tf.zeros(shape))


def test_wrong_reserve_is_refused(device, rng):
    arguments = op_arguments(make_problem(rng, bias=False, states=False), "float32")
    raw_ops = tfl._loader.raw_ops()
    x, kernel, recurrent_kernel = (arguments[n] for n in ("x", "kernel", "recurrent_kernel"))
    output = tfl.fused_lstm(x, kernel, recurrent_kernel)

    @tf.function(jit_compile=True)
    def function(reserve):
        return raw_ops.fused_lstm_grad(
            x=x, kernel=[kernel], recurrent_kernel=[recurrent_kernel], bias=[], initial_h=[],
            initial_c=[], mask=[], dropout_mask=[], recurrent_dropout_mask=[],
            output=output.output, reserve=reserve,
            grad_output=output.output, grad_final_h=[output.final_h],
            grad_final_c=[output.final_c],
        )[0]  # fmt: skip

    with pytest.raises(tf.errors.InvalidArgumentError, match="reserve must be empty"):
        function(tf.zeros([3], tf.uint8))


def keras_model(layer) -> keras.Model:
    return keras.Sequential([keras.Input((5, 2)), keras.layers.Masking(), layer,
                             keras.layers.Dense(1)])  # fmt: skip


def trained(layer, jit_compile) -> tuple[keras.Model, list[float]]:
    keras.utils.set_random_seed(1)
    model = keras_model(layer)
    rng = np.random.default_rng(3)
    model.set_weights([rng.standard_normal(w.shape) * 0.5 for w in model.get_weights()])
    x = rng.standard_normal((24, 5, 2)).astype("float32") * np.tile(MASK, (8, 1))[..., None]
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=jit_compile)
    history = model.fit(x, x.sum((1, 2)), batch_size=8, epochs=3, shuffle=False, verbose=0)
    return model, history.history["loss"]


@pytest.mark.parametrize("bidirectional", [False, True])
def test_keras_compile_with_jit(device, bidirectional):
    def wrap(layer):
        return keras.layers.Bidirectional(layer) if bidirectional else layer

    layer = tfl.FusedLSTM(4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, losses = trained(wrap(layer), jit_compile=True)
    stock, stock_losses = trained(wrap(keras.layers.LSTM(4)), jit_compile=True)
    assert model.jit_compile is True
    assert layer.fused_reason is None
    np.testing.assert_allclose(losses, stock_losses, rtol=1e-4)
    assert_close(model.get_weights(), stock.get_weights(), (1e-4, 1e-5))
    assert losses[-1] < losses[0]


def test_keras_default_compile_does_not_choose_jit(device):
    model, losses = trained(tfl.FusedLSTM(4), jit_compile="auto")
    assert model.jit_compile is False
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float64"])
def test_keras_policies(device, policy):
    keras.config.set_dtype_policy(policy)
    _, fused = pair(return_sequences=True)
    x = tf.constant(np.random.default_rng(0).standard_normal((3, 5, 2)), fused.compute_dtype)
    function = tf.function(lambda x: fused(x, mask=MASK), jit_compile=True)
    wanted = fused(x, mask=MASK)
    assert fused.fused_reason is None
    assert "tf_fused_lstm_forward" in hlo(function, x)
    assert_close(function(x), wanted, (1e-6, 1e-6))


def test_loaded_after_xla_has_compiled_something():
    printed = output_of("""
import tensorflow as tf
assert tf.function(lambda x: x + 1, jit_compile=True)(tf.ones(2)).numpy().sum() == 4
import tf_fused_lstm as tfl
x, k, r = tf.ones([2, 3, 4]), tf.ones([4, 8]), tf.ones([2, 8])
f = tf.function(lambda: tfl.fused_lstm(x, k, r).output, jit_compile=True)
assert "tf_fused_lstm_forward" in f.experimental_get_compiler_ir()(stage="hlo")
print(float(abs(f() - tfl.fused_lstm(x, k, r).output).numpy().max()))
""")
    assert float(printed) < 1e-6


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_thread_settings(threads):
    printed = output_of(f"""
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads({threads})
import tf_fused_lstm as tfl
tf.random.set_seed(1)
x, k, r = (tf.random.normal(s) * 0.1 for s in ([5, 9, 30], [30, 400], [100, 400]))
def run():
    with tf.GradientTape() as tape:
        tape.watch((x, k, r))
        output = tfl.fused_lstm(x, k, r).output
    return output, *tape.gradient(output, (x, k, r))
wanted = run()
compiled = tf.function(run, jit_compile=True)
for _ in range(50):
    got = compiled()
    for a, b in zip(got, wanted):
        assert float(tf.norm(a - b) / tf.norm(b)) < 1e-5
print("equal")
""")
    assert printed.strip() == "equal"


def test_saved_model_with_a_compiled_function(tmp_path):
    class Module(tf.Module):
        def __init__(self):
            self.kernel, self.recurrent_kernel = (
                tf.Variable(tf.random.stateless_normal(s, [1, 2])) for s in ([2, 16], [4, 16])
            )

        @tf.function(jit_compile=True, input_signature=[tf.TensorSpec([None, 5, 2])])
        def __call__(self, x):
            return tfl.fused_lstm(x, self.kernel, self.recurrent_kernel).output

    module = Module()
    tf.saved_model.save(module, str(tmp_path))
    printed = output_of(f"""
import tensorflow as tf
import tf_fused_lstm
print(repr(tf.saved_model.load({str(tmp_path)!r})(tf.ones([3, 5, 2])).numpy().tolist()))
""")
    wanted = module(tf.ones([3, 5, 2])).numpy()
    assert_close(np.array(eval(printed)), wanted)


MODULE = """
import tensorflow as tf
import tf_fused_lstm as tfl

class Module(tf.Module):
    @tf.function(jit_compile=True, input_signature=[tf.TensorSpec([2, 3, 4])])
    def __call__(self, x):
        return tfl.fused_lstm(x, 0.1 * tf.ones([4, 8]), tf.ones([2, 8])).output

def is_loaded():
    with open("/proc/self/maps") as file:
        return "_tf_fused_lstm_xla.so" in file.read()
"""


def test_library_is_loaded_when_xla_needs_it(tmp_path):
    """Not by importing the package, by calls, gradients and fit, nor by other compiled functions;
    by a compiled SavedModel, even without the package."""
    output_of(
        MODULE
        + f"""
import keras, numpy as np
model = keras.Sequential([keras.Input((3, 4)), keras.layers.Bidirectional(tfl.FusedLSTM(4))])
model.compile("sgd", "mse")
model.fit(np.ones((2, 3, 4)), np.ones((2, 8)), verbose=0)
tf.function(lambda x: x + 1, jit_compile=True)(tf.ones(2))
assert not is_loaded()
module = Module()
wanted = module(tf.ones([2, 3, 4]))
assert is_loaded()
np.save({str(tmp_path / "wanted.npy")!r}, wanted)
tf.saved_model.save(module, {str(tmp_path / "saved")!r})
"""
    )
    library = Path(tfl.get_library_path())
    output_of(f"""
import os, numpy as np, tensorflow as tf
os.chdir({str(library.parent)!r})
tf.load_op_library("./{library.name}")
os.chdir("/")
got = tf.saved_model.load({str(tmp_path / "saved")!r})(tf.ones([2, 3, 4]))
np.testing.assert_array_equal(got, np.load({str(tmp_path / "wanted.npy")!r}))
""")


def without_the_library(folder):
    for path in Path(tfl.get_library_path()).parent.glob("*.so*"):
        if path.name != _xla.LIBRARY_NAME:
            shutil.copy(path, folder)
    return str(folder)


def test_compiled_saved_model_without_the_library_says_so(tmp_path):
    """Once more when it is asked again; the process goes on."""
    folder = without_the_library(tmp_path)
    output_of(MODULE + f"tf.saved_model.save(Module(), {str(tmp_path / 'saved')!r})")
    printed = output_of(f"""
import tensorflow as tf
tf.load_op_library({folder + "/" + _loader.LIBRARY_NAME!r})
call = tf.saved_model.load({str(tmp_path / "saved")!r})
for _ in range(2):
    try:
        call(tf.ones([2, 3, 4]))
    except tf.errors.UnimplementedError as error:
        print(error.message.splitlines()[0])
""")
    message = "FusedLSTM cannot run in a function compiled by XLA (jit_compile=True): "
    assert printed.count(message + f"{folder}/{_xla.LIBRARY_NAME}: cannot open") == 2


def test_auto_clustering_without_the_library_runs_the_op(tmp_path):
    """XLA then takes the op into a cluster, cannot compile it, and leaves it to TensorFlow."""
    printed = output_of(
        """
import tensorflow as tf
import tf_fused_lstm as tfl

def call(x):
    y = tfl.fused_lstm(2 * x + 1, 0.1 * tf.ones([4, 8]), tf.ones([2, 8])).output
    return tf.reduce_sum(tf.tanh(y), -1)

x = tf.random.normal([2, 3, 4])
wanted = call(x)
function = tf.function(call)
for _ in range(2):
    tf.debugging.assert_near(function(x), wanted)
print("ran")
""",
        TF_FUSED_LSTM_LIBRARY_DIR=without_the_library(tmp_path),
        TF_XLA_FLAGS=("--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit --tf_xla_min_cluster_size=1"),
    )
    assert printed == "ran"


def test_without_the_library_jit_still_works_and_says_so_once(tmp_path):
    printed = output_of(
        """
import warnings
import keras, numpy as np, tensorflow as tf
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import tf_fused_lstm as tfl
    x, k, r = tf.ones([2, 3, 4]), tf.ones([4, 8]), tf.ones([2, 8])
    wanted = tfl.fused_lstm(x, k, r).output
    assert not [w for w in caught if "tf_fused_lstm" in str(w.message)]
    for _ in range(2):
        got = tf.function(lambda: tfl.fused_lstm(x, k, r).output, jit_compile=True)()
        assert np.allclose(got, wanted, atol=1e-6)
    ours = [str(w.message) for w in caught if "tf_fused_lstm" in str(w.message)]
assert len(ours) == 1, ours
layer = tfl.FusedLSTM(4)
model = keras.Sequential([keras.Input((5, 2)), layer])
model.compile("sgd", "mse", jit_compile=True)
assert model.jit_compile is False
model.fit(np.ones((4, 5, 2)), np.ones((4, 4)), verbose=0)
assert layer.fused_reason is None
model.compile("sgd", "mse")
assert model.jit_compile is False
model.fit(np.ones((4, 5, 2)), np.ones((4, 4)), verbose=0)
step = tf.function(lambda x, y: model.train_step((x, y))).get_concrete_function(
    tf.ones((4, 5, 2)), tf.ones((4, 4))
)
types = [op.type for op in step.graph.get_operations()]
assert types.count("FusedLSTM") == types.count("FusedLSTMGrad") == 1, types
assert not {"While", "StatelessWhile"} & set(types)
assert len([w for w in caught if "tf_fused_lstm" in str(w.message)]) == 1
print(ours[0])
""",
        TF_FUSED_LSTM_LIBRARY_DIR=without_the_library(tmp_path),
    )
    assert "jit_compile=True" in printed
    assert _xla.LIBRARY_NAME in printed
