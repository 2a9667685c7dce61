"""Trains a network and saves the run in a folder from which it can be resumed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import keras
import pandas as pd

from tfresidual.datasets.arrays import ArrayDataset
from tfresidual.datasets.epochs import counts_epochs, set_epoch
from tfresidual.definitions.arguments import ArgumentError, checked_path
from tfresidual.machine.backends import BACKEND, set_random_state
from tfresidual.machine.first_step import traced_once
from tfresidual.machine.locks import locked
from tfresidual.training.checkpoints import Checkpoints, TrainingFolder, opened
from tfresidual.training.exact_match import ExactMatch
from tfresidual.training.gradient_coupling import GradientCoupling
from tfresidual.training.multi_label import MultiLabelCrossentropy
from tfresidual.training.progress import TrainingProgress
from tfresidual.training.recipes import recipe as recipe_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from rich.console import Console

    from tfresidual.definitions.types import Images, RecipeName, StrPath

# Images per step, for arrays; as in `tfresidual.datasets.load`.
BATCH_SIZE = 64


@dataclasses.dataclass(frozen=True)
class Training:
    """Result of a training run.

    Attributes:
        network: the network of the best epoch, compiled.
        log: a `pandas.DataFrame` with a row per epoch.
        best_epoch: int from 0, the epoch with the best validation metric.
        metric: name of that metric without `val_`.
    """

    network: keras.Model
    log: pd.DataFrame
    best_epoch: int
    metric: str


def compile_network(
    network: keras.Model,
    recipe: RecipeName,
    *,
    epochs: int,
    steps_per_epoch: int,
    multi_label: bool = False,
    coupling: float | None = None,
    learning_rate: float | None = None,
    weight_decay: float | None = None,
    l2: float | None = None,
    **kwargs: Any,
) -> str:
    """Compiles a network for classification with the training recipe of a paper.

    Args:
        network: a `keras.Model` whose outputs are probabilities: from a softmax, or, for images
            with several labels, from a sigmoid.
        recipe: see `tfresidual.training.recipe`.
        epochs: number of epochs for which it will be trained.
        steps_per_epoch: number of optimizer steps per epoch.
        multi_label: whether images have several labels. If so, `MultiLabelCrossentropy` and
            `ExactMatch` are used instead of cross-entropy and accuracy.
        coupling: see `GradientCoupling`, or `None` to use the recipe's optimizer alone.
        learning_rate: see `tfresidual.training.recipe`.
        weight_decay: see `tfresidual.training.recipe`.
        l2: see `tfresidual.training.recipe`. It is added after gradients are coupled: each block
            decays its own weights.
        **kwargs: the other arguments of `GradientCoupling`, to be given with `coupling`.

    Returns:
        The name of the metric, a str.
    """
    if coupling is None and kwargs:
        raise ArgumentError("coupling", f"be given with its arguments {[*kwargs]}", coupling)
    found = recipe_of(recipe, learning_rate=learning_rate, weight_decay=weight_decay, l2=l2)
    optimizer = found.optimizer(epochs, steps_per_epoch)
    if coupling is not None:
        optimizer = GradientCoupling(optimizer, coupling, **kwargs)
    if multi_label:
        network.compile(optimizer, MultiLabelCrossentropy(), metrics=[ExactMatch()])
        return "exact_match"
    network.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return "accuracy"


def train(
    network: keras.Model,
    data: Images,
    validation: Images,
    *,
    folder: StrPath,
    epochs: int,
    metric: str,
    callbacks: Iterable[keras.callbacks.Callback] = (),
    console: Console | None = None,
    batch_size: int | None = None,
) -> Training:
    """Trains a compiled network and saves its log, its state and its best epoch in a folder.

    An unfinished training run in the folder resumes after its last complete epoch, with the state
    of the optimizer. A finished run is only read. If the order of the data is determined by the
    epoch, the result is the same as without the interruption: so for arrays, for the data of
    `tfresidual.datasets`, and for a `PyDataset` with a method `set_epoch`, which is called at the
    start of each epoch.

    Args:
        network: a compiled `keras.Model`.
        data: images and labels, finite, see `tfresidual.definitions.types.Images`. A pair of arrays
            is shuffled anew in each epoch.
        validation: the same with other images, used to choose the best epoch.
        folder: where to write the log, the state of the training, and the best network.
        epochs: number of epochs.
        metric: name of the compiled metric whose highest validation value marks the best epoch.
        callbacks: further callbacks; the values they add to `logs` are included in the log.
        console: a `rich.console.Console` for a progress bar, or `None` for no output.
        batch_size: images per step of a pair of arrays, by default 64; not to be given otherwise.

    Raises:
        ValueError: if an argument is invalid, the validation metric is NaN in every epoch, or a
            file in the folder is damaged.
        tfresidual.machine.locks.FolderInUseError: if another process is writing to the folder.
    """
    if batch_size is not None and not (_are_arrays(data) or _are_arrays(validation)):
        raise ArgumentError(
            "batch_size",
            "be given for a pair of arrays only, and not for data in batches",
            received=f"batch_size={batch_size!r}, data of type {type(data).__name__}",
        )
    data = _in_batches(data, batch_size, shuffle=True)
    validation = _in_batches(validation, batch_size)
    if BACKEND == "tensorflow":
        from tfresidual.machine.passes import of_any_size

        validation = of_any_size(validation)
    with locked(checked_path("folder", folder)):
        return _train(network, data, validation, folder, epochs, metric, callbacks, console)


def _train(network, data, validation, folder, epochs, metric, callbacks, console):
    folder = TrainingFolder(folder, f"val_{metric}")
    resumed, done, log = folder.resume()
    network = resumed or network
    if done < epochs:
        checkpoints = Checkpoints(folder, log)
        followers = [*callbacks, _LearningRate()]
        if counts_epochs(data):
            # The order of its images depends on the epoch.
            begin = keras.callbacks.LambdaCallback(
                on_epoch_begin=lambda epoch, logs: set_epoch(data, epoch)
            )
            followers.insert(0, begin)
        if folder.random_state is not None:
            followers.insert(0, _Randomness(folder.random_state))
        if console is not None:
            steps = len(data) if isinstance(data, keras.utils.PyDataset) else data.cardinality()
            followers.append(TrainingProgress(epochs, int(steps), metric, console))
        try:
            with traced_once(network):
                network.fit(
                    data,
                    validation_data=validation,
                    initial_epoch=done,
                    epochs=epochs,
                    # The dataset does its own shuffling.
                    shuffle=False,
                    verbose=0,
                    callbacks=[*followers, checkpoints],
                )
        finally:
            if console is not None:
                followers[-1].close()
        log = checkpoints.log
    best_epoch = folder.best_epoch(log)
    return Training(opened(folder.model_path), log, best_epoch, metric)


def _are_arrays(data):
    return isinstance(data, (tuple, list)) and len(data) == 2


def _in_batches(data, batch_size, shuffle=False):
    """Returns a pair of arrays as batches, and anything else as it is."""
    if not _are_arrays(data):
        return data
    return ArrayDataset(*data, batch_size or BATCH_SIZE, shuffle=shuffle)


class _Randomness(keras.callbacks.Callback):
    """Sets the state of random generators when the first epoch of a resumed training begins.

    What Keras draws from them before, for its iterators, depends on where the training resumes.
    """

    def __init__(self, state):
        super().__init__()
        self.state = state

    def on_epoch_begin(self, epoch, logs=None):
        if self.state is not None:
            set_random_state(self.state)
            self.state = None


class _LearningRate(keras.callbacks.Callback):
    """Adds the learning rate at the start of each epoch to the logs."""

    def on_epoch_begin(self, epoch, logs=None):
        self._rate = float(self.model.optimizer.learning_rate)

    def on_epoch_end(self, epoch, logs=None):
        logs["learning_rate"] = self._rate
