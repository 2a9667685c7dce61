"""Models of keras-hub, built small, as sources of chains.

keras-hub writes its networks with layers and with custom layers; what it hides in the latter is
not seen.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfresidual as tfr
from tfresidual import probes

pytestmark = pytest.mark.eager

keras_hub = pytest.importorskip("keras_hub")

IMAGES = np.random.default_rng(0).normal(size=(4, 32, 32, 3)).astype("float32")


def resnet(blocks, block_type, use_pre_activation):
    return keras_hub.models.ResNetBackbone(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64, 8, 16][: len(blocks)],
        stackwise_num_blocks=blocks,
        stackwise_num_strides=[1, 2, 2][: len(blocks)],
        block_type=block_type,
        use_pre_activation=use_pre_activation,
        image_shape=(32, 32, 3),
    )


def randomised(model):
    """The model with statistics other than 0 and 1."""
    rng = np.random.default_rng(1)
    for weight in model.weights:
        if weight.name == "moving_variance":
            weight.assign(rng.uniform(0.5, 2, weight.shape))
        elif weight.name in ("moving_mean", "beta"):
            weight.assign(rng.normal(0, 0.1, weight.shape))
    return model


@pytest.mark.parametrize(
    ("block_type", "use_pre_activation"),
    [
        ("basic_block", False),
        ("bottleneck_block", True),
        pytest.param("basic_block", True, marks=pytest.mark.system),
        pytest.param("bottleneck_block", False, marks=pytest.mark.system),
    ],
)
def test_resnet(block_type, use_pre_activation):
    model = randomised(resnet([2, 3], block_type, use_pre_activation))
    chain = tfr.chain(model)
    assert [len(stage.blocks) for stage in chain.stages] == [2, 3]
    assert [block.index for block in chain.blocks if block.shortcut == "projection"][-1] == 0
    assert {block.shortcut for block in chain.blocks[-2:]} == {"identity"}
    expected = model.predict(IMAGES, batch_size=len(IMAGES), verbose=0)
    np.testing.assert_array_equal(tf.function(chain)(IMAGES), expected)


@pytest.mark.system
@pytest.mark.compiled
def test_probes_and_export_of_a_classifier(tmp_path):
    backbone = resnet([1, 2], "basic_block", True)
    model = randomised(keras_hub.models.ResNetImageClassifier(backbone, num_classes=5))
    labels = np.arange(len(IMAGES))
    frame = probes.drop_blocks(model, (IMAGES, labels))
    assert frame["error"].notna().sum() == 2
    tfr.export(model, tmp_path / "saved")
    again = probes.drop_blocks(tmp_path / "saved", (IMAGES, labels))
    np.testing.assert_allclose(again["cross_entropy"], frame["cross_entropy"], rtol=1e-6)


def test_what_custom_layers_hide_is_said():
    transformer = keras_hub.models.ViTBackbone(
        image_shape=(32, 32, 3), patch_size=8, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=16
    )
    with pytest.raises(
        ValueError, match=r"Received: .*may hide some: ViTEncoder \(1: vit_encoder\)"
    ):
        tfr.chain(transformer)
    assert isinstance(transformer, keras.Model)
