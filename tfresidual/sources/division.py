"""Divides the graph of a model into stem, blocks and head. TensorFlow only."""

import collections
import dataclasses
import itertools

import keras
import tensorflow as tf

from tfresidual.sources.blocks import IDENTITY, blocks_of, is_residual_sum, join_gaps, trunk_of
from tfresidual.sources.graph import Graph, path_to, replay

# What a branch is, by the names of the classes in it.
KINDS = {
    "attention": ("attention",),
    "mlp": ("mlp", "dense", "feedforward", "feed_forward", "ffn", "moe"),
    "convolution": ("conv",),
}
# The longest branch that is tried for whether it depends on the state at all. What adds positions
# to an embedding is short.
LONGEST_CONSTANT = 3
# Operations of TensorFlow that read the shape of a tensor alone, or call functions.
WITHOUT_VALUES = (
    *("Shape", "ShapeN", "Size", "Rank", "ZerosLike", "OnesLike"),
    *("PartitionedCall", "StatefulPartitionedCall"),
)


@dataclasses.dataclass(frozen=True, eq=False)
class Division:
    """A graph divided into stem, blocks and head.

    Attributes:
        whole: the graph of the model.
        graph: the part of it from the beginning of the trunk on.
        trunk: the places on the trunk, see `tfresidual.sources.blocks.trunk_of`.
        blocks: the blocks on it, in order, with the gaps between them assigned.
        valid: which positions of the states are not padding, `(images, positions)`, or `None`.
        outputs_at_positions: see `tfresidual.routing.Chain`.
    """

    whole: Graph
    graph: Graph
    trunk: list
    blocks: list
    valid: keras.KerasTensor | None = None
    outputs_at_positions: bool = True

    @property
    def opened(self):
        """The opened layers in which a block is found, as a list."""
        layers = {}
        for block in self.blocks:
            for node in block.sums:
                layers |= {id(layer): layer for layer in node.inside}
        return list(layers.values())

    @property
    def context(self):
        """The tensors that blocks and head read beside the state, as a list."""
        first = self.blocks[0].before.index
        read = {id(t) for node in self.graph.nodes[first + 1 :] for t in node.inputs}
        return [tensor for tensor in self.graph.context if id(tensor) in read]

    @property
    def beside(self):
        """The nodes of the context that do not lead to the first state, as a list."""
        stem = {id(node) for node in path_to(self.whole.nodes, self.blocks[0].before.tensor)}
        nodes = path_to(self.whole.nodes, *self.context)
        return [node for node in nodes if id(node) not in stem]


def divided(whole, is_chosen=None):
    """Divides a graph into stem, blocks and head; `None` if there is no block.

    The trunk begins at the inputs, or at the summand of a residual addition (or the input of a
    chosen layer) from which more blocks that add to the state itself are found. Of several trunks
    with as many of these, that from the inputs is taken or, if it has fewer, the one that ends
    last: the decoder of an encoder and a decoder. What leads to it belongs to it as far as it is on
    the trunk too.
    """
    graph = whole
    if len(whole.inputs) == 1 and any(node.reads_shapes_alone for node in whole.nodes):
        graph = whole.since(whole.input)
    trunk, blocks = _blocks_from(graph, is_chosen)
    order = {id(node): index for index, node in enumerate(whole.nodes)}
    # With several inputs or masks, what is found from the inputs on may contain other paths.
    is_single = len(whole.inputs) == 1 and keras.backend.is_float_dtype(whole.input.dtype)
    known = blocks if is_single and not whole.has_masks else []
    most, beginning = (len(known) or sum(map(_adds_to_state, blocks)), len(order)), None
    for first in _beginnings(graph, is_chosen, known):
        others = [
            one for one in _blocks_from(whole.since(first), is_chosen)[1] if _adds_to_state(one)
        ]
        rank = len(others), order[id(others[-1].sums[0])] if others else -1
        if rank > most:
            blocks, most, beginning = others, rank, first
    if beginning is not None:
        graph, trunk, blocks = _from_earliest(whole, beginning, blocks, is_chosen)
    while blocks and not _depends_on_state(graph, blocks[0]):
        blocks = blocks[1:]
    if not blocks:
        return None
    join_gaps(graph, trunk, blocks)
    _name(graph, blocks)
    return Division(whole, graph, trunk, blocks)


def _name(graph, blocks):
    """Names blocks: after the operation that ends them or, in an opened layer, what they are."""
    additions = [graph.nodes[block.end.index] for block in blocks]
    innermost = [node.inside[-1] for node in additions if node.inside]
    counts = collections.Counter(map(id, innermost))
    same_name = collections.Counter({id(one): one.name for one in innermost}.values())
    taken, first = set(), {}
    for block, addition in zip(blocks, additions, strict=True):
        name = addition.operation.name
        if addition.inside:
            layers, kind, precise = _part(graph, block, addition, counts)
            *outer, layer = layers
            # What comes after another part of its kind has the name of its own layer. A shared
            # layer has the same parts in every call.
            is_first = first.setdefault((id(layer), kind), precise) == precise
            name = f"{layer.name}/{kind if is_first else precise}"
            if outer and same_name[layer.name] > 1:
                name = f"{outer[-1].name}/{name}"
        again = (f"{name} {count}" for count in itertools.count(2))
        block.name = next(one for one in itertools.chain([name], again) if one not in taken)
        taken.add(block.name)


def _part(graph, block, addition, counts):
    """Returns the opened layers that a block is a part of, and which part."""
    *outer, layer = addition.inside
    own = _kind_of([layer])
    if outer and own and counts[id(layer)] == 1:
        # An attention that itself adds to the state is a part of the layer around it.
        return outer, *own[0]
    kind, precise = _kind(graph, block)
    if kind is None:
        # Keras numbers operations in the order in which any model makes them.
        is_layer = isinstance(addition.operation, keras.layers.Layer)
        kind = precise = addition.operation.name if is_layer else "addition"
    return addition.inside, kind, precise


def _kind(graph, block):
    """Returns what a branch is, in general and more precisely; `None` twice if it is not known."""
    nodes = graph.nodes[block.begin.index + 1 : block.end.index]
    around = graph.nodes[block.end.index].inside
    found = []
    for tensor in block.branches:
        path = path_to(nodes, tensor)
        layers = [part for node in path for part in (*node.inside, node.operation)]
        layers = [part for part in layers if all(part is not outer for outer in around)]
        found += _kind_of(layers)[:1]
    kinds = [kind for kind in KINDS if kind in dict(found)]
    if len(kinds) > 1:
        # Branches side by side.
        return ("+".join(kinds),) * 2
    return found[0] if found else (None, None)


def _kind_of(layers):
    """Returns pairs of a kind and the name of a layer of that kind, attention first."""
    return [
        (kind, layer.name)
        for kind, marks in KINDS.items()
        for layer in layers
        if any(mark in type(layer).__name__.lower() for mark in marks)
    ]


def _adds_to_state(block):
    return block.shortcut in (IDENTITY, None)


def _blocks_from(graph, is_chosen):
    trunk = trunk_of(graph)
    return trunk, list(blocks_of(graph, trunk, is_chosen)) if trunk else []


def _from_earliest(whole, first, found, is_chosen):
    """Returns the part of a graph from the earliest tensor on with blocks, its trunk and blocks.

    Blocks that do not add to the state itself are among them, unless they contain other residual
    additions, as the decoder does that a trunk through its encoder sees as one block.
    """
    known = {id(block.sums[0]) for block in found}
    path = path_to(whole.nodes, first)
    taken = {id(tensor) for node in path for tensor in node.inputs}
    before = [tensor for tensor in whole.inputs if id(tensor) in taken]
    before += [tensor for node in path for tensor in node.outputs]
    for tensor in [*filter(_is_state, before), first]:
        part = whole.since(tensor)
        trunk, blocks = _blocks_from(part, is_chosen)
        if known <= {id(block.sums[0]) for block in blocks if _adds_to_state(block)}:
            break
    own = {id(node) for block in blocks for node in block.sums}

    def is_plain(block):
        inside = part.nodes[block.begin.index + 1 : block.end.index]
        return not any(is_residual_sum(node) and id(node) not in own for node in inside)

    return part, trunk, [one for one in blocks if _adds_to_state(one) or is_plain(one)]


def _is_state(tensor):
    return keras.backend.is_float_dtype(tensor.dtype)


def _beginnings(graph, is_chosen, found):
    """Yields tensors at which another trunk may begin, in order, each of them once."""
    may_end = is_residual_sum if is_chosen is None else is_chosen
    inside = {
        id(node)
        for block in found
        for node in graph.nodes[block.begin.index + 1 : block.end.index + 1]
    }
    seen = set()
    for node in graph.nodes:
        if id(node) in inside or not may_end(node):
            continue
        for tensor in node.inputs:
            if _is_state(tensor) and id(tensor) not in seen:
                seen.add(id(tensor))
                yield tensor


def _depends_on_state(graph, block):
    """Returns whether the branch of a block depends on the state, and not just on its shape."""
    # What adds positions to an embedding takes the embedding, but reads only its shape.
    nodes = graph.nodes[block.begin.index + 1 : block.end.index]
    if block.carried is None or len(nodes) > LONGEST_CONSTANT:
        return True
    known = {id(tensor): tensor for node in nodes for tensor in node.inputs}
    known |= {id(tensor): tensor for tensor in block.branches}
    made = {id(tensor) for node in nodes for tensor in node.outputs}
    others = [
        tensor
        for key, tensor in known.items()
        if key not in made and tensor is not block.begin.tensor
    ]
    is_connected = []

    def branch(state, *values):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(state)
            given = {id(t): value for t, value in zip(others, values, strict=True)}
            found = replay(nodes, given | {id(block.begin.tensor): state})
            results = [found[id(tensor)] for tensor in block.branches]
        gradient = tape.gradient(results, state)
        is_connected.append(gradient is not None or _reads_values(results, state))
        return results

    specs = [tf.TensorSpec(t.shape, t.dtype) for t in (block.begin.tensor, *others)]
    tf.function(branch, input_signature=specs, autograph=False).get_concrete_function()
    return is_connected[-1]


def _reads_values(tensors, state):
    """Returns whether tensors in a graph of TensorFlow read numbers of another tensor there."""
    # They may have no gradient, as after `stop_gradient`. Functions that the graph calls are not
    # looked into.
    waiting, seen = list(tensors), set()
    while waiting:
        tensor = waiting.pop()
        if tensor is state:
            return True
        operation = tensor.op
        if id(tensor) in seen or tensor.dtype.is_bool or operation.type in WITHOUT_VALUES:
            continue
        seen.add(id(tensor))
        waiting += operation.inputs
    return False
