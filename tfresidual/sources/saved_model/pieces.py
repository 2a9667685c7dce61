"""The parts of a chain as compiled functions."""

from __future__ import annotations

import dataclasses
import itertools

import tensorflow as tf

from tfresidual.routing import Stage
from tfresidual.routing.scores import LOGITS, OUTPUTS, logits_of, named_outputs, with_logits
from tfresidual.sources.saved_model.format import (
    CONTEXT,
    HEAD,
    LOSS,
    STEM,
    block_name,
    transition_name,
)
from tfresidual.sources.saved_model.inputs import (
    of_context,
    of_entries,
    of_images,
    of_tensors,
    specs_of,
)

# Kinds of labels: one per image, one per position of an image, and one per output.
INDICES, POSITIONS, ROWS = "indices", "positions", "rows"


def cut_chain(chain):
    """Returns the chain of compiled functions, these by name, and the labels the loss takes."""
    pieces, images, context, names = {}, images_of(chain), None, None

    def cut(name, function, *specs):
        # The lambda gives the function parameters that TensorFlow can write.
        pieces[name] = compile_function(lambda *tensors: function(*tensors), *specs)
        return pieces[name], result_of(pieces[name])

    def cut_within(name, function, *states):
        """Cuts a function of states, which also takes the context, if any."""
        given = [context[entry] for entry in names or ()]
        piece, result = cut(name, of_entries(function, names), *states, *given)
        return of_context(piece, names), result

    stem, state = cut(STEM, of_tensors(chain.stem, chain.input_shape), *images)
    if chain.context is not None:
        compute, context = cut(CONTEXT, of_tensors(chain.context, chain.input_shape), *images)
        compute, names = of_images(compute, chain.input_shape), sorted(context)
    stages = []
    for index, stage in enumerate(chain.stages, start=1):
        transition = None
        if stage.transition is not None:
            name = transition_name(index)
            transition, state = cut_within(name, stage.transition, state)
        anchor, blocks = state, []
        for place, block in enumerate(stage.blocks):
            block = dataclasses.replace(block, stage=index, index=place)
            functions, state = _cut_block(block, state, anchor, cut_within)
            anchor = anchor if block.keeps_shape else state
            blocks.append(dataclasses.replace(block, **functions))
        stages.append(Stage(index, tuple(blocks), transition))
    head, values = cut_within(HEAD, lambda *given: _values_of(chain, chain.head(*given)), state)
    labels_taken = _labels_taken(chain, values)
    if getattr(chain.loss, "description", None) is None:
        for name, labels in labels_taken.items():
            cut(f"{LOSS}/{name}", _loss_of(chain, list(values)), labels, *values.values())
    twin = dataclasses.replace(
        chain,
        stem=of_images(stem, chain.input_shape),
        stages=tuple(stages),
        head=lambda *given: with_logits(head(*given)),
        context=None if chain.context is None else compute,
        prepare=None,
        compiled={},
    )
    return twin, pieces, labels_taken


def _cut_block(block, state, anchor, cut):
    """Returns the compiled functions of a block by field name, and the spec of its next state."""

    def name(part):
        return block_name(block.stage, block.index, part)

    takes = (state, anchor) if block.takes_anchor else (state,)
    apply, after = cut(name("apply"), block.apply, *takes)
    functions = {"apply": apply}
    if block.join is not None:
        branch, of_branch = cut(name("branch"), block.branch, state)
        join, _ = cut(name("join"), block.join, takes[-1], of_branch)
        functions |= {"branch": branch, "join": join}
    return functions, after


def _values_of(chain, outputs):
    """Returns what the head of a chain returns, by name, with the logits that its loss takes."""
    named = ((getattr(chain.loss, "description", None) or {}).get("loss") or "").lower()
    # A loss of the user's own may be a cross-entropy of either kind.
    takes = [
        operation
        for operation, others in (("Softmax", "binary"), ("Sigmoid", "categorical"))
        if others not in named
    ]
    logits = logits_of(outputs, *takes)
    return named_outputs(outputs) | ({} if logits is None else {LOGITS: logits})


def compile_function(function, *specs):
    """Returns a function compiled for tensors of some specs, as a `tf.function`."""
    compiled = tf.function(function, input_signature=specs, autograph=False)
    compiled.get_concrete_function()
    return compiled


def _loss_of(chain, names):
    """Returns the loss as a function of labels and of the values of the head with these names."""

    def of_outputs(labels, outputs):
        return chain.loss(labels, outputs)

    def of_outputs_and_logits(labels, *values):
        return chain.loss(labels, with_logits(dict(zip(names, values, strict=True))))

    return of_outputs if names == [OUTPUTS] else of_outputs_and_logits


def images_of(chain):
    """Returns the `tf.TensorSpec` of every input of a chain, as a list."""
    return list(specs_of(chain.input_shape, chain.input_dtype).values())


def result_of(function):
    """Returns the `tf.TensorSpec` of the result of a compiled function, or a dict of these."""
    result = function.get_concrete_function().structured_outputs
    if isinstance(result, dict):
        return {name: tf.TensorSpec(value.shape, value.dtype) for name, value in result.items()}
    return tf.TensorSpec(result.shape, result.dtype)


def _possible_labels(chain, outputs):
    """Returns the possible specs of labels by kind, the usual kind for such outputs first."""
    has_classes = chain.outputs in ("probabilities", "logits") and outputs.shape[-1] != 1
    # Without classes, one number per image may also be a value or a share.
    of_index = tf.int64 if has_classes else tf.float32
    possible = {
        INDICES: tf.TensorSpec([None], of_index, name="labels"),
        ROWS: tf.TensorSpec([None, *outputs.shape[1:]], tf.float32, name="labels"),
    }
    possible = possible if has_classes else dict(reversed(possible.items()))
    if chain.outputs == "values" or len(outputs.shape) == 2:
        return possible
    of_position = tf.TensorSpec([None, *outputs.shape[1:-1]], of_index, name="labels")
    return {POSITIONS: of_position} | possible


def _labels_taken(chain, values):
    """Returns the possible labels for which the loss gives one number for each image.

    A trace does not show this, because unknown sizes match each other: the loss is tried.
    """
    given = list(values.values())
    loss = _loss_of(chain, list(values))
    possible = _possible_labels(chain, given[0])
    sizes = {size for spec in (*given, *possible.values()) for size in spec.shape}
    images = next(size for size in itertools.count(2) if size not in sizes)

    def filled(spec, value):
        sizes = [images, *(size or images + 1 for size in spec.shape[1:])]
        return tf.cast(tf.fill(sizes, value), spec.dtype)

    def is_taken(labels):
        try:
            compiled = compile_function(lambda *tensors: loss(*tensors), labels, *given)
            losses = compiled(filled(labels, 0.0), *(filled(spec, 0.5) for spec in given))
            return tuple(losses.shape) == (images,)
        except (ValueError, TypeError, tf.errors.OpError):
            return False

    return {kind: labels for kind, labels in possible.items() if is_taken(labels)}


def variables_of(functions):
    """Returns all variables that compiled functions read, each of them once."""
    found = {}
    for function in functions:
        for variable in function.get_concrete_function().variables:
            found.setdefault(id(variable), variable)
    return list(found.values())
