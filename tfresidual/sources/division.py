"""Divides the graph of a model into stem, blocks and head.

TensorFlow only.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import keras
import tensorflow as tf

from tfresidual.sources.blocks import (
    IDENTITY,
    blocks_of,
    is_residual_sum,
    join_gaps,
    path_to,
    trunk_of,
)
from tfresidual.sources.graph import Graph, replay

if TYPE_CHECKING:
    from collections.abc import Callable

    from tfresidual.sources.graph import Node

# The end of the names of inputs that say which positions are not padding, as in keras-hub.
MASK_NAMES = ("padding_mask", "attention_mask")
# What a branch is, by the names of the classes in it.
KINDS = {"attention": ("attention",), "mlp": ("mlp", "dense", "feedforward")}
# The longest branch that is tried for whether it depends on the state at all. What adds positions
# to an embedding is short.
LONGEST_CONSTANT = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Division:
    """A graph divided into stem, blocks and head.

    Attributes:
        whole: the `Graph` of the model.
        graph: the part of it from the beginning of the trunk on.
        trunk: list of the places on the trunk, see `tfresidual.sources.blocks.trunk_of`.
        blocks: list of the blocks on it, in order, with the gaps between them assigned.
        valid: the `keras.KerasTensor` that says which positions of the states are not padding,
            `(images, positions)`, or `None`.
    """

    whole: Graph
    graph: Graph
    trunk: list
    blocks: list
    valid: keras.KerasTensor | None = None

    @property
    def opened(self):
        """The opened layers in which a block is found, as a list."""
        layers = {}
        for block in self.blocks:
            for node in block.sums:
                layers |= {id(layer): layer for layer in node.inside}
        return list(layers.values())


def divided(whole: Graph, is_chosen: Callable[[Node], bool] | None = None) -> Division | None:
    """Divides a graph into stem, blocks and head.

    The trunk begins at the inputs. If there is no block on it, it begins at the summand of a
    residual addition (or the input of a chosen layer) from which most blocks are found; then only
    blocks that add to the state itself count. A model that takes integers or several inputs, or has
    masks, is searched in this way even if blocks are found from its inputs on.

    Args:
        whole: a `Graph`.
        is_chosen: function of a node that returns whether it is to be a block. By default, residual
            additions are.

    Returns:
        A `Division`, or `None` if there is no block, or if several trunks have most blocks.
    """
    found = _blocks_from(whole, is_chosen)
    graph = whole
    if not found[1] or _may_have_context(whole):
        best, most = (whole, found), sum(map(_adds_to_state, found[1]))
        others: list[list] = []
        for first in _beginnings(whole, is_chosen):
            part = whole.since(first)
            trunk, blocks = _blocks_from(part, is_chosen)
            blocks = [block for block in blocks if _adds_to_state(block)]
            if len(blocks) > most:
                best, most, others = (part, (trunk, blocks)), len(blocks), []
            elif len(blocks) == most > 0:
                others.append(blocks)
        graph, found = best
        ends = _ends(found[1])
        if any(ends.isdisjoint(_ends(blocks)) for blocks in others):
            # There are several trunks, none of which is the longest.
            return None
    trunk, blocks = found
    while blocks and not _depends_on_state(graph, blocks[0]):
        blocks = blocks[1:]
    if not blocks:
        return None
    join_gaps(graph, trunk, blocks)
    _name(graph, blocks)
    state = blocks[0].before.tensor
    return Division(whole, graph, trunk, blocks, _valid_positions(whole, graph, state))


def _name(graph, blocks):
    """Names blocks: after the operation that ends them or, in an opened layer, what they are."""
    taken = set()
    for block in blocks:
        addition = graph.nodes[block.end.index]
        block.name = addition.operation.name
        if addition.inside:
            layer, kind = addition.inside[-1], _kind(graph, block)
            names = [f"{layer.name}/{name}" for name in (*kind, addition.operation.name)]
            block.name = next((name for name in names if name not in taken), names[-1])
        taken.add(block.name)


def _kind(graph, block):
    """Returns what a branch is, in general and more precisely, as far as it can be told."""
    nodes = graph.nodes[block.begin.index + 1 : block.end.index]
    layers = [part for node in nodes for part in (*node.inside, node.operation)]
    for kind, marks in KINDS.items():
        for layer in layers:
            if any(mark in type(layer).__name__.lower() for mark in marks):
                return kind, layer.name
    return ()


def _ends(blocks):
    """Returns the nodes that end blocks, by id."""
    return {id(node) for block in blocks for node in block.sums}


def _adds_to_state(block):
    return block.shortcut in (IDENTITY, None)


def _may_have_context(graph):
    """Returns whether a model has several inputs, takes integers, or has masks.

    Other models keep the trunk from their input on, if there is a block on it.
    """
    is_single = len(graph.inputs) == 1 and keras.backend.is_float_dtype(graph.input.dtype)
    return not is_single or graph.has_masks


def _blocks_from(graph, is_chosen):
    trunk = trunk_of(graph)
    return trunk, list(blocks_of(graph, trunk, is_chosen)) if trunk else []


def _beginnings(whole, is_chosen):
    """Yields tensors at which a trunk may begin, in order, each of them once."""
    seen = set()
    for node in whole.nodes:
        if is_chosen(node) if is_chosen is not None else is_residual_sum(node):
            for tensor in node.inputs:
                is_state = keras.backend.is_float_dtype(tensor.dtype)
                if is_state and id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield tensor


def _depends_on_state(graph, block):
    """Returns whether the branch of a block depends on the state, and not just on its shape.

    What adds positions to an embedding takes the embedding, but reads only its shape.
    """
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
        is_connected.append(gradient is not None)
        return results

    specs = [tf.TensorSpec(t.shape, t.dtype) for t in (block.begin.tensor, *others)]
    tf.function(branch, input_signature=specs, autograph=False).get_concrete_function()
    return is_connected[-1]


def _valid_positions(whole, graph, state):
    """Returns the tensor that says which positions of the states are not padding, or `None`.

    It is the implicit mask of Keras at the first state or, failing that, an input whose name ends
    as in `MASK_NAMES`; of several, the one whose name begins like that of an input of the stem.
    """
    if len(state.shape) < 3:
        return None
    attached = (pair for node in whole.nodes for pair in node.masked)
    for tensor, mask in attached:
        if tensor is state and len(mask.shape) == 2:
            return mask
    masks = [
        tensor
        for tensor in whole.inputs
        if tensor.name.endswith(MASK_NAMES)
        and len(tensor.shape) == 2
        and tensor.shape[1] in (None, state.shape[1])
    ]
    if len(masks) < 2:
        return masks[0] if masks else None
    needed = {id(tensor) for node in path_to(whole.nodes, state) for tensor in node.inputs}
    names = [tensor.name for tensor in whole.inputs if id(tensor) in needed]
    for mask in masks:
        prefix = mask.name.removesuffix("padding_mask").removesuffix("attention_mask")
        if any(name.startswith(prefix) for name in names):
            return mask
    return None
