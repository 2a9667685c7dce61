"""Subsampling: channels_first runs here too, since no convolution is involved."""

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.numpy_network import subsample

from tfresidual.layers import Subsampling


@settings(max_examples=25, deadline=None)
@given(
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    channels=st.integers(1, 3),
    appended=st.integers(0, 2),
    strides=st.integers(1, 4),
)
def test_equals_the_numpy_version(height, width, channels, appended, strides):
    x = np.random.default_rng(0).normal(size=(2, height, width, channels)).astype("float32")
    layer = Subsampling(channels + appended, strides)
    expected, _ = subsample(channels + appended, strides)(x)
    output = layer(x)
    np.testing.assert_array_equal(output, expected)
    assert layer.compute_output_shape(x.shape) == expected.shape


@pytest.mark.parametrize(
    "data_format, shape, expected",
    [
        ("channels_last", (None, None, 9, 3), (None, None, 5, 4)),
        ("channels_first", (None, 3, 9, None), (None, 4, 5, None)),
    ],
)
def test_unknown_sizes_stay_unknown(data_format, shape, expected):
    layer = Subsampling(4, data_format=data_format)
    assert layer.compute_output_shape(shape) == expected
    assert layer(keras.Input(batch_shape=shape)).shape == expected
