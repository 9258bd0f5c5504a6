"""Rewriting files: a SavedModel's folder, or a frozen GraphDef."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow as tf
from google.protobuf import message, text_format
from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

# Neither has a public name.
from tensorflow.python.framework import op_def_registry, ops

from tf_fused_lstm.convert.graph.rewriter import Entry, rewrite_graph_def

_SAVED_MODEL = "saved_model.pb"


def rewrite(source: str | Path, destination: str | Path) -> list[Entry]:
    """Writes a SavedModel or frozen graph whose LSTMs are FusedLSTM ops.

    What loads the result must have loaded the op library: `import tf_fused_lstm`, or
    `tf.load_op_library(tf_fused_lstm.get_library_path())`.

    Args:
        source: A SavedModel's folder, or a file that holds a GraphDef, binary or (.pbtxt) text.
        destination: The new folder or file; it must not exist.

    Returns:
        An entry for each LSTM that was found.

    Raises:
        FileNotFoundError: source is neither.
        FileExistsError: destination exists.
        ValueError: The file cannot be read, or TensorFlow cannot import its graph.
    """
    source, destination = Path(source), Path(destination)
    is_file = source.is_file()
    if not is_file and not (source / _SAVED_MODEL).is_file():
        raise FileNotFoundError(
            f"IN must be a file with a GraphDef or a folder with a {_SAVED_MODEL}, got {source}"
        )
    if destination.exists():
        raise FileExistsError(f"OUT must not exist, got {destination}")
    if is_file:
        return _rewrite_file(source, destination)
    return _rewrite_saved_model(source, destination)


def _parse(path: Path, proto: message.Message) -> None:
    try:
        if path.suffix == ".pbtxt":
            text_format.Parse(path.read_text(), proto)
        else:
            proto.ParseFromString(path.read_bytes())
    except (message.DecodeError, text_format.ParseError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} does not hold a {type(proto).__name__}: {error}") from error


def _write(path: Path, proto: message.Message) -> None:
    if path.suffix == ".pbtxt":
        path.write_text(text_format.MessageToString(proto))
    else:
        path.write_bytes(proto.SerializeToString(deterministic=True))


def _rewrite_file(source: Path, destination: Path) -> list[Entry]:
    graph_def = tf.compat.v1.GraphDef()
    _parse(source, graph_def)
    new, entries, _ = rewrite_graph_def(graph_def)
    _write(destination, new)
    return entries


def _rewrite_saved_model(source: Path, destination: Path) -> list[Entry]:
    saved_model = saved_model_pb2.SavedModel()
    _parse(source / _SAVED_MODEL, saved_model)
    entries = []
    for meta_graph in saved_model.meta_graphs:
        entries += _rewrite_meta_graph(meta_graph)
    # The fingerprint is of the graph that was.
    ignored = shutil.ignore_patterns(_SAVED_MODEL, "fingerprint.pb")
    shutil.copytree(source, destination, ignore=ignored)
    _write(destination / _SAVED_MODEL, saved_model)
    return entries


def _rewrite_meta_graph(meta_graph: meta_graph_pb2.MetaGraphDef) -> list[Entry]:
    infos = [info for info in _tensor_infos(meta_graph) if info.name]
    collections = meta_graph.collection_def.values()
    lists = [c.node_list.value for c in collections if c.HasField("node_list")]
    listed = {name for names in lists for name in names}
    results = {info.name for info in infos} | {name for name in listed if ":" in name}
    new, entries, moved = rewrite_graph_def(
        meta_graph.graph_def, results, {_node(name) for name in listed | _in_protos(meta_graph)}
    )
    for info in infos:
        info.name = moved.get(info.name, info.name)
    for names in lists:
        names[:] = [moved.get(name, name) for name in names]
    meta_graph.graph_def.CopyFrom(new)
    _list_ops(meta_graph)
    return entries


def _tensor_infos(meta_graph: meta_graph_pb2.MetaGraphDef) -> list[meta_graph_pb2.TensorInfo]:
    """Everything in a meta graph that names a tensor of the main graph."""
    infos = [asset.tensor_info for asset in meta_graph.asset_file_def]
    for signature in meta_graph.signature_def.values():
        infos += [*signature.inputs.values(), *signature.outputs.values()]
    for info in infos:  # it grows by the parts, of a ragged tensor perhaps, as it goes
        infos += info.composite_tensor.components
    return infos


def _node(name: str) -> str:
    """The node of a name of itself or of one of its tensors."""
    return name.partition(":")[0]


def _in_protos(meta_graph: meta_graph_pb2.MetaGraphDef) -> set[str]:
    """What TensorFlow 1's variables, tf.cond and loops of a meta graph name, which looks for it
    when it loads them.
    """
    names: set[str] = set()

    def visit(value: Any) -> None:
        if isinstance(value, str):
            names.add(value)
        elif isinstance(value, message.Message):
            for _, part in value.ListFields():
                visit(part)
        elif isinstance(value, Mapping):
            for part in value.items():
                visit(part)
        elif isinstance(value, Sequence) and not isinstance(value, bytes):
            for part in value:
                visit(part)

    for key, collection in meta_graph.collection_def.items():
        proto = ops.get_collection_proto_type(key)
        if proto is None:
            continue
        for value in collection.bytes_list.value:
            try:
                visit(proto.FromString(value))
            except message.DecodeError as error:
                raise ValueError(f"collection {key} holds no {proto.__name__}: {error}") from error
    return names


def _list_ops(meta_graph: meta_graph_pb2.MetaGraphDef) -> None:
    """Adds the new ops to the meta graph's list of those it uses."""
    graph_def = meta_graph.graph_def
    graphs = [graph_def.node, *(function.node_def for function in graph_def.library.function)]
    listed = meta_graph.meta_info_def.stripped_op_list
    have = {op.name for op in listed.op}
    for name in sorted({node.op for nodes in graphs for node in nodes} - have):
        op_def = op_def_registry.get(name)
        if op_def is not None:
            listed.op.add().CopyFrom(op_def)
