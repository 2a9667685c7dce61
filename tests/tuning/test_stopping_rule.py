"""The stopping rule at its edges, and the paper's numbers."""

from fractions import Fraction

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies

from tfresidual.tuning import depth_for


def test_the_papers_numbers():
    assert depth_for([3.69, 3.81, 4.27], epsilon=0.1) == [37, 39, 43]
    assert depth_for([4.11, 3.12, 4.58], epsilon=0.1) == [42, 32, 46]


@pytest.mark.parametrize(
    ("distance", "epsilon", "depth"),
    [
        *((0, 0.1, 0), (0.3, 0.1, 3), (0.7, 0.1, 7), (1.1, 0.1, 11), (0.6, 0.2, 3), (4, 1, 4)),
        *((4.0000001, 1, 5), (0.05, 0.1, 1), (1e-300, 0.1, 1)),
        (np.float32(0.3), np.float64(0.1), 3),
        (np.array([0.3, 1.1], "float32"), 0.1, [3, 11]),
        (np.array(0.3), np.array(0.1, "float32"), 3),
        ([np.array(0.3, "float32"), 1.1], 0.1, [3, 11]),
    ],
)
def test_edges(distance, epsilon, depth):
    found = depth_for(distance, epsilon)
    assert found == depth
    assert type(found) is type(depth)


@hypothesis.given(strategies.decimals(0, 100, places=4), strategies.decimals("0.001", 1, places=3))
def test_is_the_smallest_depth(distance, epsilon):
    depth = depth_for(float(distance), float(epsilon))
    assert depth * Fraction(epsilon) >= Fraction(distance)
    assert depth == 0 or (depth - 1) * Fraction(epsilon) < Fraction(distance)
