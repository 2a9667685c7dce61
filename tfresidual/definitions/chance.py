"""The error of guessing, and networks that do no better."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

import keras
import numpy as np

from tfresidual.definitions.averages import (
    STANDARD_ERRORS,
    error_of_share,
    images_of,
    weighted_mean,
)
from tfresidual.definitions.warning import warn

if TYPE_CHECKING:
    from typing import Any

    from tfresidual.definitions.types import Array

# What a trial of a search reports: the error of guessing, and its standard error over the images.
CHANCE_ERROR, ERROR_SE = "chance_error", "error_se"
# What the warning begins with.
AT_CHANCE = "The network is no better than chance"


def noise_at(chance: float, images: float | None) -> float:
    """Returns by how much a network that guesses may be below chance on some images.

    Args:
        chance: the error of guessing.
        images: the number of images, or `None` for errors that are known without noise.
    """
    if not images:
        return 0.0
    return STANDARD_ERRORS * error_of_share(chance, images)


def is_below(error: float, chance: float, images: float | None) -> bool:
    """Returns whether an error is below that of guessing beyond rounding and `noise_at`."""
    return bool(error <= chance - max(noise_at(chance, images), 1e-9))


def chance_error(choice: str | float, values: Any) -> float:
    """Returns the error of guessing on a split, given its `RouteValues`, from 0 to 1."""
    if not isinstance(choice, str):
        return float(choice)
    labels = values.label_sets
    if choice == "largest class":
        return _error_of_most_common(labels, values.weights)
    # A single output for two classes always predicts exactly one of them.
    has_row = labels.shape[1] == values.classes
    counts = labels.sum(axis=1).tolist() if has_row else [1] * len(labels)
    guessed = np.array([1 / math.comb(values.classes, count) for count in counts])
    return 1 - float(weighted_mean(guessed, values.weights))


def chance_text(values: Any, split: str | None = None) -> str | None:
    """Returns a sentence on a network that is no better than guessing, `None` on all others.

    Args:
        values: the `RouteValues` of some images, whose first route is the whole network.
        split: what the images are called, such as "the test images", or `None`.
    """
    error = float(weighted_mean(values.wrong[0], values.weights))
    chance = chance_error("uniform", values)
    if is_below(error, chance, images_of(values.weights)):
        return None
    on_split = "" if split is None else f" on {split}"
    return (
        f"{AT_CHANCE}{on_split}, with an error of {error:.1%} where guessing has {chance:.1%}: "
        "what it loses without a block says nothing."
    )


def warn_of_chance(values: dict[str | None, Any]) -> None:
    """Warns of a network that is no better than guessing, given `RouteValues` by split."""
    for split, part in values.items():
        if text := chance_text(part, split):
            warn(
                f"{text} If it was better in training, its batch normalization has not settled, "
                "and `tfresidual.surgery.update_statistics` measures it again."
            )


def error_of_guessing(
    validation: Any, metric: str | None = None, steps: int | None = None
) -> dict[str, float]:
    """Returns the error rate of always giving the most common labels of some validation data.

    Args:
        validation: the validation data of `fit`.
        metric: name of the class of the accuracy: `"CategoricalAccuracy"` (the largest of several
            numbers is right), `"BinaryAccuracy"` (each of several labels by itself), `"ExactMatch"`
            (all of them together); any other compares classes.
        steps: int, the number of batches that are read of data in batches, or `None` for all.

    Returns:
        A dict of `CHANCE_ERROR` and `ERROR_SE`, the standard error of that rate over the images;
        empty if the labels are not one array per batch.
    """
    labels = _labels_of(validation, steps)
    if labels is None or not len(labels):
        return {}
    rate = _error_of_common_labels(labels, metric)
    return {CHANCE_ERROR: rate, ERROR_SE: error_of_share(rate, len(labels))}


def error_of_difference(one: float, other: float, chance: float, standard_error: float) -> float:
    """Returns the standard error of the difference of two error rates, as of separate images.

    The images are as many as give the rate `chance` its standard error, NaN if that has none.
    """
    if not standard_error:
        return math.nan
    images = chance * (1 - chance) / standard_error**2
    return math.hypot(error_of_share(one, images), error_of_share(other, images))


def _labels_of(validation, steps):
    batches = validation
    if isinstance(validation, (tuple, list)):
        batches, steps = [validation], None
    elif isinstance(validation, keras.utils.PyDataset):
        batches = map(validation.__getitem__, range(validation.num_batches))
    parts = [
        keras.utils.unpack_x_y_sample_weight(batch)[1] for batch in itertools.islice(batches, steps)
    ]
    if any(part is None or isinstance(part, (dict, tuple, list)) for part in parts):
        return None
    arrays = [keras.ops.convert_to_numpy(part) for part in parts]
    if not arrays or len({array.shape[1:] for array in arrays}) > 1:
        return None
    return np.concatenate(arrays)


def _error_of_common_labels(labels: Array, metric: str | None) -> float:
    """Returns the lowest error if all images get the same answer."""
    if metric == "ExactMatch":
        return _error_of_most_common(labels)
    several = labels.ndim > 1 and labels.shape[-1] > 1
    if metric == "CategoricalAccuracy":
        return _error_of_most_common(np.argmax(labels, axis=-1).ravel())
    # Labels that are right or wrong one by one, each with an answer of its own.
    columns = labels.reshape(-1, labels.shape[-1] if several else 1).T
    return float(np.mean([_error_of_most_common(column) for column in columns]))


def _error_of_most_common(rows, weights=None):
    """Returns the error of giving the most common of some rows of labels to all images."""
    _, sets = np.unique(rows, axis=0, return_inverse=True)
    shares = np.bincount(sets.ravel(), weights)
    return float(1 - shares.max() / shares.sum())
