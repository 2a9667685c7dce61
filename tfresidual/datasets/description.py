"""What the datasets are, and what can be asked of them."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING

import numpy as np

from tfresidual.definitions.arguments import (
    ArgumentError,
    check_choice,
    check_int,
    is_int,
)
from tfresidual.definitions.data_sets import DATA_SETS

if TYPE_CHECKING:
    from tfresidual.definitions.types import DatasetName


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


SPLITS = ("train", "validation", "test")
# Used in place of the standard deviation: a pixel, up to 255, is divided by 255 times this value.
_UNITS = {"0-1": 1.0, "0-255": 1 / 255}
PIXELS = ("standardized", *_UNITS)


def describe(name: DatasetName, digits: int = 3) -> Description:
    """Describes a dataset without loading its data.

    Args:
        name: As for `load`.
        digits: 3, 4 or 5, the number of digits on each image of Digitclutter. Other datasets ignore
            it.

    Example:

    >>> describe("cifar10").input_shape
    (32, 32, 3)
    """
    check_name(name, digits)
    data = DATA_SETS[name]
    count = int(digits) if data.labels else 1
    return Description(
        name=name,
        input_shape=data.input_shape,
        classes=data.classes,
        multi_label=bool(data.labels),
        digits=count if data.labels else None,
        chance_error=1 - 1 / math.comb(data.classes, count),
        title=f"{data.title}, {count} digits" if data.labels else data.title,
    )


def normalization(name, digits, pixels):
    """Returns factor and offset per channel: pixels become `pixel * factor - offset`."""
    data = DATA_SETS[name]
    mean, deviation = data.statistics[digits if data.labels else 1]
    if pixels != "standardized":
        mean, deviation = np.zeros_like(mean), np.full_like(deviation, _UNITS[pixels])
    factor = 1 / (255 * np.array(deviation))
    return factor.astype(np.float32), (np.array(mean) / deviation).astype(np.float32)


def is_augmented(name, augment):
    """Returns whether training images are flipped and cropped; `None` leaves it to the dataset."""
    return DATA_SETS[name].augment if augment is None else augment


def check_name(name, digits):
    """Raises a `ValueError` unless there is a dataset of that name, with that many digits."""
    check_choice("name", name, DATA_SETS)
    counts = DATA_SETS[name].labels
    if counts and not (is_int(digits) and digits in counts):
        *first, last = counts
        raise ArgumentError("digits", f"be {', '.join(map(str, first))} or {last}", digits)


def checked_options(*, batch_size, augment, shuffle, seed, pixels):
    """Returns the arguments that `load` and `load_file` share, as a dict, after checking them."""
    check_choice("pixels", pixels, PIXELS)
    return {
        "batch_size": batch_size,
        "augment": augment,
        "shuffle": shuffle,
        "seed": seed,
        "pixels": pixels,
    }


def sizes_of(name, train_size, validation, test_size):
    """Returns the numbers of images for training, validation and test; `None` means default."""
    data = DATA_SETS[name]
    available, available_test = data.sizes
    given = check_int("train_size", train_size, at_least=1, or_none=True)
    test_size = check_int("test_size", test_size, at_least=1, or_none=True) or available_test
    pool = given or available

    if validation is None:
        held_out = 0
    elif isinstance(validation, (float, np.floating)):
        held_out = round(validation * pool) if 0 < validation < 1 else 0
        if not 0 < held_out < pool:
            raise ArgumentError(
                "validation",
                "be, if it is a float, a fraction between 0 and 1, exclusive, that divides the "
                f"{pool} training images into two parts with at least one image each",
                validation,
            )
    else:
        held_out = check_int("validation", validation, at_least=1)

    if data.drawn:
        return pool, held_out, test_size
    if test_size > available_test:
        raise ArgumentError(
            "test_size",
            f"be at most {available_test}, the number of test images of {data.title}",
            test_size,
        )
    if (given or 1) + held_out > available:
        raise ArgumentError(
            ("train_size", "validation"),
            f"together fit into the {available} training images of {data.title}",
            train_size=given,
            validation=validation,
        )
    return given or available - held_out, held_out, test_size
