"""CudnnRNN, CudnnRNNV2, CudnnRNNV3 and the ops on their parameters, in terms of FusedLSTM."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tf_fused_lstm.convert import cudnn
from tf_fused_lstm.convert.graph.body import Body, Ref
from tf_fused_lstm.convert.weights import LSTMWeights
from tf_fused_lstm.ops import fused_lstm

RNN_OPS = ("CudnnRNN", "CudnnRNNV2", "CudnnRNNV3")
PACK_OPS = ("CudnnRNNCanonicalToParams", "CudnnRNNCanonicalToParamsV2")
UNPACK_OPS = ("CudnnRNNParamsToCanonical", "CudnnRNNParamsToCanonicalV2")
SIZE_OP = "CudnnRNNParamsSize"
GRADIENT_OPS = ("CudnnRNNBackprop", "CudnnRNNBackpropV2", "CudnnRNNBackpropV3")


class NotRewritableError(Exception):
    """Why a node is left."""


@dataclass(frozen=True)
class Model:
    """The sizes of a cuDNN LSTM."""

    num_layers: int
    num_units: int
    input_size: int
    bidirectional: bool

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    def shapes(self) -> list[tuple[int, int]]:
        """Of the canonical matrices."""
        return list(
            cudnn.canonical_shapes(
                self.num_layers, self.num_units, self.input_size, self.bidirectional
            )
        )

    @property
    def size(self) -> int:
        return cudnn.cudnn_params_size(
            self.num_layers, self.num_units, self.input_size, bidirectional=self.bidirectional
        )

    def __str__(self) -> str:
        layers = "1 layer" if self.num_layers == 1 else f"{self.num_layers} layers"
        both = ", bidirectional" if self.bidirectional else ""
        return f"{layers}{both}, {self.input_size} -> {self.num_units}"


def _attr(node: tf.compat.v1.NodeDef, name: str, default: str) -> str:
    return node.attr[name].s.decode() if name in node.attr else default


def _check_mode(node: tf.compat.v1.NodeDef, input_size: int | None, units: int | None) -> None:
    mode = _attr(node, "rnn_mode", "lstm")
    if mode != "lstm":
        raise NotRewritableError(f"rnn_mode is {mode}, not lstm")
    input_mode = _attr(node, "input_mode", "linear_input")
    if input_mode == "auto_select" and None not in (input_size, units) and input_size != units:
        input_mode = "linear_input"
    if input_mode != "linear_input":
        raise NotRewritableError(f"input_mode is {input_mode}: the first layer has no kernel")
    if node.attr["num_proj"].i:
        raise NotRewritableError(f"num_proj is {node.attr['num_proj'].i}: h has a projection")


def _sizes_of_state(body: Body, node: tf.compat.v1.NodeDef, time_major: bool) -> list[int | None]:
    """[layers * directions, units] as far as the shapes of input_h and input_c tell."""
    layer_axis = 0 if time_major else 1
    found: list[int | None] = [None, None]
    for ref in body.inputs(node)[1:3]:
        dims = body.dims(ref, 3)
        sizes = (dims[layer_axis], dims[2])
        found = [f if f is not None else d for f, d in zip(found, sizes, strict=True)]
    return found


def _packed(body: Body, params: Ref) -> tuple[list[Ref], list[Ref]] | None:
    """The canonical weights and biases that were packed into params, if an op here did so."""
    node, _ = body.producer(params)
    if node.op not in PACK_OPS:
        return None
    lists = body.inputs(node)[3:]
    return lists[: len(lists) // 2], lists[len(lists) // 2 :]


def model_of(body: Body, node: tf.compat.v1.NodeDef, time_major: bool) -> Model:
    """The sizes of an RNN op; raises NotRewritableError where the graph does not tell."""
    inputs = body.inputs(node)
    bidirectional = _attr(node, "direction", "unidirectional") == "bidirectional"
    directions = 2 if bidirectional else 1
    cells, units = _sizes_of_state(body, node, time_major)
    input_size = body.dims(inputs[0], 3)[2]
    size = body.dims(inputs[3], 1)[0]
    packed = _packed(body, inputs[3])
    if packed:
        pack, _ = body.producer(inputs[3])
        values = [body.value(ref) for ref in body.inputs(pack)[:3]]
        layers, known_units, known_input = (None if v is None else int(v) for v in values)
        cells = cells if cells is not None or layers is None else layers * directions
        units = units if units is not None else known_units
        input_size = input_size if input_size is not None else known_input
    if cells is None or units is None:
        raise NotRewritableError("the graph does not tell the number of layers and units")
    if cells % directions or cells < 1 or units < 1:
        raise NotRewritableError(f"input_h is of {cells} layers and directions of {units} units")
    if input_size is None and size is not None:
        rest = size - cudnn.cudnn_params_size(
            cells // directions, units, 0, bidirectional=bidirectional
        )
        input_size = rest // (4 * units * directions)
    if input_size is None:
        raise NotRewritableError("the graph does not tell the input's size")
    model = Model(cells // directions, units, max(input_size, 0), bidirectional)
    if size is not None and size != model.size:
        raise NotRewritableError(f"params has {size} elements, where {model} needs {model.size}")
    for name, refs in zip(("weights", "biases"), packed or (), strict=False):
        _check_list(body, model, name, refs)
    return model


def _check_list(body: Body, model: Model, name: str, refs: Sequence[Ref]) -> None:
    shapes = model.shapes() if name == "weights" else [(model.num_units,)] * len(model.shapes())
    if len(refs) != len(shapes):
        raise NotRewritableError(f"{name} are {len(refs)}, where {model} needs {len(shapes)}")
    for i, (ref, shape) in enumerate(zip(refs, shapes, strict=True)):
        if body.shape(ref).num_elements() not in (None, math.prod(shape)):
            raise NotRewritableError(
                f"{name}[{i}] has shape {body.shape(ref)}, where {model} needs {shape}"
            )


def _cells_of_lists(
    model: Model, weights: Sequence[tf.Tensor], biases: Sequence[tf.Tensor]
) -> list[tuple[tf.Tensor, ...]]:
    """(kernel, recurrent_kernel, bias) of each layer and direction, in the graph."""
    weights = [tf.reshape(w, s) for w, s in zip(weights, model.shapes(), strict=True)]
    biases = [tf.reshape(b, [model.num_units]) for b in biases]
    cells = []
    for i in range(0, len(weights), cudnn.REGIONS):
        bias = tf.concat(biases[i : i + 4], 0) + tf.concat(biases[i + 4 : i + 8], 0)
        kernel = tf.transpose(tf.concat(weights[i : i + 4], 0))
        cells.append((kernel, tf.transpose(tf.concat(weights[i + 4 : i + 8], 0)), bias))
    return cells


def _lists_of_blob(model: Model, params: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    shapes = model.shapes()
    sizes = [rows * columns for rows, columns in shapes] + [model.num_units] * len(shapes)
    parts = [
        tf.slice(params, [end - size], [size])
        for size, end in zip(sizes, itertools.accumulate(sizes), strict=True)
    ]
    weights = [tf.reshape(p, s) for p, s in zip(parts, shapes, strict=False)]
    return weights, parts[len(shapes) :]


def _constant_cells(body: Body, node: tf.compat.v1.NodeDef, model: Model) -> list[LSTMWeights]:
    """The weights if the graph alone determines them, else nothing."""
    params = body.inputs(node)[3]
    packed = _packed(body, params)
    if packed is None:
        blob = body.value(params)
        if blob is None:
            return []
        return cudnn.from_cudnn_params(
            blob, num_layers=model.num_layers, num_units=model.num_units,
            input_size=model.input_size, bidirectional=model.bidirectional,
        )  # fmt: skip
    weights, biases = (body.values(refs) for refs in packed)
    if weights is None or biases is None:
        return []
    weights = [w.reshape(s) for w, s in zip(weights, model.shapes(), strict=True)]
    biases = [b.reshape(-1) for b in biases]
    return cudnn.from_cudnn_canonical(weights, biases, bidirectional=model.bidirectional)


def _is_whole_length(body: Body, lengths: Ref, x: Ref, time_axis: int) -> bool:
    """Whether sequence_lengths says that every row has all of x's steps."""
    value = body.value(lengths)
    steps = body.dims(x, 3)[time_axis]
    if value is not None:
        return steps is not None and bool(np.all(value == steps))
    node, _ = body.producer(lengths)
    return node.op == "Fill" and body.is_size(body.inputs(node)[1], x, time_axis)


def rewrite_rnn(body: Body, node: tf.compat.v1.NodeDef) -> str:
    """Replaces an RNN op by one FusedLSTM; returns what it was, in words."""
    is_v3 = node.op == "CudnnRNNV3"
    time_major = not is_v3 or "time_major" not in node.attr or node.attr["time_major"].b
    readers = body.consumers()
    for index in (3, 4):
        ref = Ref(node.name, index)
        if readers.get(ref) or ref in body.results:
            raise NotRewritableError("its reserve is read: a training graph")
    mode = _attr(node, "rnn_mode", "lstm")
    if mode != "lstm":
        raise NotRewritableError(f"rnn_mode is {mode}, not lstm")
    if node.attr["is_training"].b and node.attr["dropout"].f > 0:
        raise NotRewritableError(f"dropout of {node.attr['dropout'].f:g} in training")
    model = model_of(body, node, time_major)
    _check_mode(node, model.input_size, model.num_units)

    x, h, c, params = body.inputs(node)[:4]
    inputs = [x, h, c]
    lengths = body.inputs(node)[4] if is_v3 else None
    if lengths is not None and not _is_whole_length(body, lengths, x, 0 if time_major else 1):
        inputs.append(lengths)
    constants = _constant_cells(body, node, model)
    packed = _packed(body, params)
    weight_refs: list[Ref] = []
    if not constants:
        weight_refs = [params] if packed is None else [*packed[0], *packed[1]]

    def build(*tensors: tf.Tensor) -> Sequence[tf.Tensor]:
        given, weights = tensors[: len(inputs)], tensors[len(inputs) :]
        if constants:
            cells = [tuple(tf.constant(v) for v in cell) for cell in constants]
        elif packed is None:
            cells = _cells_of_lists(model, *_lists_of_blob(model, weights[0]))
        else:
            half = len(weights) // 2
            cells = _cells_of_lists(model, weights[:half], weights[half:])
        return _stack(model, cells, time_major, *given)

    body.replace(node, [*inputs, *weight_refs], build, (0, 1, 2))
    return str(model)


def _stack(
    model: Model,
    cells: Sequence[tuple[tf.Tensor, ...]],
    time_major: bool,
    x: tf.Tensor,
    h: tf.Tensor,
    c: tf.Tensor,
    lengths: tf.Tensor | None = None,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """All layers and directions in one op: (output, output_h, output_c) as the RNN op gives them.

    cuDNN runs a row's backward direction from its last valid step, and pads the output with zeros;
    a mask does both.
    """
    time_axis, layer_axis = (0, 0) if time_major else (1, 1)
    mask = None
    if lengths is not None:
        mask = tf.sequence_mask(lengths, tf.shape(x)[time_axis])
        mask = tf.transpose(mask) if time_major else mask
    kernels, recurrent_kernels, biases = (list(part) for part in zip(*cells, strict=True))
    initial_h, initial_c = (tf.unstack(s, len(cells), layer_axis) for s in (h, c))
    output, final_h, final_c = fused_lstm(
        x, kernels, recurrent_kernels, biases, initial_h=initial_h, initial_c=initial_c, mask=mask,
        time_major=time_major, bidirectional=model.bidirectional,
        zero_output_for_mask=mask is not None, training=False,
    )  # fmt: skip
    return output, tf.stack(final_h, layer_axis), tf.stack(final_c, layer_axis)


def rewrite_pack(body: Body, node: tf.compat.v1.NodeDef) -> str:
    """Replaces CudnnRNNCanonicalToParams, which has a GPU kernel only, by a concatenation."""
    _check_mode(node, *_input_and_units(body, node))
    lists = body.inputs(node)[3:]

    def build(*tensors: tf.Tensor) -> Sequence[tf.Tensor]:
        return [tf.concat([tf.reshape(t, [-1]) for t in tensors], 0)]

    body.replace(node, lists, build, (0,))
    return f"{len(lists)} arrays, concatenated"


def rewrite_unpack(body: Body, node: tf.compat.v1.NodeDef) -> str:
    """Replaces CudnnRNNParamsToCanonical by slices."""
    model = _model_of_sizes(body, node)

    def build(params: tf.Tensor) -> Sequence[tf.Tensor]:
        weights, biases = _lists_of_blob(model, params)
        return [*weights, *biases]

    count = 2 * len(model.shapes())
    if 2 * node.attr["num_params"].i != count:
        raise NotRewritableError(
            f"num_params is {node.attr['num_params'].i}, where {model} has {count // 2}"
        )
    body.replace(node, [body.inputs(node)[3]], build, range(count))
    return f"{model}, sliced"


def rewrite_size(body: Body, node: tf.compat.v1.NodeDef) -> str:
    """Replaces CudnnRNNParamsSize by its value."""
    model = _model_of_sizes(body, node)
    dtype = tf.as_dtype(node.attr["S"].type)
    body.replace(node, [], lambda: [tf.constant([model.size], dtype)], (0,))
    return f"{model}, {model.size} parameters"


def _input_and_units(body: Body, node: tf.compat.v1.NodeDef) -> tuple[int | None, int | None]:
    _, units, size = (body.value(ref) for ref in body.inputs(node)[:3])
    return (None if size is None else int(size), None if units is None else int(units))


def _model_of_sizes(body: Body, node: tf.compat.v1.NodeDef) -> Model:
    values = body.values(body.inputs(node)[:3])
    if values is None:
        raise NotRewritableError("its sizes are no constants")
    layers, units, input_size = (int(v) for v in values)
    if min(layers, units, input_size) < 1:
        raise NotRewritableError(
            f"num_layers is {layers}, num_units {units}, input_size {input_size}"
        )
    _check_mode(node, input_size, units)
    bidirectional = _attr(node, "direction", "unidirectional") == "bidirectional"
    return Model(layers, units, input_size, bidirectional)
