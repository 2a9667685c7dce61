"""What the datasets are: their images, classes, sizes and statistics."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tfresidual.arguments import ArgumentError, check_bool, check_choice, check_int, is_int

if TYPE_CHECKING:
    from tfresidual.types import DatasetName


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
TITLES = {
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "mnist": "MNIST",
    "digitclutter": "Digitclutter",
}
SIZES = {"cifar10": (50_000, 10_000), "cifar100": (50_000, 10_000), "mnist": (60_000, 10_000)}

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
    check_name(name, digits)
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
        title=TITLES[name],
    )


def normalization(name, digits, pixels):
    """Returns the factor and the offset per channel that pixels from 0 to 255 are normalized with.

    Args:
        name: Name of a dataset.
        digits: Number of digits on an image of Digitclutter.
        pixels: One of `PIXELS`.

    Returns:
        Two float32 arrays `[C]`: a pixel becomes `pixel * factor - offset`.
    """
    mean, deviation = _STATISTICS[name][digits] if name == "digitclutter" else _STATISTICS[name]
    if pixels != "standardized":
        mean, deviation = np.zeros_like(mean), np.full_like(deviation, _UNITS[pixels])
    factor = 1 / (255 * np.array(deviation))
    return factor.astype(np.float32), (np.array(mean) / deviation).astype(np.float32)


def is_augmented(name, augment):
    """Returns whether training images are flipped and cropped; `None` means only those of CIFAR."""
    return name in ("cifar10", "cifar100") if augment is None else augment


def check_name(name, digits):
    """Raises a `ValueError` unless there is a dataset of that name, with that many digits."""
    check_choice("name", name, TITLES)
    if name == "digitclutter" and not (is_int(digits) and digits in (3, 4, 5)):
        raise ArgumentError("digits", "be 3, 4 or 5", digits)


def checked_options(*, batch_size, augment, shuffle, seed, pixels):
    """Returns the arguments that `load` and `load_file` share, as a dict, after checking them."""
    check_choice("pixels", pixels, PIXELS)
    return {
        "batch_size": check_int("batch_size", batch_size, at_least=1),
        "augment": None if augment is None else check_bool("augment", augment),
        "shuffle": check_bool("shuffle", shuffle),
        "seed": check_int("seed", seed, at_least=0, at_most=None),
        "pixels": pixels,
    }


def sizes_of(name, train_size, validation, test_size):
    """Returns the numbers of images for training, validation and test; `None` means default."""
    available, available_test = SIZES.get(name, (None, None))
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
        raise ArgumentError(
            "test_size",
            f"be at most {available_test}, the number of test images of {TITLES[name]}",
            test_size,
        )
    if (train_size or 1) + held_out > available:
        raise ArgumentError(
            ("train_size", "validation"),
            f"together fit into the {available} training images of {TITLES[name]}",
            train_size=train_size,
            validation=validation,
        )
    return train_size or available - held_out, held_out, test_size
