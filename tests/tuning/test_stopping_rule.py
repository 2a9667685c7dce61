"""The stopping rule at its edges, and the paper's numbers."""

import math
from fractions import Fraction

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies
from refusals import refused

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


HUGE = [10**400, 10**5000, Fraction(10**400)]


@pytest.mark.parametrize(
    "distance",
    [-0.1, math.nan, math.inf, "3", None, True, b"3", bytearray(b"3"), {0.3: 1}, np.array(None)],
)
def test_bad_distance(distance):
    with refused("scaled_distance"):
        depth_for(distance)


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, "3", None, np.array(0.0)])
def test_bad_epsilon(epsilon):
    with refused("epsilon"):
        depth_for(1.0, epsilon)


@pytest.mark.parametrize("value", HUGE, ids=["digits", "many digits", "fraction"])
def test_numbers_that_no_float_holds(value):
    with refused("scaled_distance") as caught:
        depth_for(value)
    assert len(str(caught.value)) < 200
    with refused("epsilon"):
        depth_for(1.0, value)
