"""What a residual unit has in its branch beside convolutions: nothing, factors, Fixup, dropping.

The numbers of inference are compared with the NumPy version in tests/networks.
"""

import itertools
import json

import keras
import numpy as np
import pytest
from reference.layer_test import run_layer_test
from reference.random_network import LAYOUTS, randomise

from tfresidual.layers import LayerScale, ResidualUnit, ReZero

# Nothing is applied after the addition.
OPEN = ("relu_before_addition", "relu_only_preactivation", "full_preactivation")
SHAPE = (6, 5, 4, 8)


def sample(shape=SHAPE):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


IDENTITIES = {
    "ReZero": {"multiplier": "rezero"},
    "SkipInit": {"normalization": None, "multiplier": ReZero()},
    "ReZero, dropped": {"multiplier": LayerScale(0.0), "stochastic_depth": 0.5},
    "Fixup": {"normalization": "fixup", "blocks": 5},
}


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("layout", OPEN)
@pytest.mark.parametrize("name", IDENTITIES)
def test_a_unit_is_initially_the_identity_bit_for_bit(name, layout, dtype):
    unit = ResidualUnit(8, layout, bottleneck=True, dtype=dtype, **IDENTITIES[name])
    x = np.asarray(keras.ops.cast(sample(), unit.compute_dtype))
    inputs = keras.Input(SHAPE[1:], dtype=unit.compute_dtype)
    model = keras.Model(inputs, unit(inputs))
    # Fixup has its zeros before a ReLU at the end of a branch, which leaves them.
    for output in (unit(x), unit(x, training=True), model.predict(x, verbose=0)):
        np.testing.assert_array_equal(np.asarray(output), x)


@pytest.mark.eager
@pytest.mark.parametrize(
    ("kwargs", "trainable", "statistics"),
    [
        ({"normalization": None}, 4, 0),
        ({"normalization": None, "multiplier": "layer_scale"}, 5, 0),
        # Two kernels, four biases and a factor; after the addition another bias.
        ({"normalization": "fixup", "blocks": 9}, 7, 0),
        ({"normalization": "fixup", "layout": "original", "bottleneck": True}, 3 + 6 + 1, 0),
        ({"multiplier": "layer_scale", "layout": "original", "strides": 2}, 4 + 4 + 1 + 2, 4),
        ({"stochastic_depth": 0.25}, 8, 4),
    ],
)
def test_layer(kwargs, trainable, statistics, tmp_path):
    size = SHAPE[:3] if kwargs.get("strides", 1) == 1 else (6, 3, 2)
    run_layer_test(
        ResidualUnit,
        {"filters": 8} | kwargs,
        SHAPE,
        (*size, 8),
        (trainable, statistics),
        tmp_path,
        seed_generators=int("stochastic_depth" in kwargs),
    )


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
    x, gamma = sample(), np.asarray(unit.multiplier.gamma)
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
    before = np.asarray(unit.branch(sample()))
    unit.scale_branch(0.25)
    np.testing.assert_allclose(unit.branch(sample()), before / 4, rtol=1e-5, atol=1e-6)


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


def test_channels_first_has_the_weights_of_channels_last():
    for options in ({"multiplier": LayerScale(axis=2)}, {"normalization": "fixup"}):
        first = ResidualUnit(8, data_format="channels_first", name="unit", **options)
        last = ResidualUnit(8, data_format="channels_last", name="unit", **options)
        first.build((None, 8, 4, 5))
        last.build((None, 4, 5, 8))
        assert [(w.path, w.shape) for w in first.weights] == [
            (w.path, w.shape) for w in last.weights
        ]
        assert first.multiplier.axis in (None, 1)


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
    np.testing.assert_array_equal(again(sample()), unit(sample()))
    assert again.dropping is not unit.dropping
    config = json.loads(json.dumps(again.get_config()))
    assert config["normalization"] == normalization
    with pytest.raises(ValueError, match=r"`shares` must be a built `ResidualUnit` of the same"):
        ResidualUnit(8, normalization="batch" if normalization != "batch" else None, shares=unit)


def test_a_configuration_from_before_has_none_of_it():
    config = ResidualUnit(8, "original", name="unit").get_config()
    for name in ("normalization", "multiplier", "stochastic_depth", "blocks"):
        del config[name]
    unit = ResidualUnit.from_config(config)
    assert (unit.normalization, unit.multiplier, unit.stochastic_depth) == ("batch", None, 0)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"normalization": "layer"}, r"'batch', 'fixup'.* Received: normalization='layer'"),
        ({"multiplier": "skipinit"}, r"'rezero'.* Received: multiplier='skipinit'"),
        ({"blocks": 0}, r"`blocks` must be an int, 1 or more. Received: blocks=0"),
        *(
            (dict(pairs), r"must be None .* Received: ")
            for pairs in itertools.combinations(
                {"lipschitz": 0.9, "multiplier": "rezero", "normalization": "fixup"}.items(), 2
            )
        ),
    ],
)
def test_errors(kwargs, message):
    with pytest.raises(ValueError, match=message):
        ResidualUnit(8, **kwargs)
