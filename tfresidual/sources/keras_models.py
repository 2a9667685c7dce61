"""Chains of Keras models: functional, sequential and subclassed, with layers whole or opened."""

import collections
import contextlib
import dataclasses

import keras
import numpy as np

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.routing.agreement import allowed_difference, difference, sample_images
from tfresidual.routing.losses import note_of_loss
from tfresidual.routing.outputs import named_outputs
from tfresidual.sources.division import divided
from tfresidual.sources.functional import chain_of_division
from tfresidual.sources.graph import has_graph, inputs_of, reference_of, said
from tfresidual.sources.keras_inside import UnknownKerasError
from tfresidual.sources.notes import (
    is_opaque,
    listed,
    no_block,
    note_of_context,
    notes_of,
    other_additions,
)
from tfresidual.sources.one_output import OneOutput, arrangement_of, with_output
from tfresidual.sources.operations import chooser, may_hide
from tfresidual.sources.padding import check_padding, with_padding
from tfresidual.sources.recording import (
    check_inputs,
    constants_of,
    graph_with_masks,
    recorded_model,
)

# An opened model is recorded again, and compared with itself again, after this change of all its
# weights: what was computed from weights while it was opened, and is now a number, does not follow
# it.
FACTOR, SHIFT = 1.1, 0.02
FROM_WEIGHTS = (
    "they compute numbers from weights alone, which would be constants if they were opened"
)

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
    An opened model is compared with the model itself, with its weights and with changed ones; if
    that fails, such layers are whole blocks, F = layer(h) - h, and a note says why.
    """
    check_padding(padding)
    if inputs is not None:
        check_inputs(inputs)
        # What Keras refuses has an error of its own later.
        with contextlib.suppress(ValueError):
            inputs = arrangement_of(model).images(inputs) if has_graph(model) else inputs
    if output is not None:
        one, arrangement = with_output(model, output, inputs)
        chain = chain_of_model(one, blocks, expand_nested, inputs, padding)
        return dataclasses.replace(
            chain,
            arrangement=arrangement,
            variables=tuple(model.weights),
            is_compiled=model.compiled,
            notes=chain.notes if model.loss is None else (*chain.notes, *note_of_loss(model, None)),
        )
    if blocks is not None and expand_nested is not None:
        raise ArgumentError(
            ("blocks", "expand_nested"),
            "not both be given: a layer is a block as a whole, or is opened",
            blocks=blocks,
            expand_nested=expand_nested,
        )
    if blocks is not None:
        return _of_blocks(model, blocks, inputs, padding)
    chosen = may_hide if expand_nested is None or isinstance(expand_nested, bool) else expand_nested
    opens = chooser("expand_nested", chosen, ", or True or False")
    whole = graph_with_masks(model, inputs)
    can_open = expand_nested is not False and any([opens(layer) for layer in _layers_of(whole)])
    if chosen is expand_nested and not can_open:
        raise _not_found("expand_nested", expand_nested, model, whole, opens.unused)
    division = None if can_open and expand_nested is not None else divided(whole)
    if division is not None:
        return _chain(model, division, inputs, padding)
    if can_open:
        return _of_opened(model, whole, opens, inputs, padding)
    raise no_block(whole, model, other_additions(whole), _opaque(whole))


def division_of(model, blocks=None, expand_nested=None, inputs=None, padding=None, output=None):
    """Returns the division that `chain_of_model` makes a chain from with the same arguments."""
    if output is not None:
        raise ArgumentError(
            "model",
            "have one output: the training step has the gradients of all losses together",
            said=f"model={model.name} with output={output!r}; "
            "`tfresidual.callbacks.BlockMetrics` measures the loss of one output",
        )
    whole = graph_with_masks(model, inputs)
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
            said=f"model={model.name}",
        )
    return with_padding(division, padding)[0]


def _of_blocks(model, blocks, inputs, padding):
    is_chosen = chooser("blocks", blocks)
    whole = graph_with_masks(model, inputs)
    chosen = [layer for layer in _layers_of(whole) if is_chosen(layer)]
    if not chosen or is_chosen.unused:
        raise _not_found("blocks", blocks, model, whole, is_chosen.unused)
    division = divided(whole, lambda node: is_chosen(node.operation))
    if division is None:
        raise ArgumentError(
            "blocks",
            "choose layers that return the shape they take, on one trunk: all paths from one to "
            "the next pass through the state, except for what does not depend on it",
            said=f"blocks={blocks!r} for {model.name}, whose layers are "
            f"{listed(_by_class(_layers_of(whole)))}",
        )
    used = {id(node.operation) for block in division.blocks for node in block.sums}
    others = listed(_by_class(layer for layer in chosen if id(layer) not in used))
    note = f"chosen layers that are no blocks: {others}; they change the shape or are off the trunk"
    return _chain(model, division, inputs, padding, *([note] if others else []))


def _layers_of(graph):
    layers = {
        id(node.operation): node.operation
        for node in graph.nodes
        if isinstance(node.operation, keras.layers.Layer)
    }
    return list(layers.values())


def _not_found(name, chosen, model, whole, unused):
    layers = _layers_of(whole)
    known = listed(_by_class(layers if name == "blocks" else filter(may_hide, layers)))
    which = "which are" if name == "blocks" else "of which these may hide additions:"
    names = ", ".join(map(repr, unused))
    return ArgumentError(
        name,
        f"choose layers of {model.name}, {which} {known or 'none'}",
        said=f"{name}={chosen!r}" + (f", where no layer is called {names}" if names else ""),
    )


def _chain(model, division, inputs, padding, *notes):
    whole = division.whole
    # The graph may have been made for one of many sizes that the model takes.
    declared = inputs_of(model) if inputs is None and has_graph(model) else whole.structure
    found = notes_of(other_additions(whole, division.blocks, division.trunk), _opaque(whole))
    division, of_padding = with_padding(division, padding)
    found += (*note_of_context(division.beside), *of_padding)
    reference = reference_of(model) if has_graph(model) else _Inference(model)
    return chain_of_division(model, division, declared, reference, (*found, *notes))


class _Inference:
    """Computes what a subclassed model computes at inference."""

    def __init__(self, model):
        self.model = model

    def __call__(self, images):
        if isinstance(self.model, OneOutput):
            return self.model.applied(images)
        return self.model(images, training=False)


def _opaque(graph):
    return _by_class(node.operation for node in filter(is_opaque, graph.nodes))


def _by_class(layers):
    names = collections.defaultdict(list)
    for layer in layers:
        names[type(layer).__name__].append(layer.name)
    return names


def _of_opened(model, whole, opens, inputs, padding):
    """Returns the chain of a model with layers opened, or with whole layers if that fails."""
    chosen, reason = opens, None
    while chosen is not None:
        division, failure = _opened(model, chosen, inputs)
        if division is not None and opens.unused:
            raise _not_found("expand_nested", opens.parts, model, whole, opens.unused)
        if failure is None:
            note = _note_of_opened(division, inputs, reason)
            chain = _chain(model, division, inputs, padding, note)
            failure = _failure_of(chain, model)
            if failure is None:
                return chain
        # Then only layers of one class, if they were of several.
        chosen = None if division is None or reason is not None else _of_one_class(division)
        reason = reason or failure
    division = _whole_layers(whole, opens)
    if division is None:
        raise no_block(whole, model, other_additions(whole), _opaque(whole), reason)
    declared = model.inputs if inputs is None and has_graph(model) else whole.inputs
    has_unknown = None in [size for tensor in declared for size in tensor.shape[1:]]
    hint = f"; {OPENS_WITH_INPUTS}" if has_unknown else ""
    note = f"layers are whole blocks, not opened: {reason}{hint}"
    return _chain(model, division, inputs, padding, note)


def _note_of_opened(division, inputs, reason):
    names, structure = listed(_by_class(division.opened)), division.whole.structure
    shapes = keras.tree.map_structure(lambda tensor: tuple(tensor.shape[1:]), structure)
    fixed = "" if inputs is None else f", for inputs of shape {shapes} only"
    others = "" if reason is None else f"; others are not opened: {reason}"
    if not names:
        return f"no layers are opened: no block was found in them{fixed}{others}"
    return f"opened layers: {names}{fixed}{others}"


def _of_one_class(division):
    """Returns a function that chooses the class of opened layers with most blocks, or `None`."""
    inside = [block.sums[0].inside for block in division.blocks if block.sums[0].inside]
    counts = collections.Counter(type(layers[-1]) for layers in inside)
    if len(counts) < 2:
        return None
    ((most, _),) = counts.most_common(1)
    needed = {id(layer) for layers in inside if type(layers[-1]) is most for layer in layers}
    return lambda layer: id(layer) in needed


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


def _opened(model, opens, inputs):
    """Returns the division with layers opened, and why it cannot be used, or `None` if it can."""
    try:
        graph, failures = recorded_model(model, inputs, opens)
        division = divided(graph)
        if division is None:
            # Those of outer layers come after those of the layers in them.
            reasons = [f"{layer.name}: {reason}" for layer, reason in failures.items()][::-1]
            return None, reasons[0] if reasons else "no residual addition was found in them"
        # Only the layers in which a block is found; the others stay as they are. Those that read
        # shapes alone are known by opening them.
        needed = {id(layer) for layer in division.opened}
        needed |= {id(node.operation) for node in graph.nodes if node.reads_shapes_alone}
        graph, _ = recorded_model(model, inputs, lambda layer: id(layer) in needed)
        # What was computed from weights while they were opened is now a number.
        with keras.StatelessScope(state_mapping=_changed(model)):
            again, _ = recorded_model(model, inputs, lambda layer: id(layer) in needed)
        division = divided(graph)
        if division is None:
            return None, "no residual addition was found in them"
        before, after = constants_of(graph), constants_of(again)
        are_equal = len(before) == len(after) and all(
            np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
            for one, other in zip(before, after, strict=True)
        )
        return division, None if are_equal else FROM_WEIGHTS
    except UnknownKerasError:
        raise
    except Exception as error:
        # Code written by others may raise any error on symbolic tensors.
        return None, said(error)


def _failure_of(chain, model):
    """Returns in words why an opened model differs from itself; `None` if it does not."""
    images = sample_images(chain)
    if images is None:
        return "the model accepts none of the inputs that were tried"
    allowed = allowed_difference(layer.compute_dtype for layer in model.layers)
    for mapping, when in (([], ""), (_changed(model), " after a change of the weights")):
        try:
            with keras.StatelessScope(state_mapping=mapping):
                found, expected = (named_outputs(f(images)) for f in (chain, chain.reference))
        except Exception as error:
            # What was computed for a number of images may not fit others.
            return said(error)
        share, most, _ = difference(found, expected)
        if not share <= allowed:
            return f"opened, the model returns other outputs{when}, by up to {most:.3g}"
    return None


def _changed(model):
    """Returns pairs of all weights of a model and other values for them."""
    return [
        (weight, weight.value * FACTOR + SHIFT)
        for weight in model.weights
        if keras.backend.is_float_dtype(weight.dtype)
    ]
