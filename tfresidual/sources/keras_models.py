"""Chains of Keras models: functional, sequential and subclassed, with layers whole or opened."""

import collections
import dataclasses

import keras

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.routing.data import in_structure
from tfresidual.routing.losses import note_of_loss, reference_loss_of
from tfresidual.sources.blocks import is_addition, is_unit
from tfresidual.sources.division import divided
from tfresidual.sources.functional import chain_of_division
from tfresidual.sources.graph import (
    chooser,
    has_graph,
    inputs_of,
    may_hide,
    package_of,
    reference_of,
    unwrapped,
)
from tfresidual.sources.one_output import OneOutput, input_names_of, with_output
from tfresidual.sources.padding import check_padding, with_padding
from tfresidual.sources.tracer import closed, traced, whole_graph

# What a chain says of layers whose number of positions is not known.
OPENS_WITH_INPUTS = "with `inputs`, a batch whose size they can see, they might be opened"


def chain_of_model(model, blocks=None, expand_nested=None, inputs=None, padding=None, output=None):
    """Returns the chain of a Keras model; for arguments and errors, see `tfresidual.chain`.

    A subclassed model that is not built yet is built by a call; otherwise nothing is added to it.

    A block reaches from where its branch begins to the addition, with what belongs to it on either
    side: an activation after the addition, if blocks with an identity shortcut also begin after it,
    and an activation or normalization shared by both paths of a block that changes the shape.
    Several parallel branches count as one. A stage ends where the number of channels changes, or
    where layers that change the state come between two blocks. A block that changes only height and
    width also opens a stage, unless the block after it opens one.

    What blocks read beside the state (masks, positions, other inputs and what is computed from
    them) becomes the context; an encoder is context of its decoder. If no addition is seen, layers
    written by others are called once with symbolic tensors, and the additions inside become blocks.
    If that shows none, such layers are whole blocks, F = layer(h) - h, and a note says so.
    """
    check_padding(padding)
    if inputs is not None:
        _check_inputs(inputs)
        if has_graph(model):
            inputs = in_structure(inputs, inputs_of(model), input_names_of(model))
    declared = keras.tree.flatten(inputs_of(model)) if has_graph(model) else []
    if any(one.dtype == "string" for one in declared):
        raise ArgumentError(
            "source",
            "take numbers: of a model with text vectorization inside, the part after it, with what "
            "the vectorization returns as data: `keras.Model(vectorization.output, model.output)`",
            received=f"source={model.name} with inputs of strings",
        )
    if output is not None:
        one, place = with_output(model, output, inputs)
        chain = chain_of_model(one, blocks, expand_nested, inputs, padding)
        return dataclasses.replace(
            chain,
            variables=tuple(model.weights),
            is_compiled=model.compiled,
            input_names=input_names_of(model),
            label_place=place,
            reference_loss=reference_loss_of(model, place),
            notes=chain.notes if model.loss is None else (*chain.notes, *note_of_loss(model, None)),
        )
    division, note = _division(model, blocks, expand_nested, inputs)
    whole = division.whole
    division, notes_of_padding = with_padding(division, padding)
    # The graph may have been made for one of many sizes that the model takes.
    declared = inputs_of(model) if inputs is None and has_graph(model) else whole.structure
    reference = model.applied if isinstance(model, OneOutput) else reference_of(model)
    notes = (*_notes(division), *notes_of_padding, *note)
    return chain_of_division(model, division, declared, reference, notes)


def division_of(model, blocks=None, expand_nested=None, inputs=None, padding=None, output=None):
    """Returns the division that `chain_of_model` makes a chain from, without opened layers."""
    if output is not None:
        raise ArgumentError(
            "model",
            "have one output: the training step has the gradients of all losses together",
            received=f"model={model.name} with output={output!r}; "
            "`tfresidual.callbacks.BlockMetrics` measures the loss of one output",
        )
    whole = whole_graph(model, inputs)
    if blocks is not None:
        is_chosen = chooser("blocks", blocks)
        division = divided(whole, lambda node: is_chosen(node.operation))
    else:
        division = None if expand_nested else divided(whole)
    if division is None:
        raise ArgumentError(
            "model",
            "have blocks that are seen without opening layers: additions in its own graph, or "
            "whole layers, which `tfresidual.callbacks.use_blocks(model, blocks=...)` chooses",
            received=f"model={model.name}",
        )
    return with_padding(division, padding)[0]


def _division(model, blocks, expand_nested, inputs):
    """Returns the division of a model, and a note on chosen or opened layers, as a tuple."""
    if blocks is not None and expand_nested is not None:
        raise ArgumentError(
            ("blocks", "expand_nested"),
            "not both be given: a layer is a block as a whole, or is opened",
            blocks=blocks,
            expand_nested=expand_nested,
        )
    whole = whole_graph(model, inputs)
    if blocks is not None:
        return _of_blocks(model, whole, blocks)
    chosen = may_hide if expand_nested is None or isinstance(expand_nested, bool) else expand_nested
    opens = chooser("expand_nested", chosen, ", or True or False")
    can_open = expand_nested is not False and any([opens(layer) for layer in _layers_of(whole)])
    if chosen is expand_nested and not can_open:
        raise _not_chosen("expand_nested", expand_nested, model, whole, opens.unused)
    if expand_nested is None or not can_open:
        division = divided(whole)
        if division is not None:
            return division, ()
    if not can_open:
        raise _no_block(model, whole)
    try:
        return _of_opened(model, whole, opens, inputs)
    except Exception as error:
        # Code written by others may raise any error on symbolic tensors.
        division = None if expand_nested is not None else _whole_layers(whole, opens)
        has_open = inputs is None and None in [n for one in whole.inputs for n in one.shape[1:]]
        if division is None and has_open:
            raise ArgumentError(
                "inputs", "be given: layers could not be opened for inputs of any size", inputs
            ) from error
        if division is None:
            raise
        hint = f"; {OPENS_WITH_INPUTS}" if has_open else f": {_first_line(error)}"
        return division, (f"layers are whole blocks, not opened{hint}",)


def _first_line(error):
    """Returns what an error says first, or its type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _of_blocks(model, whole, blocks):
    is_chosen = chooser("blocks", blocks)
    chosen = [layer for layer in _layers_of(whole) if is_chosen(layer)]
    if not chosen or is_chosen.unused:
        raise _not_chosen("blocks", blocks, model, whole, is_chosen.unused)
    division = divided(whole, lambda node: is_chosen(node.operation))
    if division is None:
        raise ArgumentError(
            "blocks",
            "choose layers that return the shape they take, on one trunk: all paths from one to "
            "the next pass through the state, except for what does not depend on it",
            received=f"blocks={blocks!r} for {model.name}, whose layers are "
            f"{_listed(_layers_of(whole))}",
        )
    used = {id(node.operation) for block in division.blocks for node in block.sums}
    others = _listed(layer for layer in chosen if id(layer) not in used)
    note = f"chosen layers that are no blocks: {others}; they change the shape or are off the trunk"
    return division, (note,) if others else ()


def _of_opened(model, whole, opens, inputs):
    graph = traced(model, inputs, opens)
    division = divided(graph)
    if opens.unused:
        raise _not_chosen("expand_nested", opens.parts, model, whole, opens.unused)
    if division is None:
        raise _no_block(model, whole) from next(iter(graph.failures.values()), None)
    # Only the layers in which a block is found; the others stay as they are.
    division = divided(closed(graph, division.opened))
    names = _listed(division.opened)
    shapes = keras.tree.map_structure(lambda one: tuple(one.shape[1:]), graph.structure)
    fixed = "" if inputs is None else f", for inputs of shape {shapes} only"
    return division, (f"opened layers: {names}{fixed}",) if names else ()


def _whole_layers(whole, opens):
    """Returns the division with whole layers as blocks, of repeated classes if any, or `None`."""
    division = divided(whole, lambda node: opens(node.operation))
    if division is None:
        return None
    classes = collections.Counter(type(block.sums[0].operation) for block in division.blocks)
    repeated = [kind for kind, count in classes.items() if count > 1]
    if not repeated or len(repeated) == len(classes):
        return division
    return divided(whole, lambda node: opens(node.operation) and type(node.operation) in repeated)


def _check_inputs(inputs):
    leaves = keras.tree.flatten(inputs)
    if not leaves or not all(getattr(one, "shape", ()) and hasattr(one, "dtype") for one in leaves):
        raise ArgumentError(
            "inputs",
            "be a batch of inputs of the model, as arrays or tensors with a leading axis of images "
            "(of a dataset, `next(iter(data))[0]`), or `keras.KerasTensor`s of their shapes",
            inputs,
        )


# Notes and errors


def _notes(division):
    """Returns the notes on what of a model is no block, as a tuple."""
    whole, known = division.whole, {id(node) for block in division.blocks for node in block.sums}
    notes = []
    additions = [node for node in whole.nodes if _adds(node) and id(node) not in known]
    if additions:
        notes.append(f"additions that are not blocks: {_listed(_operations(additions))}")
    hidden = _listed(_operations(filter(_is_opaque, whole.nodes)))
    if hidden:
        notes.append(f"the inside of these layers cannot be seen: {hidden}")
    beside = [node for node in division.beside if not node.reads_shapes_alone]
    parts = _listed(_operations(node for node in beside if _adds(node) or _is_opaque(node)))
    if parts:
        notes.append(
            f"computed from the inputs beside the blocks, and never perturbed: {parts}; other "
            "blocks can be chosen with `blocks` or `expand_nested`"
        )
    return tuple(notes)


def _adds(node):
    return is_addition(node) or is_unit(node)


def _is_opaque(node):
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


def _operations(nodes):
    return [node.operation for node in nodes]


def _listed(operations):
    """Returns a text with the classes of operations, the number of each and the first names."""
    names = collections.defaultdict(list)
    for operation in operations:
        names[type(operation).__name__].append(operation.name)
    return ", ".join(
        f"{kind} ({len(some)}: {', '.join([*some[:3], *(['...'] if len(some) > 3 else [])])})"
        for kind, some in sorted(names.items())
    )


def _layers_of(graph):
    layers = {
        id(node.operation): node.operation
        for node in graph.nodes
        if isinstance(node.operation, keras.layers.Layer)
    }
    return list(layers.values())


def _not_chosen(name, chosen, model, whole, unused):
    layers = _layers_of(whole)
    known = _listed(layers if name == "blocks" else filter(may_hide, layers))
    which = "which are" if name == "blocks" else "of which these may hide additions:"
    names = ", ".join(map(repr, unused))
    return ArgumentError(
        name,
        f"choose layers of {model.name}, {which} {known or 'none'}",
        received=f"{name}={chosen!r}" + (f", where no layer is called {names}" if names else ""),
    )


def _no_block(model, whole):
    additions = _listed(_operations(filter(_adds, whole.nodes)))
    hidden = _listed(_operations(filter(_is_opaque, whole.nodes)))
    is_served = any(isinstance(one, keras.layers.TFSMLayer) for one in _layers_of(whole))
    way = ". Of a SavedModel, load the model itself: `keras.layers.TFSMLayer` hides its blocks"
    return ArgumentError(
        "source",
        "be a model with residual additions on one trunk: of tensors of one shape, where all "
        "paths from input to output meet; argument `blocks` chooses whole layers instead"
        + (way if is_served else ""),
        received=f"source={model.name} with additions {additions or 'none'}, and layers that may "
        "hide "
        f"some: {hidden or 'none'}",
    )
