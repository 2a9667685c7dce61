"""The six shortcuts by hand, and the lookup by name."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfresidual import layers
from tfresidual.layers.shortcuts import SHORTCUTS, get_shortcut

SHAPE = (2, 4, 5, 3)


def pair():
    rng = np.random.default_rng(0)
    return [rng.normal(size=SHAPE).astype("float32") for _ in range(2)]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("bias", [0.0, -6.0, -10.0])
@pytest.mark.parametrize("gates_branch", [True, False])
def test_gates_start_at_their_bias(gates_branch, bias):
    state, branch = pair()
    kind = layers.ExclusiveGateShortcut if gates_branch else layers.ShortcutOnlyGateShortcut
    layer, factor = kind(bias=bias), sigmoid(bias) if gates_branch else 1
    # At a state of zero the gate's convolution is its bias.
    output = layer(np.zeros_like(state), branch)
    np.testing.assert_allclose(output, factor * branch, rtol=1e-5)
    layer.gate.kernel.assign(tf.zeros_like(layer.gate.kernel))
    expected = (1 - sigmoid(bias)) * state + factor * branch
    np.testing.assert_allclose(layer(state, branch), expected, rtol=1e-5, atol=1e-6)
    by_name = get_shortcut("exclusive_gate" if gates_branch else "shortcut_only_gate")
    by_name.build(SHAPE, SHAPE)
    np.testing.assert_array_equal(by_name.gate.bias, np.full(3, -6))


@pytest.mark.parametrize(
    "layer_class",
    [layers.ExclusiveGateShortcut, layers.ShortcutOnlyGateShortcut, layers.ConvolutionShortcut],
)
def test_convolutions_mix_the_channels_of_one_pixel(layer_class):
    state, branch = pair()
    layer = layer_class()
    layer.build(SHAPE, SHAPE)
    (convolution,) = layer._flatten_layers(include_self=False, recursive=False)
    kernel = np.random.default_rng(1).normal(size=(3, 3)).astype("float32")
    convolution.kernel.assign(kernel.reshape(1, 1, 3, 3))
    convolution.bias.assign([1.0, 2.0, 3.0])
    expected = np.zeros(SHAPE)
    for place in np.ndindex(SHAPE[:3]):
        mixed = kernel.T @ state[place] + [1, 2, 3]
        gate = sigmoid(mixed)
        factor = gate if layer_class is layers.ExclusiveGateShortcut else 1
        is_gated = layer_class is not layers.ConvolutionShortcut
        kept = (1 - gate) * state[place] if is_gated else mixed
        expected[place] = kept + factor * branch[place]
    np.testing.assert_allclose(layer(state, branch), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("rate", "rescale", "kept", "inference"),
    [(0.5, False, 1, 0.5), (0.5, True, 2, 1), (0.2, False, 1, 0.8), (0.2, True, 1.25, 1)],
)
def test_dropout(rate, rescale, kept, inference):
    state = np.ones((4, 16, 16, 8), "float32")
    first, second = (layers.DropoutShortcut(rate, seed=1, rescale=rescale) for _ in range(2))
    output = np.asarray(first(state, 10 * state, training=True))
    np.testing.assert_allclose(np.unique(output), [10, 10 + kept], rtol=1e-6)
    # 8192 coins: four standard deviations are 0.022.
    assert abs((output == 10).mean() - rate) < 0.022
    np.testing.assert_array_equal(second(state, 10 * state, training=True), output)
    assert np.any(np.asarray(first(state, 10 * state, training=True)) != output)
    for training in (None, False):
        found = first(state, 10 * state, training=training)
        np.testing.assert_allclose(found, 10 + inference * state, rtol=1e-6)


@pytest.mark.parametrize("name", SHORTCUTS)
def test_lookup_by_name_layer_and_config(name):
    by_name = get_shortcut(name, dtype="mixed_bfloat16")
    assert type(by_name) is SHORTCUTS[name]
    assert by_name.dtype_policy.name == "mixed_bfloat16"
    by_layer = get_shortcut(by_name)
    assert by_layer is not by_name
    assert by_layer.get_config() == by_name.get_config()
    by_config = get_shortcut(keras.saving.serialize_keras_object(by_name))
    assert by_config.get_config() == by_name.get_config()
    assert get_shortcut(by_name, dtype="float32").dtype_policy.name == "float32"
    first = get_shortcut(name, data_format="channels_first")
    first.build((2, 3, 4, 5), (2, 3, 4, 5))
    for convolution in first._flatten_layers(include_self=False, recursive=False):
        if isinstance(convolution, keras.layers.Conv2D):
            assert convolution.data_format == "channels_first"
            assert convolution.kernel.shape == (1, 1, 3, 3)
