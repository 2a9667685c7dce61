"""Models in `.keras` files, with notes on settings of `compile` that a file does not keep."""

from __future__ import annotations

import json
import zipfile

import keras

from tfresidual.definitions.arguments import ArgumentError
from tfresidual.machine.files import damaged
from tfresidual.routing.losses import single

# The note on settings that Keras does not restore, such as those of a `compile` of the user's own.
NOT_COMPILED = (
    "the settings of `compile` cannot be loaded: the usual loss for its outputs is used instead. "
    "Load the model, compile it with its own loss, and pass it"
)
# Arguments of losses that their configuration lacks.
_UNSAVED = {keras.losses.Huber: "delta", keras.losses.CosineSimilarity: "axis"}
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
        ValueError: if it is another file; Keras' own errors for damaged files and unknown classes.
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
    try:
        with zipfile.ZipFile(path) as archive:
            settings = json.loads(archive.read("config.json")).get("compile_config")
    except zipfile.BadZipFile as error:
        raise damaged(path, error) from error
    model = keras.saving.load_model(path, compile=False)
    try:
        # Perhaps the loss, metrics or optimizer of the model are unknown here.
        if settings:
            model.compile_from_config(settings)
    except (ValueError, TypeError, KeyError, AttributeError):
        return model, (NOT_COMPILED,)
    return model, _notes_on_loss(model, settings)


def _notes_on_loss(model, settings):
    loss = single(model.loss)
    if loss is None:
        is_lost = settings and settings.get("loss", "unknown") is not None
        return (NOT_COMPILED,) if is_lost else ()
    # Whether the axis of a loss can be another one than the last.
    has_axes = len(getattr(model, "output_shape", None) or (None,) * 3) > 2
    losses = keras.tree.flatten(loss) if isinstance(loss, (list, tuple, dict)) else [loss]
    lost = [(kind, name) for kind, name in _UNSAVED.items() if name != "axis" or has_axes]
    return tuple(
        f"the file does not keep `{name}` of the loss {type(one).__name__}: its default is used. "
        "If it was another one, load the model, compile it and pass it"
        for one in losses
        for kind, name in lost
        if isinstance(one, kind)
    )
