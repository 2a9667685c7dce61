"""Models in `.keras` files, with notes on settings of `compile` that a file does not keep."""

from __future__ import annotations

import inspect
import json
import zipfile

import keras

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.routing.losses import single

# The errors that Keras raises for files that it cannot read.
DAMAGED = (
    *(OSError, ValueError, KeyError, AttributeError, IndexError, TypeError, RuntimeError),
    *(ArithmeticError, zipfile.BadZipFile),
)
# The note on settings that Keras does not restore, such as those of a `compile` of the user's own.
NOT_COMPILED = (
    "the settings of `compile` cannot be loaded: the usual loss for its outputs is used instead. "
    "Load the model, compile it with its own loss, and pass it"
)
# Arguments without a part in the loss of an image.
_OF_ALL_IMAGES = ("self", "name", "reduction", "dtype", "fn")
# Keras computes this one over the last axis alone.
_OVER_LAST_AXIS = keras.losses.SparseCategoricalCrossentropy
# What can be done with files of weights or of a former format, by the end of their names.
_OF_WEIGHTS = ". It holds weights alone: build the model, `model.load_weights`, and pass it"
_WAYS_OUT = {
    ".weights.h5": _OF_WEIGHTS,
    ".weights.json": _OF_WEIGHTS,
    ".h5": ". Load this one by `keras.models.load_model`, and pass the model",
    ".hdf5": ". Load this one by `keras.models.load_model`, and pass the model",
}


def model_in(path):
    """Returns the model in a `.keras` file, and notes on parts that are not those of the saved one.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if it is another file, damaged, or holds what is not known here.
    """
    if not path.exists():
        raise FileNotFoundError(
            "Argument `source` must be the path of a .keras file or of a SavedModel. "
            f"Received: source={str(path)!r}, which does not exist"
        )
    if path.suffix != ".keras":
        way = next((way for end, way in _WAYS_OUT.items() if path.name.endswith(end)), "")
        must = f"be the path of a .keras file, as `model.save` writes it{way}"
        raise ArgumentError("source", must, received=f"source={str(path)!r}")
    # Keras says that a damaged file does not exist.
    if not _is_archive(path):
        raise _unreadable(path, "it is not an archive, or has no config.json")
    try:
        model = keras.saving.load_model(path, compile=False)
        with zipfile.ZipFile(path) as archive:
            settings = json.loads(archive.read("config.json")).get("compile_config")
    except DAMAGED as error:
        raise _unreadable(path, error) from error
    try:
        # Perhaps the loss, metrics or optimizer of the model are unknown here.
        if settings:
            model.compile_from_config(settings)
    except DAMAGED:
        return model, (NOT_COMPILED,)
    return model, _notes_on_loss(model, settings)


def _is_archive(path):
    # An unreadable file is not necessarily damaged.
    with path.open("rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return "config.json" in archive.namelist()
        except (zipfile.BadZipFile, NotImplementedError):
            # A damaged version number is a version that Python cannot read.
            return False


def _unreadable(path, reason):
    (reason, *_) = str(reason).strip().splitlines() or [""]
    return ArgumentError(
        "source",
        "be the path of a complete .keras file whose classes are known here; load a model with "
        "custom layers, or with `Lambda`, by `keras.saving.load_model` and pass the model",
        received=f"source={str(path)!r}, which is damaged, or has unknown classes: {reason}",
    )


def _notes_on_loss(model, settings):
    loss = single(model.loss)
    if loss is None:
        is_lost = settings and settings.get("loss", "unknown") is not None
        return (NOT_COMPILED,) if is_lost else ()
    # Whether the axis of a loss can be another one than the last.
    has_axes = len(getattr(model, "output_shape", None) or (None,) * 3) > 2
    losses = keras.tree.flatten(loss) if isinstance(loss, (list, tuple, dict)) else [loss]
    return tuple(
        f"the file does not keep `{name}` of the loss {type(one).__name__}: "
        f"{name}={default!r} is used; if it was another one, load the model, compile it and pass it"
        for one in losses
        for name, default in _unsaved(one).items()
        if name != "axis" or (has_axes and not isinstance(one, _OVER_LAST_AXIS))
    )


def _unsaved(loss):
    """Returns the arguments of a loss object that its config does not hold, with their defaults."""
    parents = type(loss).__mro__
    maker = next((parent for parent in parents if "from_config" in vars(parent)), None)
    # What a class of the user's own makes of its config cannot be seen.
    if maker is None or maker.__module__.partition(".")[0] != "keras":
        return {}
    saved, unsaved = loss.get_config(), {}
    for parent in parents:
        if "__init__" not in vars(parent):
            continue
        arguments = inspect.signature(parent.__init__).parameters.values()
        for one in arguments:
            is_named = one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
            if is_named and one.name not in (*saved, *_OF_ALL_IMAGES, *unsaved):
                unsaved[one.name] = one.default
        # Other arguments are passed to the base class.
        if not any(one.kind is one.VAR_KEYWORD for one in arguments):
            break
    return unsaved
