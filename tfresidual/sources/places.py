"""Where the states of the blocks of a model pass while the model is trained. TensorFlow only."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import keras

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.networks import ResidualNetwork
from tfresidual.sources.graph import has_graph, is_entry, path_to
from tfresidual.sources.keras_models import division_of

if TYPE_CHECKING:
    from tfresidual.routing.chain import Block, Chain


@dataclasses.dataclass(frozen=True)
class Place:
    """A tensor that a call of an operation returns; calls and outputs are counted from 0."""

    operation: keras.Operation
    call: int = 0
    output: int = 0


@dataclasses.dataclass(frozen=True)
class PlacedBlock:
    """A block and the places of its states; `before` is `None` if nothing before is trained."""

    block: Block
    before: Place | None
    after: Place


def places_of(model: keras.Model, chain: Chain, **options) -> list[PlacedBlock]:
    """Returns the blocks of a model with the places of their states.

    `options` are those of `tfresidual.chain` with which the chain was made. Raises a `ValueError`
    if the states are no tensors of the model's own graph, or some positions are padding.
    """
    if not has_graph(model):
        raise ArgumentError(
            "model",
            "be a functional `keras.Model` or a `keras.Sequential`: only there is it known which "
            "tensors of the training step are the states",
            received=f"model={model.name} of type {type(model).__name__}",
        )
    if isinstance(model, ResidualNetwork):
        return _of_residual_network(model, chain)
    of_outputs = ("positions", "outputs")
    options = {name: value for name, value in options.items() if name not in of_outputs}
    division = division_of(model, **options)
    if division.valid is not None or division.whole.has_masks:
        raise ArgumentError(
            "model",
            "take inputs without padding, since the loss of a training step weights them by how "
            "many of their positions count; `callbacks.BlockMetrics` measures such models",
            received=f"model={model.name}, whose layers read masks of padding",
        )
    calls: dict[int, int] = {}
    makers: dict[int, Any] = {}
    for node in division.whole.nodes:
        call = calls[id(node.operation)] = calls.get(id(node.operation), -1) + 1
        for output, tensor in enumerate(node.outputs):
            makers[id(tensor)] = node, Place(node.operation, call, output)

    def place_of(tensor):
        """Returns the place of a tensor, or `None` if it is an input of the model."""
        node, place = makers.get(id(tensor), (None, None))
        # An entry is no operation of the model: a nested model begins there.
        return place_of(node.args[0]) if node is not None and is_entry(node) else place

    def trained_place_of(tensor):
        """Returns the place of a tensor, or `None` if no weight before it is trained."""
        path = path_to(division.whole.nodes, tensor)
        return place_of(tensor) if _are_trained(node.operation for node in path) else None

    return [
        PlacedBlock(block, trained_place_of(found.before.tensor), place_of(found.after.tensor))
        for block, found in zip(chain.blocks, division.blocks, strict=True)
    ]


def _of_residual_network(network, chain):
    stem, sections, _ = network.sections()
    layers, before, pairs = list(stem), stem[-1], []
    for transition, units in sections:
        for layer in [transition, *units]:
            if layer is None:
                continue
            if layer is not transition:
                pairs.append((before if _are_trained(layers) else None, layer))
            layers.append(layer)
            before = layer
    return [
        PlacedBlock(block, before and Place(before), Place(after))
        for block, (before, after) in zip(chain.blocks, pairs, strict=True)
    ]


def _are_trained(operations):
    return any(getattr(operation, "trainable_weights", None) for operation in operations)
