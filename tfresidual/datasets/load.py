"""Ready-to-train pipelines for CIFAR-10, CIFAR-100, MNIST and Digitclutter."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import tensorflow as tf

from tfresidual.arguments import check_bool, check_choice, check_int, checked_path, is_int
from tfresidual.datasets.builders import digitclutter_builder, folder_of, public_builder, read_split
from tfresidual.datasets.pipelines import (
    epoch_counter,
    fixed_pipeline,
    in_memory,
    training_pipeline,
)
from tfresidual.machine.files import check_folder

if TYPE_CHECKING:
    from tfresidual.types import Dataset, DatasetName, Pixels, StrPath

__all__ = ["Description", "describe", "load", "plain", "set_epoch"]


@dataclasses.dataclass(frozen=True)
class Description:
    """Description of a dataset.

    Attributes:
        name: String, as for `load`.
        input_shape: Height, width and channels of an image.
        classes: Integer, the number of classes.
        multi_label: Whether an image belongs to several classes at once (the labels are then
            k-hot).
        digits: The number of digits on each image of Digitclutter, otherwise None.
        chance_error: Error rate of guessing: `1 - 1 / classes`, or for Digitclutter, where all n
            digits must be named, `1 - 1 / C(10, n)`.
        title: String for headings.
    """

    name: DatasetName
    input_shape: tuple[int, int, int]
    classes: int
    multi_label: bool
    digits: int | None
    chance_error: float
    title: str


_TITLES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "mnist": "MNIST",
    "digitclutter": "Digitclutter",
}
_SIZES = {"cifar10": (50_000, 10_000), "cifar100": (50_000, 10_000), "mnist": (60_000, 10_000)}

# Mean and standard deviation of the training images per channel, on a scale where 255 is 1. CIFAR
# and MNIST: the values in common use. Digitclutter: our own measurements, over the first 100,000
# training images of seed 0, for 3, 4 and 5 digits.
_STATISTICS: dict[str, Any] = {
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "mnist": ((0.1307,), (0.3081,)),
    "digitclutter": {
        3: ((0.4492,), (0.2845,)),
        4: ((0.4493,), (0.3032,)),
        5: ((0.4504,), (0.3163,)),
    },
}

# Used in place of the standard deviation: a pixel, up to 255, is divided by 255 times this value.
_UNITS = {"0-1": 1.0, "0-255": 1 / 255}
PIXELS = ("standardized", *_UNITS)


def describe(name: DatasetName, digits: int = 3) -> Description:
    """Describes a dataset without loading its data.

    Args:
        name: `"cifar10"`, `"cifar100"`, `"mnist"` or `"digitclutter"`.
        digits: 3, 4 or 5, the number of digits on each image of Digitclutter. Other datasets ignore
            it.

    Returns:
        A `Description`.

    Raises:
        ValueError: If there is no such dataset.

    Example:

    >>> describe("cifar10").input_shape
    (32, 32, 3)
    """
    _check_name(name, digits)
    if name == "digitclutter":
        return Description(
            name=name,
            input_shape=(32, 32, 1),
            classes=10,
            multi_label=True,
            digits=int(digits),
            chance_error=1 - 1 / math.comb(10, int(digits)),
            title=f"Digitclutter, {digits} digits",
        )
    classes = 100 if name == "cifar100" else 10
    return Description(
        name=name,
        input_shape=(28, 28, 1) if name == "mnist" else (32, 32, 3),
        classes=classes,
        multi_label=False,
        digits=None,
        chance_error=1 - 1 / classes,
        title=_TITLES[name],
    )


@overload
def load(
    name: DatasetName,
    batch_size: int = 64,
    *,
    digits: int = 3,
    train_size: int | None = None,
    test_size: int | None = None,
    validation: None = None,
    augment: bool | None = None,
    shuffle: bool = True,
    seed: int = 0,
    data_dir: StrPath | None = None,
    download: bool = False,
    pixels: Pixels = "standardized",
) -> tuple[Dataset, Dataset]: ...


@overload
def load(
    name: DatasetName,
    batch_size: int = 64,
    *,
    digits: int = 3,
    train_size: int | None = None,
    test_size: int | None = None,
    validation: float,
    augment: bool | None = None,
    shuffle: bool = True,
    seed: int = 0,
    data_dir: StrPath | None = None,
    download: bool = False,
    pixels: Pixels = "standardized",
) -> tuple[Dataset, Dataset, Dataset]: ...


def load(
    name: DatasetName,
    batch_size: int = 64,
    *,
    digits: int = 3,
    train_size: int | None = None,
    test_size: int | None = None,
    validation: float | None = None,
    augment: bool | None = None,
    shuffle: bool = True,
    seed: int = 0,
    data_dir: StrPath | None = None,
    download: bool = False,
    pixels: Pixels = "standardized",
) -> tuple[Dataset, Dataset] | tuple[Dataset, Dataset, Dataset]:
    """Loads a dataset as `tf.data` pipelines for `model.fit` and the probes.

    The images are read into memory once, as uint8. Elements are batches `(images, labels)`: images
    are float32 `[B, H, W, C]`; by default, each channel is standardized with the mean and standard
    deviation of the training set. Labels are int64 `[B]`, or for Digitclutter k-hot float32
    `[B, 10]`. The last batch may be smaller.

    The training pipeline counts epochs: each iteration over it is the next epoch. Order and
    augmentation of epoch e are determined by `seed` and e alone; `set_epoch` sets e.

    Args:
        name: `"cifar10"`, `"cifar100"`, `"mnist"` or `"digitclutter"`.
        batch_size: Positive integer.
        digits: 3, 4 or 5, the number of digits on each image of Digitclutter. Other datasets ignore
            it.
        train_size: Number of images to train on, taken from the start of the training set. None
            means all that are not held out for validation, or the first 20,000 of Digitclutter.
        test_size: Number of test images, taken from the start of the test set. None means all, or
            the first 2,000 of Digitclutter.
        validation: Number of images to hold out, or a fraction of the training images between 0 and
            1. They are the last images of the training set; Digitclutter has separate validation
            images. With None, no images are held out.
        augment: Whether to flip and crop the training images at random
            (`tfresidual.datasets.augmentation`). None does so only for CIFAR, as in the papers;
            True also does so for digits.
        shuffle: Whether to shuffle the training images, across the whole set.
        seed: Non-negative integer, determines order and augmentation. The images of Digitclutter
            are the same for all seeds.
        data_dir: Data directory of tensorflow-datasets; None means its default,
            `~/tensorflow_datasets`. Digitclutter is drawn into it on the first call.
        download: Whether tensorflow-datasets may download missing data.
        pixels: Scale of the pixel values: `"standardized"`, `"0-1"` or `"0-255"`. The latter two
            are for networks that were trained elsewhere.

    Returns:
        `(train, test)`, or `(train, validation, test)` if `validation` is given.

    Raises:
        ValueError: If an argument is out of range, or the data on disk is damaged.
        FileNotFoundError: If the data is not in `data_dir` and `download` is False.
        OSError: If the data cannot be read or written.

    Example:

    >>> train, test = load("digitclutter", 32, train_size=64, test_size=32, data_dir="data")
    >>> images, labels = next(iter(train))
    >>> images.shape, labels.shape
    (TensorShape([32, 32, 32, 1]), TensorShape([32, 10]))
    """
    _check_name(name, digits)
    batch_size = check_int("batch_size", batch_size, at_least=1)
    seed = check_int("seed", seed, at_least=0, at_most=None)
    if augment is not None:
        augment = check_bool("augment", augment)
    shuffle, download = check_bool("shuffle", shuffle), check_bool("download", download)
    check_choice("pixels", pixels, PIXELS)
    train_size, validation_size, test_size = sizes_of(name, train_size, validation, test_size)

    if data_dir is not None:
        checked_path("data_dir", data_dir)
    check_folder("data_dir", folder_of(data_dir))
    if name == "digitclutter":
        builder = digitclutter_builder(digits, train_size, validation_size, test_size, data_dir)
        held_out = f"validation[:{validation_size}]"
        mean, deviation = _STATISTICS[name][digits]
    else:
        builder = public_builder(name, _TITLES[name], data_dir, download)
        held_out = f"train[-{validation_size}:]"
        mean, deviation = _STATISTICS[name]
    if augment is None:
        augment = name in ("cifar10", "cifar100")

    if pixels != "standardized":
        mean, deviation = np.zeros_like(mean), np.full_like(deviation, _UNITS[pixels])

    def normalise(images, labels):
        scale = 1 / (255 * np.array(deviation))
        images = tf.cast(images, tf.float32) * scale.astype(np.float32)
        images -= (np.array(mean) / deviation).astype(np.float32)
        return images, tf.cast(labels, tf.float32 if labels.shape.rank == 2 else tf.int64)

    def fixed(split):
        return fixed_pipeline(*in_memory(*read_split(builder, split)), batch_size, normalise)

    epoch = epoch_counter()
    images, labels = in_memory(*read_split(builder, f"train[:{train_size}]"))
    train = training_pipeline(images, labels, batch_size, epoch, seed, shuffle, augment, normalise)
    train._tfresidual_epoch = epoch
    train._tfresidual_plain = fixed_pipeline(images, labels, batch_size, normalise)
    test = fixed(f"test[:{test_size}]")
    if validation is None:
        return train, test
    return train, fixed(held_out), test


def set_epoch(train: Dataset, epoch: int) -> None:
    """Sets the epoch of the next iteration of a training pipeline; counting continues from there.

    Args:
        train: The training pipeline, as returned by `load`.
        epoch: Non-negative integer.

    Raises:
        ValueError: If `train` is anything else (a pipeline derived from it does not count epochs),
            or `epoch` is negative or not an integer.
    """
    counter = _remembered(train, "_tfresidual_epoch")
    counter.assign(check_int("epoch", epoch, at_least=0))


def plain(train: Dataset) -> Dataset:
    """Returns the images of a training pipeline for the probes: unshuffled and not augmented.

    Example:

    >>> train, test = load("digitclutter", 32, train_size=64, test_size=32, data_dir="data")
    >>> splits = {"train": plain(train).take(8), "test": test.take(8)}

    Args:
        train: The training pipeline, as returned by `load`.

    Returns:
        A `tf.data.Dataset` of batches, the same in every iteration.

    Raises:
        ValueError: If `train` is anything else.
    """
    return _remembered(train, "_tfresidual_plain")


def _remembered(train, name):
    """Returns an attribute that `load` set on a training pipeline."""
    if not hasattr(train, name):
        raise ValueError(
            "Argument `train` must be the training dataset that `load` returned. Received: "
            f"train={train!r}"
        )
    return getattr(train, name)


def _check_name(name, digits):
    check_choice("name", name, _TITLES)
    if name == "digitclutter" and not (is_int(digits) and digits in (3, 4, 5)):
        raise ValueError(f"Argument `digits` must be 3, 4 or 5. Received: digits={digits!r}")


def sizes_of(name, train_size, validation, test_size):
    """Returns the numbers of images for training, validation and test; `None` means default."""
    available, available_test = _SIZES.get(name, (None, None))
    train_size = check_int("train_size", train_size, at_least=1, or_none=True)
    test_size = check_int("test_size", test_size, at_least=1, or_none=True)
    if available is None:
        train_size, test_size = train_size or 20_000, test_size or 2_000
    test_size = test_size or available_test
    pool = train_size or available

    if validation is None:
        held_out = 0
    elif isinstance(validation, (float, np.floating)):
        held_out = round(validation * pool) if 0 < validation < 1 else 0
        if not 0 < held_out < pool:
            raise ValueError(
                "Argument `validation`, if it is a float, must be a fraction between 0 and 1, "
                f"exclusive, that divides the {pool} training images into two parts with at least "
                f"one image each. Received: validation={validation!r}"
            )
    else:
        held_out = check_int("validation", validation, at_least=1)

    if available is None:
        return train_size, held_out, test_size
    if test_size > available_test:
        raise ValueError(
            f"Argument `test_size` must be at most {available_test}, the number of test images of "
            f"{_TITLES[name]}. Received: test_size={test_size!r}"
        )
    if (train_size or 1) + held_out > available:
        raise ValueError(
            f"Arguments `train_size` and `validation` must together fit into the {available} "
            f"training images of {_TITLES[name]}. Received: train_size={train_size!r}, "
            f"validation={validation!r}"
        )
    return train_size or available - held_out, held_out, test_size
