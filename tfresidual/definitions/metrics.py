"""The mathematics of the metrics, as functions of arrays of images."""

import functools

import keras
import numpy as np
from keras import ops

from tfresidual.definitions.arguments import ArgumentError


def change_of(before, after):
    """Returns what a block adds, F = after - before, in float32 or higher precision.

    States of lower precision are converted first, because their difference loses small changes.
    """
    return wide(after) - wide(before)


# Above this norm, no scaling is needed: features whose squares leave the range of the floats are
# negligible.
LEAST_NORM = 2.0**-40


def norm(values):
    """Returns the Euclidean norm over all features of each image, `(images,)`.

    It is correct for features of any size: no square leaves the range of the floats.
    """
    norms, _ = norms_and_cosines([values])
    return norms[0]


def norms_and_cosines(tensors, pairs=()):
    """Returns the norms of several tensors and the cosines between some of them, all `(images,)`.

    Like `norm` and `cosine`, they are correct for features of any size.

    Args:
        tensors: list of tensors of one shape, `(images, ...)`.
        pairs: pairs of places in that list.

    Returns:
        A tuple of the list of norms and the list of cosines.
    """
    sizes, directions = zip(*map(_size_and_direction, tensors), strict=True)
    squares = [_sum_of_products(direction, direction) for direction in directions]
    norms = [
        ops.where(ops.isinf(size), size, size * ops.sqrt(square))
        for size, square in zip(sizes, squares, strict=True)
    ]
    products = [
        (_sum_of_products(directions[i], directions[j]), ops.sqrt(squares[i] * squares[j]))
        for i, j in pairs
    ]
    return norms, [ops.clip(ratio(*product), -1.0, 1.0) for product in products]


def plain_norms_and_cosines(tensors, pairs=()):
    """Returns what `norms_and_cosines` does, in half the time, where no square leaves the range.

    Returns:
        A tuple of the norms, the cosines and which images these are right for, bool, `(images,)`.
        They are not if a tensor is so large, or so small, that its squares are lost; of a tensor of
        zeros, too, that cannot be told apart.
    """
    tensors = [wide(tensor) for tensor in tensors]
    norms = [_plain_norm(tensor) for tensor in tensors]
    products = [(_sum_of_products(tensors[i], tensors[j]), norms[i] * norms[j]) for i, j in pairs]
    is_right = functools.reduce(
        ops.logical_and,
        [ops.logical_and(size >= LEAST_NORM, ops.isfinite(size)) for size in norms],
    )
    return norms, [ops.clip(ratio(*product), -1.0, 1.0) for product in products], is_right


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
    _, cosines = norms_and_cosines([left, right], [(0, 1)])
    return cosines[0]


def cosine_distance_and_angle(left, right):
    """Returns 1 - cosine, in [0, 2], and the angle over pi, in [0, 1], of each image, `(images,)`.

    Both are exact for features that are nearly the same, of which the cosine rounds to 1. Zeros
    have no direction: where one side is zero, the cosine is 0; where both are, nothing has turned,
    and both results are 0.
    """
    directions, is_one_zero = [], False
    for values in (left, right):
        _, scaled = _size_and_direction(values)
        length = ops.sqrt(_sum_of_products(scaled, scaled))
        is_one_zero = ops.logical_xor(is_one_zero, length == 0)
        shape = (-1, *[1] * (len(scaled.shape) - 1))
        directions.append(scaled / ops.reshape(ops.where(length == 0, 1.0, length), shape))
    apart, together = directions[0] - directions[1], directions[0] + directions[1]
    squares = [_sum_of_products(one, one) for one in (apart, together)]
    angle = 2 * ops.arctan2(*map(ops.sqrt, squares)) / np.pi
    return ops.where(is_one_zero, 1.0, squares[0] / 2), angle


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
    shapes = [tuple(ops.convert_to_tensor(rows).shape) for rows in (labels, outputs)]
    given, classes = (shape[-1] if shape else None for shape in shapes)
    if len(shapes[0]) != len(shapes[1]) or (None not in (given, classes) and given != classes):
        raise ArgumentError(
            "labels",
            "be k-hot rows, with a number for each class like the outputs",
            received=f"labels of shape {shapes[0]}, outputs of shape {shapes[1]}",
        )
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
    values = wide(values)
    size = ops.max(ops.abs(values), axis=_feature_axes(values), keepdims=True)
    return ops.reshape(size, (-1,)), values / ops.where(size == 0, ops.ones_like(size), size)


def _plain_norm(values):
    """Returns the root of the sum of squares of each image, by one kernel where there is one."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.math.reduce_euclidean_norm(values, axis=_feature_axes(values))
    return ops.sqrt(_sum_of_products(values, values))


def _sum_of_products(left, right):
    return ops.sum(left * right, axis=_feature_axes(left))


def _feature_axes(values):
    return tuple(range(1, len(values.shape)))


def wide(values):
    """Returns values in float32, or in float64 if they are."""
    values = ops.convert_to_tensor(values)
    is_wide = keras.backend.standardize_dtype(values.dtype) in ("float32", "float64")
    return values if is_wide else ops.cast(values, "float32")
