"""The residual unit: every layout, branch, shortcut, stride and shape change.

Not covered here: running with channels_first (the CPU has no such convolution), only its shapes.
"""

import itertools
import json

import keras
import numpy as np
import pytest
from reference.layer_test import run_layer_test
from reference.numpy_network import Weights, residual_unit, weights_of
from reference.random_network import LAYOUTS, SHORTCUTS, randomise

from tfresidual import layers
from tfresidual.layers import ResidualUnit

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


PAIRS = [
    (layout, shortcut, change)
    for i, layout in enumerate(LAYOUTS)
    for j, (shortcut, change) in enumerate(zip(SHORTCUTS, CHANGES, strict=True))
    if (i + j) % 5 == 0
]


@pytest.mark.parametrize(
    "layout, shortcut, change",
    [
        pytest.param(*pair, marks=[pytest.mark.nightly] if i % 2 else [])
        for i, pair in enumerate(PAIRS)
    ],
)
def test_layer(layout, shortcut, change, tmp_path):
    strides, resize, channels = CHANGES[change]
    kwargs = {
        "filters": 8,
        "layout": layout,
        "bottleneck": change in ("kept", "zero_padding"),
        "shortcut": shortcut,
        "strides": strides,
        "resize": resize,
        "gamma_initializer": "ones",
    }
    convolutions = 3 if kwargs["bottleneck"] else 2
    projects = change in ("widened", "projection", "strided")
    trainable = 4 * convolutions + 2 * projects
    weighted = ("exclusive_gate", "shortcut_only_gate", "conv1x1")
    if shortcut in weighted and not (shortcut == "conv1x1" and projects):
        trainable += 2
    size = 7 if strides == 1 else 4
    run_layer_test(
        ResidualUnit,
        kwargs,
        (4, 7, 7, channels),
        (4, size, size, 8),
        (trainable, 2 * convolutions),
        tmp_path,
        seed_generators=int(shortcut == "dropout"),
    )


@pytest.mark.parametrize("change", ["projection", "zero_padding"])
@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_sizes_of_the_image(change, size):
    unit, channels = make_unit(change)
    half = (size + 1) // 2
    x = np.ones((1, size, size + 1, channels), "float32")
    assert unit(x).shape == unit.compute_output_shape(x.shape) == (1, half, size // 2 + 1, 8)


@pytest.mark.parametrize("bottleneck", [False, True])
@pytest.mark.parametrize("strides", [1, 2])
@pytest.mark.parametrize("shortcut", SHORTCUTS)
def test_channels_first_has_the_shapes_and_weights_of_channels_last(bottleneck, strides, shortcut):
    kwargs = {"bottleneck": bottleneck, "strides": strides, "shortcut": shortcut, "name": "unit"}
    first = ResidualUnit(8, data_format="channels_first", **kwargs)
    last = ResidualUnit(8, data_format="channels_last", **kwargs)
    first.build((None, 4, 7, 6))
    last.build((None, 7, 6, 4))
    size = (7, 6) if strides == 1 else (4, 3)
    assert first.compute_output_shape((None, 4, 7, 6)) == (None, 8, *size)
    assert first.compute_output_shape((None, 4, None, 6))[2] is None
    assert [(w.path, w.shape) for w in first.weights] == [(w.path, w.shape) for w in last.weights]
    assert first.keeps_shape((None, 8, 7, 6)) == (strides == 1)
    assert not first.keeps_shape((None, 7, 6, 8))
    assert ResidualUnit.from_config(first.get_config()).data_format == "channels_first"
    assert first.normalization1.axis == 1


def test_branch_and_join_are_the_unit():
    unit, channels = make_unit("projection", layout="original", shortcut="exclusive_gate")
    randomise(unit)
    x = np.random.default_rng(1).normal(size=(2, 7, 6, channels)).astype("float32")
    branch = unit.branch(x)
    assert branch.shape == (2, 4, 3, 8)
    np.testing.assert_array_equal(unit.join(x, branch), unit(x))


def test_a_branch_of_zeros_leaves_the_identity():
    unit, channels = make_unit("kept")
    unit.convolution2.kernel.assign(np.zeros((3, 3, 8, 8)))
    x = np.random.default_rng(1).normal(size=(2, 7, 6, channels)).astype("float32")
    np.testing.assert_array_equal(unit(x), x)


def test_gamma_initializer_reaches_every_normalization():
    unit = ResidualUnit(8, bottleneck=True, gamma_initializer=keras.initializers.Constant(0.1))
    unit.build((None, 4, 4, 8))
    for i in (1, 2, 3):
        np.testing.assert_allclose(getattr(unit, f"normalization{i}").gamma, 0.1, rtol=1e-6)


def test_initial_values():
    unit = ResidualUnit(64)
    unit.build((None, 4, 4, 64))
    for i in (1, 2):
        kernel = np.asarray(getattr(unit, f"convolution{i}").kernel)
        # He normal: standard deviation sqrt(2 / (9 * 64)); 36,864 values give it to 1 %.
        assert kernel.std() == pytest.approx(np.sqrt(2 / 576), rel=0.02)
        assert not np.any(getattr(unit, f"convolution{i}").bias)
        normalization = getattr(unit, f"normalization{i}")
        np.testing.assert_array_equal(normalization.gamma, np.ones(64))
        assert not np.any(normalization.beta)


def test_training_uses_the_statistics_of_the_batch_and_inference_the_moving_ones():
    unit, channels = make_unit("kept")
    x = 5 + 3 * np.random.default_rng(1).normal(size=(8, 7, 6, channels)).astype("float32")
    before = np.asarray(unit(x))
    training = np.asarray(unit(x, training=True))
    assert np.abs(training - before).max() > 0.1
    mean = np.asarray(unit.normalization1.moving_mean)
    np.testing.assert_allclose(mean, 0.01 * x.mean((0, 1, 2)), rtol=1e-4)
    assert np.any(np.asarray(unit(x)) != before)


@pytest.mark.parametrize(("rescale", "kept"), [(False, 1), (True, 2)])
def test_dropout_shortcut_drops_in_training_only(rescale, kept):
    unit, channels = make_unit("kept", shortcut=layers.DropoutShortcut(0.5, 3, rescale))
    unit.convolution2.kernel.assign(np.zeros((3, 3, 8, 8)))
    x = np.ones((2, 7, 6, channels), "float32")
    assert set(np.unique(unit(x, training=True))) == {0.0, kept}
    np.testing.assert_array_equal(unit(x), kept / 2 * x)


def test_shortcut_layer_is_copied_and_kept_in_the_config():
    shortcut = layers.ScaledShortcut(0.25, 0.75, name="mine")
    first, second = (ResidualUnit(8, shortcut=shortcut) for _ in range(2))
    assert first.shortcut is not shortcut
    assert first.shortcut is not second.shortcut
    revived = ResidualUnit.from_config(first.get_config())
    assert (revived.shortcut.scale, revived.shortcut.branch_scale) == (0.25, 0.75)


def test_projection_replaces_the_conv1x1_shortcut():
    unit, _ = make_unit("projection", shortcut="conv1x1")
    assert [w.path for w in unit.weights if "shortcut" in w.path] == []
    unit, _ = make_unit("zero_padding", shortcut="conv1x1")
    assert len([w.path for w in unit.weights if "shortcut" in w.path]) == 2


@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"layout": "preactivation"}, "layout.*'original'.*Received: layout='preactivation'$"),
        ({"resize": "pooling"}, "resize.*'projection'.*Received: resize='pooling'$"),
        ({"shortcut": "gate"}, "shortcut.*'scaled'.*Received: shortcut='gate'$"),
        ({"filters": 0}, "filters.*an int, 1 or more. Received: filters=0$"),
        ({"filters": 8.0}, "filters.*an int, 1 or more. Received: filters=8.0$"),
        ({"strides": (2, 2)}, r"strides.*an int, 1 or more. Received: strides=\(2, 2\)$"),
        ({"strides": 0}, "strides.*an int, 1 or more. Received: strides=0$"),
        ({"filters": 6, "bottleneck": True}, "multiple of 4.*Received: filters=6$"),
    ],
)
def test_errors(kwargs, message):
    with pytest.raises(ValueError, match=message):
        ResidualUnit(**{"filters": 8} | kwargs)


def test_zero_padding_cannot_drop_channels():
    with pytest.raises(ValueError, match="Received: filters=8, input_shape="):
        ResidualUnit(8, strides=2, resize="zero_padding").build((None, 4, 4, 16))


def test_unknown_sizes_stay_unknown():
    unit = ResidualUnit(8, strides=2)
    assert unit(keras.Input((None, None, 4))).shape == (None, None, None, 8)


def test_the_layer_tests_hold_every_layout_shortcut_and_change():
    assert [{pair[i] for pair in PAIRS} for i in range(3)] == [
        set(LAYOUTS),
        set(SHORTCUTS),
        set(CHANGES),
    ]
