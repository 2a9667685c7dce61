"""Points for the inverse problem: their relation, range and seed."""

import numpy as np
import pytest
from refusals import refused

from tfresidual.datasets import inverse_problem


def test_points():
    x, z = inverse_problem(5000)
    for values in (x, z):
        assert values.shape == (5000, 2)
        assert values.dtype == np.float32
    np.testing.assert_array_equal(x, np.float32([1.5, 0.75]) * z)
    assert -2 <= z.min() < -1.99 and 1.99 < z.max() <= 2
    # Uniform, each coordinate for itself.
    np.testing.assert_allclose(z.mean(axis=0), 0, atol=0.06)
    np.testing.assert_allclose(z.std(axis=0), 4 / np.sqrt(12), atol=0.03)
    assert abs(np.corrcoef(z.T)[0, 1]) < 0.05
    x, z = inverse_problem(100, slopes=(-2, 0.5), limit=0.1)
    np.testing.assert_array_equal(x, np.float32([-2, 0.5]) * z)
    assert 0.09 < np.abs(z).max() <= 0.1


def test_seed():
    _, z = inverse_problem(10, seed=3)
    np.testing.assert_array_equal(inverse_problem(25, seed=3)[1][:10], z)
    assert not np.isin(inverse_problem(10, seed=4)[1], z).any()


@pytest.mark.parametrize(
    ("name", "value"),
    [("slopes", (1.5, 0)), ("slopes", (1, 2, 3))],
)
def test_refused(name, value):
    with refused(name):
        inverse_problem(**{"count": 3, name: value})
