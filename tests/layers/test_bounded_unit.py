"""Units with a bounded Lipschitz constant: against singular values of explicit matrices in NumPy.

Not covered here: the power iteration by itself, which is in test_spectral.py; networks of such
units, which are in tests/networks; branches with channels first, which the CPU cannot run: only
their bound.
"""

import functools
import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.numpy_network import (
    ORDERS,
    Weights,
    convolution_matrix,
    lipschitz_bound,
    relu,
    residual_unit,
    weights_of,
)
from reference.random_network import LAYOUTS, randomise

from tfresidual.layers import ResidualUnit

GRID, CHANNELS, MU = (4, 3), 8, 0.5
KINDS = [(layout, bottleneck) for layout in LAYOUTS for bottleneck in (False, True)]


def every_other(cases):
    """Each layout with or without bottleneck, and at night the other way."""
    return [
        pytest.param(*case, marks=[pytest.mark.nightly] if i % 4 in (1, 2) else [])
        for i, case in enumerate(cases)
    ]


def make_unit(
    layout="full_preactivation",
    bottleneck=False,
    lipschitz=MU,
    seed=0,
    channels=CHANNELS,
    **kwargs,
):
    """A unit of random weights, the same for the same arguments, whose bound is up to date."""
    keras.utils.set_random_seed(seed)
    kwargs = {"filters": CHANNELS} | kwargs
    unit = ResidualUnit(
        layout=layout, bottleneck=bottleneck, lipschitz=lipschitz, name="unit", **kwargs
    )
    unit.build((None, *GRID, channels))
    randomise(unit, seed)
    unit.converge(training=True)
    return unit


@functools.cache
def _kept_unit(layout, bottleneck):
    unit = make_unit(layout, bottleneck)
    return unit, tf.function(unit), [variable.numpy() for variable in unit.variables]


def kept_unit(layout="full_preactivation", bottleneck=False, compiled=False):
    """A unit as from `make_unit`, but the same one every time, with all variables put back.

    Args:
        compiled: whether to return a function that was compiled once for all calls, too.
    """
    unit, function, values = _kept_unit(layout, bottleneck)
    assign(unit.variables, values)
    return (unit, function) if compiled else unit


def images(count=3, seed=1, channels=CHANNELS):
    return np.random.default_rng(seed).normal(size=(count, *GRID, channels)).astype("float32")


def config_of(unit):
    return {
        "layout": unit.layout,
        "bottleneck": unit.bottleneck,
        "shortcut": "identity",
        "lipschitz": unit.lipschitz,
    }


def numpy_bound(unit, weights=None):
    weights = Weights(weights or weights_of(unit), "unit")
    return lipschitz_bound(config_of(unit), weights, GRID, unit.strides)


def numpy_unit(unit, weights=None):
    weights = Weights(weights or weights_of(unit), "unit")
    zero_padding = unit.resize == "zero_padding"
    return residual_unit(config_of(unit), weights, unit.filters, unit.strides, zero_padding)


# The bound and what is divided by it


@pytest.mark.parametrize(("layout", "bottleneck"), every_other(KINDS))
def test_equals_numpy(layout, bottleneck):
    unit = kept_unit(layout, bottleneck)
    expected, _ = numpy_unit(unit)(images().astype("f8"))
    np.testing.assert_allclose(unit(images()), expected, rtol=1e-4, atol=1e-5)
    found = unit.lipschitz_bound()
    bound = numpy_bound(unit)
    assert found["estimate"] == pytest.approx(bound, rel=1e-5)
    assert found["divisor"] == pytest.approx(bound / MU, rel=1e-5)
    assert found["divisor"] > 1.2
    assert bound <= found["certified"] < 1.5 * bound
    assert 0 <= found["residual"] < 1e-4


CHANGES = {
    "stride 2": {"strides": 2},
    "stride 2, more channels": {"strides": 2, "channels": 4, "resize": "zero_padding"},
    "more channels": {"channels": 4},
}


@pytest.mark.parametrize(
    ("name", "bottleneck"), every_other(itertools.product(CHANGES, (False, True)))
)
def test_units_that_change_the_shape_equal_numpy(name, bottleneck):
    change = CHANGES[name]
    unit = make_unit(bottleneck=bottleneck, **change)
    x = images(channels=change.get("channels", CHANNELS))
    expected, _ = numpy_unit(unit)(x.astype("f8"))
    np.testing.assert_allclose(unit(x), expected, rtol=1e-4, atol=1e-5)
    assert unit.lipschitz_bound()["estimate"] == pytest.approx(numpy_bound(unit), rel=1e-5)


@pytest.mark.parametrize("name", ["convolution2/kernel", "normalization1/gamma"])
def test_a_branch_of_zeros_has_a_finite_gradient(name):
    unit = make_unit()
    variable = unit.weights_by_role()[name]
    variable.assign(np.zeros(variable.shape))
    unit.converge(training=True)
    assert unit.lipschitz_bound() | {"residual": 0} == {
        "lipschitz": unit.lipschitz,
        "estimate": 0,
        "certified": 0,
        "residual": 0,
        "divisor": 1,
    }
    for training in (False, True):
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(unit(images(), training=training) ** 2)
        for gradient in tape.gradient(total, unit.trainable_variables):
            assert np.isfinite(gradient).all()


# Weights that change


CHANGED = {
    "nothing": lambda unit: None,
    "one entry": lambda unit: unit.convolution1.kernel[1, 1, 0, 0].assign(9.0),
    "gamma": lambda unit: unit.normalization1.gamma.assign(np.arange(CHANNELS)),
    "the variance": lambda unit: unit.normalization2.moving_variance.assign(np.arange(1.0, 9.0)),
    "all but signs": lambda unit: unit.convolution1.kernel.assign(abs(unit.convolution1.kernel)),
}


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED)
def test_norms_follow_the_weights(change):
    unit, run = kept_unit(compiled=True)
    x = images()
    run(x)
    change(unit)
    expected, _ = numpy_unit(unit)(x.astype("f8"))
    for _ in range(2):
        np.testing.assert_allclose(run(x), expected, rtol=1e-4, atol=1e-5)
    assert unit.lipschitz_bound()["estimate"] == pytest.approx(numpy_bound(unit), rel=1e-5)


# Training


def with_statistics_of(unit, weights, x):
    """The weights with a batch's statistics in place of the moving ones.

    With them the unit is at inference what it is in training with this batch.
    """
    weights = dict(weights)
    branch, _ = ORDERS[unit.layout, unit.bottleneck].split("+")
    for operation in branch.split():
        pieces = Weights(weights, "unit")
        if operation == "R":
            x, _ = relu(x)
        elif operation[0] == "C":
            x, _ = pieces.convolution(f"convolution{operation[1]}")(x)
        else:
            weights[f"unit/normalization{operation[1]}/moving_mean"] = x.mean((0, 1, 2))
            weights[f"unit/normalization{operation[1]}/moving_variance"] = x.var((0, 1, 2))
            x, _ = pieces.normalization(f"normalization{operation[1]}")(x)
    return weights


def prepared_for(unit, x):
    """Lets the power iteration of training converge with the statistics of a batch."""
    moving = [v for v in unit.non_trainable_variables if "moving" in v.name]
    before = [v.numpy() for v in moving]
    statistics = with_statistics_of(unit, weights_of(unit), x)
    assign(moving, [statistics[v.path] for v in moving])
    unit.converge(training=True)
    assign(moving, before)


def assign(targets, sources):
    for target, source in zip(targets, sources, strict=True):
        target.assign(source)


# The layouts that normalise within the branch alone.
WITHIN = [kind for kind in KINDS if kind[0] != "bn_after_addition"]


@pytest.mark.parametrize(("layout", "bottleneck"), every_other(WITHIN))
def test_training_equals_numpy_with_the_statistics_of_the_batch(layout, bottleneck):
    unit, x = kept_unit(layout, bottleneck), images(6)
    statistics = with_statistics_of(unit, weights_of(unit), x.astype("f8"))
    expected, _ = numpy_unit(unit, statistics)(x.astype("f8"))
    at_inference = unit(x)
    prepared_for(unit, x)
    np.testing.assert_allclose(unit(x, training=True), expected, rtol=1e-4, atol=2e-5)
    assert np.abs(expected - at_inference).max() > 0.03


@pytest.mark.parametrize(
    ("layout", "bottleneck", "training"),
    [
        ("original", False, True),
        ("relu_before_addition", True, True),
        pytest.param("relu_only_preactivation", False, True, marks=pytest.mark.nightly),
        ("full_preactivation", False, True),
        pytest.param("full_preactivation", True, True, marks=pytest.mark.nightly),
        pytest.param("original", True, False, marks=pytest.mark.nightly),
        ("full_preactivation", False, False),
    ],
)
def test_gradient_goes_through_the_bound(layout, bottleneck, training):
    """Of the input and of each weight, against finite differences of the NumPy version."""
    unit, x, probe = kept_unit(layout, bottleneck), images(4), images(4, seed=2)
    weights = weights_of(unit)

    def value(weights, x):
        weights = with_statistics_of(unit, weights, x) if training else weights
        output, _ = numpy_unit(unit, weights)(x)
        return np.sum(probe * output)

    if training:
        prepared_for(unit, x.astype("f8"))
    tensor = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        total = tf.reduce_sum(probe * unit(tensor, training=training))
    variables = unit.trainable_variables
    of_input, *gradients = tape.gradient(total, [tensor, *variables])
    rng = np.random.default_rng(3)

    def slope(along):
        return (along(1e-6) - along(-1e-6)) / 2e-6

    for variable, gradient in zip(variables, gradients, strict=True):
        path, direction = variable.path, rng.normal(size=variable.shape)
        expected = slope(lambda t, p=path, d=direction: value(weights | {p: weights[p] + t * d}, x))
        assert np.sum(gradient * direction) == pytest.approx(expected, rel=2e-3, abs=2e-3), path
    direction = rng.normal(size=x.shape)
    expected = slope(lambda t: value(weights, x + t * direction))
    assert np.sum(of_input * direction) == pytest.approx(expected, rel=2e-3, abs=2e-3)


def test_applied_twice_in_one_step():
    # As two units of equal weights, of which the second one begins where the first one leaves off.
    unit, first, second = (make_unit(seed=4) for _ in range(3))
    x, beginning = images(), [vector.numpy() for vector in first.divisor.training_vectors]

    def step(first, second):
        with tf.GradientTape() as tape:
            state = first(x, training=True)
            assign(second.divisor.training_vectors, first.divisor.training_vectors)
            total = tf.reduce_sum(second(state, x, training=True) ** 2)
        variables = first.trainable_variables + second.trainable_variables
        gradients = tape.gradient(total, variables)
        half = len(variables) // 2
        return total, gradients[:half], gradients[half:]

    expected, of_first, of_second = step(first, second)
    for run in (step, tf.function(step)):
        assign(unit.divisor.training_vectors, beginning)
        total, gradients, _ = run(unit, unit)
        np.testing.assert_allclose(total, expected, rtol=1e-5)
        for gradient, one, other in zip(gradients, of_first, of_second, strict=True):
            np.testing.assert_allclose(gradient, one + other, rtol=1e-3, atol=1e-4)
        for vector, other in zip(
            unit.divisor.training_vectors, second.divisor.training_vectors, strict=True
        ):
            np.testing.assert_allclose(vector, other, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("mixed_bfloat16", 0.03), ("mixed_float16", 6e-3)]
)
def test_mixed_precision_is_near_float32(dtype, tolerance):
    exact, low = make_unit(), make_unit(dtype=dtype)
    assert {v.dtype for v in low.variables} == {"float32"}
    for training in (False, True):
        expected, branch = (unit.branch(images(), training=training) for unit in (exact, low))
        assert branch.dtype == low.compute_dtype
        size = np.abs(expected).max()
        np.testing.assert_allclose(tf.cast(branch, "float32"), expected, atol=tolerance * size)
    for vector, other in zip(low.divisor.vectors, exact.divisor.vectors, strict=True):
        # A singular vector with the other sign is one, too.
        sign = np.sign(np.sum(vector * other))
        np.testing.assert_allclose(sign * vector, other, atol=tolerance)


# The Lipschitz constant


def aligned_unit(lipschitz):
    """A unit whose bound is attained: its ReLUs are open, and the second convolution turns round.

    The second kernel is the transpose of the first one with both normalizations folded in, so that
    both have the same singular values and the second begins where the first one ends.
    """
    unit = make_unit(lipschitz=lipschitz, dtype="float64")
    slopes = [Weights(weights_of(unit), "unit").slope(f"normalization{i}") for i in (1, 2)]
    kernel = unit.convolution1.kernel.numpy() * slopes[0][:, None] * slopes[1]
    unit.convolution2.kernel.assign(kernel[::-1, ::-1].transpose(0, 1, 3, 2))
    for normalization, offset in ((unit.normalization1, 10), (unit.normalization2, 1000)):
        normalization.beta.assign(np.full(CHANNELS, offset))
    unit.converge(training=True)
    return unit, kernel


@pytest.mark.parametrize("lipschitz", [0.3, 0.95, 2.0])
def test_the_bound_is_attained_where_it_can_be(lipschitz):
    unit, kernel = aligned_unit(lipschitz)
    _, _, directions = np.linalg.svd(convolution_matrix(kernel, GRID))
    x = images(1).astype("f8")
    # The norm is that of float32, and a little low, so that the constant is a little high.
    difference = directions[0].reshape(x.shape)
    moved = unit.branch(x + difference) - unit.branch(x)
    assert np.linalg.norm(moved) == pytest.approx(lipschitz, rel=1e-5)
    # Along no other direction is it attained.
    other = directions[-1].reshape(x.shape)
    assert np.linalg.norm(unit.branch(x + other) - unit.branch(x)) < 0.5 * lipschitz


def test_the_bound_keeps_up_with_training():
    unit, x = make_unit(), images(6)
    free = config_of(unit) | {"lipschitz": None}
    target = images(6, seed=5)
    optimizer = keras.optimizers.SGD(0.3, momentum=0.9)
    first = weights_of(unit)
    shares = []
    for _ in range(25):
        statistics = with_statistics_of(unit, weights_of(unit), x.astype("f8"))
        branch = residual_unit(free, Weights(statistics, "unit"), CHANNELS)(x.astype("f8"))[0] - x
        with tf.GradientTape() as tape:
            bounded = unit.branch(x, training=True)
            loss = tf.reduce_mean((bounded - target) ** 2)
        divisor = np.linalg.norm(branch) / np.linalg.norm(bounded)
        shares.append(divisor * MU / numpy_bound(unit, statistics))
        gradients = tape.gradient(loss, unit.trainable_variables)
        optimizer.apply_gradients(zip(gradients, unit.trainable_variables, strict=True))
    # The first batch's statistics are far from the moving ones, with which the unit was prepared.
    assert max(shares) < 1 + 1e-5
    assert min(shares[5:]) > 0.95
    moved = weights_of(unit)["unit/convolution1/kernel"] - first["unit/convolution1/kernel"]
    assert np.linalg.norm(moved) > 0.1 * np.linalg.norm(first["unit/convolution1/kernel"])
