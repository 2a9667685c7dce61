"""Writes networks as SavedModels that can be served and probed without their code.

TensorFlow only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import itertools
import json
import os
from importlib import metadata
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from tfresidual.machine.files import (
    file_above,
    no_room,
    replacing_folder,
)
from tfresidual.routing import Stage
from tfresidual.routing.agreement import check_agreement, sample_images
from tfresidual.routing.block_values import block_values
from tfresidual.routing.outputs import LOGITS, OUTPUTS, named_outputs
from tfresidual.saved_model.format import (
    FORMAT,
    HEAD,
    LAYOUT_FILE,
    LOSS,
    SERVE,
    STEM,
    block_name,
    is_saved_model,
    transition_name,
)

if TYPE_CHECKING:
    from pathlib import Path

    from tfresidual.routing import Chain

# All files and folders that can be in the folder of a SavedModel.
SAVED_MODEL_FILES = {
    *("saved_model.pb", "fingerprint.pb", "keras_metadata.pb"),
    *("variables", "assets", "assets.extra"),
}
# Kinds of labels.
INDICES, ROWS = "indices", "rows"


def write(chain: Chain, path: Path, probing: bool = True) -> None:
    """Writes a chain as a SavedModel; existing files at the path are replaced.

    Args:
        chain: a `tfresidual.routing.Chain`.
        path: the folder to write, a `pathlib.Path` in a folder that exists.
        probing: whether the functions for probing are written too.

    Raises:
        OSError: if the SavedModel cannot be written, for example because the disk is full.
        ValueError: if the chain computes with something that a SavedModel cannot hold, or if the
            functions to be written differ from the network by more than rounding.
    """
    if chain.prepare is not None:
        chain.prepare()
    root, signatures, layout = parts_to_save(chain, probing)
    with replacing_folder(path) as folder:
        _save(root, folder, signatures, chain, path)
        file = folder / LAYOUT_FILE
        file.parent.mkdir()
        file.write_text(json.dumps(layout, indent=2) + "\n", "utf-8")


def _save(root, folder, signatures, chain, path):
    try:
        tf.saved_model.save(root, str(folder), signatures)
    except (AssertionError, KeyError, NotImplementedError, TypeError, ValueError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(
            "Argument `net` must compute only with objects that a SavedModel can hold. "
            f"TensorFlow says: {reason} Received: net={chain.name}"
        ) from error
    except tf.errors.OpError as error:
        raise no_room(path, error) from error


def check_target(path, overwrite):
    """Raises a `FileExistsError` unless a SavedModel may be written to a path."""
    obstacle = obstacle_at(path, overwrite)
    if obstacle is not None:
        raise FileExistsError(
            "Argument `path` must be new, or a SavedModel to replace with `overwrite=True`. "
            f"Received: path={str(path)!r}, {obstacle}"
        )


def obstacle_at(path, overwrite):
    """Returns in words why a SavedModel cannot be written to a path; `None` if it can."""
    file = file_above(path)
    if file is not None:
        return f"below {str(file)!r}, which is not a folder"
    # `lexists`, since `exists` is false for a broken link.
    if not os.path.lexists(path):
        return None
    if not overwrite:
        return "which already exists"
    if path.is_symlink():
        return "which is a symbolic link"
    if path.name in ("", ".."):
        return "which has no name of its own"
    names = set(os.listdir(path)) if path.is_dir() else {""}
    is_whole = names <= SAVED_MODEL_FILES and is_saved_model(path)
    return "which is something else" if names and not is_whole else None


def parts_to_save(chain, probing=True):
    """Returns the parts of a SavedModel of a chain.

    For probing, they are compiled in the first call and kept on the chain.

    Args:
        chain: a `tfresidual.routing.Chain`.
        probing: see `export`.

    Returns:
        A tuple of the `tf.Module`, its signatures by name, and the layout, a dict.

    Raises:
        ValueError: if the chain computes with a resource that no SavedModel can hold.
    """
    root, signatures, layout = (_with_probes if probing else _to_serve)(chain)
    if not hasattr(root, "resources"):
        # TensorFlow writes only objects that are attributes of the module.
        functions = [*signatures.values(), *getattr(root, "pieces", {}).values()]
        resources = [_holder(handle) for handle in _other_handles(functions)]
        if None in resources:
            raise ValueError(
                "Argument `net` must compute with variables, tables and other objects that "
                "TensorFlow can write to a SavedModel. "
                f"Received: net={chain.name}, which reads a resource that no such object holds"
            )
        root.resources = resources
    return root, signatures, layout


def _other_handles(functions):
    """Returns the handles of resources that functions read besides variables, such as tables."""
    handles = {}
    for function in functions:
        concrete = function.get_concrete_function()
        of_variables = {id(variable.handle) for variable in concrete.variables}
        for tensor in concrete.captured_inputs:
            if tensor.dtype == tf.resource and id(tensor) not in of_variables:
                handles[id(tensor)] = tensor
    return list(handles.values())


def _holder(handle):
    """Returns the TensorFlow object that a handle belongs to, or `None`.

    A function refers only to the handle, so the object is found by the garbage collector, as
    TensorFlow does for its error about such a function.
    """
    kinds = (tf.Variable, tf.saved_model.experimental.TrackableResource)
    near = gc.get_referrers(handle)
    # Some objects refer to the handle only through their `__dict__`.
    holders = (one for one in [*near, *gc.get_referrers(*near)] if isinstance(one, kinds))
    return next(holders, None)


def _to_serve(chain):
    root = tf.Module()
    images = _images_of(chain)
    serve = _compiled(lambda images: {OUTPUTS: chain(images)}, images)
    root.variables_of_network = _variables([serve])
    _compare(chain, chain)
    return root, {SERVE: serve}, _header(chain, probing=False)


def _header(chain, probing):
    return {
        "format": FORMAT,
        "tfresidual": metadata.version("tfresidual"),
        "probing": probing,
        "name": chain.name,
        "input_shape": [None if size is None else int(size) for size in chain.input_shape],
        "outputs": chain.outputs,
    }


def _with_probes(chain):
    parameters = {id(weight): weight for weight in chain.weights}
    # Kept on the chain, so that a series of exports compiles nothing twice.
    key = ("export", chain.input_shape)
    if key not in chain.compiled:
        twin, pieces, labels_taken = _cut(chain)
        root = tf.Module()
        root.pieces = pieces
        root.parameters = [_variable(weight) for weight in parameters.values()]
        root.variables_of_network = _variables(pieces.values())
        chain.compiled[key] = twin, root, pieces, _signatures(twin, labels_taken)
    twin, root, pieces, signatures = chain.compiled[key]
    _compare(chain, twin)
    layout = _header(chain, probing=True) | {
        "pieces": list(pieces),
        "parameters": len(parameters),
        "notes": chain.notes,
        "loss": getattr(chain.loss, "description", None),
        "stages": [
            _layout_of_stage(index, stage, list(parameters))
            for index, stage in enumerate(chain.stages, start=1)
        ],
    }
    return root, signatures, layout


def _compare(chain, written):
    """Raises a `ValueError` unless the functions to be written compute what the network does.

    Args:
        chain: a `tfresidual.routing.Chain`.
        written: the same chain, made of the functions to be written.
    """
    if chain.reference is None:
        return
    images = sample_images(chain)
    if images is None:
        raise ValueError(
            "Argument `net` must accept images with values from 0 to 2, or of zeros: on these, "
            "the export is compared with the network itself. To export without the comparison, "
            "remove the reference of the chain: `dataclasses.replace(tfresidual.chain(net), "
            f"reference=None)`. Received: net={chain.name}, for images of shape "
            f"{tuple(chain.input_shape)}"
        )
    check_agreement(chain, images, named_outputs(written(images)))


def _layout_of_stage(index, stage, parameters):
    blocks = [
        {
            "keeps_shape": block.keeps_shape,
            "takes_anchor": block.takes_anchor,
            "shortcut": block.shortcut,
            "name": block.name,
            "weights": {role: parameters.index(id(w)) for role, w in block.weights.items()},
            "lipschitz": None if block.lipschitz is None else _floats(block.lipschitz()),
        }
        for block in stage.blocks
    ]
    return {"stage": index, "blocks": blocks}


def _floats(values):
    return {name: float(value) for name, value in values.items()}


# The chain, cut into compiled functions


def _cut(chain):
    """Returns the chain made of compiled functions, these by name, and the labels the loss takes.

    Stages and blocks are numbered by their place, as the reader numbers them.
    """
    pieces = {}

    def cut(name, function, *specs):
        # The lambda gives the function parameters that TensorFlow can write.
        pieces[name] = _compiled(lambda *tensors: function(*tensors), *specs)
        return pieces[name], _result(pieces[name])

    stem, state = cut(STEM, chain.stem, _images_of(chain))
    stages = []
    for index, stage in enumerate(chain.stages, start=1):
        transition = None
        if stage.transition is not None:
            name = transition_name(index)
            transition, state = cut(name, stage.transition, state)
        anchor, blocks = state, []
        for place, block in enumerate(stage.blocks):
            block = dataclasses.replace(block, stage=index, index=place)
            functions, state = _cut_block(block, state, anchor, cut)
            anchor = anchor if block.keeps_shape else state
            blocks.append(dataclasses.replace(block, **functions))
        stages.append(Stage(index, tuple(blocks), transition))
    head, values = cut(HEAD, lambda state: named_outputs(chain.head(state)), state)
    labels_taken = _labels_taken(chain, head)
    if getattr(chain.loss, "description", None) is None:
        given = [_result(head, name) for name in values]
        for name, labels in labels_taken.items():
            cut(f"{LOSS}/{name}", _loss_of(chain, list(values)), labels, *given)
    twin = dataclasses.replace(
        chain,
        stem=stem,
        stages=tuple(stages),
        head=lambda state: _without_logits(head(state)),
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


def _compiled(function, *specs):
    compiled = tf.function(function, input_signature=specs, autograph=False)
    compiled.get_concrete_function()
    return compiled


def _loss_of(chain, names):
    """Returns the loss as a function of labels and of the values of the head with these names."""

    def of_outputs(labels, outputs):
        return chain.loss(labels, outputs)

    def of_outputs_and_logits(labels, *values):
        return chain.loss(labels, _without_logits(dict(zip(names, values, strict=True))))

    return of_outputs if names == [OUTPUTS] else of_outputs_and_logits


def _images_of(chain):
    return tf.TensorSpec([None, *chain.input_shape], tf.float32, name="images")


def _result(function, name=None):
    """Returns the `tf.TensorSpec` of the result of a compiled function, or the dict of results."""
    results = function.get_concrete_function().structured_outputs
    result = results if name is None else results[name]
    return result if isinstance(result, dict) else tf.TensorSpec(result.shape, result.dtype)


def _without_logits(values):
    outputs = values[OUTPUTS]
    if LOGITS in values:
        outputs._keras_logits = values[LOGITS]
    return outputs


def _possible_labels(chain, outputs):
    """Returns the possible specs of labels by kind, the usual kind for such outputs first."""
    has_classes = chain.outputs in ("probabilities", "logits") and outputs.shape[-1] != 1
    # Without classes, one number per image may also be a value or a share.
    of_index = tf.int64 if has_classes else tf.float32
    possible = {
        INDICES: tf.TensorSpec([None], of_index, name="labels"),
        ROWS: tf.TensorSpec([None, *outputs.shape[1:]], tf.float32, name="labels"),
    }
    return possible if has_classes else dict(reversed(possible.items()))


def _labels_taken(chain, head):
    """Returns the possible labels for which the loss gives one number for each image.

    A trace does not show this, because unknown sizes match each other. The loss is therefore tried
    on a number of images that differs from the size of every other axis.

    Args:
        chain: a `tfresidual.routing.Chain`.
        head: its compiled head, which returns values by the names of `named_outputs`.
    """
    names = list(_result(head))
    given = [_result(head, name) for name in names]
    loss = _loss_of(chain, names)
    possible = _possible_labels(chain, given[0])
    images = next(size for size in itertools.count(2) if size not in given[0].shape)

    def filled(spec, value):
        sizes = [images, *(size or images + 1 for size in spec.shape[1:])]
        return tf.cast(tf.fill(sizes, value), spec.dtype)

    def is_taken(labels):
        try:
            compiled = _compiled(lambda *tensors: loss(*tensors), labels, *given)
            losses = compiled(filled(labels, 0.0), *(filled(spec, 0.5) for spec in given))
            return tuple(losses.shape) == (images,)
        except Exception:
            # A loss written by a user may raise any error on labels that it was not made for.
            return False

    return {kind: labels for kind, labels in possible.items() if is_taken(labels)}


def _variables(functions):
    """Returns all variables that compiled functions read, each of them once."""
    found = {}
    for function in functions:
        for variable in function.get_concrete_function().variables:
            found.setdefault(id(variable), variable)
    return list(found.values())


def _variable(weight):
    """Returns the TensorFlow variable inside a Keras variable."""
    return weight if isinstance(weight, tf.Variable) else weight.value


# The signatures


def _signatures(chain, labels_taken):
    images = _images_of(chain)
    number = {name: tf.TensorSpec([], tf.int32, name=name) for name in ("stage", "block", "times")}
    scale = tf.TensorSpec([], tf.float32, name="scale")
    every = tf.TensorSpec([len(chain.blocks)], tf.int32, name="applications")
    run = _Routes(chain)
    serve = _compiled(lambda images: {OUTPUTS: chain(images)}, images)
    signatures = {
        SERVE: serve,
        "states": _compiled(lambda images: _states(chain, images), images),
        "route": _compiled(run.route, images, every),
        "readout": _compiled(run.readout, images, number["stage"], number["block"]),
        "repeat_last_block": _compiled(
            run.repeat_last_block, images, number["stage"], number["times"], scale
        ),
    }
    labels = next(iter(labels_taken.values()), None)
    if chain.outputs != "values" and labels is not None:
        # If the loss has no gradient, this signature is left out.
        with contextlib.suppress(ValueError, LookupError):
            signatures["block_metrics"] = _compiled(
                lambda images, labels: block_values(chain, images, labels), images, labels
            )
    return signatures


def _states(chain, images):
    state = chain.stem(images)
    pairs, _ = chain.walk(state)
    after = {
        f"stage{block.stage}/block{block.index}": after
        for block, (_, after) in zip(chain.blocks, pairs, strict=True)
    }
    return {STEM: state} | after


class _Routes:
    """Routes through a chain, all computed by one graph whose inputs determine the route."""

    def __init__(self, chain):
        self.chain = chain
        blocks = chain.blocks
        self.stages = np.array([block.stage for block in blocks], np.int32)
        self.indices = np.array([block.index for block in blocks], np.int32)
        self.keeps_shape = np.array([block.keeps_shape for block in blocks])
        exits = {(stage.index, block) for stage in chain.stages for block in stage.exits}
        self.is_exit = np.array([(block.stage, block.index) in exits for block in blocks])
        self.can_repeat = np.array([stage.can_repeat for stage in chain.stages])
        counts = tf.TensorSpec([len(blocks)], tf.int32)
        repeats = tf.TensorSpec([len(chain.stages)], tf.int32)
        images, scale = _images_of(chain), tf.TensorSpec([], tf.float32)
        self.run = _compiled(self._run, images, counts, repeats, scale)

    def route(self, images, applications):
        is_possible = (applications >= 0) & (self.keeps_shape | (applications == 1))
        _check(
            tf.reduce_all(is_possible),
            "`applications` must be 0 or more for each block, and 1 for blocks that change the "
            "shape of the state",
            applications,
        )
        return self._outputs(images, applications)

    def readout(self, images, stage, block):
        is_place = (self.stages == stage) & (self.indices == block) & self.is_exit
        _check(
            tf.reduce_any(is_place),
            "`stage` (from 1) and `block` (from 0) must name a block after which the stage can be "
            "left",
            tf.stack([stage, block]),
        )
        is_left = (self.stages == stage) & (self.indices > block)
        return self._outputs(images, 1 - tf.cast(is_left, tf.int32))

    def repeat_last_block(self, images, stage, times, scale):
        is_stage = np.arange(1, 1 + len(self.can_repeat), dtype=np.int32) == stage
        _check(
            tf.reduce_any(is_stage & self.can_repeat) & (times >= 0),
            "`stage` (from 1) must be one whose last block keeps the shape of the state, and "
            "`times` 0 or more",
            tf.stack([stage, times]),
        )
        applications = tf.ones([len(self.stages)], tf.int32)
        return self._outputs(images, applications, tf.where(is_stage, times, 0), scale)

    def _outputs(self, images, applications, repeats=None, scale=1.0):
        if repeats is None:
            repeats = tf.zeros([len(self.can_repeat)], tf.int32)
        return {OUTPUTS: self.run(images, applications, repeats, tf.convert_to_tensor(scale))}

    def _run(self, images, applications, repeats, scale):
        chain = self.chain
        counts = iter(tf.unstack(applications))
        state = chain.stem(images)
        for stage, extra in zip(chain.stages, tf.unstack(repeats), strict=True):
            state = anchor = state if stage.transition is None else stage.transition(state)
            for block in stage.blocks:
                count = next(counts)
                if block.keeps_shape:
                    state = _repeated(block, state, anchor, count)
                else:
                    state = anchor = block(state, anchor)
            if stage.can_repeat:
                state = _repeated(stage.blocks[-1], state, anchor, extra, scale)
        return chain.head(state)


def _repeated(block, state, anchor, count, scale=None):
    """Applies a block `count` times; a loop that is not entered costs nothing."""

    def once(place, state):
        return place + 1, block(state, anchor, scale)

    _, state = tf.while_loop(lambda place, _: place < count, once, (0, state))
    return state


def _check(is_right, message, value):
    tf.debugging.Assert(is_right, [f"Arguments must be valid: {message}. Received:", value])
