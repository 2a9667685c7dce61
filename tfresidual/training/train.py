"""Trains a network into a folder, from where it was left."""

import dataclasses

import keras
import pandas as pd

from tfresidual.arguments import check_bool, check_int
from tfresidual.files import checked_path
from tfresidual.locks import locked
from tfresidual.training.checkpoints import Checkpoints, TrainingFolder, opened
from tfresidual.training.exact_match import ExactMatch
from tfresidual.training.gradient_coupling import GradientCoupling
from tfresidual.training.multi_label import MultiLabelCrossentropy
from tfresidual.training.progress import TrainingProgress
from tfresidual.training.recipes import recipe as recipe_of


@dataclasses.dataclass(frozen=True)
class Training:
    """What a training ended with.

    Attributes:
        network: the network of the best epoch, compiled.
        log: a `pandas.DataFrame` with a row per epoch.
        best_epoch: int from 0, the epoch whose validation metric was best.
        metric: name of that metric without `val_`.
    """

    network: keras.Model
    log: pd.DataFrame
    best_epoch: int
    metric: str


def compile_network(
    network, recipe, epochs, steps_per_epoch, multi_label=False, coupling=None, **kwargs
):
    """Compiles a network for classification, the way a paper trains it.

    Args:
        network: a `keras.Model` whose outputs are probabilities: of a softmax, or, for images
            with several labels, of a sigmoid.
        recipe: name of a recipe, see `tfresidual.training.recipe`.
        epochs: int, how long it will be trained.
        steps_per_epoch: int, optimizer steps in an epoch.
        multi_label: whether images have several labels: `MultiLabelCrossentropy` and
            `ExactMatch` then take the place of cross-entropy and accuracy.
        coupling: float in [0, 1], how far the blocks of a stage share their gradients, or `None`
            for the recipe's optimizer alone.
        **kwargs: the other arguments of `GradientCoupling`.

    Returns:
        The name of the metric.

    Raises:
        ValueError: if there is no such recipe, an argument cannot be used, or arguments of
            `GradientCoupling` are given without `coupling`.
    """
    multi_label = check_bool("multi_label", multi_label)
    if coupling is None and kwargs:
        received = ", ".join(f"{name}={value!r}" for name, value in kwargs.items())
        raise ValueError(
            f"Arguments of `GradientCoupling` must go with `coupling`. Received: {received}, "
            "coupling=None"
        )
    optimizer = recipe_of(recipe).optimizer(epochs, steps_per_epoch)
    if coupling is not None:
        optimizer = GradientCoupling(optimizer, coupling, **kwargs)
    if multi_label:
        network.compile(optimizer, MultiLabelCrossentropy(), metrics=[ExactMatch()])
        return "exact_match"
    network.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return "accuracy"


def train(network, data, validation, folder, epochs, metric, callbacks=(), console=None):
    """Trains a compiled network and keeps its log, its state and its best epoch in a folder.

    A folder that holds an unfinished training goes on behind its last whole epoch, with the
    optimizer's state and the log unbroken; one that holds a finished training is read. With data
    whose order follows from the epoch (a callback that calls `tfresidual.datasets.set_epoch`) the
    result is the same as without the interruption.

    Args:
        network: a compiled `keras.Model`.
        data: a finite `tf.data.Dataset` of batches `(images, labels)`.
        validation: the same of other images, which choose the best epoch.
        folder: where to write, see `TrainingFolder`.
        epochs: int, how long to train.
        metric: name of the compiled metric whose highest validation value marks the best epoch.
        callbacks: further callbacks; what they publish in `logs` is in the log.
        console: a `rich.console.Console` for a progress bar, or `None` for silence.

    Returns:
        A `Training`.

    Raises:
        ValueError: if `epochs` is not a positive int, or the validation metric was never a
            number; or a file in the folder is damaged.
        tfresidual.locks.FolderInUseError: if another process writes to the folder.
    """
    epochs = check_int("epochs", epochs, at_least=1)
    with locked(checked_path("folder", folder)):
        return _train(network, data, validation, folder, epochs, metric, callbacks, console)


def _train(network, data, validation, folder, epochs, metric, callbacks, console):
    folder = TrainingFolder(folder, f"val_{metric}")
    resumed, done, log = folder.resume()
    network = resumed or network
    if done < epochs:
        checkpoints = Checkpoints(folder, log)
        followers = [*callbacks, _LearningRate()]
        if console is not None:
            followers.append(TrainingProgress(epochs, int(data.cardinality()), metric, console))
        try:
            network.fit(
                data,
                validation_data=validation,
                initial_epoch=done,
                epochs=epochs,
                # The dataset shuffles itself.
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


class _LearningRate(keras.callbacks.Callback):
    """Publishes the learning rate with which the epoch began."""

    def on_epoch_begin(self, epoch, logs=None):
        self._rate = float(self.model.optimizer.learning_rate)

    def on_epoch_end(self, epoch, logs=None):
        logs["learning_rate"] = self._rate
