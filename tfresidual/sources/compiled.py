"""What a `.keras` file does not keep of the settings of `compile`."""

from __future__ import annotations

import inspect
import json
import zipfile

import keras

from tfresidual.routing.losses import single

# The note on settings that Keras does not restore, such as those of a `compile` of the user's own.
NOT_COMPILED = (
    "the settings of `compile` cannot be loaded: the usual loss for its outputs is used instead"
)
# Arguments without a part in the loss of an image.
_OF_ALL_IMAGES = ("self", "name", "reduction", "dtype", "fn")


def notes_of_file(model, path):
    """Returns notes on a loss that may be another one than that of the model that was saved.

    Args:
        model: the `keras.Model` loaded from a file.
        path: `pathlib.Path` of the `.keras` file.

    Returns:
        A tuple of str.
    """
    loss = single(model.loss)
    if loss is None:
        with zipfile.ZipFile(path) as archive:
            saved = json.loads(archive.read("config.json")).get("compile_config")
        return (NOT_COMPILED,) if saved and saved.get("loss", "unknown") is not None else ()
    losses = keras.tree.flatten(loss) if isinstance(loss, (list, tuple, dict)) else [loss]
    return tuple(
        f"the file does not keep `{name}` of the loss {type(one).__name__}: "
        f"{name}={default!r} is used; if it was another one, load the model, compile it and pass it"
        for one in losses
        for name, default in _unsaved(one).items()
        if name != "axis" or _has_axes(model, one)
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
        # What is not named goes on to the class above.
        if not any(one.kind is one.VAR_KEYWORD for one in arguments):
            break
    return unsaved


def _has_axes(model, loss):
    """Returns whether the axis of a loss can be another one than the last."""
    # Keras computes this one over the last axis alone.
    is_sparse = isinstance(loss, keras.losses.SparseCategoricalCrossentropy)
    return not is_sparse and len(getattr(model, "output_shape", None) or (None,) * 3) > 2
