"""LayerScale, ReZero and ScalarBias by hand, and multiplied into the weights of other layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.layer_test import run_layer_test

from tfresidual import layers
from tfresidual.layers.layer_scale import get_multiplier

SHAPE = (3, 4, 5, 6)


def sample(shape=SHAPE, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


@pytest.mark.eager
@pytest.mark.parametrize(
    ("layer_class", "init_kwargs", "shape"),
    [
        (layers.LayerScale, {"initial": 0.1}, SHAPE),
        (layers.LayerScale, {"initial": 0.1, "axis": 1}, SHAPE),
        (layers.LayerScale, {"axis": None}, (4, 7)),
        # At 0, no gradient reaches what is before it.
        (layers.ReZero, {"initial": 0.5}, (4, 7, 3)),
        (layers.ScalarBias, {}, SHAPE),
    ],
)
def test_layer(layer_class, init_kwargs, shape, tmp_path):
    run_layer_test(layer_class, init_kwargs, shape, shape, (1, 0), tmp_path)


@pytest.mark.parametrize(
    "layer",
    [layers.LayerScale(0.5), layers.ReZero(0.5), layers.ScalarBias(), layers.StochasticDepth(0.5)],
)
def test_whole_numbers_are_taken_as_floats(layer):
    numbers = np.arange(12).reshape(4, 3)
    scale = 0.5 if isinstance(layer, layers.LayerScale) else 1.0
    np.testing.assert_array_equal(layer(numbers), scale * numbers)
    if isinstance(layer, layers.StochasticDepth):
        assert set(np.unique(layer(numbers, training=True) / np.maximum(numbers, 1))) <= {0, 2}


@pytest.mark.parametrize("axis", [None, -1, 1, 2, -3])
def test_every_entry_of_an_axis_has_its_factor(axis):
    layer, x = layers.LayerScale(axis=axis), sample()
    layer.build(x.shape)
    np.testing.assert_array_equal(layer.gamma, np.full(layer.gamma.shape, np.float32(1e-4)))
    gamma = sample(layer.gamma.shape, 1)
    layer.gamma.assign(gamma)
    expected = np.empty_like(x)
    for place in np.ndindex(x.shape):
        expected[place] = x[place] * (gamma if axis is None else gamma[place[axis]])
    np.testing.assert_array_equal(layer(x), expected)


@pytest.mark.parametrize("shape", [(4,), (4, 2), (4, 2, 3, 5, 6)])
def test_what_is_there_initially(shape):
    x = sample(shape)
    assert not np.any(layers.ReZero()(x))
    np.testing.assert_array_equal(layers.ReZero(2.0)(x), 2 * x)
    bias = layers.ScalarBias()
    np.testing.assert_array_equal(bias(x), x)
    bias.bias.assign(0.25)
    np.testing.assert_array_equal(bias(x), x + np.float32(0.25))


def before_it(kind):
    """A layer with the channels of its output last, with random weights, and inputs."""
    layer, x = {
        "convolution": (keras.layers.Conv2D(6, 3, padding="same"), sample()),
        "without bias": (keras.layers.Conv2D(6, 3, strides=2, use_bias=False), sample()),
        "pointwise": (layers.PointwiseConvolution(6, strides=2), sample()),
        "normalization": (layers.BatchNormalization(), sample()),
        "another rank": (layers.BatchNormalization(), sample((4, 5, 6))),
        "frozen": (layers.BatchNormalization(trainable=False), sample()),
    }[kind]
    layer.build(x.shape)
    for seed, variable in enumerate(layer.weights):
        variable.assign(np.abs(sample(variable.shape, seed)) + 0.5)
    return layer, x


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    "kind",
    ["convolution", "without bias", "pointwise", "normalization", "another rank", "frozen"],
)
@pytest.mark.parametrize("axis", [None, -1])
def test_factors_multiplied_into_weights(kind, axis, training):
    """Outputs, all gradients and moving statistics are those of the two layers."""
    found = []
    for is_one in (False, True):
        layer, x = before_it(kind)
        scale, inputs = layers.LayerScale(axis=axis), tf.constant(x)
        scale.build((None, 6))
        scale.gamma.assign(sample(scale.gamma.shape, 7))
        given = {"training": training} if hasattr(layer, "gamma") else {}
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = (
                scale.after(layer, inputs, training) if is_one else scale(layer(inputs, **given))
            )
            total = tf.reduce_sum(outputs**3)
        sources = [inputs, scale.gamma.value, *(w.value for w in layer.trainable_weights)]
        found.append([outputs, *tape.gradient(total, sources), *layer.non_trainable_weights])
    for one, two in zip(*found, strict=True):
        one, two = np.asarray(one), np.asarray(two)
        np.testing.assert_allclose(two, one, rtol=1e-3, atol=1e-4 * np.abs(one).max())


def test_multipliers_by_name_config_and_layer():
    for name, kind in (("layer_scale", layers.LayerScale), ("rezero", layers.ReZero)):
        by_name = get_multiplier(name, axis=1, dtype="mixed_bfloat16")
        assert type(by_name) is kind
        assert by_name.dtype_policy.name == "mixed_bfloat16"
        assert by_name.axis == (1 if kind is layers.LayerScale else None)
        for identifier in (by_name, keras.saving.serialize_keras_object(by_name)):
            again = get_multiplier(identifier, axis=1)
            assert again is not by_name
            assert again.get_config() == by_name.get_config()
    assert get_multiplier(layers.LayerScale(0.5, axis=None), axis=-1).axis is None
    assert get_multiplier(None, axis=-1) is None
    for identifier in ("skipinit", 0.5, keras.layers.Add()):
        with pytest.raises(ValueError, match=r"'layer_scale', 'rezero'.*Received: multiplier="):
            get_multiplier(identifier, axis=-1)


@pytest.mark.parametrize(
    ("axis", "shape"), [(0, SHAPE), (4, SHAPE), (-4, SHAPE), (1, (2, None, 3)), (-1, (2,))]
)
def test_an_axis_that_has_no_factors(axis, shape):
    with pytest.raises(ValueError, match=rf"Received: axis={axis}, inputs of shape"):
        layers.LayerScale(axis=axis).build(shape)


@pytest.mark.parametrize("initial", [np.nan, "0", None])
def test_initial_values_are_numbers(initial):
    for kind in (layers.LayerScale, layers.ReZero):
        with pytest.raises(ValueError, match="Received: initial="):
            kind(initial)
