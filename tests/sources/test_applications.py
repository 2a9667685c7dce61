"""Chains of the published architectures in `keras.applications`, with random weights.

Not covered: trained weights, which would have to be downloaded.
"""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.random_network import randomise
from refusals import refused

import tfresidual as tfr
from tfresidual.routing import evaluate
from tfresidual.routing.routes import drop

pytestmark = pytest.mark.eager

# Of every architecture the blocks of each stage, and how many have which shortcut.
ARCHITECTURES = {
    "ResNet50": ([3, 4, 6, 3], {"identity": 12, "projection": 4}),
    "ResNet50V2": ([3, 4, 6, 3], {"identity": 9, "resampling": 3, "projection": 4}),
    "MobileNetV2": ([1, 2, 3, 2, 2], {"identity": 10}),
    "MobileNetV3Small": ([1, 2, 1, 2], {"identity": 6}),
    "EfficientNetB0": ([1, 1, 2, 2, 3], {"identity": 9}),
    "EfficientNetV2B0": ([1, 1, 2, 4, 7], {"identity": 15}),
    "ConvNeXtTiny": ([3, 3, 9, 3], {"identity": 18}),
    "InceptionResNetV2": ([10, 20, 10], {"identity": 40}),
    "Xception": ([1, 1, 9, 1], {"identity": 8, "projection": 4}),
}
SIZES = {"Xception": 71, "InceptionV3": 75, "InceptionResNetV2": 75}


def application(name, **kwargs):
    size = SIZES.get(name, 64)
    build = getattr(keras.applications, name)
    return build(weights=None, input_shape=(size, size, 3), classes=10, **kwargs)


# Every shortcut, with transitions and without, nested activations and layers of their own.
IN_DEFAULT = ("ResNet50V2", "MobileNetV3Small", "ConvNeXtTiny")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.nightly] * (n not in IN_DEFAULT)) for n in ARCHITECTURES],
)
def test_blocks(name):
    stages, shortcuts = ARCHITECTURES[name]
    chain = tfr.chain(application(name))
    assert [len(stage.blocks) for stage in chain.stages] == stages
    assert collections.Counter(block.shortcut for block in chain.blocks) == shortcuts
    changes = [block.shortcut for block in chain.blocks if not block.keeps_shape]
    assert collections.Counter(changes) == {k: n for k, n in shortcuts.items() if k != "identity"}
    entered = [stage.index for stage in chain.stages if stage.transition is not None]
    has_transitions = name.startswith(("Mobile", "Efficient", "ConvNeXt", "Inception"))
    assert entered == (list(range(2, len(stages) + 1)) if has_transitions else [])
    assert chain.outputs == "probabilities"
    # Its additions are inside layers of its own.
    assert all("CustomScaleLayer" in note for note in chain.notes)
    assert bool(chain.notes) == (name == "InceptionResNetV2")
    for stage in chain.stages:
        roles = [
            [name for name in block.weights if not name.endswith("bias")]
            for block in stage.blocks
            if block.shortcut == "identity"
        ]
        assert all(kinds == roles[0] for kinds in roles)


WITHOUT = {
    "VGG16": "additions none",
    "DenseNet121": "additions none",
    "NASNetMobile": "additions Add (",
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.nightly] * (n != "VGG16")) for n in WITHOUT]
)
def test_architectures_without_blocks(name):
    if name == "NASNetMobile":
        model = keras.applications.NASNetMobile(weights=None)
    else:
        model = application(name)
    with refused("source") as caught:
        tfr.chain(model)
    assert f"with {WITHOUT[name]}" in str(caught.value)


@pytest.mark.nightly
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_numbers(name):
    model = application(name, classifier_activation=None)
    randomise(model)
    for weight in model.weights:
        # The scales of ConvNeXt begin too small for its branches to matter.
        if weight.name.startswith("variable"):
            weight.assign(np.ones(weight.shape))
    size = (2, *model.input_shape[1:])
    images = np.random.default_rng(0).uniform(0, 255, size).astype("float32")
    chain, labels = tfr.chain(model), np.array([1, 2])
    expected = model.predict(images, batch_size=2, verbose=0)
    np.testing.assert_array_equal(tf.function(chain)(tf.constant(images)), expected)

    # A block whose branch is zero might as well not be there.
    movable = [block for block in chain.blocks if block.shortcut == "identity"]
    size = np.abs(expected).max()
    for block in movable[-2:]:
        route = drop(chain, (block.stage, block.index))
        outputs = evaluate(chain, (images, labels), [route], with_outputs=True).outputs[0]
        assert np.abs(outputs - expected).max() > 1e-4 * size
        last = list(block.weights)[-1].partition("/")[0]
        weights = [w for role, w in block.weights.items() if role.partition("/")[0] == last]
        before = [keras.ops.convert_to_numpy(weight).copy() for weight in weights]
        for weight in weights:
            weight.assign(np.zeros(weight.shape))
        without = model.predict(images, batch_size=2, verbose=0)
        np.testing.assert_allclose(outputs, without, rtol=0, atol=3e-6 * size)
        for weight, value in zip(weights, before, strict=True):
            weight.assign(value)
