"""The six shortcuts by hand, and the lookup by name."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.layer_test import run_layer_test

from tfresidual import layers
from tfresidual.layers.shortcuts import SHORTCUTS, get_shortcut

SHAPE = (2, 4, 5, 3)


def pair():
    rng = np.random.default_rng(0)
    return [rng.normal(size=SHAPE).astype("float32") for _ in range(2)]


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.mark.eager
@pytest.mark.parametrize(
    "layer_class, init_kwargs, trainable, seed_generators",
    [
        (layers.IdentityShortcut, {}, 0, 0),
        (layers.ScaledShortcut, {"scale": 0.25, "branch_scale": 0.75}, 0, 0),
        (layers.ExclusiveGateShortcut, {"bias": -2.0}, 2, 0),
        (layers.ShortcutOnlyGateShortcut, {"bias": -2.0, "data_format": "channels_last"}, 2, 0),
        (layers.ConvolutionShortcut, {"data_format": "channels_last"}, 2, 0),
        (layers.DropoutShortcut, {"rate": 0.25, "seed": 3}, 0, 1),
        (layers.DropoutShortcut, {"rate": 0.25, "seed": 3, "rescale": True}, 0, 1),
    ],
)
def test_layer(layer_class, init_kwargs, trainable, seed_generators, tmp_path):
    run_layer_test(
        layer_class, init_kwargs, [SHAPE, SHAPE], SHAPE, (trainable, 0), tmp_path, seed_generators
    )


def test_identity_adds():
    state, branch = pair()
    np.testing.assert_array_equal(layers.IdentityShortcut()(state, branch), state + branch)


def test_scaled_halves_the_state_alone_by_default():
    state, branch = pair()
    np.testing.assert_allclose(layers.ScaledShortcut()(state, branch), state / 2 + branch)


def test_scaled_can_halve_both():
    state, branch = pair()
    output = layers.ScaledShortcut(branch_scale=0.5)(state, branch)
    np.testing.assert_allclose(output, (state + branch) / 2, rtol=1e-6)


@pytest.mark.parametrize("bias", [0.0, -6.0, -10.0])
def test_exclusive_gate_starts_at_its_bias(bias):
    state, branch = pair()
    layer = layers.ExclusiveGateShortcut(bias=bias)
    # At a state of zero the gate's convolution is its bias.
    output = layer(np.zeros_like(state), branch)
    np.testing.assert_allclose(output, sigmoid(bias) * branch, rtol=1e-5)
    layer.gate.kernel.assign(tf.zeros_like(layer.gate.kernel))
    output = layer(state, branch)
    expected = (1 - sigmoid(bias)) * state + sigmoid(bias) * branch
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("bias", [0.0, -6.0])
def test_shortcut_only_gate_leaves_the_branch_alone(bias):
    state, branch = pair()
    layer = layers.ShortcutOnlyGateShortcut(bias=bias)
    np.testing.assert_allclose(layer(np.zeros_like(state), branch), branch, rtol=1e-6)
    layer.gate.kernel.assign(tf.zeros_like(layer.gate.kernel))
    expected = (1 - sigmoid(bias)) * state + branch
    np.testing.assert_allclose(layer(state, branch), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["exclusive_gate", "shortcut_only_gate"])
def test_gates_by_name_start_near_the_shortcut(name):
    layer = get_shortcut(name)
    layer.build(SHAPE, SHAPE)
    np.testing.assert_array_equal(layer.gate.bias, np.full(3, -6))


@pytest.mark.parametrize(
    "layer_class", [layers.ExclusiveGateShortcut, layers.ShortcutOnlyGateShortcut]
)
def test_gate_mixes_the_channels_of_one_pixel(layer_class):
    state, branch = pair()
    layer = layer_class(bias=0.5)
    layer.build(SHAPE, SHAPE)
    kernel = np.random.default_rng(1).normal(size=(3, 3)).astype("float32")
    layer.gate.kernel.assign(kernel.reshape(1, 1, 3, 3))
    expected = np.zeros(SHAPE)
    for place in np.ndindex(SHAPE[:3]):
        gate = sigmoid(kernel.T @ state[place] + 0.5)
        factor = gate if layer_class is layers.ExclusiveGateShortcut else 1
        expected[place] = (1 - gate) * state[place] + factor * branch[place]
    np.testing.assert_allclose(layer(state, branch), expected, rtol=1e-4, atol=1e-6)


def test_conv1x1_mixes_the_channels_of_one_pixel():
    state, branch = pair()
    layer = layers.ConvolutionShortcut()
    layer.build(SHAPE, SHAPE)
    kernel = np.random.default_rng(1).normal(size=(3, 3)).astype("float32")
    layer.convolution.kernel.assign(kernel.reshape(1, 1, 3, 3))
    layer.convolution.bias.assign([1.0, 2.0, 3.0])
    expected = np.zeros(SHAPE)
    for place in np.ndindex(SHAPE[:3]):
        expected[place] = kernel.T @ state[place] + [1, 2, 3] + branch[place]
    np.testing.assert_allclose(layer(state, branch), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("rescale", "kept", "inference"), [(False, 11.0, 10.5), (True, 12.0, 11.0)]
)
def test_dropout_drops_half_of_the_state(rescale, kept, inference):
    state = np.ones((4, 16, 16, 8), "float32")
    layer = layers.DropoutShortcut(seed=1, rescale=rescale)
    output = np.asarray(layer(state, 10 * state, training=True))
    assert set(np.unique(output)) == {10.0, kept}
    # 8192 fair coins: four standard deviations are 0.022.
    assert abs((output == kept).mean() - 0.5) < 0.022
    again = np.asarray(layer(state, 10 * state, training=True))
    assert np.any(again != output)
    np.testing.assert_array_equal(layer(state, 10 * state), inference * state)
    np.testing.assert_array_equal(layer(state, 10 * state, training=False), inference * state)


@pytest.mark.parametrize(("rescale", "kept"), [(False, 1), (True, 1.25)])
def test_dropout_of_another_rate(rescale, kept):
    state = np.ones((4, 16, 16, 8), "float32")
    layer = layers.DropoutShortcut(0.2, seed=1, rescale=rescale)
    output = np.asarray(layer(state, 0 * state, training=True))
    np.testing.assert_allclose(np.unique(output), [0, kept], rtol=1e-6)
    assert abs((output == 0).mean() - 0.2) < 0.018
    # At inference the mean of the mask.
    np.testing.assert_allclose(layer(state, 0 * state), 0.8 * kept * state, rtol=1e-6)


def test_dropout_has_the_expected_scale_of_the_paper():
    """He et al. 2016: dropout of 0.5 is a scale of 0.5 in expectation, as constant scaling is."""
    state, branch = pair()
    layer = get_shortcut("dropout")
    scaled = layers.ScaledShortcut(0.5)(state, branch)
    np.testing.assert_allclose(layer(state, branch), scaled, rtol=1e-6)
    masks = np.mean([layer(state, branch, training=True) for _ in range(400)], axis=0) - branch
    # Five standard deviations of the mean of 400 coins.
    assert np.abs(masks / state - 0.5).max() < 0.125


def test_dropout_of_nothing_is_an_identity():
    state, branch = pair()
    for training in (False, True):
        output = layers.DropoutShortcut(0.0)(state, branch, training=training)
        np.testing.assert_array_equal(output, state + branch)


@pytest.mark.parametrize("rescale", [1, "no", None])
def test_dropout_rescale_is_a_bool(rescale):
    with pytest.raises(ValueError, match=r"`rescale` must be a bool\. Received: rescale="):
        layers.DropoutShortcut(rescale=rescale)


def test_dropout_with_a_seed_repeats_itself():
    state, branch = pair()
    outputs = [
        np.asarray(layers.DropoutShortcut(seed=5)(state, branch, training=True)) for _ in range(2)
    ]
    np.testing.assert_array_equal(*outputs)


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


@pytest.mark.parametrize("name", ["exclusive_gate", "shortcut_only_gate", "conv1x1"])
def test_lookup_passes_the_data_format_on(name):
    layer = get_shortcut(name, data_format="channels_first")
    layer.build((2, 3, 4, 5), (2, 3, 4, 5))
    (convolution,) = layer._flatten_layers(include_self=False, recursive=False)
    assert convolution.data_format == "channels_first"
    assert convolution.kernel.shape == (1, 1, 3, 3)


@pytest.mark.parametrize("identifier", ["gate", None, 3, keras.layers.Add()])
def test_unknown_shortcuts(identifier):
    with pytest.raises(ValueError, match=r"'identity', .*'dropout'.*Received: shortcut="):
        get_shortcut(identifier)


def test_base_class_has_no_call():
    with pytest.raises(NotImplementedError):
        layers.Shortcut()(*pair())
