"""The format of a SavedModel that can be probed: its files, names and layout."""

import os
import pathlib
import re

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.machine.files import read_json

# The version of the format, which changes when a reader could no longer open what is written.
FORMAT = 1
LAYOUT_FILE = pathlib.PurePath("assets.extra", "tfresidual.json")
GRAPH_FILE = "saved_model.pb"
STEM, CONTEXT, HEAD, LOSS = "stem", "context", "head", "loss"
# The functions of a block. The first is not composed of the others: in bfloat16, TensorFlow would
# round differently than when it compiles the block as a whole.
PARTS = ("apply", "branch", "join")
SERVE = "serving_default"
# The network, where that can be left early.
WHOLE = "whole"
# The attribute with functions that pieces call, from which readers know what is inside these.
CALLED = "called"


def transition_name(stage):
    """Returns the name of the transition function into a stage."""
    return f"stage{stage}/transition"


def block_name(stage, index, part):
    """Returns the name of a function of a block; `part` is one of `PARTS`."""
    return f"stage{stage}/block{index}/{part}"


def check_can_open(name, path):
    """Raises a `ValueError` unless TensorFlow can open a SavedModel at the path in an argument."""
    if unusual := _unusual_in(os.path.abspath(path)):
        raise ArgumentError(
            name,
            "be a path that TensorFlow can open again: it takes `[` and `\\` in the names of "
            f"folders for a pattern, and reads names as UTF-8. {unusual}",
            str(path),
        )


def _unusual_in(path):
    """Returns in words what in a path keeps TensorFlow from opening a SavedModel; empty if none."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return f"{path!r} is not UTF-8."
    # On Windows, the latter separates folders.
    found = [mark for mark in ("[", "\\") if mark in path and mark != os.sep]
    return f"There is {' and '.join(map(repr, found))} in {path!r}." if found else ""


def is_saved_model(path):
    """Returns whether a folder holds a SavedModel, or the remains of one."""
    path = pathlib.Path(path)
    return (path / GRAPH_FILE).exists() or (path / LAYOUT_FILE).exists()


def series_path(folder, epoch):
    """Returns the path of the SavedModel of an epoch (from 1; 0 is before training) in a series."""
    return pathlib.Path(folder) / f"epoch{epoch:04d}"


def series_of(folder, is_member=is_saved_model):
    """Returns the SavedModels of a series by epoch, in order; the folder need not exist."""
    found = {}
    for path in pathlib.Path(folder).glob("epoch*"):
        match = re.fullmatch("epoch([0-9]+)", path.name)
        # Leaves out names such as `epoch1`, which `series_path` does not use.
        if match and path.name == series_path("", int(match[1])).name and is_member(path):
            found[int(match[1])] = path
    return dict(sorted(found.items()))


def check_whole(path):
    """Raises a `ValueError` if it is visible without loading that a folder cannot be probed."""
    layout_of(path)
    for pattern in (GRAPH_FILE, "variables/variables.index", "variables/variables.data-*"):
        if not any(file.stat().st_size for file in path.glob(pattern)):
            must = f"be a complete SavedModel; there is no {pattern} in it"
            raise ArgumentError("source", must, str(path))


def layout_of(path):
    """Reads the layout of a SavedModel for probing, a dict; raises a `ValueError` if it cannot."""
    if not is_saved_model(path):
        raise ArgumentError(
            "source",
            "be the folder of a SavedModel that `tfresidual.export` wrote; there is no "
            f"{GRAPH_FILE} in it",
            str(path),
        )
    if not (path / LAYOUT_FILE).exists():
        raise ArgumentError(
            "source",
            "be a SavedModel that `tfresidual.export` wrote: only these hold what probes need. "
            f"This one has no {LAYOUT_FILE}; `model.export` writes none. Load the model itself "
            "and write it by `tfresidual.export(model, path)`",
            str(path),
        )
    layout = read_json(path / LAYOUT_FILE)
    version, written_by, probing = (layout[key] for key in ("format", "tfresidual", "probing"))
    if version != FORMAT:
        raise ArgumentError(
            "source",
            f"be a SavedModel of format {FORMAT}; tfresidual {written_by} wrote this one",
            received=f"source={str(path)!r} of format {version!r}",
        )
    if not probing:
        raise ArgumentError(
            "source",
            "be a SavedModel with the functions for probing; this one was exported with "
            "`probing=False`",
            str(path),
        )
    return layout
