"""Similarity of states: against kernel matrices in NumPy, what changes nothing, noise, refusals."""

import random

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from reference import sequences
from reference.plane import blocks_of, chain_of
from reference.random_network import random_batch, random_network
from refusals import refused
from scipy import linalg

import tfresidual as tfr
from tfresidual import probes

pytestmark = pytest.mark.eager

rng = np.random.default_rng(0)


def network(**settings):
    return random_network(**{"blocks": (2, 1), "widths": (3, 5)} | settings)


def states_of(net, images):
    chain = tfr.chain(net)
    pairs, _ = chain.walk(chain.stem(tf.constant(images)))
    return [after.numpy().astype(float).mean(axis=(1, 2)) for _, after in pairs]


def hsic(x, y):
    """The unbiased estimate from kernel matrices without their diagonal."""
    k, m = (z @ z.T for z in (x, y))
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    n, ones = len(x), np.ones(len(x))
    product = ones @ k @ ones * (ones @ m @ ones) / ((n - 1) * (n - 2))
    both = 2 / (n - 2) * (ones @ k @ m @ ones)
    return (np.trace(k @ m) + product - both) / (n * (n - 3))


def centred(x):
    x = x - x.mean(axis=0)
    return x / np.linalg.norm(x)


def procrustes(x, y):
    """The squared distance after the best rotation, found by SciPy, of states of one width."""
    width = max(x.shape[1], y.shape[1])
    x, y = (np.pad(centred(z), ((0, 0), (0, width - z.shape[1]))) for z in (x, y))
    rotation, _ = linalg.orthogonal_procrustes(x, y)
    return ((x @ rotation - y) ** 2).sum()


MEASURES = {
    "cka": lambda x, y: hsic(x, y) / np.sqrt(hsic(x, x) * hsic(y, y)),
    "procrustes": procrustes,
    "angular": lambda x, y: np.arccos(min(1, 1 - procrustes(x, y) / 2)),
}


@pytest.mark.parametrize("kind", MEASURES)
@pytest.mark.parametrize("size", [4, 5, 11])
def test_batches_are_all_images_at_once(kind, size):
    """With a last batch of 1 to 3 images, between networks of other widths and depths."""
    one, other = network(), network(blocks=2, widths=(4,), seed=3)
    images = random_batch(one, images=13)[0] + rng.normal(size=(13, 1, 1, 3)).astype("float32")
    # The order of the images is another one in every reading.
    batches = tf.data.Dataset.from_tensor_slices(images).shuffle(13).batch(size)
    frame = probes.similarity(one, batches, other, kind=kind, control=False)
    pairs = [(x, y) for x in states_of(one, images) for y in states_of(other, images)]
    expected = [MEASURES[kind](x, y) for x, y in pairs]
    np.testing.assert_allclose(frame[kind], expected, rtol=0, atol=1e-6)
    assert frame["stage"].tolist() == [1, 1, 1, 1, 2, 2]
    assert frame["other_block"].tolist() == [0, 1] * 3
    # Its error is half the difference between every other image.
    plain = probes.similarity(one, (images,), kind=kind, control=False)
    x, *_, y = states_of(one, images)
    halves = [MEASURES[kind](x[start::2], y[start::2]) for start in (0, 1)]
    assert plain[f"{kind}_se"][2] == pytest.approx(abs(np.subtract(*halves)) / 2, rel=1e-3)


def vectors(*functions):
    return chain_of(*blocks_of(*functions), input_shape=(6,), head=lambda state: state)


def value(kind, images, *functions):
    """Between the images themselves and what a function makes of them."""
    frame = probes.similarity(vectors(lambda h: h, *functions), (images,), kind=kind)
    assert frame["untrained"].isna().all()  # not made of a model
    return frame[kind][1]


@pytest.mark.parametrize("kind", MEASURES)
def test_by_hand(kind):
    images = rng.normal(size=(60, 6)).astype("float32")
    rotation = np.linalg.qr(rng.normal(size=(6, 6)))[0].astype("float32")
    same, different = {"cka": (1, 0), "procrustes": (0, 2), "angular": (0, np.pi / 2)}[kind]
    moved = value(kind, images, lambda h: 300 * (h @ rotation) + 5)
    assert moved == pytest.approx(same, abs=2e-3 if kind == "angular" else 1e-5)
    # The same for all images, whatever it is.
    for number in (0.0, 0.1, 1e4):
        assert value(kind, images, lambda h, number=number: 0 * h + number) == different
    assert np.isnan(value(kind, images, lambda h: h * np.float32(np.inf)))
    # Two coordinates of three that say nothing of one another.
    corners = np.float32([[i, j, i * j] + [0] * 3 for i in (-1, 1) for j in (-1, 1)] * 20)
    of_corners = value(kind, corners, lambda h: tf.concat([h[:, :1], 0 * h[:, 1:]], axis=1))
    n = len(corners)
    bias = (n - 3) / (n - 1)
    exact = {"cka": 1 / np.sqrt(3), "procrustes": 2 - 2 / np.sqrt(3)}
    exact["angular"] = np.arccos(1 / np.sqrt(3))
    assert 0.9 < bias < 1 and of_corners == pytest.approx(exact[kind], abs=0.02)


def test_independent_states_have_nothing_in_common():
    """In the mean over 40 draws within three standard errors of 0, where the biased CKA is 0.5."""
    found, biased = [], []
    for _ in range(40):
        images = rng.normal(size=(12, 12)).astype("float32")
        chain = vectors(lambda h: h[:, :6], lambda h: h)
        other = vectors(lambda h: h[:, 6:], lambda h: h)
        found.append(probes.similarity(chain, (images,), other, control=False)["cka"][0])
        x, y = centred(images[:, :6].astype(float)), centred(images[:, 6:].astype(float))
        norms = [np.linalg.norm(z.T @ z) for z in (x, y)]
        biased.append(np.linalg.norm(x.T @ y) ** 2 / np.prod(norms))
    assert abs(np.mean(found)) < 3 * np.std(found) / np.sqrt(40)
    assert np.mean(biased) > 0.3


def test_control():
    """Two draws of the configuration, and the network stays what it was."""
    net, images = network(), random_batch(network(), images=20)[0]
    before = net.get_weights()
    frame = probes.similarity(net, {"test": (images,)}, seed=3)
    for own, other in zip(net.get_weights(), before, strict=True):
        np.testing.assert_array_equal(own, other)
    drawn = []
    for seed in (3, 4):
        random.seed(seed)
        drawn.append(type(net).from_config(net.get_config()))
    expected = probes.similarity(drawn[0], (images,), drawn[1], control=False)
    np.testing.assert_allclose(frame["untrained"], expected["cka"], rtol=1e-5)
    np.testing.assert_allclose(frame["cka"][[0, 4, 8]], 1)
    assert (frame["untrained"][[0, 4, 8]] < 0.999).all()


def test_initializers_with_seeds_are_drawn_anew():
    """Otherwise, the two untrained networks would be one, with a similarity of 1."""
    seeded = keras.initializers.GlorotUniform(seed=1)
    images = state = keras.Input((8, 8, 3))
    for _ in range(2):
        state += keras.layers.Conv2D(3, 3, padding="same", kernel_initializer=seeded)(state)
    model = keras.Model(images, keras.layers.Flatten()(state))
    frames = [
        probes.similarity(model, (random_batch(network(), images=20)[0],), seed=seed)
        for seed in (3, 3, 4)
    ]
    assert (frames[0]["untrained"] < 0.99).all()
    pd.testing.assert_frame_equal(frames[0], frames[1])
    assert not frames[0]["untrained"].equals(frames[2]["untrained"])


def test_padding_is_left_out():
    """The mean over the tokens of each sequence, without sequences that are all padding."""
    chain = sequences.sequence_chain("encoder")
    tokens, labels = sequences.batch("encoder", length=7, empty=2)
    tokens = np.concatenate([tokens, np.roll(tokens[:4], 1, axis=1)])
    labels = np.concatenate([labels, labels[:4]])
    frame = probes.similarity(chain, (tokens, labels), control=False)
    given = chain.with_context(tf.constant(tokens))
    pairs, _ = given.walk(given.stem(tf.constant(tokens)))
    after_blocks = [after.numpy() for _, after in pairs]
    states = [
        np.array(
            [
                state[row > 0].mean(axis=0)
                for state, row in zip(after, tokens, strict=True)
                if any(row)
            ]
        )
        for after in after_blocks
    ]
    expected = [MEASURES["cka"](*(z.astype(float) for z in (x, y))) for x in states for y in states]
    np.testing.assert_allclose(frame["cka"], expected, rtol=1e-4)


def test_states_on_disk(tmp_path):
    one, other = network(), network(seed=3, blocks=1)
    images, labels = random_batch(one, images=20)
    data = {"train": (images[:12], labels[:12]), "test": (images[12:], labels[12:])}
    saved = [
        probes.save_states(net, data, tmp_path / str(number), pool=pool)
        for number, (net, pool) in enumerate(((one, None), (other, "mean")))
    ]
    expected = probes.similarity(one, data, other, control=False)
    pd.testing.assert_frame_equal(
        probes.similarity(saved[0], b=saved[1], control=False), expected, rtol=1e-4
    )
    alone = probes.similarity(saved[0]["test"])
    assert alone["untrained"].isna().all() and len(alone) == 9
    with refused("data"):
        probes.similarity(saved[0], data)
    for wrong in (one, saved[1], saved[1]["train"]):
        with refused("b"):
            probes.similarity(saved[0]["test"], b=wrong)


REFUSED = {
    "no data": ("data", None, {}),
    "three images": ("data", 3, {}),
    "one image": ("data", 1, {}),
    "no image": ("data", 0, {}),
    "a kind of another paper": ("kind", 8, {"kind": "cca"}),
    "a seed": ("seed", 8, {"seed": -1}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name):
    argument, count, settings = REFUSED[name]
    net = network()
    data = None if count is None else (random_batch(net, images=8)[0][:count],)
    with refused(argument):
        probes.similarity(net, data, **{"control": False} | settings)
    with refused("data"):
        probes.similarity(net, iter([data]))
