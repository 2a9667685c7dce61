"""The error of guessing, and networks that do no better."""

import math

import numpy as np

from tfresidual.definitions.chance import is_below
from tfresidual.definitions.warning import warn
from tfresidual.probes.measure import weighted_mean


def chance_error(choice, values):
    """Returns the error of guessing on a split, given its `RouteValues`, from 0 to 1."""
    if not isinstance(choice, str):
        return float(choice)
    labels = values.label_sets
    if choice == "largest class":
        _, sets = np.unique(labels, axis=0, return_inverse=True)
        shares = np.bincount(sets.ravel(), values.weights) / values.weights.sum()
        return 1 - float(shares.max())
    # A single output for two classes always predicts exactly one of them.
    has_row = labels.shape[1] == values.classes
    counts = labels.sum(axis=1).tolist() if has_row else [1] * len(labels)
    guessed = np.array([1 / math.comb(values.classes, count) for count in counts])
    return 1 - float(weighted_mean(guessed, values.weights))


def images_of(weights):
    """Returns of how many images of equal weights a mean is as certain as of these."""
    weights = weights[weights > 0]
    return weights.sum() ** 2 / (weights**2).sum() if len(weights) else 0.0


# What the warning begins with.
AT_CHANCE = "The network is no better than chance"


def warn_of_chance(values):
    """Warns of a network that is no better than guessing, which loses nothing without a block.

    Args:
        values: the `RouteValues` by split, whose first route is the whole network.
    """
    for split, part in values.items():
        if text := chance_text(part, split):
            warn(
                f"{text} If it was better in training, its batch normalization has not settled, "
                "and `tfresidual.surgery.update_statistics` measures it again."
            )


def chance_text(values, split=None):
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
