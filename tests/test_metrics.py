"""The mathematics of the metrics: bounds, symmetries, edges."""

import hypothesis
import numpy as np
import pytest
from hypothesis.extra import numpy as arrays

from tfresidual.definitions.metrics import (
    change_of,
    cosine,
    norm,
    norms_and_cosines,
    plain_norms_and_cosines,
    ratio,
)

FEATURES = arrays.arrays(
    np.float32,
    (3, 2, 2, 2),
    elements=hypothesis.strategies.floats(-(2.0**40), 2.0**40, width=32, allow_subnormal=False),
)
NO_DEADLINE = hypothesis.settings(deadline=None, max_examples=50)


@NO_DEADLINE
@hypothesis.given(FEATURES, FEATURES)
def test_cosine_is_bounded_and_symmetric(left, right):
    both = np.asarray(cosine(left, right))
    assert np.isfinite(both).all()
    assert (np.abs(both) <= 1).all()
    np.testing.assert_allclose(both, cosine(right, left), atol=1e-6)
    np.testing.assert_allclose(cosine(-left, right), -both, atol=1e-6)


@NO_DEADLINE
@hypothesis.given(FEATURES)
def test_norm_is_that_of_all_features(values):
    expected = np.linalg.norm(values.reshape(3, -1).astype(np.float64), axis=1)
    # Squares under the smallest float32 are zero.
    np.testing.assert_allclose(norm(values), expected, rtol=1e-5, atol=1e-18)


def test_cosine_by_hand():
    left = np.array([[3.0, 4.0], [1.0, 0.0], [1.0, 1.0], [0.0, 0.0]], "float32")
    right = np.array([[6.0, 8.0], [0.0, 2.0], [-1.0, -1.0], [1.0, 1.0]], "float32")
    np.testing.assert_allclose(cosine(left, right), [1, 0, -1, 0], atol=1e-6)


def test_ratio_by_zero_is_zero():
    np.testing.assert_array_equal(
        ratio(np.array([1.0, 0.0, 3.0], "f"), np.array([0.0, 0.0, 2.0], "f")), [0, 0, 1.5]
    )


def test_low_precision_is_widened_before_the_difference():
    # 256 + 1 is 256 in bfloat16; the difference of what the states are is still exact.
    before = np.full((1, 4), 256.0).astype("float16")
    after = np.full((1, 4), 256.25).astype("float16")
    change = np.asarray(change_of(before, after))
    assert change.dtype == np.float32
    np.testing.assert_array_equal(change, 0.25)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_norm_keeps_float64(dtype):
    wide = "float64" if dtype == "float64" else "float32"
    assert norm(np.ones((2, 3), dtype)).dtype == wide


@NO_DEADLINE
@hypothesis.given(FEATURES, FEATURES)
def test_plain_sums_are_right_where_they_say_so(left, right):
    norms, cosines, is_right = plain_norms_and_cosines([left, right], [(0, 1)])
    exact, exact_cosines = norms_and_cosines([left, right], [(0, 1)])
    is_right = np.asarray(is_right)
    for found, expected in zip(norms, exact, strict=True):
        np.testing.assert_allclose(found[is_right], expected[is_right], rtol=1e-6)
    np.testing.assert_allclose(cosines[0][is_right], exact_cosines[0][is_right], atol=1e-6)
    rows = [values.reshape(3, -1).astype(np.float64) for values in (left, right)]
    squares = np.array([(row**2).sum(axis=1) for row in rows])
    assert is_right[(squares > 1e-20).all(axis=0) & (squares < 1e38).all(axis=0)].all()


@pytest.mark.parametrize(
    ("size", "is_right"),
    [
        *((size, True) for size in (1, 1e-10, 1e18)),
        *((size, False) for size in (0, 1e-20, 1e-37, 1e20, np.inf, np.nan)),
    ],
)
def test_plain_sums_of_any_size(size, is_right):
    values, usual = np.full((2, 3, 3), 1, "float32"), np.ones((2, 3, 3), "float32")
    values[1] = size
    norms, _, found = plain_norms_and_cosines([usual, values], [(0, 1)])
    np.testing.assert_array_equal(found, [True, is_right])
    exact, _ = norms_and_cosines([values])
    np.testing.assert_allclose(exact[0], 3 * values[:, 0, 0], rtol=1e-6)
    if is_right:
        np.testing.assert_allclose(norms[1], exact[0], rtol=1e-6)


def test_norms_and_cosines_are_those_of_single_calls():
    one, other, third = np.random.default_rng(0).normal(size=(3, 4, 5, 2)).astype("float32")
    norms, cosines = norms_and_cosines([one, other, third], [(0, 2), (1, 2)])
    for found, values in zip(norms, (one, other, third), strict=True):
        np.testing.assert_array_equal(found, norm(values))
    np.testing.assert_array_equal(cosines[0], cosine(one, third))
    np.testing.assert_array_equal(cosines[1], cosine(other, third))
