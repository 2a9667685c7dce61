"""Points in the plane for the inverse problem: infer z from x = (a1 z1, a2 z2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tfresidual.networks.inverse_problem import SLOPES, checked_slopes

if TYPE_CHECKING:
    from tfresidual.definitions.types import Array, ArrayLike


def inverse_problem(
    count: int, slopes: ArrayLike = SLOPES, seed: int = 0, limit: float = 2.0
) -> tuple[Array, Array]:
    """Draws points z and their observations x = (a1 z1, a2 z2).

    Both coordinates of z are uniform between -limit and limit. The first points are the same for
    any `count`.

    Args:
        count: Positive integer, the number of points.
        slopes: The two numbers a, not 0.
        seed: Non-negative integer.
        limit: Number over 0.

    Returns:
        `(x, z)`, two float32 arrays `[count, 2]`: the input of a network, and the output it should
        find.

    Example:

    >>> x, z = inverse_problem(2048)
    >>> x.shape, z.shape
    ((2048, 2), (2048, 2))

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", section 3.
        The paper does not state the distribution of z.
    """
    slopes = checked_slopes(slopes)
    z = np.random.default_rng(seed).uniform(-limit, limit, (count, 2)).astype(np.float32)
    return slopes.astype(np.float32) * z, z
