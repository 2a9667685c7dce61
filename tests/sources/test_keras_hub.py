"""Models of keras-hub, built small, as sources of chains.

keras-hub writes its networks with layers and with custom layers; the latter are opened.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfresidual as tfr
from tfresidual import probes

pytestmark = [pytest.mark.eager, pytest.mark.filterwarnings("ignore::UserWarning")]

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


@pytest.mark.system
def test_words_that_are_masked_are_no_positions():
    """As many of them as the sequence has positions, of which some are padding."""
    from sources import zoo  # needs keras-hub

    model = zoo.build("BertMaskedLM")
    inputs = zoo.inputs_of("BertMaskedLM", model)
    shape = inputs["mask_positions"].shape
    assert shape == inputs["padding_mask"].shape
    assert not inputs["padding_mask"].all()
    labels = np.random.default_rng(2).integers(0, zoo.VOCABULARY, shape)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    expected = loss(labels, model.predict(inputs, verbose=0))
    for source in (model, keras.Model(model.input, model.output)):
        chain = tfr.chain(source, inputs=inputs)
        frame = probes.drop_blocks(chain, (inputs, labels))
        assert len(frame) == 4
        last = probes.lens(chain, (inputs, labels))["cross_entropy"].iloc[-1]
        assert last == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize(
    ("block_type", "use_pre_activation"),
    [
        ("basic_block", False),
        ("bottleneck_block", True),
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


def tiny(name, **kwargs):
    heads = {"num_heads": 2, "intermediate_dim": 16, "max_sequence_length": 12}
    given = {"num_layers": 2, "hidden_dim": 8, "vocabulary_size": 50} | (kwargs or heads)
    return getattr(keras_hub.models, f"{name}Backbone")(**given)


def bert():
    whole = tiny("Bert")
    return keras.Model(whole.input, whole.output["sequence_output"], name="bert")


def vit():
    sizes = {"patch_size": 8, "num_heads": 2, "num_layers": 2, "hidden_dim": 8, "mlp_dim": 16}
    return keras_hub.models.ViTBackbone(image_shape=(32, 32, 3), **sizes)


GROUPED = {"num_query_heads": 2, "num_key_value_heads": 1, "intermediate_dim": 16}
BACKBONES = {
    "ViT": vit,
    "BERT": bert,
    "GPT-2": lambda: tiny("GPT2"),
    "a language model": lambda: keras_hub.models.GPT2CausalLM(backbone=tiny("GPT2")),
    "Llama": lambda: tiny("Llama", **GROUPED),
    "Gemma": lambda: tiny("Gemma", head_dim=4, **GROUPED),
}


def backbones(first, *system):
    """Parameters for `pytest.mark.parametrize`: one for every run, and some system tests."""
    marks = {first: ()} | dict.fromkeys(system, pytest.mark.system)
    return [pytest.param(name, marks=marks.get(name, pytest.mark.nightly)) for name in BACKBONES]


def inputs_for(model, images=3, positions=12):
    """Returns inputs, whose last positions are padding."""
    if not isinstance(model.input, dict):
        return IMAGES[:images]
    rng = np.random.default_rng(2)
    padding = np.ones((images, positions), "int32")
    padding[1:, positions - 4 :] = 0
    given = {name: rng.integers(1, 50, (images, positions)) for name in model.input}
    given |= {"segment_ids": np.zeros_like(padding)} if "segment_ids" in given else {}
    return given | {"padding_mask": padding}


@pytest.mark.parametrize("name", backbones("BERT", "GPT-2", "ViT"))
def test_additions_inside_layers(name):
    keras.utils.set_random_seed(0)
    model = BACKBONES[name]()
    inputs = inputs_for(model)
    before = [len(layer._inbound_nodes) for layer in model._flatten_layers()]
    chain = tfr.chain(model, inputs=inputs)
    assert [len(layer._inbound_nodes) for layer in model._flatten_layers()] == before
    assert [block.shortcut for block in chain.blocks] == ["identity"] * 4
    kinds = [block.name.rpartition("/")[2] for block in chain.blocks]
    assert kinds == ["attention", "mlp"] * 2
    assert chain.notes[-1].startswith("opened layers: ")
    expected = model.predict(inputs, verbose=0)
    np.testing.assert_allclose(chain(inputs), expected, rtol=1e-4, atol=1e-5)
    # Weights that change are followed.
    for weight in model.weights:
        weight.assign(1.1 * weight + 0.01)
    expected = model.predict(inputs, verbose=0)
    np.testing.assert_allclose(chain(inputs), expected, rtol=1e-4, atol=1e-5)


def test_layers_are_whole_where_they_cannot_be_opened():
    """A causal mask needs to know the number of positions."""
    model = BACKBONES["GPT-2"]()
    chain = tfr.chain(model)
    assert [block.name for block in chain.blocks] == ["transformer_layer_0", "transformer_layer_1"]
    assert chain.notes[-1].endswith("with `inputs` of a known size they might be opened")
    for positions in (12, 7):
        inputs = inputs_for(model, positions=positions)
        expected = model.predict(inputs, verbose=0)
        np.testing.assert_allclose(chain(inputs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", backbones("GPT-2", "BERT"))
def test_a_dropped_block_is_a_branch_without_weights(name):
    keras.utils.set_random_seed(0)
    model = BACKBONES[name]()
    inputs = inputs_for(model)
    chain = tfr.chain(model, inputs=inputs)
    within = chain.given(inputs)
    state = within.stem(inputs)
    for number, block in enumerate(chain.blocks):
        weights = [
            weight
            for role, weight in block.weights.items()
            if "norm" not in role.partition("/")[2].lower()
        ]
        before = [weight.numpy() for weight in weights]
        for weight in weights:
            weight.assign(np.zeros(weight.shape))
        expected = model.predict(inputs, verbose=0)
        for weight, value in zip(weights, before, strict=True):
            weight.assign(value)
        assert np.abs(expected - model.predict(inputs, verbose=0)).max() > 1e-4
        anchor, last = None, state
        for other, applied in enumerate(within.blocks):
            # Without its branch: what follows the addition stays.
            last = applied(last, anchor, 0.0 if other == number else None)
        np.testing.assert_allclose(within.head(last), expected, rtol=1e-4, atol=1e-5)
