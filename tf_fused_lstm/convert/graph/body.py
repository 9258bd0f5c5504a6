"""A graph's body, the main graph or a function's, in one form: nodes to read, replace and remove.

References to tensors are (node, output index) pairs here, whether the file spells them as GraphDef
or as FunctionDef does.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.core.framework import function_pb2, op_def_pb2

# Neither has a public name.
from tensorflow.python.framework import function_def_to_graph, op_def_registry

# Stateless ops without inputs from outside whose value may be computed ahead.
FOLDABLE = frozenset(
    "Const Identity Reshape Transpose ConcatV2 Concat Split SplitV Pack Unpack StridedSlice Slice "
    "ExpandDims Squeeze Fill Add AddV2 Sub Mul Cast Range ZerosLike OnesLike BroadcastTo Tile "
    "Max".split()
)


class Ref(NamedTuple):
    """An output of a node."""

    node: str
    output: int

    @classmethod
    def parse(cls, text: str) -> Ref:
        """Of a GraphDef's spelling, "node" or "node:index"."""
        node, _, index = text.partition(":")
        return cls(node, int(index or 0))

    def __str__(self) -> str:
        return f"{self.node}:{self.output}" if self.output else self.node


def _output_names(op_def: op_def_pb2.OpDef, node: tf.compat.v1.NodeDef) -> list[str]:
    """A FunctionDef's spelling of each output of a node, after the node's name."""
    names = []
    for argument in op_def.output_arg:
        count = 1
        if argument.number_attr:
            count = node.attr[argument.number_attr].i
        elif argument.type_list_attr:
            count = len(node.attr[argument.type_list_attr].list.type)
        names += [f"{argument.name}:{i}" for i in range(count)]
    return names


class Body:
    """The nodes of the main graph or of one function.

    Attributes:
        place: "" for the main graph, else the function's name.
        nodes: The nodes by name, a function's arguments as placeholders.
        graph: The same as a tf.Graph, for shapes.
        results: Outputs that are used outside the body.
        kept: Names of nodes that stay, whether anything reads them or not.
    """

    def __init__(
        self,
        place: str,
        graph_def: tf.compat.v1.GraphDef,
        graph: tf.Graph,
        results: Iterable[Ref] = (),
        kept: Iterable[str] = (),
    ) -> None:
        self.place = place
        self.nodes = {node.name: node for node in graph_def.node}
        self.graph = graph
        self._versions = graph_def.versions
        self.results = set(results)
        self.kept = set(kept)
        self.moved: dict[Ref, Ref] = {}
        self._lost: set[str] = set()

    def inputs(self, node: tf.compat.v1.NodeDef) -> list[Ref]:
        """The data inputs of a node."""
        return [Ref.parse(text) for text in node.input if not text.startswith("^")]

    def consumers(self) -> dict[Ref, list[tuple[str, int]]]:
        """For each used output, the (node, input position) pairs that read it."""
        readers = collections.defaultdict(list)
        for node in self.nodes.values():
            for position, ref in enumerate(self.inputs(node)):
                readers[ref].append((node.name, position))
        return readers

    def producer(self, ref: Ref) -> tuple[tf.compat.v1.NodeDef, Ref]:
        """The node that makes a tensor, Identity ops skipped, and its output there."""
        node = self.nodes[ref.node]
        while node.op == "Identity":
            ref = self.inputs(node)[0]
            node = self.nodes[ref.node]
        return node, ref

    def tensor(self, ref: Ref) -> tf.Tensor:
        return self.graph.get_tensor_by_name(f"{ref.node}:{ref.output}")

    def shape(self, ref: Ref) -> tf.TensorShape:
        return self.tensor(ref).shape

    def dims(self, ref: Ref, rank: int) -> list[int | None]:
        """The static shape; unknown sizes are None."""
        shape = self.shape(ref)
        return [None] * rank if shape.rank != rank else shape.as_list()

    def is_size(self, ref: Ref, of: Ref, axis: int) -> bool:
        """Whether a tensor is `tf.shape(of)[axis]`; `of` is of rank 3."""
        node, _ = self.producer(ref)
        if node.op != "StridedSlice" or node.attr["shrink_axis_mask"].i != 1:
            return False
        shape, begin, *_ = self.inputs(node)
        shape_node, _ = self.producer(shape)
        start = self.value(begin)
        return (
            shape_node.op == "Shape"
            and self.inputs(shape_node)[0] == of
            and start is not None
            and start.tolist() in ([axis], [axis - 3])
        )

    def value(self, ref: Ref) -> np.ndarray | None:
        """The tensor's value if the graph alone determines it, else None."""
        tensor = self.tensor(ref)
        value = tf.get_static_value(tensor)
        if value is not None:
            return value
        # The session places all of its graph, so it gets these ops alone.
        part = tf.compat.v1.GraphDef(versions=self._versions)
        seen, todo = set(), [tensor.op]
        while todo:
            op = todo.pop()
            if op.name in seen:
                continue
            if op.type not in FOLDABLE:
                return None
            seen.add(op.name)
            part.node.append(op.node_def)
            part.node[-1].device = ""
            todo += [t.op for t in op.inputs] + list(op.control_inputs)
        with tf.compat.v1.Session(graph=import_graph(part)) as session:
            return session.run(tensor.name)

    def values(self, refs: Iterable[Ref]) -> list[np.ndarray] | None:
        """The values of all the tensors, or None if the graph does not determine one of them."""
        values = []
        for ref in refs:
            value = self.value(ref)
            if value is None:
                return None
            values.append(value)
        return values

    def replace(
        self,
        node: tf.compat.v1.NodeDef,
        inputs: Sequence[Ref],
        build: Callable[..., Sequence[tf.Tensor]],
        outputs: Sequence[int],
    ) -> None:
        """Puts other ops in a node's place.

        The last of them has the node's name, so that names stay. None has a device, since the
        node's was chosen for an op that needed a GPU.

        Args:
            node: The node to remove.
            inputs: The tensors that `build` gets.
            build: Makes the ops in the default graph; returns the new outputs.
            outputs: The node's output indices that these stand for.
        """
        scope = f"{node.name}/fused"
        while any(name == scope or name.startswith(scope + "/") for name in self.nodes):
            scope += "_"
        with tf.Graph().as_default() as scratch:
            placeholders = [
                tf.compat.v1.placeholder(self.tensor(ref).dtype, self.shape(ref)) for ref in inputs
            ]
            last = tf.identity_n(list(build(*placeholders)))[0].op.name
        names = {p.op.name: str(ref) for p, ref in zip(placeholders, inputs, strict=True)}
        new_nodes = []
        for new in scratch.as_graph_def().node:
            if new.name in names:
                continue
            new.input[:] = [_renamed(text, names, scope) for text in new.input]
            if new.name == last:
                new.name = node.name
                new.input.extend(text for text in node.input if text.startswith("^"))
            else:
                new.name = f"{scope}/{new.name}"
            new_nodes.append(new)
        self.loses(node)
        self.nodes.update({new.name: new for new in new_nodes})
        self._move({Ref(node.name, old): Ref(node.name, i) for i, old in enumerate(outputs)})

    def loses(self, node: tf.compat.v1.NodeDef) -> None:
        """Says that a node's inputs lose it as a reader, so that `prune` looks at them."""
        self._lost.update(ref.node for ref in self.inputs(node))

    def _move(self, moved: dict[Ref, Ref]) -> None:
        moved = {old: new for old, new in moved.items() if old != new}
        if not moved:
            return
        for node in self.nodes.values():
            for position, text in enumerate(node.input):
                if not text.startswith("^") and Ref.parse(text) in moved:
                    node.input[position] = str(moved[Ref.parse(text)])
        self.results = {moved.get(ref, ref) for ref in self.results}
        self.moved = {old: moved.get(new, new) for old, new in self.moved.items()} | moved

    def prune(self, removable: frozenset[str]) -> None:
        """Removes nodes of those types whose readers are gone."""
        todo = set(self._lost)
        while todo:
            used = self.kept | {ref.node for ref in self.results}
            for node in self.nodes.values():
                used.update(text.lstrip("^").partition(":")[0] for text in node.input)
            dead = {
                name for name in todo - used
                if name in self.nodes and self.nodes[name].op in removable
            }  # fmt: skip
            todo = set()
            for name in dead:
                todo.update(text.lstrip("^").partition(":")[0] for text in self.nodes[name].input)
                del self.nodes[name]
                self._place_without(name)

    def _place_without(self, name: str) -> None:
        """Makes no node be placed where a node that is gone was."""
        gone = f"loc:@{name}".encode()
        for node in self.nodes.values():
            if "_class" in node.attr and gone in node.attr["_class"].list.s:
                node.attr["_class"].list.s.remove(gone)


def _renamed(text: str, names: dict[str, str], scope: str) -> str:
    control = text.startswith("^")
    ref = Ref.parse(text.lstrip("^"))
    if ref.node in names:
        return "^" + names[ref.node].partition(":")[0] if control else names[ref.node]
    return f"{'^' if control else ''}{scope}/{ref}"


def main_body(
    graph_def: tf.compat.v1.GraphDef, results: Iterable[Ref], kept: Iterable[str]
) -> Body:
    """The main graph's body. Raises ValueError where TensorFlow cannot import the graph."""
    graph = import_graph(graph_def)
    return Body("", graph_def, graph, results, kept)


def import_graph(graph_def: tf.compat.v1.GraphDef) -> tf.Graph:
    """Raises ValueError where TensorFlow cannot import the graph."""
    graph = tf.Graph()
    try:
        with graph.as_default():
            tf.graph_util.import_graph_def(graph_def, name="")
    except tf.errors.OpError as error:  # an op that nothing registered, among others
        raise ValueError(error.message) from error
    return graph


class FunctionBody(Body):
    """The body of a FunctionDef."""

    def __init__(
        self,
        function: function_pb2.FunctionDef,
        main: tf.Graph,
        library: function_pb2.FunctionDefLibrary,
    ) -> None:
        self.function = function
        shapes = list(function.attr["_input_shapes"].list.shape)
        with main.as_default():
            graph_def, flat = function_def_to_graph.function_def_to_graph_def(
                function, shapes or None
            )
        self._flat = {n: Ref.parse(f) for n, f in flat.items() if not n.startswith("^")}
        self._nested = {ref: nested for nested, ref in self._flat.items()}
        self._arguments = {argument.name for argument in function.signature.input_arg}
        graph_def.library.CopyFrom(library)
        graph = import_graph(graph_def)
        results = [self._flat[nested] for nested in function.ret.values()]
        super().__init__(function.signature.name, graph_def, graph, results)

    def write(self) -> None:
        """Writes the nodes back into the FunctionDef."""
        returned = {name: self._flat[nested] for name, nested in self.function.ret.items()}
        nodes = []
        for node in self.nodes.values():
            if node.name in self._arguments:
                continue
            new = tf.compat.v1.NodeDef()
            new.CopyFrom(node)
            new.input[:] = [
                text if text.startswith("^") else self._spell(Ref.parse(text))
                for text in node.input
            ]
            nodes.append(new)
        del self.function.node_def[:]
        self.function.node_def.extend(nodes)
        for name, ref in returned.items():
            self.function.ret[name] = self._spell(self.moved.get(ref, ref))

    def _spell(self, ref: Ref) -> str:
        if ref.node in self._arguments:
            return ref.node
        node = self.nodes[ref.node]
        op_def = op_def_registry.get(node.op)
        if op_def is None:  # a function called by its name
            return self._nested[ref]
        return f"{ref.node}:{_output_names(op_def, node)[ref.output]}"
