"""Trains a network into the folder of a run, on every backend of Keras."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import TYPE_CHECKING

import keras

from tfresidual import datasets, training
from tfresidual.definitions.arguments import checked_path
from tfresidual.jobs.building import (
    build,
    compile_for,
    has_blocks_to_couple,
    nothing_to_couple,
)
from tfresidual.jobs.data import prepare
from tfresidual.jobs.run_folder import (
    RESULTS,
    claim,
    refuse_other_backend,
    refuse_other_settings,
    refuse_remains,
)
from tfresidual.jobs.settings import Settings, check, describe
from tfresidual.machine.backends import BACKEND, kernels
from tfresidual.machine.console import say
from tfresidual.machine.locks import locked
from tfresidual.training.checkpoints import TrainingFolder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import Console

    from tfresidual.definitions.types import Images, StrPath

# Images that the callbacks probe after every epoch: enough for stable means, at little cost.
IMAGES_PER_EPOCH = 512


@dataclasses.dataclass(frozen=True)
class _Data:
    train: object
    validation: object
    test: object
    description: datasets.Description


def train(
    folder: StrPath,
    settings: Settings | None = None,
    console: Console | None = None,
    callbacks: Callable[[dict[str, Images]], Iterable[keras.callbacks.Callback]] | None = None,
) -> training.Training:
    """Trains a network into a folder, without probing it; see `tfresidual.jobs.study.run` for it.

    On TensorFlow, the metrics of every block are logged in every epoch, unless `callbacks` is
    given. On other backends they are not: `tfresidual.jobs.probing.probe` measures those of the
    trained network, on TensorFlow.

    Args:
        folder: where to write; created if it does not exist.
        settings: a `Settings`, by default those of the embedded study.
        console: a `rich.console.Console` for progress, or `None` for no output.
        callbacks: function that takes a few images, a dict from `"train"` (not augmented) and
            `"validation"` to a `tf.data.Dataset` or, on other backends than TensorFlow, a
            `tfresidual.datasets.ArrayDataset`, and returns a list of callbacks whose numbers are
            logged; by default those of a study.

    Returns:
        A `tfresidual.training.Training`.

    Raises:
        ValueError: if a setting cannot be used, the folder holds a run with other settings or one
            that another backend has not finished, or a file in it is damaged.
        tfresidual.machine.locks.FolderInUseError: if another process is writing to the folder.
        FileNotFoundError: if the dataset is not on the disk, or parts of the run are missing.
    """
    settings, folder = settings or Settings(), checked_path("folder", folder)
    check(settings)
    with locked(folder):
        return train_locked(folder, settings, console, callbacks)[1]


def train_locked(folder, settings, console, callbacks=None):
    """Does the same with checked settings in a locked folder; returns `_Data` and `Training`."""
    refuse_other_settings(folder, {"settings": settings})
    keras.utils.set_random_seed(settings.seed)
    network = build(settings)
    if settings.coupling is not None and not has_blocks_to_couple(network, settings):
        raise nothing_to_couple(settings, f"network={network.name}")
    description = describe(settings)
    done = TrainingFolder(folder, "").epochs()
    if not done:
        refuse_remains(folder, RESULTS, "checkpoints")
    refuse_other_backend(folder, done, settings.epochs)
    say(console, f"convolutions run on kernels of {kernels()}")
    data = _Data(*prepare(settings, console), description)
    # The settings are valid, so the folder now belongs to this run.
    claim(folder, {"settings": settings})
    metric = compile_for(network, settings, len(data.train))
    batches = batches_of(IMAGES_PER_EPOCH, settings)
    few = {
        "train": datasets.plain(data.train).take(batches),
        "validation": data.validation.take(batches),
    }
    if callbacks is None:
        callbacks = functools.partial(
            _watching, settings=settings, console=console if done < settings.epochs else None
        )
    result = training.train(
        network,
        data.train,
        data.validation,
        folder=folder,
        epochs=settings.epochs,
        metric=metric,
        callbacks=list(callbacks(few)),
        console=console,
    )
    return data, result


def batches_of(images, settings):
    """Returns how many batches hold a number of images."""
    return math.ceil(images / settings.batch_size)


def _watching(images, settings, console):
    """Returns the callbacks that log the metrics of the blocks, where there are any."""
    if BACKEND != "tensorflow":
        say(console, "without the metrics of the blocks, which are measured on TensorFlow only")
        return []
    # Probes are loaded on TensorFlow only.
    from tfresidual import callbacks

    data = images["validation"]
    perturbation = callbacks.Perturbation(data, epsilon=settings.epsilon)
    return [callbacks.BlockMetrics(data), perturbation, callbacks.Readout(data)]
