"""Depth at which a residual network is a perturbation from identity."""

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import overload

import numpy as np

from tfresidual.definitions.arguments import check_number
from tfresidual.definitions.settings import EPSILON

# Iterables that do not contain distances.
NOT_DISTANCES = (str, bytes, bytearray, Mapping)


@overload
def depth_for(scaled_distance: float, epsilon: float = EPSILON) -> int: ...


@overload
def depth_for(scaled_distance: Iterable[float], epsilon: float = EPSILON) -> list[int]: ...


def depth_for(
    scaled_distance: float | Iterable[float], epsilon: float = EPSILON
) -> int | list[int]:
    """Returns the number of blocks at which the mean scaled perturbation falls to epsilon.

    `L = ceil(scaled_distance / epsilon)`, under the assumption that the distance does not change
    with the depth. The quotient is that of the decimal numbers as they are printed, so that 0.3 and
    0.1 give 3 blocks, and 1.1 and 0.1 give 11: binary rounding does not add a block.

    Errata of the paper: it states that this depth brings the mean below epsilon, but if the
    distance is an exact multiple of epsilon, the mean equals epsilon. See also
    docs/concepts/papers.md.

    Example:

    >>> depth_for(scaled_distance=3.69, epsilon=0.1)
    37
    >>> depth_for([4.11, 3.12, 4.58])
    [42, 32, 46]

    Args:
        scaled_distance: the scaled computational distance of a stage, 0 or more, or the distances
            of several stages.
        epsilon: float over 0, the largest mean scaled perturbation.

    Returns:
        An int, 0 or more (a stage that does not change the state needs no block), or a list of ints
        if several distances were given.

    Raises:
        ValueError: if a distance is negative, or epsilon is not positive, or either is NaN,
            infinite, too large for a float, or not numeric.

    Reference:
        Hauser 2019, "On residual networks learning a perturbation from identity", eq. 11 and
        section 2.3.
    """
    distances, epsilon = _plain(scaled_distance), _plain(epsilon)
    if isinstance(distances, Iterable) and not isinstance(distances, NOT_DISTANCES):
        return [depth_for(distance, epsilon) for distance in distances]
    check_number("scaled_distance", distances, at_least=0)
    check_number("epsilon", epsilon, over=0)
    return math.ceil(_decimal(distances) / _decimal(epsilon))


def _plain(value):
    """Returns the number in a zero-dimensional array, and anything else unchanged."""
    return value[()] if isinstance(value, np.ndarray) and not value.ndim else value


def _decimal(value):
    """Returns the exact value of a number as printed: a float32 of 0.1 counts as 0.1."""
    return Fraction(str(value))
