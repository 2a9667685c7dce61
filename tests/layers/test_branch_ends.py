"""Ends of branches: LayerScale, ReZero and ScalarBias by hand; what stochastic depth drops."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfresidual import layers
from tfresidual.layers.layer_scale import get_multiplier

SHAPE = (3, 4, 5, 6)


def sample(shape=SHAPE, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


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


# Stochastic depth: what it drops, how often, and what stays on the average.

RATES = (0.1, 0.5, 0.9)
DRAWINGS = 4_000


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("rate", RATES)
def test_whole_images_are_dropped(rank, rate):
    x = np.random.default_rng(0).uniform(1, 2, (64, 3, 2, 4, 2)[:rank]).astype("float32")
    layer = layers.StochasticDepth(rate, seed=1)
    factors = np.asarray(layer(x, training=True)) / x
    kept = factors.reshape(len(x), -1)
    np.testing.assert_array_equal(kept == 0, np.repeat(kept[:, :1] == 0, kept.shape[1], 1))
    np.testing.assert_allclose(kept[kept > 0], 1 / (1 - rate), rtol=1e-6)
    assert 0 < np.count_nonzero(kept[:, 0]) < len(x)
    for training in (False, None):
        np.testing.assert_array_equal(layer(x, training=training), x)


def is_within(values, expected, errors=3):
    """Whether means over the first axis are within so many standard errors, all of them at once."""
    error = values.std(0, ddof=1) / np.sqrt(len(values))
    return np.abs(values.mean(0) - expected) <= errors * error


@pytest.mark.parametrize("rate", RATES)
def test_the_mean_of_many_drawings_is_inference(rate):
    """Of one image alone, drawn once per call, and of many in one batch."""
    x = np.array([[1.0, -2.0]], "float32")
    layer = layers.StochasticDepth(rate, seed=2)
    graph = tf.function(lambda: layer(x, training=True))
    one_by_one = np.concatenate([graph() for _ in range(DRAWINGS)])
    at_once = np.asarray(layer(np.repeat(x, DRAWINGS, 0), training=True))
    for values in (one_by_one, at_once):
        assert is_within(values, x[0]).all()


def test_drawings_differ_unless_their_seeds_are_equal():
    x = np.ones((200, 1), "float32")
    first, second, other = (
        layers.StochasticDepth(0.5, 1),
        layers.StochasticDepth(0.5, 1),
        layers.StochasticDepth(0.5),
    )
    drawn = [np.asarray(layer(x, training=True)) for layer in (first, second, other, first)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert np.any(drawn[0] != drawn[2])
    assert np.any(drawn[0] != drawn[3])
    np.testing.assert_array_equal(layers.StochasticDepth(0.0)(x, training=True), x)
