"""Means over images and their standard errors, with weights of the images, in float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from typing import Any

    from tfresidual.definitions.types import Array, ArrayLike

# Standard errors by which a number must differ from another one.
STANDARD_ERRORS = 2


def counted_weights(weights: Array, is_counted: Array | None) -> Array:
    """Returns weights of images, 0 for those that do not count; all count if the mask is `None`."""
    return weights if is_counted is None else weights * is_counted


def images_of(weights: Array) -> float:
    """Returns of how many images of equal weights a mean is as certain as of these."""
    weights = weights[weights > 0]
    return weights.sum() ** 2 / (weights**2).sum() if len(weights) else 0.0


def weighted_mean(values: ArrayLike, weights: Array) -> Any:
    """Returns the means over the first axis, without values whose weight is 0.

    They are NaN if all weights are 0.
    """
    is_counted = weights > 0
    weights, values = weights[is_counted], np.asarray(values, np.float64)[is_counted]
    if not len(weights):
        return np.full(values.shape[1:], np.nan)[()]
    # Infinite values of networks that explode.
    with np.errstate(invalid="ignore"):
        if (weights == weights[0]).all():
            return values.mean(axis=0)
        return np.tensordot(weights / weights.sum(), values, axes=1)[()]


def share_below_zero(values: Array, weights: Array) -> Any:
    """Returns the share of values below 0 over the first axis, NaN where one is NaN."""
    return weighted_mean(np.where(np.isnan(values), np.nan, values < 0), weights)


def standard_error(values: ArrayLike, weights: Array | None = None) -> Any:
    """Returns the standard errors of `weighted_mean` of an array `(images, ...)`.

    For n images and weights w whose sum is 1, all equal by default, it is the root of n / (n - 1)
    times the sum of w^2 (value - mean)^2; NaN for a single image and where a value is NaN.
    """
    values = np.asarray(values, np.float64)
    weights = np.ones(len(values)) if weights is None else weights
    is_counted = weights > 0
    weights, values = weights[is_counted], values[is_counted]
    images = len(weights)
    if images < 2:
        return np.full(values.shape[1:], np.nan)[()]
    shares = (weights / weights.sum()).reshape(-1, *[1] * (values.ndim - 1))
    squares = (shares * (values - weighted_mean(values, weights))) ** 2
    return np.sqrt(images / (images - 1) * squares.sum(axis=0))


def rise_over(values: ArrayLike, whole: ArrayLike, weights: Array) -> tuple[Any, Any]:
    """Returns how much the means of values over the first axis are above that of `whole`.

    And the standard errors of these differences, over the same images. `whole` is `(images,)`.
    """
    values = np.asarray(values, np.float64)
    whole = np.asarray(whole, np.float64).reshape(-1, *[1] * (values.ndim - 1))
    # Losses of networks that explode.
    with np.errstate(invalid="ignore"):
        rises = values - whole
        return weighted_mean(rises, weights), standard_error(rises, weights)


def error_of_share(share: float, images: float) -> float:
    """Returns the standard error of a share, such as an error, on this number of images."""
    return math.sqrt(share * (1 - share) / images)
