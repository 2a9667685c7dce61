"""The format of a SavedModel that can be probed: its files, names and layout."""

import json
import os
import pathlib
import re

import keras
import tensorflow as tf
from google.protobuf.message import DecodeError

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.routing.chain import OUTPUT_KINDS

# The version of the format. A reader accepts its own version and older ones. Version 2 is written
# only for what a reader of version 1 could not open, or would get wrong: a context, several inputs
# or inputs of whole numbers, classes per position, and a loss of one's own that ignores a class. It
# has the further keys `input_dtype` and, with the functions for probing, `ignore_class`.
FORMAT = 2
FIRST_FORMAT = 1
LAYOUT_FILE = pathlib.PurePath("assets.extra", "tfresidual.json")
GRAPH_FILE = "saved_model.pb"
STEM, CONTEXT, HEAD, LOSS = "stem", "context", "head", "loss"
# The functions of a block. The first is not composed of the others: in bfloat16, TensorFlow would
# round differently than when it compiles the block as a whole.
PARTS = ("apply", "branch", "join")
# The errors that TensorFlow and the construction of the chain raise if something is missing or
# damaged.
UNREADABLE = (
    *(OSError, ValueError, KeyError, AttributeError, IndexError, TypeError),
    *(ArithmeticError, RecursionError),
    *(tf.errors.OpError, DecodeError),
)
SERVE = "serving_default"
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
            raise damaged(path, FileNotFoundError(f"there is no {pattern} in it"))


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
    try:
        layout = json.loads((path / LAYOUT_FILE).read_bytes())
        version, written_by = layout["format"], layout["tfresidual"]
        is_for_probing = layout["probing"]
        _require(_is_count(version) and version > 0, "format")
        if version <= FORMAT:
            _check_layout(layout)
    except PermissionError:
        # An unreadable file is not necessarily damaged.
        raise
    except UNREADABLE as error:
        raise damaged(path, error) from error
    if version > FORMAT:
        raise ArgumentError(
            "source",
            f"be a SavedModel of format {FORMAT} or older; tfresidual {written_by} wrote a newer "
            "one. Update tfresidual",
            said=f"source={str(path)!r} of format {version!r}",
        )
    if not is_for_probing:
        raise ArgumentError(
            "source",
            "be a SavedModel with the functions for probing; this one was exported with "
            "`probing=False`",
            str(path),
        )
    return layout


def _check_layout(layout):
    """Raises an error unless a layout holds everything that a chain needs, in the right types."""
    _require_kinds(layout, probing=bool, name=str)
    _require(layout["outputs"] in OUTPUT_KINDS, "outputs")
    shapes = layout["input_shape"]
    if layout["format"] == FIRST_FORMAT:
        _require(_is_shape(shapes), "input_shape")
    else:
        _require(_are_shapes(shapes), "input_shape")
        _require(_are_dtypes(layout["input_dtype"], shapes), "input_dtype")
    if not layout["probing"]:
        return
    _require_kinds(layout, notes=list, pieces=list, loss=dict | None, stages=list)
    # Those of earlier versions lack these.
    of_earlier = {"outputs_at_positions": True, "arrangement": None}
    _require_kinds(of_earlier | layout, outputs_at_positions=bool, arrangement=dict | None)
    pieces, count, stages = layout["pieces"], layout["parameters"], layout["stages"]
    _require(all(isinstance(note, str) for note in layout["notes"]), "notes")
    _require({STEM, HEAD} <= set(pieces), "pieces")
    _require(_is_count(count), "parameters")
    if layout["format"] > FIRST_FORMAT:
        ignored = layout["ignore_class"]
        _require(ignored is None or _is_count(abs(ignored)), "ignore_class")
    _require(len(stages) > 0, "stages")
    for number, stage in enumerate(stages, start=1):
        _require(stage["stage"] == number, "stage")
        _require_kinds(stage, blocks=list)
        for index, block in enumerate(stage["blocks"]):
            parts = {part for part in PARTS if block_name(number, index, part) in pieces}
            _require("apply" in parts and len(parts) != 2, f"pieces of block {index}")
            _require_kinds(block, keeps_shape=bool, takes_anchor=bool, lipschitz=dict | None)
            _require_kinds(block, shortcut=str | None, name=str | None)
            places, bounds = block["weights"].values(), (block["lipschitz"] or {}).values()
            _require(all(_is_count(place) and place < count for place in places), "weights")
            _require(all(isinstance(one, int | float) for one in bounds), "lipschitz")
    numbers = {name.split("/")[0] for name in pieces if name.startswith("stage")}
    _require(numbers <= {f"stage{number}" for number in range(1, len(stages) + 1)}, "pieces")


def _require(is_right, name):
    if not is_right:
        raise ValueError(f"{LAYOUT_FILE.name}: {name!r} is not as expected")


def _require_kinds(layout, **kinds):
    for name, kind in kinds.items():
        _require(isinstance(layout[name], kind), name)


def _is_shape(value):
    return isinstance(value, list) and all(size is None or _is_count(size) for size in value)


def _are_shapes(value):
    """Returns whether something is the shape of an input, or a list or dict of such."""
    parts = value.values() if isinstance(value, dict) else value
    is_several = isinstance(value, (dict, list)) and len(parts) > 0
    return _is_shape(value) or (is_several and all(map(_are_shapes, parts)))


def _are_dtypes(value, shapes):
    """Returns whether something has the structure of some shapes, with dtypes at their places."""
    if _is_shape(shapes):
        return isinstance(value, str) and bool(keras.backend.standardize_dtype(value))
    if isinstance(shapes, dict):
        is_alike = isinstance(value, dict) and set(value) == set(shapes)
        return is_alike and all(_are_dtypes(value[key], shapes[key]) for key in shapes)
    return (
        isinstance(value, list)
        and len(value) == len(shapes)
        and all(map(_are_dtypes, value, shapes))
    )


def _is_count(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def damaged(path, error):
    """Returns the error of a SavedModel that cannot be opened: damaged, or where it is."""
    if unusual := _unusual_in(str(path)):
        return ArgumentError(
            "source", f"be a path that TensorFlow can open. {unusual} Rename it", str(path)
        )
    reason = str(error).strip().splitlines()
    return ArgumentError(
        "source",
        f"be a complete SavedModel; this one is damaged or incomplete ({type(error).__name__}: "
        f"{reason[0] if reason else ''})",
        str(path),
    )
