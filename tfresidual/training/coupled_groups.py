"""Groups of weights to couple, of blocks that are given as layers, by a chain or in a config."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING, Any

import keras

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.networks.weight_groups import WeightGroup, plain_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True, eq=False)
class Groups:
    """Groups of weights, kept so that Keras does not take them for variables of an optimizer."""

    # Of the variables of an optimizer; returns the groups as they are now, also of other weights.
    found: Callable[[Sequence[keras.Variable]], list[WeightGroup]]
    # What they were read from.
    config: dict[str, Any] | None = None


def groups_from(groups, first_block):
    """Returns the `Groups` of lists of blocks, a chain, or what `config_of` returned."""
    if isinstance(groups, dict):
        return Groups(lambda variables: _of_config(groups, variables), groups)
    # A chain exists on TensorFlow alone; its module cannot be imported elsewhere.
    module = sys.modules.get("tfresidual.routing.chain")
    is_chain = module is not None and isinstance(groups, module.Chain)
    function = _of_chain if is_chain else _of_layers
    result = Groups(lambda variables: _checked(function(groups, first_block)))
    if not any(len(group.variables) > 1 for group in result.found(())):
        raise ArgumentError(
            "groups",
            "hold at least two blocks with weights of their own that can be coupled: blocks that "
            "keep the shape of the state, from block `first_block` on",
            groups=groups,
            first_block=first_block,
        )
    return result


def _of_chain(chain, first_block):
    """Returns the groups of a chain, each kind of block counted from 0: kinds may alternate."""
    groups = []
    for stage in chain.stages:
        kinds = {}
        for block in stage.blocks:
            if block.keeps_shape:
                kind = tuple(sorted((role, tuple(w.shape)) for role, w in block.weights.items()))
                kinds.setdefault(kind, []).append(block)
        for blocks in kinds.values():
            kept = [(rank, b) for rank, b in enumerate(blocks) if b.index >= first_block]
            for role in blocks[0].weights:
                members = [(rank, block.weights[role]) for rank, block in kept]
                _append(groups, stage.index, role, members)
    return groups


def _of_layers(groups, first_block):
    """Returns the groups of lists of blocks, each a layer or a list of layers."""
    found = []
    for number, blocks in enumerate(groups):
        if not isinstance(blocks, (list, tuple)) or len(blocks) < 2:
            raise ArgumentError(
                "groups",
                "be a list of groups, each a list of two or more blocks, which are layers or lists "
                "of layers; or a chain, as `tfresidual.chain(model)` returns it",
                groups,
            )
        owned = [_weights_of(block, number, place) for place, block in enumerate(blocks)]
        for place, weights in enumerate(owned):
            difference = _difference(owned[0], weights)
            if difference is not None:
                raise ArgumentError(
                    "groups",
                    "hold blocks with the same weights in the same order in each group",
                    received=f"group {number}, whose blocks 0 and {place} differ: {difference}",
                )
        for role, members in enumerate(zip(*owned, strict=True)):
            name = f"{role}/{members[0].name}"
            _append(found, number, name, list(enumerate(members))[first_block:])
    return found


def _append(groups, stage, role, members):
    """Appends the group of pairs of a block index and a variable; a shared one counts once."""
    once = {}
    for index, variable in members:
        once.setdefault(id(variable), (index, variable))
    if once:
        groups.append(WeightGroup("", stage, role, *zip(*once.values(), strict=True)))


def _weights_of(block, number, place):
    """Returns the weights of a block in order, trainable or not, each of them once."""
    layers = block if isinstance(block, (list, tuple)) else [block]
    are_built = all(isinstance(layer, keras.layers.Layer) and layer.built for layer in layers)
    weights = {id(w): w for layer in layers for w in layer.weights} if are_built else {}
    if not weights:
        raise ArgumentError(
            "groups",
            "hold blocks that are layers, or lists of layers, which are built and have weights",
            received=f"group {number}, block {place}: {block!r}",
        )
    return list(weights.values())


def _difference(first, other):
    if len(first) != len(other):
        return f"{len(first)} weights and {len(other)}"
    for one, two in zip(first, other, strict=True):
        if tuple(one.shape) != tuple(two.shape) or plain_name(one.name) != plain_name(two.name):
            return f"{one.path} of shape {tuple(one.shape)} and {two.path} of {tuple(two.shape)}"
    return None


def _checked(groups):
    place_of = {}
    for group in groups:
        for variable in group.variables:
            other = place_of.setdefault(id(variable), group)
            if other is not group:
                raise ArgumentError(
                    "groups",
                    "hold a weight in one group and one role alone",
                    received=f"the weight {variable.path} in two",
                )
    return groups


# As in the config of an optimizer.


def config_of(groups, variables):
    """Returns what `groups_from` reads groups from, as JSON can hold it.

    Layers inside custom layers get other names, and weights other paths, in another process. The
    places of the weights among the variables of the optimizer, if it is built, remain.
    """
    place_of = {id(variable): place for place, variable in enumerate(variables or ())}
    weights = [
        {
            "blocks": [int(index) for index in group.blocks],
            "paths": [variable.path for variable in group.variables],
            "trainable": [bool(variable.trainable) for variable in group.variables],
            "places": [place_of.get(id(variable)) for variable in group.variables],
        }
        for group in groups
        if len(group.variables) > 1
    ]
    return {"variables": None if variables is None else len(variables), "weights": weights}


def _of_config(config, variables):
    found = None
    if config["variables"] == len(variables):
        found = _by_place(config["weights"], variables)
    return _by_path(config["weights"], variables) if found is None else found


def _by_place(saved, variables):
    """Returns the groups, or `None` if the variables at their places do not match."""
    groups = []
    for number, weights in enumerate(saved):
        members = [
            (index, variables[place])
            for index, place in zip(weights["blocks"], weights["places"], strict=True)
            if place is not None and place < len(variables)
        ]
        kinds = {(tuple(v.shape), plain_name(v.name)) for _, v in members}
        names = {plain_name(path.rpartition("/")[2]) for path in weights["paths"]}
        if len(kinds) > 1 or not {name for _, name in kinds} <= names:
            return None
        _append(groups, number, "weights", members)
    return groups


def _by_path(saved, variables):
    by_path = {}
    for variable in variables:
        by_path.setdefault(variable.path, []).append(variable)
    groups = []
    for number, weights in enumerate(saved):
        members = []
        for index, path, was_trainable in zip(
            *(weights[name] for name in ("blocks", "paths", "trainable")), strict=True
        ):
            there = by_path.get(path, [])
            if len(there) > 1 or (was_trainable and not there):
                raise ArgumentError(
                    "groups",
                    "name weights of the model, each by a path of its own. Layers inside a custom "
                    "layer may get other paths in another process: build the optimizer before the "
                    "model is saved",
                    received=f"{path!r}, the path of {len(there)} of the {len(variables)} "
                    "variables",
                )
            members += [(index, variable) for variable in there]
        _append(groups, number, "weights", members)
    return groups
