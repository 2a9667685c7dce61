"""Ready-to-train pipelines, from the files of tensorflow-datasets."""

from __future__ import annotations

import contextlib
import math
from typing import TYPE_CHECKING, overload

import tensorflow as tf

from tfresidual.datasets.augmentation import flip_and_crop
from tfresidual.datasets.builders import folder_of, prepared, read_split
from tfresidual.datasets.description import (
    SPLITS,
    check_name,
    checked_options,
    is_augmented,
    normalization,
    sizes_of,
)
from tfresidual.datasets.epochs import remember
from tfresidual.datasets.image_file import check_target, write
from tfresidual.definitions.arguments import ArgumentError, checked_path
from tfresidual.definitions.data_sets import DATA_SETS
from tfresidual.machine.backends import BACKEND
from tfresidual.machine.files import check_folder
from tfresidual.machine.passes import without_tuning

if TYPE_CHECKING:
    from tfresidual.definitions.types import Dataset, DatasetName, Pixels, StrPath

if BACKEND != "tensorflow":
    # TensorFlow only reads files then; the memory of the GPU is for the backend.
    with contextlib.suppress(RuntimeError):
        tf.config.set_visible_devices([], "GPU")


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

    The images are read into memory once, as uint8. Batches have float32 images `[B, H, W, C]`, by
    default standardized with the mean and standard deviation of the training set, and labels int64
    `[B]`, or for Digitclutter k-hot float32 `[B, 10]`. The last batch may be smaller.

    The training pipeline counts epochs: each iteration over it is the next epoch. Order and
    augmentation of epoch e are determined by `seed` and e alone; `set_epoch` sets e.

    Args:
        name: `"digitclutter"`, `"cifar10"`, `"cifar100"` or `"mnist"`.
        batch_size: Positive integer.
        digits: 3, 4 or 5, the number of digits on each image of Digitclutter. Other datasets ignore
            it.
        train_size: Number of images to train on, the first of the training set. None means all that
            are not held out for validation, or 20,000 of Digitclutter.
        test_size: Number of test images, the first of the test set. None means all, or 2,000 of
            Digitclutter.
        validation: Number of images to hold out, or a fraction of the training images between 0 and
            1: the last of the training set; Digitclutter has separate ones. None holds out none.
        augment: Whether to flip and crop the training images at random. None does so only for
            CIFAR, as in the papers.
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
        ValueError: If an argument is out of range.
        FileNotFoundError: If the data is not in `data_dir` and `download` is False.
        OSError: If the data cannot be read or written.

    Example:

    >>> train, test = load("digitclutter", 32, train_size=64, test_size=32, data_dir="data")
    >>> images, labels = next(iter(train))
    >>> images.shape, labels.shape
    (TensorShape([32, 32, 32, 1]), TensorShape([32, 10]))
    """
    check_name(name, digits)
    options = checked_options(
        batch_size=batch_size, augment=augment, shuffle=shuffle, seed=seed, pixels=pixels
    )
    sizes = sizes_of(name, train_size, validation, test_size)
    read = reader(name, digits, sizes, data_dir, download)
    splits = ("train", "test") if validation is None else SPLITS
    return pipelines(read, name, digits=digits, splits=splits, **options)


def save(
    data_file: StrPath,
    name: DatasetName,
    *,
    digits: int = 3,
    train_size: int | None = None,
    validation: int | float = 2000,
    test_size: int | None = None,
    data_dir: StrPath | None = None,
    download: bool = False,
) -> None:
    """Writes the images of a dataset into one file, for machines without TensorFlow.

    `tfresidual.datasets.load_file` reads it, and so does `tfresidual train --data-file`. The file
    holds the images that `load` returns with the same arguments, and their labels. It is first
    written next to its target and then moved into place.

    Args:
        data_file: The file, whose name ends in `.npz`. Its folder is created if it does not exist.
        name: As for `load`, like all further arguments.
        digits: See `load`.
        train_size: See `load`.
        validation: See `load`; not None.
        test_size: See `load`.
        data_dir: See `load`.
        download: See `load`.

    Raises:
        OSError: If the file cannot be written; otherwise as `load`.

    Example:

    >>> save("clutter.npz", "digitclutter", train_size=64, validation=32, test_size=32,
    ...      data_dir="data")
    """
    path = check_target(data_file)
    check_name(name, digits)
    sizes = sizes_of(name, train_size, validation, test_size)
    if validation is None:
        raise ArgumentError("validation", "be a number of images, or a fraction", None)
    read = reader(name, digits, sizes, data_dir, download)
    write(path, name, digits, {split: read(split) for split in SPLITS})


def reader(name, digits, sizes, data_dir, download):
    """Returns a function from a split to its images and labels; `sizes` are from `sizes_of`."""
    train_size, validation_size, test_size = sizes
    if data_dir is not None:
        checked_path("data_dir", data_dir)
    check_folder("data_dir", folder_of(data_dir))
    builder = prepared(name, digits, sizes, data_dir, download)
    held_out = f"train[-{validation_size}:]"
    if DATA_SETS[name].drawn:
        held_out = f"validation[:{validation_size}]"
    parts = {
        "train": f"train[:{train_size}]",
        "validation": held_out,
        "test": f"test[:{test_size}]",
    }
    return lambda split: read_split(builder, parts[split])


def pipelines(read, name, *, digits, batch_size, augment, shuffle, seed, pixels, splits=SPLITS):
    """Returns `tf.data` pipelines, the first for training; `read` is from `reader`."""
    factor, offset = normalization(name, digits, pixels)
    augment = is_augmented(name, augment)

    def finish(images, labels):
        images = tf.cast(images, tf.float32) * factor - offset
        return images, tf.cast(labels, tf.float32 if labels.shape.rank == 2 else tf.int64)

    # tf.data runs on the CPU.
    with tf.device("CPU:0"):
        first, *others = (tuple(map(tf.constant, read(split))) for split in splits)
        epoch = tf.Variable(0, dtype=tf.int64, trainable=False, name="epoch")
    train = _training_pipeline(*first, batch_size, epoch, seed, shuffle, augment, finish)
    remember(train, epoch, _fixed_pipeline(*first, batch_size, finish))
    return train, *(_fixed_pipeline(*other, batch_size, finish) for other in others)


def _training_pipeline(images, labels, batch_size, epoch, seed, shuffle, augment, finish):
    """Returns batches in a new order each epoch, augmented and passed through `finish`."""
    count = len(images)
    steps = math.ceil(count / batch_size)

    def begin(_):
        current = epoch.read_value()
        epoch.assign_add(1)
        return tf.stack([tf.constant(seed, tf.int64), current])

    def places(epoch_seed):
        order = tf.range(count)
        if shuffle:
            order = tf.random.experimental.stateless_shuffle(order, epoch_seed)
        return tf.data.Dataset.range(steps).map(
            lambda step: (
                tf.random.fold_in(epoch_seed, step),
                order[step * batch_size : (step + 1) * batch_size],
            )
        )

    def batch(batch_seed, indices):
        chosen = tf.gather(images, indices)
        if augment:
            chosen = flip_and_crop(chosen, batch_seed)
        return finish(chosen, tf.gather(labels, indices))

    return without_tuning(
        tf.data.Dataset.range(1)
        .map(begin)
        .flat_map(places)
        .map(batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .apply(tf.data.experimental.assert_cardinality(steps))
        .prefetch(tf.data.AUTOTUNE)
    )


def _fixed_pipeline(images, labels, batch_size, finish):
    """Returns batches in the order of the images, passed through `finish`."""

    def batch(step):
        here = slice(step * batch_size, (step + 1) * batch_size)
        return finish(images[here], labels[here])

    return without_tuning(
        tf.data.Dataset.range(math.ceil(len(images) / batch_size))
        .map(batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .prefetch(tf.data.AUTOTUNE)
    )
