"""The residual unit: every layout, shortcut, stride and change of shape; all parts of a branch.

Not covered here: running with channels_first (the CPU has no such convolution), only its shapes.
Numbers of branches with factors or Fixup are compared with NumPy in tests/networks.
"""

import itertools
import json

import keras
import numpy as np
import pytest
from reference.numpy_network import Weights, residual_unit, weights_of
from reference.random_network import LAYOUTS, SHORTCUTS, randomise
from refusals import refused

from tfresidual.layers import LayerScale, ResidualUnit, ReZero

pytestmark = pytest.mark.eager

# Strides, resize, and channels of the input of a unit of 8 filters.
CHANGES = {
    "kept": (1, "projection", 8),
    "widened": (1, "projection", 4),
    "projection": (2, "projection", 4),
    "strided": (2, "projection", 8),
    "zero_padding": (2, "zero_padding", 4),
    "appended": (1, "zero_padding", 4),
}
KEEPING = ("kept",)


def unit_weights(layout, bottleneck, shortcut, channels, projects):
    """Numbers of trainable parameters and of moving statistics of a unit of 8 filters."""
    if bottleneck:
        convolutions = [(1, channels, 2), (3, 2, 2), (1, 2, 8)]
    else:
        convolutions = [(3, channels, 8), (3, 8, 8)]
    trainable = sum(size**2 * i * o + o for size, i, o in convolutions)
    # A normalization has the channels of the convolution it follows, or precedes.
    normalized = [i if layout == "full_preactivation" else o for _, i, o in convolutions]
    trainable += 2 * sum(normalized)
    if projects:
        trainable += channels * 8 + 8
    weighted = ("exclusive_gate", "shortcut_only_gate", "conv1x1")
    if shortcut in weighted and not (shortcut == "conv1x1" and projects):
        trainable += 8 * 8 + 8
    return trainable, 2 * sum(normalized)


def make_unit(change, **kwargs):
    strides, resize, channels = CHANGES[change]
    unit = ResidualUnit(8, strides=strides, resize=resize, name="unit", **kwargs)
    unit.build((None, 7, 6, channels))
    return unit, channels


def combinations():
    """All 360, of which those with every pair of values run in every run."""
    lists = (LAYOUTS, (False, True), SHORTCUTS, tuple(CHANGES))
    for places in itertools.product(*(range(len(values)) for values in lists)):
        case = [values[place] for values, place in zip(lists, places, strict=True)]
        marks = [pytest.mark.nightly] if sum(places) % 6 else []
        yield pytest.param(*case, marks=marks)


@pytest.mark.sampled(30)
@pytest.mark.parametrize("layout, bottleneck, shortcut, change", list(combinations()))
def test_unit(layout, bottleneck, shortcut, change):
    """Shape, parameter counts, outputs and configuration of every combination."""
    strides, resize, _ = CHANGES[change]
    unit, channels = make_unit(change, layout=layout, bottleneck=bottleneck, shortcut=shortcut)
    rows, columns = (7, 6) if strides == 1 else (4, 3)
    assert unit.compute_output_shape((None, 7, 6, channels)) == (None, rows, columns, 8)
    assert unit.keeps_shape((None, 7, 6, channels)) == (change in KEEPING)

    projects = change in ("widened", "projection", "strided")
    trainable, statistics = unit_weights(layout, bottleneck, shortcut, channels, projects)
    assert sum(w.shape.num_elements() for w in unit.trainable_weights) == trainable
    assert sum(w.shape.num_elements() for w in unit.non_trainable_weights) == statistics

    randomise(unit)
    x = np.random.default_rng(1).normal(size=(2, 7, 6, channels)).astype("float32")
    config = {"layout": layout, "bottleneck": bottleneck, "shortcut": shortcut}
    reference = residual_unit(
        config, Weights(weights_of(unit), "unit"), 8, strides, resize == "zero_padding"
    )
    expected, _ = reference(x.astype("f8"))
    output = unit(x)
    assert tuple(output.shape) == expected.shape == (2, rows, columns, 8)
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)

    config = unit.get_config()
    assert ResidualUnit.from_config(json.loads(json.dumps(config))).get_config() == config


def images(shape=(2, 7, 6, 8)):
    return np.random.default_rng(1).normal(size=shape).astype("float32")


def test_branch_and_join_are_the_unit():
    unit, channels = make_unit("projection", layout="original", shortcut="exclusive_gate")
    randomise(unit)
    x = images((2, 7, 6, channels))
    branch = unit.branch(x)
    assert branch.shape == (2, 4, 3, 8)
    np.testing.assert_array_equal(unit.join(x, branch), unit(x))
    anchor = 2 * x
    np.testing.assert_array_equal(unit.join(anchor, branch), unit(x, anchor))


def test_initial_values():
    unit = ResidualUnit(64, bottleneck=False)
    unit.build((None, 4, 4, 64))
    small = ResidualUnit(8, bottleneck=True, gamma_initializer=keras.initializers.Constant(0.1))
    small.build((None, 4, 4, 8))
    for i in (1, 2):
        kernel = np.asarray(getattr(unit, f"convolution{i}").kernel)
        # He normal: standard deviation sqrt(2 / (9 * 64)); 36,864 values give it to 1 %.
        assert kernel.std() == pytest.approx(np.sqrt(2 / 576), rel=0.02)
        assert not np.any(getattr(unit, f"convolution{i}").bias)
        normalization = getattr(unit, f"normalization{i}")
        np.testing.assert_array_equal(normalization.gamma, np.ones(64))
        assert not np.any(normalization.beta)
    for i in (1, 2, 3):
        np.testing.assert_allclose(getattr(small, f"normalization{i}").gamma, 0.1, rtol=1e-6)


def test_training_uses_the_statistics_of_the_batch_and_inference_the_moving_ones():
    unit, channels = make_unit("kept")
    x = 5 + 3 * images((8, 7, 6, channels))
    before = np.asarray(unit(x))
    training = np.asarray(unit(x, training=True))
    assert np.abs(training - before).max() > 0.1
    mean = np.asarray(unit.normalization1.moving_mean)
    np.testing.assert_allclose(mean, 0.01 * x.mean((0, 1, 2)), rtol=1e-4)
    assert np.any(np.asarray(unit(x)) != before)


# Branches with nothing but convolutions, with factors, Fixup, dropping.

# Nothing is applied after the addition.
OPEN = ("relu_before_addition", "relu_only_preactivation", "full_preactivation")
SHAPE = (6, 5, 4, 8)
IDENTITIES = {
    "ReZero": {"multiplier": "rezero"},
    "SkipInit": {"normalization": None, "multiplier": ReZero()},
    "ReZero, dropped": {"multiplier": LayerScale(0.0), "stochastic_depth": 0.5},
    "Fixup": {"normalization": "fixup", "blocks": 5},
}


@pytest.mark.sampled(12)
@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("layout", OPEN)
@pytest.mark.parametrize("name", IDENTITIES)
def test_a_unit_is_initially_the_identity_bit_for_bit(name, layout, dtype):
    unit = ResidualUnit(8, layout, bottleneck=True, dtype=dtype, **IDENTITIES[name])
    x = np.asarray(keras.ops.cast(images(SHAPE), unit.compute_dtype))
    inputs = keras.Input(SHAPE[1:], dtype=unit.compute_dtype)
    model = keras.Model(inputs, unit(inputs))
    # Fixup has its zeros before a ReLU at the end of a branch, which leaves them.
    for output in (unit(x), unit(x, training=True), model.predict(x, verbose=0)):
        np.testing.assert_array_equal(np.asarray(output), x)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("axis", [None, -1])
def test_factors_are_those_of_the_branch(layout, axis):
    """In training and at inference, in which normalization differs, and of `scale_branch`."""
    units = []
    for multiplier in (None, LayerScale(axis=axis)):
        unit = ResidualUnit(8, layout, multiplier=multiplier, name="unit")
        unit.build(SHAPE)
        randomise(unit)
        units.append(unit)
    plain, unit = units
    others = {variable.path: variable for variable in unit.weights}
    for variable in plain.weights:
        others[variable.path].assign(variable)
    x, gamma = images(SHAPE), np.asarray(unit.multiplier.gamma)
    for training in (True, False):
        expected = gamma * np.asarray(plain.branch(x, training=training))
        actual = unit.branch(x, training=training)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    before = np.asarray(unit.branch(x))
    unit.scale_branch(0.25)
    np.testing.assert_allclose(unit.branch(x), before / 4, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_scaled_branches_of_fixup(layout):
    unit = ResidualUnit(8, layout, normalization="fixup")
    unit.build(SHAPE)
    randomise(unit)
    before = np.asarray(unit.branch(images(SHAPE)))
    unit.scale_branch(0.25)
    np.testing.assert_allclose(unit.branch(images(SHAPE)), before / 4, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("bottleneck", "exponent"), [(False, -1 / 2), (True, -1 / 4)])
def test_initial_values_of_fixup(bottleneck, exponent):
    unit = ResidualUnit(64, bottleneck=bottleneck, normalization="fixup", blocks=54)
    unit.build((None, 4, 4, 32))
    *others, last = (f"convolution{i}" for i in range(1, 4 if bottleneck else 3))
    for name in others:
        kernel = np.asarray(getattr(unit, name).kernel)
        he = np.sqrt(2 / np.prod(kernel.shape[:3]))
        assert kernel.std() == pytest.approx(54**exponent * he, rel=0.1)
        assert getattr(unit, name).bias is None
    assert not np.any(getattr(unit, last).kernel)
    # The shortcut is none of the branches.
    assert np.std(unit.resizing.kernel) == pytest.approx(np.sqrt(2 / 32), rel=0.1)
    scalars = {
        role: np.asarray(v) for role, v in unit.weights_by_role().items() if not len(v.shape)
    }
    assert scalars.pop("multiplier/gamma") == 1
    assert len(scalars) == 2 * (len(others) + 1)
    assert not any(scalars.values())


@pytest.mark.parametrize("normalization", [None, "fixup", "batch"])
def test_a_shared_unit_shares_its_factors_and_biases_but_no_drawings(normalization):
    options = {"normalization": normalization, "stochastic_depth": 0.5}
    options |= {} if normalization == "fixup" else {"multiplier": "layer_scale"}
    unit = ResidualUnit(8, **options)
    unit.build(SHAPE)
    randomise(unit)
    again = ResidualUnit(8, **options, shares=unit)
    again.build(SHAPE)
    assert {id(w) for w in again.weights} <= {id(w) for w in unit.weights}
    np.testing.assert_array_equal(again(images(SHAPE)), unit(images(SHAPE)))
    assert again.dropping is not unit.dropping
    config = json.loads(json.dumps(again.get_config()))
    assert config["normalization"] == normalization
    with refused("shares"):
        ResidualUnit(8, normalization="batch" if normalization != "batch" else None, shares=unit)
