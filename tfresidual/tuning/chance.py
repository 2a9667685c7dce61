"""The error rate of guessing, with which that of a trained network is compared."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from tfresidual.definitions.chance import STANDARD_ERRORS, error_of_share

if TYPE_CHECKING:
    from tfresidual.definitions.types import Array

# What a trial reports: the error of guessing, and the standard error with which a network's error
# is compared with it.
CHANCE_ERROR, ERROR_SE = "chance_error", "error_se"


def error_of_guessing(
    validation: Any, metric: str | None = None, steps: int | None = None
) -> dict[str, float]:
    """Returns the error rate of always giving the most common labels of some validation data.

    Args:
        validation: the validation data of `fit`.
        metric: name of the class of the accuracy: `"CategoricalAccuracy"` (the largest of several
            numbers is right), `"BinaryAccuracy"` (each of several labels by itself), `"ExactMatch"`
            (all of them together); any other compares classes. `None` means the first for labels
            whose sum is 1, and the second for others.
        steps: int, the number of batches that are read of data in batches, or `None` for all.

    Returns:
        A dict of `CHANCE_ERROR` and `ERROR_SE`, the standard error of that rate over the images;
        empty if the labels are not one array per batch.
    """
    labels = _labels_of(validation, steps)
    if labels is None or not len(labels):
        return {}
    rate = 1 - _largest_share(labels, metric)
    return {CHANCE_ERROR: rate, ERROR_SE: error_of_share(rate, len(labels))}


def class_of_metric(network: keras.Model, name: str) -> str | None:
    """Returns the name of the class of a metric that a network was compiled with, or `None`."""
    for metric in network.metrics:
        for part in getattr(metric, "metrics", [metric]):
            if part.name == name:
                return type(part).__name__
    return None


def is_better_than_chance(error: float, chance: float, standard_error: float) -> bool:
    """Returns whether an error rate is lower than that of guessing by two standard errors."""
    return error < chance - STANDARD_ERRORS * standard_error


def error_of_difference(one: float, other: float, chance: float, standard_error: float) -> float:
    """Returns the standard error of the difference of two error rates, as of separate images.

    The images are as many as give the rate `chance` its standard error, NaN if that has none.
    """
    if not standard_error:
        return math.nan
    images = chance * (1 - chance) / standard_error**2
    return math.sqrt((one * (1 - one) + other * (1 - other)) / images)


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


def _largest_share(labels: Array, metric: str | None) -> float:
    """Returns the largest share of right answers if all images get the same answer."""
    if metric == "ExactMatch":
        return _most_common(labels.reshape(len(labels), -1))
    several = labels.ndim > 1 and labels.shape[-1] > 1
    if metric is None and several:
        is_share = (labels >= 0).all() and np.allclose(labels.sum(axis=-1), 1, atol=1e-3)
        metric = "CategoricalAccuracy" if is_share else None
    if metric == "CategoricalAccuracy":
        return _most_common(np.argmax(labels, axis=-1).reshape(-1, 1))
    # Labels that are right or wrong one by one, each with an answer of its own.
    columns = labels.reshape(-1, labels.shape[-1] if several else 1).T
    return float(np.mean([_most_common(column[:, None]) for column in columns]))


def _most_common(rows):
    _, counts = np.unique(rows, axis=0, return_counts=True)
    return float(counts.max() / len(rows))
