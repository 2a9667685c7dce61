"""The epochs of training data, and the data without them."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from tfresidual.datasets.arrays import ArrayDataset
from tfresidual.definitions.arguments import ArgumentError

if TYPE_CHECKING:
    from tfresidual.definitions.types import Dataset

# Attributes of a training pipeline.
_EPOCH, _PLAIN = "_tfresidual_epoch", "_tfresidual_plain"

_Data = TypeVar("_Data", bound="Dataset | ArrayDataset")


def set_epoch(train: Dataset | ArrayDataset, epoch: int) -> None:
    """Sets the epoch of the next iteration over training data; counting continues from there.

    `tfresidual.training.train` calls it at the start of every epoch.

    Args:
        train: The training pipeline that `load` returned, an `ArrayDataset`, or a
            `keras.utils.PyDataset` with a method of this name.
        epoch: Non-negative integer.

    Raises:
        ValueError: If `train` is anything else (a pipeline derived from it does not count epochs),
            or `epoch` is negative or not an integer.
    """
    if hasattr(train, "set_epoch"):
        train.set_epoch(epoch)
    else:
        _remembered(train, _EPOCH).assign(epoch)


def counts_epochs(data: object) -> bool:
    """Returns whether data takes `set_epoch`; its order then depends on the epoch."""
    return hasattr(data, "set_epoch") or hasattr(data, _EPOCH)


def plain(train: _Data) -> _Data:
    """Returns the images of training data for the probes: unshuffled and not augmented.

    Example:

    >>> from tfresidual.datasets import load
    >>> train, test = load("digitclutter", 32, train_size=64, test_size=32, data_dir="data")
    >>> splits = {"train": plain(train).take(8), "test": test.take(8)}

    Args:
        train: The training pipeline that `load` returned, or an `ArrayDataset`.

    Returns:
        A `tf.data.Dataset` of batches, or an `ArrayDataset`, the same in every iteration.
    """
    return train.plain() if isinstance(train, ArrayDataset) else _remembered(train, _PLAIN)


def remember(train, epoch, fixed):
    """Gives a pipeline the variable that counts its epochs, and its images as `plain` has them."""
    setattr(train, _EPOCH, epoch)
    setattr(train, _PLAIN, fixed)


def _remembered(train, name):
    if not hasattr(train, name):
        raise ArgumentError(
            "train", "be the training dataset that `load` or `load_file` returned", train
        )
    return getattr(train, name)
