"""Stochastic depth: what it drops, how often, and what stays on the average."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.layer_test import run_layer_test

from tfresidual.layers import ResidualUnit, StochasticDepth

RATES = (0.1, 0.5, 0.9)
DRAWINGS = 4_000


@pytest.mark.eager
@pytest.mark.parametrize("shape", [(16, 3), (16, 4, 4, 3)])
def test_layer(shape, tmp_path):
    kwargs = {"rate": 0.25, "seed": 3}
    run_layer_test(StochasticDepth, kwargs, shape, shape, (0, 0), tmp_path, seed_generators=1)


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("rate", RATES)
def test_whole_images_are_dropped(rank, rate):
    x = np.random.default_rng(0).uniform(1, 2, (64, 3, 2, 4, 2)[:rank]).astype("float32")
    layer = StochasticDepth(rate, seed=1)
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
    layer = StochasticDepth(rate, seed=2)
    graph = tf.function(lambda: layer(x, training=True))
    one_by_one = np.concatenate([graph() for _ in range(DRAWINGS)])
    at_once = np.asarray(layer(np.repeat(x, DRAWINGS, 0), training=True))
    for values in (one_by_one, at_once):
        assert is_within(values, x[0]).all()


@pytest.mark.parametrize("multiplier", [None, "rezero"])
@pytest.mark.parametrize("strides", [1, 2])
def test_the_mean_of_many_drawings_of_a_unit_is_its_inference(multiplier, strides):
    keras.utils.set_random_seed(0)
    options = {"normalization": None, "multiplier": multiplier, "stochastic_depth": 0.4}
    unit = ResidualUnit(4, strides=strides, **options)
    x = np.random.default_rng(0).normal(size=(1, 3, 3, 4)).astype("float32")
    expected = np.asarray(unit(x))[0]
    if multiplier:
        unit.multiplier.gamma.assign(0.7)
        expected = np.asarray(unit(x))[0]
    drawn = np.asarray(unit(np.repeat(x, DRAWINGS, 0), training=True))
    # All features of an image are drawn together.
    assert is_within(drawn, expected).all()
    assert len(np.unique(drawn.reshape(DRAWINGS, -1).round(4), axis=0)) == 2


def test_drawings_differ_unless_their_seeds_are_equal():
    x = np.ones((200, 1), "float32")
    first, second, other = StochasticDepth(0.5, 1), StochasticDepth(0.5, 1), StochasticDepth(0.5)
    drawn = [np.asarray(layer(x, training=True)) for layer in (first, second, other, first)]
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert np.any(drawn[0] != drawn[2])
    assert np.any(drawn[0] != drawn[3])


def test_a_rate_of_0_drops_nothing():
    x = np.random.default_rng(0).normal(size=(50, 3)).astype("float32")
    np.testing.assert_array_equal(StochasticDepth(0.0)(x, training=True), x)


@pytest.mark.parametrize("rate", [1, -0.1, np.nan, "0.5", None, True])
def test_rates_are_probabilities_under_1(rate):
    for make in (StochasticDepth, lambda rate: ResidualUnit(4, stochastic_depth=rate)):
        with pytest.raises(ValueError, match=r"under 1\. Received: "):
            make(rate)
