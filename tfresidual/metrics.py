"""The mathematics of the metrics, as functions of arrays of images."""

import keras
import numpy as np
from keras import ops


def change_of(before, after):
    """Returns what a block adds, F = after - before, in float32 or higher precision.

    States of lower precision are converted first, because their difference loses small changes.
    """
    return _wide(after) - _wide(before)


def norm(values):
    """Returns the Euclidean norm over all features of each image, `(images,)`.

    It is correct for features of any size: no square leaves the range of the floats.
    """
    size, direction = _size_and_direction(values)
    length = size * ops.sqrt(_sum_of_products(direction, direction))
    return ops.where(ops.isinf(size), size, length)


def ratio(numerator, denominator):
    """Returns the quotient of two arrays of the same shape, and 0 where the denominator is 0."""
    is_zero = denominator == 0
    safe = ops.where(is_zero, ops.ones_like(denominator), denominator)
    return ops.where(is_zero, ops.zeros_like(numerator), numerator / safe)


def cosine(left, right):
    """Returns the cosine between two sets of features of each image, `(images,)`, in [-1, 1].

    The cosine is symmetric, does not depend on the sizes of the features, and is 0 where either
    side is zero.
    """
    _, left = _size_and_direction(left)
    _, right = _size_and_direction(right)
    squares = _sum_of_products(left, left) * _sum_of_products(right, right)
    return ops.clip(ratio(_sum_of_products(left, right), ops.sqrt(squares)), -1.0, 1.0)


def exact_match(labels, outputs):
    """Returns 1.0 for each image whose highest outputs are exactly its labels, otherwise 0.0.

    If an image has n labels, its n highest outputs must be those labels; a tie between a label and
    another output does not count.

    Args:
        labels: k-hot rows, `(images, classes)`.
        outputs: scores of any range, `(images, classes)`.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", the part on
        Digitclutter.
    """
    return ops.cast(label_margin(labels, ops.cast(outputs, "float32")) > 0, "float32")


def label_margin(labels, values):
    """Returns the lowest value of a label minus the highest of another class, `(images,)`."""
    is_label = ops.cast(labels, "float32") > 0.5
    lowest_label = ops.min(ops.where(is_label, values, np.inf), axis=-1)
    highest_other = ops.max(ops.where(is_label, -np.inf, values), axis=-1)
    return lowest_label - highest_other


def _size_and_direction(values):
    """Returns the largest absolute value of each image, and the values divided by it.

    An image of zeros stays an image of zeros.
    """
    values = _wide(values)
    size = ops.max(ops.abs(values), axis=_feature_axes(values), keepdims=True)
    return ops.reshape(size, (-1,)), values / ops.where(size == 0, ops.ones_like(size), size)


def _sum_of_products(left, right):
    return ops.sum(left * right, axis=_feature_axes(left))


def _feature_axes(values):
    return tuple(range(1, len(values.shape)))


def _wide(values):
    values = ops.convert_to_tensor(values)
    is_wide = keras.backend.standardize_dtype(values.dtype) in ("float32", "float64")
    return values if is_wide else ops.cast(values, "float32")
