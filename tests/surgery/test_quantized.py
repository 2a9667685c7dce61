"""Models with blocks of fewer bits, against Keras' own quantization and weights rounded by hand."""

import re

import keras
import numpy as np
import pandas as pd
import pytest
from keras import layers, quantizers
from reference.random_network import random_network
from refusals import refused
from surgery.test_models import by_hand, images_of, opened_elsewhere

import tfresidual as tfr
from tfresidual import networks, surgery

pytestmark = pytest.mark.eager

RNG = np.random.default_rng(0)
KERAS = {
    8: quantizers.Int8QuantizationConfig(activation_quantizer=None),
    4: quantizers.Int4QuantizationConfig(block_size=None),
}


def perceptrons():
    """Three blocks of dense layers."""
    inputs = state = keras.Input((6,))
    for name in "abc":
        branch = layers.Dense(9, activation="relu", name=f"up_{name}")(state)
        branch = layers.Dense(6, name=f"down_{name}")(branch)
        state = layers.Add(name=f"add_{name}")([state, branch])
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(state))
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def encoder():
    from keras_hub.layers import TransformerEncoder

    inputs = state = keras.Input((5, 8))
    for name in "ab":
        state = TransformerEncoder(16, 2, name=f"layer_{name}")(state)
    state = layers.GlobalAveragePooling1D()(state)
    return keras.Model(inputs, layers.Dense(3, activation="softmax")(state))


# A model, the blocks, and which layers Keras is told to quantize.
QUANTIZED = {
    "dense": (perceptrons, [(1, 0), (1, 2)], "(up|down)_[ac]"),
    "encoder": (encoder, ["layer_b"], "layer_b/"),
}


@pytest.mark.filterwarnings("ignore:.*does not have a `quantize`")
@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("dense", 4),
        pytest.param("encoder", 8, marks=pytest.mark.nightly),
        pytest.param("dense", 8, marks=pytest.mark.nightly),
        pytest.param("encoder", 4, marks=pytest.mark.nightly),
    ],
)
def test_what_keras_quantizes_equals_its_own(name, bits, tmp_path):
    """Inside of layers, Keras' default at 8 bits, which rounds inputs too: its file keeps that."""
    make, blocks, pattern = QUANTIZED[name]
    model = make()
    images, before = images_of(model)[0], model.get_weights()
    found = surgery.quantized(model, dict.fromkeys(blocks, bits))
    assert found.compiled == model.compiled
    keras.tree.map_structure(np.testing.assert_array_equal, model.get_weights(), before)
    own, config = keras.models.clone_model(model), KERAS[bits]
    own.set_weights(before)
    if name == "encoder" and bits == 8:
        config = quantizers.Int8QuantizationConfig()
    own.quantize(config=config, filters=lambda layer: re.match(pattern, layer.path or ""))
    for one, other in zip(found.get_weights(), own.get_weights(), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(one, other, rtol=1e-6)
    np.testing.assert_allclose(found(images), own(images), rtol=1e-6, atol=1e-7)
    if name == "encoder" or bits == 4:
        opened_elsewhere(found, images, tmp_path, "", ", keras_hub" * (name == "encoder"))


def by_hand_rounded(kernel, bits, axes):
    """In float64, with Keras' scale."""
    kernel, most = kernel.astype("float64"), 2 ** (bits - 1) - 1
    scale = (np.abs(kernel).max(axis=axes, keepdims=True) + 1e-7) / most
    return scale * np.round(kernel / scale)


@pytest.mark.parametrize(
    "bits", [3, *(pytest.param(bits, marks=pytest.mark.nightly) for bits in (8, 4))]
)
def test_convolutions_have_rounded_weights(bits, tmp_path):
    model = by_hand()
    table = pd.DataFrame({"stage": [1, 1, 1], "block": [0, 1, 3], "bits": [bits, 32, 5]})
    found = surgery.quantized(tfr.chain(model), table)
    expected = keras.models.clone_model(model)
    expected.set_weights(model.get_weights())
    for index, own in ((0, bits), (3, 5)):
        kernel = expected.get_layer(f"conv{index}").kernel
        kernel.assign(by_hand_rounded(kernel.numpy(), own, (0, 1, 2)))
    for one, other in zip(found.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    images = images_of(model)[0]
    np.testing.assert_allclose(found(images), expected(images), rtol=1e-6, atol=1e-6)
    if bits == 3:
        opened_elsewhere(found, images, tmp_path, "")


@pytest.mark.parametrize("options", [{}, {"lipschitz": 0.9}], ids=["plain", "bounded"])
def test_a_residual_network_stays_one(options):
    """What a bounded one derives from its weights follows the rounded ones."""
    model, expected = (random_network(**options) for _ in range(2))
    found = surgery.quantized(model, {"stage2/block1": 4}, per="tensor")
    assert type(found) is networks.ResidualNetwork
    for variable in tfr.chain(expected).blocks[-1].variables:
        if variable.name == "kernel":
            variable.assign(by_hand_rounded(variable.numpy(), 4, None))
    expected.converge()
    images = images_of(model)[0]
    np.testing.assert_allclose(found(images), expected(images), rtol=1e-5, atol=1e-6)


def test_blocks_of_no_bits_are_taken_out():
    """As the frame of a plan has them: the whole network first, and the last row of a block."""
    model = by_hand()
    rows = [(0, 0, 32, 0), (1, 3, 8, 1), (1, 0, 0, 1), (1, 3, 4, 1)]
    plan = pd.DataFrame(rows, columns=["stage", "block", "bits", "blocks"])
    found = surgery.quantized(model, plan)
    expected = surgery.quantized(surgery.without_blocks(model, [(1, 0)]), {(1, 2): 4})
    images = images_of(model)[0]
    np.testing.assert_array_equal(found(images), expected(images))


def test_a_stage_of_no_bits_is_taken_out():
    """The blocks of later stages get the bits that are asked for, whatever their numbers then."""
    model, gone = random_network(), [(1, 0), (1, 1)]
    found = surgery.quantized(model, {**dict.fromkeys(gone, 0), (2, 1): 4})
    expected = surgery.quantized(surgery.without_blocks(model, gone), {(1, 1): 4})
    images = images_of(model)[0]
    np.testing.assert_array_equal(found(images), expected(images))


REFUSED = {
    "too few bits": ({(1, 0): 1}, {}, "blocks"),
    "a share of a bit": ({(1, 0): 4.5}, {}, "blocks"),
    "no such block": ({(1, 7): 8}, {}, "blocks"),
    "no such name": ({"up_z": 8}, {}, "blocks"),
    "no groups": ({(1, 0): 8}, {"per": 0}, "per"),
}


@pytest.mark.parametrize(("blocks", "options", "name"), REFUSED.values(), ids=REFUSED)
def test_refused(blocks, options, name):
    with refused(name):
        surgery.quantized(perceptrons(), blocks, **options)


def test_shared_blocks_are_refused():
    shared = random_network(blocks=4, share_from=2, batch_norm="unshared")
    with refused("blocks"):
        surgery.quantized(shared, {(1, 3): 8})
