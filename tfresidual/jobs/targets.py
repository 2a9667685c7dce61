"""Finds what is to be probed: a saved network or a series of them, and data that fits it."""

import dataclasses
import os

import numpy as np

from tfresidual import datasets
from tfresidual.definitions.arguments import ArgumentError, checked_path
from tfresidual.jobs.run_folder import (
    MODEL_FILE,
    SETTINGS_FILE,
    read_settings,
    settings_of,
)
from tfresidual.jobs.settings import Settings, describe, with_data_of_file
from tfresidual.routing.scores import is_binary
from tfresidual.sources.saved_model.format import check_whole, is_saved_model, series_of

# What networks of this package are trained on.
USUAL = datasets.PIXELS[0]


def network_of(target):
    """Returns the path of the network that a run's folder, a file or a SavedModel holds."""
    target = checked_path("target", target)
    if is_saved_model(target):
        return target
    path = target / MODEL_FILE if target.is_dir() else target
    if not path.exists():
        raise FileNotFoundError(
            "Argument `target` must be the folder of a run, a .keras file, a SavedModel, or the "
            f"folder of a series of them; there is no {path}. Received: target={str(target)!r}"
        )
    return path


def whole_series(target):
    """Returns `series_of` a folder; a `ValueError` if an entry of the series is damaged."""
    series = series_of(target, is_member=os.path.lexists) if series_of(target) else {}
    for path in series.values():
        check_whole(path)
    return series


def folder_of(path):
    """Returns the default folder for the frames of a network, or of the series in a folder."""
    path = path.absolute()
    if series_of(path):
        return path / "probes"
    is_of_run = path.name == MODEL_FILE and (path.parent / SETTINGS_FILE).exists()
    # Networks in the same folder must not overwrite each other's frames.
    name = path.name if path.is_dir() else path.stem
    return path.parent / "probes" / ("" if is_of_run else name)


def settings_for(target, path, changes):
    """Returns the settings of the run whose folder contains a network, with `changes` applied.

    Outside of such a folder, `changes` must name the data, or a file that holds it, and the other
    settings are the defaults.
    """
    completed = with_data_of_file(changes)
    folder = _run_of(path)
    if folder is not None:
        settings = settings_of(folder)
        if all(
            completed.get(name, own) == own
            for name, own in (("data", settings.data), ("digits", settings.digits))
        ):
            # The file has the images of the run, and may hold more of them.
            completed = changes
    elif "data" in completed:
        settings = Settings()
    else:
        raise ArgumentError(
            "data",
            "be given for a network outside the folder of a run",
            target=str(target),
            data=None,
        )
    changes = completed
    settings = dataclasses.replace(settings, **_other_source(settings, changes), **changes)
    describe(settings)
    return settings


def _run_of(path):
    """Returns the folder of the run that a network belongs to, or `None`."""
    folders = path.absolute().parents[:2]
    return next((folder for folder in folders if (folder / SETTINGS_FILE).exists()), None)


def is_of_run(path):
    """Returns whether a network belongs to a run, whose settings are those of its training."""
    return _run_of(path) is not None


def pixels_for(path):
    """Returns the format of the pixels for a network: that of its run, otherwise the usual one."""
    folder = _run_of(path)
    # Only runs that began with a network from elsewhere have another one.
    network = {} if folder is None else read_settings(folder).get("network", {})
    return network.get("pixels", USUAL)


def _other_source(settings, changes):
    """Returns what `changes` turn off: the source of the images that they replace."""
    if changes.get("data_file") is not None:
        return {} if "data_dir" in changes else {"data_dir": None}
    # The file of the run does not hold the images of another dataset.
    is_other = any(
        getattr(settings, name) != value
        for name, value in changes.items()
        if name in ("data", "digits")
    )
    has_source = changes.get("data_dir") is not None
    if "data_file" not in changes and (is_other or has_source):
        return {"data_file": None}
    return {}


def check_fit(chain, settings, path):
    """Raises a `ValueError` unless data fits a network, by its description: none is loaded."""
    name = f"{chain.name} in {str(path)!r}"
    description = describe(settings)
    shape = description.input_shape
    expected = chain.input_shape
    if len(expected) != len(shape) or any(
        size not in (None, given) for size, given in zip(expected, shape, strict=True)
    ):
        raise ArgumentError(
            "data",
            f"name a dataset of images of shape {expected}, which {name} takes",
            received=f"data={settings.data!r} with images of shape {shape}",
        )
    classes = chain(np.zeros((1, *shape), "float32")).shape[-1]
    has_labels = chain.outputs.startswith("label")
    if is_binary(chain.outputs, classes):
        classes, has_labels = 2, False
    if classes != description.classes or has_labels != description.multi_label:
        kind = "with several labels per image" if has_labels else "with one label per image"
        raise ArgumentError(
            "data",
            f"name a dataset of {classes} classes {kind}, which {name} was made for",
            settings.data,
        )
