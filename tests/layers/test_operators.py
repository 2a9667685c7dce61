"""Operators, their norms and certified norms against explicit matrices in NumPy float64.

The matrix of a convolution comes from loops over its definition: output i reads the pixels
strides * i + dilation * tap - front. test_linear.py holds what the layers of Keras do against it.
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfresidual.layers import spectral
from tfresidual.layers.operators import Convolution, Matrices, TransposedConvolution

NIGHTLY = pytest.mark.nightly


def front_and_outputs(padding, taps, pixels, strides, dilation):
    reach = (taps - 1) * dilation
    if padding == "same":
        outputs = int(np.ceil(pixels / strides))
        return max((outputs - 1) * strides + reach + 1 - pixels, 0) // 2, outputs
    front = reach if padding == "causal" else 0
    return front, (front + pixels - reach - 1) // strides + 1


def matrix_of(kernel, grid, outputs, fronts, strides, dilation, groups):
    """The matrix of a convolution: every kernel entry is put where it multiplies."""
    *sizes, inputs, channels = kernel.shape
    each = channels // groups
    matrix = np.zeros((*outputs, channels, *grid, inputs * groups))
    for place in itertools.product(*map(range, outputs)):
        for taps in itertools.product(*map(range, sizes)):
            pixel = [
                s * i + d * a - f
                for s, i, d, a, f in zip(strides, place, dilation, taps, fronts, strict=True)
            ]
            if all(0 <= p < n for p, n in zip(pixel, grid, strict=True)):
                for g in range(groups):
                    rows, columns = slice(g * each, g * each + each), slice(g * inputs, None)
                    block = matrix[place][(rows, *pixel)]
                    block[:, columns][:, :inputs] += kernel[taps][:, rows].T
    return matrix.reshape(np.prod(outputs) * channels, -1)


@st.composite
def convolutions(draw, transposed=False):
    """A convolution, its kernel, the grid of its input, and its matrix."""
    spatial = draw(st.integers(1, 3))
    most = {1: 9, 2: 6, 3: 4}[spatial]
    sizes = draw(st.lists(st.integers(1, 3), min_size=spatial, max_size=spatial))
    strides, dilation = [1] * spatial, [1] * spatial
    steps = st.lists(st.integers(1, 3), min_size=spatial, max_size=spatial)
    if draw(st.booleans()):
        strides = draw(steps)
    elif spatial < 3:
        # TensorFlow's own dilated convolutions on CPUs are for one and two axes.
        dilation = draw(steps)
    paddings = ["same", "valid"] + (["causal"] if spatial == 1 and not transposed else [])
    padding = draw(st.sampled_from(paddings))
    groups = 1 if transposed else draw(st.sampled_from([1, 1, 2, 3]))
    inputs, each = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    if groups > 1 and inputs == 1 and spatial == 2:
        # TensorFlow's depthwise convolutions have one stride.
        strides = strides[:1] * 2
    reaches = [(k - 1) * d + 1 for k, d in zip(sizes, dilation, strict=True)]
    lower = reaches if padding == "valid" else [1] * spatial
    grid = [draw(st.integers(low, max(low, most))) for low in lower]
    geometry = zip(sizes, grid, strides, dilation, strict=True)
    fronts, outputs = zip(*(front_and_outputs(padding, *each) for each in geometry), strict=True)
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    kernel = rng.normal(size=(*sizes, inputs, groups * each))
    kernel *= rng.uniform(size=kernel.shape) < draw(st.sampled_from([0.3, 1, 1]))
    matrix = matrix_of(kernel, grid, outputs, fronts, strides, dilation, groups)
    strides, dilation = tuple(strides), tuple(dilation)
    if transposed:
        operator = TransposedConvolution(strides, padding, tuple(grid), dilation)
        return operator, kernel.astype("f4"), outputs, matrix.T
    operator = Convolution(strides, padding, dilation, groups)
    return operator, kernel.astype("f4"), tuple(grid), matrix


@st.composite
def matrices(draw):
    parts, inputs, outputs = (draw(st.integers(1, most)) for most in (3, 6, 6))
    kernel = np.random.default_rng(draw(st.integers(0, 10**6))).normal(
        size=(parts, inputs, outputs)
    )
    matrix = np.zeros((parts, outputs, parts, inputs))
    for part in range(parts):
        matrix[part, :, part] = kernel[part].T
    return Matrices(), kernel.astype("f4"), (parts,), matrix.reshape(parts * outputs, -1)


KINDS = {
    "convolution": convolutions(),
    "transposed": convolutions(transposed=True),
    "matrices": matrices(),
}


def check(case):
    """Products with T and T', and the norm; returns the excess of the certified norm."""
    operator, kernel, grid, matrix = case
    shape = operator.vector_shape(kernel.shape, grid)
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(2, *shape[1:])).astype("f4")
    images = operator.apply(kernel, vectors)
    flat = vectors.reshape(2, -1)
    np.testing.assert_allclose(np.reshape(images, (2, -1)), flat @ matrix.T, atol=2e-5)
    back = operator.transpose(kernel, images, vectors)
    assert back.shape == vectors.shape
    np.testing.assert_allclose(np.reshape(back, (2, -1)), flat @ matrix.T @ matrix, atol=2e-4)
    norm = np.linalg.norm(matrix, 2)
    vector = spectral.power_iteration(kernel, spectral.noise(shape), operator, 30)
    found = float(spectral.operator_norm(kernel, vector, operator))
    assert 0.7 * norm <= found <= norm * (1 + 1e-5)
    certified = spectral.certified_norm(kernel, grid[: len(shape) - 2], operator)
    assert certified >= norm * (1 - 1e-7)
    return certified / norm if norm else 1.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [4, pytest.param(500, marks=NIGHTLY)])
def test_products_and_norms_are_those_of_the_matrix(kind, count):
    @settings(max_examples=count, deadline=None, database=None, derandomize=True)
    @given(KINDS[kind])
    def run(case):
        check(case)

    run()


@pytest.mark.parametrize("kind", KINDS)
def test_scaled_is_a_product_with_diagonals(kind):
    @settings(max_examples=5, deadline=None, database=None, derandomize=True)
    @given(KINDS[kind].filter(lambda case: kind != "matrices" or len(case[1]) == 1))
    def run(case):
        operator, kernel, grid, _ = case
        vector = np.random.default_rng(1).normal(size=operator.vector_shape(kernel.shape, grid))
        vector = vector.astype("f4")
        first = np.random.default_rng(2).normal(size=vector.shape[-1]).astype("f4")
        channels = operator.apply(kernel, vector).shape[-1]
        second = np.random.default_rng(3).normal(size=channels).astype("f4")
        scaled = operator.scaled(kernel, first, second)
        expected = operator.apply(kernel, vector * first) * second
        np.testing.assert_allclose(operator.apply(scaled, vector), expected, atol=2e-5)

    run()
