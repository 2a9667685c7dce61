"""The mathematics of the metrics, as functions of arrays of images."""

import keras
from keras import ops


def change_of(before, after):
    """What a block adds: F = after - before, in float32 at least.

    States of low precision are widened first; their difference would lose small changes.
    """
    return _wide(after) - _wide(before)


def norm(values):
    """The Euclidean norm over all features of each image, `(images,)`."""
    values = _wide(values)
    return ops.sqrt(ops.sum(ops.square(values), axis=_feature_axes(values)))


def ratio(numerator, denominator):
    """The quotient of two arrays of one shape, and 0 where the denominator is 0."""
    is_zero = denominator == 0
    safe = ops.where(is_zero, ops.ones_like(denominator), denominator)
    return ops.where(is_zero, ops.zeros_like(numerator), numerator / safe)


def cosine(left, right):
    """The cosine between two sets of features of each image, `(images,)`, in [-1, 1].

    Symmetric, and 0 where either side is zero (in float32 also where its norm is under 1e-19,
    whose square is zero).
    """
    left, right = _wide(left), _wide(right)
    dot = ops.sum(left * right, axis=_feature_axes(left))
    # One norm after the other: their product could fall under the smallest float32.
    return ops.clip(ratio(ratio(dot, norm(left)), norm(right)), -1.0, 1.0)


def _feature_axes(values):
    return tuple(range(1, len(values.shape)))


def _wide(values):
    values = ops.convert_to_tensor(values)
    is_wide = keras.backend.standardize_dtype(values.dtype) in ("float32", "float64")
    return values if is_wide else ops.cast(values, "float32")
