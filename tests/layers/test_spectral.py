"""Operators, their norms and certified norms against explicit matrices in NumPy float64.

The matrix of a convolution comes from loops over its definition: output i reads the pixels
strides * i + dilation * tap - front. Not covered here: GPUs, which may round to TensorFloat-32.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.numpy_network import convolution_matrix

from tfresidual.layers import spectral
from tfresidual.layers.operators import Convolution, Matrix

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
def convolutions(draw):
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
    paddings = ["same", "valid"] + (["causal"] if spatial == 1 else [])
    padding = draw(st.sampled_from(paddings))
    groups = draw(st.sampled_from([1, 1, 2, 3]))
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
    operator = Convolution(strides, padding, dilation, groups)
    return operator, kernel.astype("f4"), tuple(grid), matrix


def largest(matrix):
    return np.linalg.svd(matrix, compute_uv=False)[0]


# Compiling takes less time than the loop does operation by operation.
converged = tf.function(spectral.converged, autograph=False)


def check(case):
    """Products with T and T', scaled channels, and the norm, from below and from above."""
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
    first = rng.normal(size=shape[-1]).astype("f4")
    second = rng.normal(size=images.shape[-1]).astype("f4")
    scaled = operator.apply(operator.scaled(kernel, first, second), vectors)
    np.testing.assert_allclose(scaled, operator.apply(kernel, vectors * first) * second, atol=2e-5)
    norm = largest(matrix)
    vector = spectral.power_iteration(kernel, spectral.noise(shape), operator, 30)
    found = float(spectral.operator_norm(kernel, vector, operator))
    assert 0.7 * norm <= found <= norm * (1 + 1e-5)
    certified = spectral.certified_norm(kernel, grid[: len(shape) - 2], operator)
    assert norm * (1 - 1e-7) <= certified


@pytest.mark.parametrize("count", [4, pytest.param(200, marks=NIGHTLY)])
def test_products_and_norms_are_those_of_the_matrix(count):
    @settings(max_examples=count, deadline=None, database=None, derandomize=True)
    @given(convolutions())
    def run(case):
        check(case)

    run()
    kernel = np.random.default_rng(0).normal(size=(5, 4)).astype("f4")
    check((Matrix(), kernel, (), kernel.T.astype("f8")))


# The convolutions of residual units, by stride.
SAME = [None, *(Convolution((strides, strides)) for strides in (1, 2, 3, 4))]
FAMILIES = ("gaussian", "positive", "low_rank", "sparse")


def random_kernel(family, size, inputs, outputs, rng):
    shape = (size, size, inputs, outputs)
    if family == "positive":
        kernel = rng.uniform(size=shape)
    elif family == "low_rank":
        kernel = np.einsum("a,b,i,o->abio", *(rng.normal(size=count) for count in shape))
    else:
        kernel = rng.normal(size=shape)
    if family == "sparse":
        kernel *= rng.uniform(size=shape) < 0.2
    return kernel.astype("float32")


def random_vector(grid, channels, seed=0):
    vector = np.random.default_rng(seed).normal(size=(1, *grid, channels))
    return (vector / np.linalg.norm(vector)).astype("float32")


def example(grid=(6, 5), inputs=3, outputs=4, size=3, seed=0):
    """A Gaussian kernel and a random vector."""
    kernel = random_kernel("gaussian", size, inputs, outputs, np.random.default_rng(seed))
    return kernel, random_vector(grid, inputs, seed + 1)


def gradient(kernel, vector, operator):
    kernel = tf.constant(kernel)
    with tf.GradientTape() as tape:
        tape.watch(kernel)
        norm = spectral.operator_norm(kernel, vector, operator)
    return np.asarray(tape.gradient(norm, kernel), "float64")


# Grid, channels in and out, stride and size: each is compiled.
GRIDS = [
    ((4, 4), 2, 3, 1, 1),
    ((5, 7), 3, 2, 2, 3),
    ((6, 6), 4, 4, 1, 3),
    ((9, 8), 2, 5, 2, 1),
    ((12, 12), 8, 8, 2, 3),
]


@pytest.mark.parametrize(("grid", "inputs", "outputs", "strides", "size"), GRIDS)
def test_norm_is_the_largest_singular_value(grid, inputs, outputs, strides, size):
    """Between two batch norms, from a random vector."""
    kernel, vector = example(grid, inputs, outputs, size)
    rng = np.random.default_rng(2)
    scales = (rng.normal(size=count).astype("float32") for count in (inputs, outputs))
    kernel = SAME[strides].scaled(kernel, *scales)
    vector, iterations = converged(kernel, vector, SAME[strides])
    assert 1 < iterations < 500
    assert spectral.residual(kernel, vector, SAME[strides]) <= 1.1e-5
    np.testing.assert_allclose(np.linalg.norm(vector), 1, rtol=1e-6)
    norm = float(spectral.operator_norm(kernel, vector, SAME[strides]))
    expected = largest(convolution_matrix(kernel, grid, strides))
    assert abs(norm / expected - 1) < 1e-5
    assert expected <= spectral.certified_norm(kernel, grid, SAME[strides]) < 1.4 * expected


# By hand


@pytest.mark.parametrize("grid", [(4, 4), (5, 9), (1, 6)])
def test_ones(grid):
    """A matrix of ones next to its diagonal has the eigenvalues 1 + 2 cos(k pi / (n + 1))."""
    kernel = np.ones((3, 3, 1, 1), "float32")
    angles = [np.pi / (pixels + 1) for pixels in grid]
    expected = np.prod([1 + 2 * np.cos(angle) for angle in angles])
    waves = [np.sin(angle * np.arange(1, n + 1)) for angle, n in zip(angles, grid, strict=True)]
    singular = np.outer(*waves).reshape(1, *grid, 1).astype("float32")
    singular /= np.linalg.norm(singular)
    assert float(spectral.operator_norm(kernel, singular, SAME[1])) == pytest.approx(
        expected, rel=1e-6
    )
    assert spectral.residual(kernel, singular, SAME[1]) < 1e-6
    vector, _ = spectral.converged(kernel, random_vector(grid, 1), SAME[1])
    np.testing.assert_allclose(np.abs(vector), singular, atol=1e-4)
    # The torus with a change of sign at its seams has just these frequencies.
    certified = spectral.certified_norm(kernel, grid, SAME[1])
    assert expected <= certified == pytest.approx(expected, rel=1e-8)


# Gradients


@pytest.mark.parametrize("is_converged", [False, True])
@pytest.mark.parametrize("strides, size", [(1, 3), (2, 3), (1, 1), (2, 1)])
def test_gradient_against_finite_differences(strides, size, is_converged):
    """Of |T v| with v constant, and of the norm itself where v has converged."""
    kernel, vector = example(size=size)
    if is_converged:
        vector, _ = spectral.converged(kernel, vector, SAME[strides], tolerance=1e-6)

    def function(kernel):
        matrix = convolution_matrix(kernel, (6, 5), strides)
        return largest(matrix) if is_converged else np.linalg.norm(matrix @ np.ravel(vector))

    result = gradient(kernel, vector, SAME[strides])
    rng = np.random.default_rng(3)
    for _ in range(4):
        direction = rng.normal(size=kernel.shape)
        up, down = (function(kernel + shift * direction) for shift in (1e-5, -1e-5))
        expected = (up - down) / 2e-5
        np.testing.assert_allclose(np.sum(result * direction), expected, rtol=1e-3, atol=1e-4)


def test_zero_kernel():
    kernel, vector = np.zeros((3, 3, 3, 4), "float32"), random_vector((6, 5), 3)
    assert spectral.operator_norm(kernel, vector, SAME[1]) == 0
    np.testing.assert_array_equal(gradient(kernel, vector, SAME[1]), np.zeros(kernel.shape))
    assert spectral.residual(kernel, vector, SAME[1]) == 0
    assert spectral.certified_norm(kernel, (6, 5), SAME[1]) == 0
    best, iterations = spectral.converged(kernel, vector, SAME[1])
    assert iterations == 1
    for unchanged in (best, spectral.power_iteration(kernel, vector, SAME[1], 3)):
        np.testing.assert_allclose(unchanged, vector, atol=1e-7)


# The loop


# Certified norms


def random_ratios(family, count):
    """Certified norm over norm for random grids and channels."""
    rng = np.random.default_rng(0)
    ratios = []
    while len(ratios) < count:
        grid = tuple(map(int, rng.integers(3, 9, size=2)))
        inputs, outputs = rng.integers(1, 5, size=2)
        strides = int(rng.integers(1, 3))
        kernel = random_kernel(family, rng.choice((3, 3, 1)), inputs, outputs, rng)
        matrix = convolution_matrix(kernel, grid, strides)
        if matrix.any():
            ratios.append(spectral.certified_norm(kernel, grid, SAME[strides]) / largest(matrix))
    return ratios


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "count", [pytest.param(60, id="some"), pytest.param(2000, id="many", marks=pytest.mark.nightly)]
)
def test_certified_norm_is_never_below_the_norm(count, family):
    ratios = random_ratios(family, count)
    assert min(ratios) >= 1
    assert np.median(ratios) < 1.08
    assert max(ratios) < 1.5
