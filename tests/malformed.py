"""Calls both raw ops with every kind of wrong argument, eagerly and traced, and prints as JSON what
each call raised. A program of its own, since a crash is what it looks for."""

import json

import numpy as np
import tensorflow as tf

import tf_fused_lstm._loader as loader

BATCH, STEPS, INPUT, HIDDEN = 3, 5, 2, 4
GATES = 4 * HIDDEN

SHAPES = {
    "x": (BATCH, STEPS, INPUT),
    "kernel": (INPUT, GATES),
    "recurrent_kernel": (HIDDEN, GATES),
    "bias": (GATES,),
    "initial_h": (BATCH, HIDDEN),
    "initial_c": (BATCH, HIDDEN),
    "mask": (BATCH, STEPS),
    "dropout_mask": (4, BATCH, INPUT),
    "recurrent_dropout_mask": (1, BATCH, HIDDEN),
}
GRADIENT_SHAPES = {
    "output": (BATCH, STEPS, HIDDEN),
    "reserve": (0,),
    "grad_output": (BATCH, STEPS, HIDDEN),
    "grad_final_h": (BATCH, HIDDEN),
    "grad_final_c": (BATCH, HIDDEN),
}
LISTS = {"kernel", "recurrent_kernel", "bias", "initial_h", "initial_c", "mask", "dropout_mask",
         "recurrent_dropout_mask", "grad_final_h", "grad_final_c"}  # fmt: skip
ATTRIBUTES = {
    "time_major": False,
    "go_backwards": False,
    "return_sequences": True,
    "zero_output_for_mask": False,
    "activation": "tanh",
    "recurrent_activation": "sigmoid",
}

# argument: the shapes it must not have. The first one is of another rank.
WRONG = {
    "x": [(), (15,), (3, 10), (3, 5, 2, 1), (3, 5, 3), (3, 5, 0)],
    "kernel": [(), (32,), (2, 15), (3, 16), (2, 0), (0, 16), (16, 2), (2, 16, 1)],
    "recurrent_kernel": [(), (64,), (4, 15), (4, 12), (3, 16), (16, 4), (0, 16), (4, 0), (5, 20)],
    "bias": [(), (15,), (17,), (0,), (16, 1), (4, 4)],
    "initial_h": [(), (4,), (2, 4), (3, 5), (4, 3), (0, 4), (3, 4, 1)],
    "initial_c": [(), (4,), (2, 4), (3, 5), (4, 3), (0, 4), (3, 4, 1)],
    "mask": [(), (3,), (5, 3), (3, 4), (3, 6), (2, 5), (0, 0), (3, 5, 1)],
    "dropout_mask": [(), (3, 2), (2, 3, 2), (4, 2, 2), (4, 3, 3), (1, 3, 0), (8, 3, 2)],
    "recurrent_dropout_mask": [(), (3, 4), (3, 3, 4), (1, 4, 4), (1, 3, 3), (4, 0, 4)],
}
GRADIENT_WRONG = {
    "output": [(), (3, 4), (3, 5, 5), (5, 3, 4), (0, 5, 4)],
    "reserve": [(), (1,), (7,), (0, 0), (1000003,)],
    "grad_output": [(), (3, 4), (3, 5, 5), (5, 3, 4), (0, 5, 4)],
    "grad_final_h": [(), (4,), (3, 5), (4, 3), (0, 4)],
    "grad_final_c": [(), (4,), (3, 5), (4, 3), (0, 4)],
}


def dtype_of(name):
    return {"mask": tf.bool, "reserve": tf.uint8}.get(name, tf.float32)


def tensors(shapes):
    return {name: tf.constant(np.zeros(shape), dtype_of(name)) for name, shape in shapes.items()}


def call(op, values, attributes):
    lists = {name: [value] if name in LISTS else value for name, value in values.items()}
    return op(**lists, **attributes)


def outcome(run):
    try:
        run()
    except Exception as error:
        return [type(error).__name__, str(error)]
    return ["none", ""]


def cases():
    """(name, op, the right shapes, the argument that is wrong, its shape)."""
    raw_ops = loader.raw_ops()
    for name, wrong in WRONG.items():
        for shape in wrong:
            yield "forward", raw_ops.fused_lstm, SHAPES, name, shape
    gradient_shapes = {**SHAPES, **GRADIENT_SHAPES}
    for name, wrong in {**WRONG, **GRADIENT_WRONG}.items():
        for shape in wrong:
            yield "gradient", raw_ops.fused_lstm_grad, gradient_shapes, name, shape


def outcomes(op, values, attributes):
    """The call eagerly, traced with these shapes, and traced without and then run with them."""

    def traced(values):
        return call(op, values, attributes)

    unknown = {name: tf.TensorSpec(None, value.dtype) for name, value in values.items()}
    return {
        "eager": outcome(lambda: traced(values)),
        "traced": outcome(lambda: tf.function(traced, autograph=False)(values)),
        "run": outcome(
            lambda: tf.function(traced, autograph=False, input_signature=[unknown])(values)
        ),
    }


def main():
    results = {}
    for kind, op, shapes, name, shape in cases():
        attributes = {**ATTRIBUTES, **({"training": True} if kind == "forward" else {})}
        values = tensors({**shapes, name: shape})
        for how, raised in outcomes(op, values, attributes).items():
            results[f"{kind} {name} {list(shape)} {how}"] = raised
    print(json.dumps(results))


if __name__ == "__main__":
    main()
