"""Writes networks as SavedModels that can be served and probed without code. TensorFlow only."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Mapping
from importlib import metadata
from typing import TYPE_CHECKING

import tensorflow as tf

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.machine.files import file_above, replacing_folder
from tfresidual.routing.agreement import check_agreement, inputs_to_compare
from tfresidual.routing.gradients import check_no_float8
from tfresidual.routing.scores import OUTPUTS, named_outputs
from tfresidual.sources.saved_model.format import (
    CALLED,
    FORMAT,
    LAYOUT_FILE,
    SERVE,
    is_saved_model,
)
from tfresidual.sources.saved_model.inputs import names_of, of_tensors
from tfresidual.sources.saved_model.pieces import (
    compile_function,
    cut_chain,
    images_of,
    variables_of,
)
from tfresidual.sources.saved_model.signatures import ARGUMENTS, early_signatures, signatures_of

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from tfresidual.networks import Readouts
    from tfresidual.routing import Chain

# All files and folders that can be in the folder of a SavedModel.
SAVED_MODEL_FILES = {
    *("saved_model.pb", "fingerprint.pb", "keras_metadata.pb"),
    *("variables", "assets", "assets.extra"),
}


def write(
    chain: Chain,
    path: Path,
    probing: bool = True,
    inputs: Any = None,
    exits: Readouts | None = None,
    threshold: float | None = None,
) -> None:
    """Writes a chain as a SavedModel; existing files at the path are replaced.

    Raises:
        OSError, tensorflow.errors.OpError: if the SavedModel cannot be written, for example because
            the disk is full.
        ValueError: if the chain computes with something that a SavedModel cannot hold, or if the
            functions to be written differ from the network by more than rounding.
    """
    if chain.prepare is not None:
        chain.prepare()
    root, signatures, layout = parts_to_save(chain, probing, inputs)
    early = {} if exits is None else early_signatures(chain, exits, threshold, inputs)
    signatures, root.variables_of_exits = signatures | early, variables_of(early.values())
    # TensorFlow compiles a `tf.function` once more to save it, but takes a compiled one as it is.
    signatures = {name: function.get_concrete_function() for name, function in signatures.items()}
    with replacing_folder(path) as folder:
        try:
            tf.saved_model.save(root, str(folder), signatures)
        except (AssertionError, KeyError, NotImplementedError, TypeError, ValueError) as error:
            reason = (str(error).splitlines() or [""])[0]
            raise ArgumentError(
                "net",
                "compute only with objects that a SavedModel can hold. TensorFlow says: " + reason,
                received=f"net={chain.name}",
            ) from error
        file = folder / LAYOUT_FILE
        file.parent.mkdir()
        file.write_text(json.dumps(layout, indent=2) + "\n", "utf-8")


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
    if path.is_symlink() or not path.is_dir() or path.name in ("", ".."):
        return "which is something else"
    names = set(os.listdir(path))
    if not names or (names <= SAVED_MODEL_FILES and is_saved_model(path)):
        return None
    return "which is something else"


def parts_to_save(chain, probing=True, inputs=None):
    """Returns the parts of a SavedModel: the `tf.Module`, its signatures, the layout.

    For probing, they are compiled in the first call and kept on the chain.
    """
    _check_names(chain, ARGUMENTS if probing else ())
    if probing:
        check_no_float8(chain)
    root, signatures, layout = (_with_probes if probing else _to_serve)(chain, inputs)
    if not hasattr(root, "resources"):
        # TensorFlow writes only objects that are attributes of the module.
        functions = [*signatures.values(), *getattr(root, "pieces", {}).values()]
        resources = _resources_of(functions)
        if None in resources:
            raise ArgumentError(
                "net",
                "compute with variables, tables and other objects that TensorFlow can write to a "
                "SavedModel",
                received=f"net={chain.name}, which reads a resource that no such object holds",
            )
        root.resources = resources
    return root, signatures, layout


def _resources_of(functions):
    """Returns the objects with the resources that functions read besides variables, or `None`s.

    A function refers only to the handle of a table: as in TensorFlow, the garbage collector finds
    it.
    """
    handles = {}
    for function in functions:
        concrete = function.get_concrete_function()
        of_variables = {id(variable.handle) for variable in concrete.variables}
        for tensor in concrete.captured_inputs:
            if tensor.dtype == tf.resource and id(tensor) not in of_variables:
                handles[id(tensor)] = tensor
    kinds, found = (tf.Variable, tf.saved_model.experimental.TrackableResource), []
    for handle in handles.values():
        near = gc.get_referrers(handle)
        # Some objects refer to the handle only through their `__dict__`.
        around = [*near, *gc.get_referrers(*near)]
        found.append(next((one for one in around if isinstance(one, kinds)), None))
    return found


def _to_serve(chain, inputs):
    root = tf.Module()
    serving = of_tensors(lambda images: {OUTPUTS: chain(images)}, chain.input_shape)
    serve = compile_function(serving, *images_of(chain))
    root.variables_of_network = variables_of([serve])
    _compare(chain, chain, inputs)
    return root, {SERVE: serve}, _header(chain, probing=False)


def _check_names(chain, arguments):
    names = names_of(chain.input_shape)
    for name in names:
        is_usable = isinstance(name, str) and name.isascii() and name.isidentifier()
        if not is_usable or name in arguments or names.count(name) > 1:
            others = f", and differ from {', '.join(map(repr, arguments))}" if arguments else ""
            raise ArgumentError(
                "net",
                "have inputs whose names can be those of arguments: letters, digits and "
                f"underscores, that do not start with a digit, each used once{others}",
                received=f"net={chain.name}, with the inputs {', '.join(map(repr, names))}",
            )


def _header(chain, probing):
    return {
        "format": FORMAT,
        "tfresidual": metadata.version("tfresidual"),
        "probing": probing,
        "name": chain.name,
        "input_shape": _plain(chain.input_shape),
        "input_dtype": _plain(chain.input_dtype),
        "outputs": chain.outputs,
    }


def _plain(structure):
    """Returns shapes or dtypes as JSON holds them: tuples become lists."""
    if isinstance(structure, Mapping):
        return {key: _plain(part) for key, part in structure.items()}
    if isinstance(structure, (tuple, list)):
        return list(map(_plain, structure))
    return structure if structure is None or isinstance(structure, str) else int(structure)


def _with_probes(chain, inputs):
    parameters = {id(weight): weight for weight in chain.weights}
    # Kept on the chain, so that a series of exports compiles nothing twice.
    key = ("export", *images_of(chain))
    if key not in chain.compiled:
        twin, pieces, labels_taken = cut_chain(chain)
        root = tf.Module()
        root.pieces = pieces
        # The TensorFlow variable inside a Keras variable.
        root.parameters = [
            weight if isinstance(weight, tf.Variable) else weight.value
            for weight in parameters.values()
        ]
        root.variables_of_network = variables_of(pieces.values())
        signatures = signatures_of(twin, labels_taken)
        # Those that are known now, after everything was traced; pieces of another SavedModel, which
        # have captures, are not among them.
        called = [one for one in chain.called.values() if not one.captured_inputs]
        setattr(root, CALLED, called)
        chain.compiled[key] = twin, root, pieces, signatures
    twin, root, pieces, signatures = chain.compiled[key]
    _compare(chain, twin, inputs)
    layout = _header(chain, probing=True)
    ignored = getattr(chain.loss, "ignore_class", None)
    places = {key: place for place, key in enumerate(parameters)}
    return (
        root,
        signatures,
        layout
        | {
            "pieces": list(pieces),
            "parameters": len(parameters),
            "notes": chain.notes,
            "outputs_at_positions": chain.outputs_at_positions,
            "ignore_class": None if ignored is None else int(ignored),
            "loss": getattr(chain.loss, "description", None),
            "input_names": list(chain.input_names),
            "label_place": chain.label_place and list(chain.label_place),
            "stages": [
                {"stage": index, "blocks": [_layout_of(block, places) for block in stage.blocks]}
                for index, stage in enumerate(chain.stages, start=1)
            ],
        },
    )


def _layout_of(block, places):
    bounds = None if block.lipschitz is None else block.lipschitz()
    return {
        "keeps_shape": block.keeps_shape,
        "takes_anchor": block.takes_anchor,
        "shortcut": block.shortcut,
        "name": block.name,
        "weights": {role: places[id(weight)] for role, weight in block.weights.items()},
        "lipschitz": bounds and {name: float(value) for name, value in bounds.items()},
    }


def _compare(chain, written, inputs):
    if chain.reference is not None:
        images = inputs_to_compare(chain, inputs)
        check_agreement(chain, images, named_outputs(written(images)))
