"""Networks with one block rounded, against networks whose weights were rounded by hand."""

import keras
import numpy as np
import pytest
from keras import layers
from reference.plane import blocks_of, chain_of
from reference.random_network import random_batch, random_network
from refusals import refused

import tfresidual as tfr
from tfresidual import probes
from tfresidual.probes.round_blocks import noise_of, rounding
from tfresidual.routing import evaluate
from tfresidual.routing.replacement import Replacement
from tfresidual.routing.rounding import kernels_by_block
from tfresidual.routing.routes import follow, unperturbed, with_weights

pytestmark = [pytest.mark.eager, pytest.mark.filterwarnings("ignore::UserWarning")]

RNG = np.random.default_rng(2)
IMAGES = RNG.normal(size=(6, 8, 8, 3)).astype("float32")


def resnet():
    """With batch normalization; the first block of the second stage changes the shape."""
    net = random_network(
        blocks=2,
        widths=(2, 4),
        input_shape=(8, 8, 3),
        transition="projection",
        classifier_activation=None,
    )
    _, sections, _ = net.sections()
    return net, IMAGES, [unit.weights for _, units in sections for unit in units]


def convnext():
    """Blocks of a depthwise convolution, layer normalization and two dense layers."""
    inputs = keras.Input((8, 8, 3))
    state, blocks = layers.Conv2D(4, 1)(inputs), []
    for _ in range(2):
        parts = [
            layers.DepthwiseConv2D(3, padding="same"),
            layers.LayerNormalization(),
            layers.Dense(6, "gelu"),
            layers.Dense(4),
        ]
        branch = state
        for part in parts:
            branch = part(branch)
        state = layers.Add()([state, branch])
        blocks.append([weight for part in parts for weight in part.weights])
    model = keras.Model(inputs, layers.Dense(5)(layers.GlobalAveragePooling2D()(state)))
    return model, IMAGES, blocks


def of_hub(name, places):
    pytest.importorskip("keras_hub")
    from sources import zoo

    model = zoo.made(name)
    blocks = [
        [one for one in model.weights if any(part in one.path for part in parts)]
        for parts in places
    ]
    inputs = zoo.inputs_of(name, model)
    if isinstance(inputs, dict):
        inputs["padding_mask"] = np.ones_like(inputs["padding_mask"])
    return model, inputs, blocks


NETWORKS = {
    "resnet": resnet,
    "convnext": convnext,
    "gpt2": lambda: of_hub("GPT2Backbone", [("layer_0/",), ("layer_1/",)]),
    "vit": lambda: of_hub(
        "ViTBackbone",
        [(f"block_{i}/{part}",) for i in (1, 2) for part in ("mha", "mlp")],
    ),
}


def built(name):
    model, inputs, blocks = NETWORKS[name]()
    for weight in model.trainable_variables:
        weight.assign(weight + RNG.normal(size=weight.shape) / 10)
    shape = model(inputs, training=False).shape
    labels = RNG.integers(0, shape[-1], shape[:-1])
    return tfr.chain(model, outputs="logits"), model, (inputs, labels), blocks


def rounded(weight, bits):
    """By hand in float64: one scale per output channel."""
    values, outputs = weight.numpy().astype(float), (-1,)
    if "depthwise" in weight.path or any(part in weight.path for part in ("query", "key/", "val")):
        outputs = (-2, -1)
    axes = tuple(i for i in range(values.ndim) if i - values.ndim not in outputs)
    step = np.abs(values).max(axis=axes, keepdims=True) / (2 ** (bits - 1) - 1)
    return np.round(values / step) * step


def bytes_by_hand(weight, bits):
    scales = weight.shape[-1]
    if "depthwise" in weight.path or any(part in weight.path for part in ("query", "key/", "val")):
        scales *= weight.shape[-2]
    size = weight.numpy().size
    return 4 * size - -(-size * bits // 8) - 4 * scales


def log_p(model, inputs):
    logits = np.asarray(model(inputs, training=False), float)
    logits -= logits.max(axis=-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_block_is_as_in_a_network_rounded_by_hand(name):
    chain, model, (inputs, labels), blocks = built(name)
    before = [weight.numpy() for weight in model.weights]
    frame = probes.round_blocks(chain, (inputs, labels), bits=(8, 3), noise=False)
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)
    assert len(frame) == 2 * len(blocks) == 2 * len(chain.blocks)
    whole, one_hot = log_p(model, inputs), np.eye(model.output_shape[-1])[labels]
    wrong, losses = whole.argmax(axis=-1) != labels, -(whole * one_hot).sum(axis=-1)
    for row, (block, bits) in zip(
        frame.to_dict("records"),
        [(block, bits) for block in blocks for bits in (8, 3)],
        strict=True,
    ):
        kernels = [one for one in block if len(one.shape) > 1 and "bias" not in one.path]
        kept = [one.numpy() for one in kernels]
        for one in kernels:
            one.assign(rounded(one, bits))
        other = log_p(model, inputs)
        for one, value in zip(kernels, kept, strict=True):
            one.assign(value)
        rises = -(other * one_hot).sum(axis=-1) - losses
        expected = {
            "bits": bits,
            "bytes_saved": sum(bytes_by_hand(one, bits) for one in kernels),
            "error": (other.argmax(axis=-1) != labels).mean(),
            "unperturbed_error": wrong.mean(),
            "cross_entropy": losses.mean() + rises.mean(),
            "cross_entropy_rise": rises.mean(),
            "cross_entropy_rise_se": rises.std(ddof=1) / np.sqrt(rises.size),
            "kl": (np.exp(whole) * (whole - other)).sum(axis=-1).mean(),
        }
        assert {key: row[key] for key in expected} == pytest.approx(expected, abs=1e-6)


def test_32_bits_change_nothing_and_noise_is_as_large_as_what_rounding_adds():
    chain, _, data, _ = built("convnext")
    frame = probes.round_blocks(chain, data, bits=(32, 2))
    whole = frame[frame["bits"] == 32]
    rises = [name for name in frame if "rise" in name or "kl" in name]
    assert not whole[[*rises, "bytes_saved"]].to_numpy().any()
    assert (frame.loc[frame["bits"] == 2, ["kl", "noise_kl"]] > 0).all(axis=None)
    kernels = kernels_by_block(chain)[1, 0]
    for per in ("channel", "tensor"):
        change = rounding(kernels, 3, per)
        control = noise_of(kernels, change, per, np.random.default_rng(0))
        for (kernel, axes), *values in zip(kernels, change.values, control.values, strict=True):
            own = axes if per == "channel" else None
            sizes = [np.sum((one - kernel.numpy()) ** 2, axis=own) for one in values]
            np.testing.assert_allclose(*sizes, rtol=1e-4)


def test_a_saved_network_has_the_same_numbers(tmp_path):
    chain, _, data, _ = built("convnext")
    tfr.export(chain, tmp_path / "net")
    saved = probes.round_blocks(tfr.chain(tmp_path / "net"), data, bits=(4,))
    expected = probes.round_blocks(chain, data, bits=(4,))
    assert saved["cross_entropy"].to_numpy() == pytest.approx(expected["cross_entropy"], rel=1e-6)
    assert saved["bytes_saved"].tolist() == expected["bytes_saved"].tolist()


def test_weights_come_back_after_an_error():
    chain, model, data, _ = built("convnext")
    before = [weight.numpy() for weight in model.weights]
    kernel, bias = model.layers[2].weights
    broken = Replacement("broken", [kernel, bias], [0 * kernel.numpy(), np.zeros(99)])
    route = with_weights(unperturbed(chain), {(1, 0): broken}, "broken")
    with pytest.raises(ValueError):
        evaluate(chain, data, [route])
    for weight, value in zip(model.weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)
    with refused("route"):
        follow(chain, route)


def test_shared_weights_are_rounded_in_one_turn_and_save_nothing():
    inputs = keras.Input((4,))
    shared, state = layers.Dense(4), inputs
    for _ in range(2):
        state = layers.Add()([state, shared(state)])
    model = keras.Model(inputs, state)
    shared.kernel.assign(RNG.normal(size=(4, 4)))
    images, labels = RNG.normal(size=(5, 4)).astype("float32"), RNG.integers(0, 4, 5)
    chain = tfr.chain(model, outputs="logits")
    frame = probes.round_blocks(chain, (images, labels), bits=(3,), noise=False)
    assert frame["bytes_saved"].tolist() == [0, 0]
    kernel, other = shared.kernel.numpy().astype(float), rounded(shared.kernel, 3)
    for row, (first, second) in enumerate(((other, kernel), (kernel, other))):
        logits = images + images @ first
        logits = logits + logits @ second
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        loss = -np.log(p[range(5), labels]).mean()
        assert frame["cross_entropy"][row] == pytest.approx(loss, rel=1e-5)


def test_an_image_of_weight_2_is_two():
    chain, _, (images, labels), _ = built("convnext")
    weighted = probes.round_blocks(chain, (images, labels, np.arange(6) % 3), bits=(3,))
    twice = np.repeat(np.arange(6), np.arange(6) % 3)
    expected = probes.round_blocks(chain, (images[twice], labels[twice]), bits=(3,))
    means = [name for name in expected if not name.endswith("_se")]
    np.testing.assert_allclose(weighted[means], expected[means], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *(("bits", one) for one in ((), (1,), (33,), (8, 8), (4.0,), "8")),
        *(("per", one) for one in (0, "row", 1.5, None)),
        *(("noise", 1), ("seed", -1), ("memory_limit", 0), ("chain", "values"), ("chain", "hand")),
    ],
)
def test_what_is_refused(argument, value):
    net = random_network(blocks=1)
    given = {"chain": net, "data": random_batch(net), argument: value}
    if value == "values":
        given["chain"] = tfr.chain(net, outputs="values")
    if value == "hand":
        given["chain"] = chain_of(*blocks_of(lambda state: 2 * state))
    with refused(argument):
        probes.round_blocks(given.pop("chain"), given.pop("data"), **given)
