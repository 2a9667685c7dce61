"""Ready-to-train pipelines for CIFAR-10, CIFAR-100, MNIST and Digitclutter."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import math
import pathlib
import re
import sys
from typing import TYPE_CHECKING, Any, overload

import numpy as np
import tensorflow as tf

from tfresidual.arguments import check_bool, check_choice, check_int, checked_path, is_int
from tfresidual.datasets.augmentation import flip_and_crop
from tfresidual.machine.console import progress_bar
from tfresidual.machine.files import check_folder, damaged, is_full, no_room
from tfresidual.machine.memory import check_fits

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
    check_folder("data_dir", _folder(data_dir))
    if name == "digitclutter":
        builder = _digitclutter(digits, train_size, validation_size, test_size, data_dir)
        held_out = f"validation[:{validation_size}]"
        mean, deviation = _STATISTICS[name][digits]
    else:
        builder = _downloaded(name, data_dir, download)
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
        return _fixed_pipeline(*_in_memory(*_read(builder, split)), batch_size, normalise)

    epoch = _epoch_counter()
    images, labels = _in_memory(*_read(builder, f"train[:{train_size}]"))
    train = _training_pipeline(images, labels, batch_size, epoch, seed, shuffle, augment, normalise)
    train._tfresidual_epoch = epoch
    train._tfresidual_plain = _fixed_pipeline(images, labels, batch_size, normalise)
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


def _digitclutter(digits, train_size, validation_size, test_size, data_dir):
    """Returns the builder of Digitclutter after drawing its images."""
    from tfresidual.datasets.digitclutter import Digitclutter, DigitclutterConfig

    drawn = train_size + 2 * max(validation_size, test_size)
    check_fits(
        # The images are read into memory as bytes.
        drawn * 32 * 32,
        "Arguments `train_size`, `validation` and `test_size` must fit into the memory of this "
        "machine: the images",
        f"train_size={train_size}, validation={validation_size}, test_size={test_size}",
    )
    config = DigitclutterConfig(
        digits=int(digits),
        train_size=train_size,
        # At least as many as test images, so that requesting them later does not redraw everything.
        validation_size=max(validation_size, test_size),
        test_size=test_size,
    )
    with _damaged(_folder(data_dir, "digitclutter", config.name)):
        builder = Digitclutter(config=config, data_dir=data_dir)
    with _with_room(builder):
        builder.download_and_prepare()
    return builder


def _downloaded(name, data_dir, download):
    """Returns the builder of a public dataset whose files are on disk."""
    import tensorflow_datasets as tfds

    with _damaged(_folder(data_dir, name)):
        builder = tfds.builder(name, data_dir=data_dir)
    if builder.data_path.exists():
        return builder
    if not download:
        where = "" if data_dir is None else f", data_dir={str(data_dir)!r}"
        raise FileNotFoundError(
            f"{_TITLES[name]} is not prepared: there is no {builder.data_path}. Pass "
            f"download=True to `load`, or run `tfresidual data {name} --download`, or run the "
            "following on a machine with an internet connection and copy the folder to this one: "
            f'python -c "import tensorflow_datasets as tfds; tfds.load({name!r}{where})". '
            f"Received: name={name!r}, data_dir={data_dir!r}"
        )
    # tensorflow-datasets prints to stdout, which is reserved for the caller's output, and would
    # write progress bars into logs.
    terminal = sys.stderr
    bars = terminal if terminal.isatty() else io.StringIO()
    with (
        contextlib.redirect_stdout(terminal),
        contextlib.redirect_stderr(bars),
        _with_room(builder),
    ):
        builder.download_and_prepare()
    return builder


def _folder(data_dir, *names):
    """Returns the folder in which tensorflow-datasets stores the data of these names."""
    import tensorflow_datasets as tfds

    return pathlib.Path(data_dir or tfds.core.constants.DATA_DIR).expanduser().joinpath(*names)


@contextlib.contextmanager
def _damaged(path):
    """Reports errors of tensorflow-datasets on reading a folder as damaged or unreadable data."""
    try:
        yield
    except (PermissionError, tf.errors.PermissionDeniedError) as error:
        raise PermissionError(f"The data cannot be read. Received: path={str(path)!r}") from error
    except Exception as error:
        # tensorflow-datasets passes on errors of many kinds from its dependencies.
        reason = re.sub(r"{{.*}}|\[Op:.*", "", getattr(error, "message", str(error)))
        raise damaged(path, reason, "Remove the folder and prepare the data again") from error


@contextlib.contextmanager
def _with_room(builder):
    """Reports errors of tensorflow-datasets that are caused by a full disk as such."""
    try:
        yield
    except Exception as error:
        if is_full(error):
            raise no_room(builder.data_path, error) from error
        raise


def _read(builder, split):
    """Reads a split into memory: images uint8 `[N, H, W, C]`; labels int64 `[N]`, or k-hot."""
    with _damaged(builder.data_path):
        return _read_all(builder, split)


def _read_all(builder, split):
    import tensorflow_datasets as tfds

    config = tfds.ReadConfig(try_autocache=False, interleave_cycle_length=1)
    dataset = builder.as_dataset(split=split, read_config=config).batch(1024)
    batches = []
    with progress_bar(f"Reading {builder.name} {split}", len(dataset)) as advance:
        for batch in dataset.as_numpy_iterator():
            batches.append(batch)
            advance()
    images = np.concatenate([batch["image"] for batch in batches])
    if "label" in batches[0]:
        return images, np.concatenate([batch["label"] for batch in batches]).astype(np.int64)
    digits = np.concatenate([batch["digits"] for batch in batches])
    return images, np.eye(10, dtype=np.uint8)[digits].sum(axis=1, dtype=np.uint8)


def _in_memory(images, labels):
    # tf.data runs on the CPU.
    with tf.device("CPU:0"):
        return tf.constant(images), tf.constant(labels)


def _epoch_counter():
    with tf.device("CPU:0"):
        return tf.Variable(0, dtype=tf.int64, trainable=False, name="epoch")


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

    return (
        tf.data.Dataset.range(1)
        .map(begin)
        .flat_map(places)
        .map(batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .apply(tf.data.experimental.assert_cardinality(steps))
        .prefetch(tf.data.AUTOTUNE)
    )


def _fixed_pipeline(images, labels, batch_size, finish):
    """Returns batches in the order of the images, passed through `finish`."""
    steps = math.ceil(len(images) / batch_size)

    def batch(step):
        here = slice(step * batch_size, (step + 1) * batch_size)
        return finish(images[here], labels[here])

    return (
        tf.data.Dataset.range(steps)
        .map(batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .prefetch(tf.data.AUTOTUNE)
    )
