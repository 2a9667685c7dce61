"""Additions that are not blocks, and layers that cannot be looked into: the notes of a chain."""

from __future__ import annotations

import collections

import keras

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.sources.blocks import is_addition, is_residual_sum, is_unit, trunk_of
from tfresidual.sources.operations import package_of, unwrapped


def other_additions(graph, found=(), trunk=None):
    """Returns the names of the additions that are not blocks, by kind."""
    known = {id(node) for block in found for node in block.sums}
    on_trunk = {id(place.tensor) for place in (trunk_of(graph) if trunk is None else trunk)}
    others = collections.defaultdict(list)
    for node in graph.nodes:
        if id(node) in known:
            continue
        if is_residual_sum(node) and len(node.arguments) > 2:
            others["of several tensors, none of them the state"].append(node.operation.name)
        elif is_residual_sum(node) or is_unit(node):
            is_on_trunk = id(node.outputs[0]) in on_trunk
            place = "on the trunk" if is_on_trunk else "off the trunk"
            others[place].append(node.operation.name)
        elif is_addition(node):
            others["of other shapes, or of the same tensor"].append(node.operation.name)
    return others


def is_opaque(node):
    """Returns whether a node is a layer that may contain additions."""
    layer = unwrapped(node.operation)
    if not isinstance(layer, keras.layers.Layer):
        return False
    if isinstance(layer, (keras.Model, keras.layers.Lambda)):
        return True
    kind = type(layer)
    package = package_of(kind)
    if getattr(keras.layers, kind.__name__, None) is kind or package == "tfresidual":
        return False
    # Other layers of Keras, such as those of its applications, are opaque if they could add two
    # tensors.
    alike = [taken for taken in node.inputs if taken.shape == node.outputs[0].shape]
    return package != "keras" or len(alike) > 1


def listed(names_by_kind):
    """Returns a text with the number of names of every kind and the first of them."""
    return ", ".join(
        f"{kind} ({len(names)}: {', '.join([*names[:3], *(['...'] if len(names) > 3 else [])])})"
        for kind, names in sorted(names_by_kind.items())
    )


def notes_of(additions, opaque):
    """Returns the notes on additions that are not blocks, and on opaque layers, as a tuple."""
    notes = []
    if additions:
        notes.append(
            f"additions that are not blocks themselves: {listed(additions)}; they are computed "
            "as part of what contains them"
        )
    if opaque:
        notes.append(f"the inside of these layers cannot be seen: {listed(opaque)}")
    return tuple(notes)


def note_of_context(nodes):
    """Returns the note on what the nodes of a context contain, as a tuple; empty if it is plain."""
    parts = collections.defaultdict(list)
    for node in nodes:
        if is_residual_sum(node) or is_unit(node):
            parts["additions"].append(node.operation.name)
        elif is_opaque(node) and not node.reads_shapes_alone:
            parts[type(node.operation).__name__].append(node.operation.name)
    if not parts:
        return ()
    return (
        f"computed from the inputs beside the blocks, and never perturbed: {listed(parts)}; other "
        "blocks can be chosen with `blocks` or `expand_nested`",
    )


def no_block(graph, model, additions, opaque, reason=None):
    """Returns the error for a model without blocks, and why opening layers did not help, if so."""
    found = f"additions: {listed(additions)}" if additions else "no addition"
    if opaque:
        found += f"; layers that may hide some: {listed(opaque)}"
    if reason is not None:
        found += f"; opening them did not help: {reason}"
    if any(keras.tree.flatten(node.kwargs.get("mask")) != [None] for node in graph.nodes):
        found += "; masks, which bypass every place where the other paths meet"
    return ArgumentError(
        "source",
        "be a model with residual additions on one trunk: of tensors of one shape, where all "
        "paths from input to output meet",
        said=f"source={model.name} with {found}",
    )
