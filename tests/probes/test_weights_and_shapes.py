"""Sample weights of images, and batches of several shapes, in every probe that takes means.

A whole weight is as many copies of an image, so the truth is the same probe without weights.
"""

import functools

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from keras import layers
from reference.random_network import random_batch, random_network

import tfresidual as tfr
from tfresidual import callbacks, probes
from tfresidual.probes.first_order import TERMS
from tfresidual.probes.signal_propagation import METRICS

pytestmark = pytest.mark.eager

rng = np.random.default_rng(0)
IMAGES = rng.normal(size=(7, 8, 8, 3)).astype("float32")
LABELS = np.array([0, 1, 2, 3, 4, 0, 1])
WEIGHTS = np.array([2.0, 0.0, 1.0, 3.0, 0.0, 1.0, 1.0])
REPEATED = np.repeat(np.arange(7), WEIGHTS.astype(int))
ARGUMENTS = {
    "fixed_point": {"times": 2},
    "repeat_last_block": {"times": 2},
    "borderline": {"times": 1, "probability": 0.9},
    "convergence_indices": {"times": 2, "chance": "largest class"},
    "patching": {"what": "addition"},
}
NAMES = (
    *ARGUMENTS,
    "attribution",
    "block_metrics",
    "drop_blocks",
    "first_order",
    "lens",
    "line_element",
    "perturbation",
    "readout",
    "shuffle_blocks",
    "signal_propagation",
)
# A probe of each way to its means: over routes, gradients, states, and pairs of images.
IN_EVERY_RUN = (
    *("attribution", "block_metrics", "convergence_indices", "first_order"),
    *("lens", "line_element", "patching", "perturbation", "readout"),
)


def marked(names):
    """Parameters for `pytest.mark.parametrize`, of which the other probes are nightly."""
    return [
        pytest.param(name, marks=[] if name in IN_EVERY_RUN else [pytest.mark.nightly])
        for name in names
    ]


# What is of images, and not a mean over them.
OF_IMAGES = ("images", *(f"rank_correlation{end}" for end in TERMS), "largest_contraction")


@pytest.fixture(scope="module")
def net():
    net = random_network(blocks=2, widths=(4,))
    net.compile("sgd", "sparse_categorical_crossentropy")
    return net


def measured(name, net, *data):
    try:
        frame = getattr(probes, name)(net, data, **ARGUMENTS.get(name, {}))
    except ValueError as error:
        # At chance, there are no indices.
        assert name == "convergence_indices" and "chance" in str(error)
        return "at chance"
    shown = [one for one in frame if not (one in OF_IMAGES or one.endswith("_se"))]
    return frame[shown]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", marked(NAMES))
def test_a_weight_is_as_many_copies_and_of_weight_0_is_not_there(name, net):
    of_zero = measured(name, net, IMAGES, LABELS, (WEIGHTS > 0).astype(float))
    left_out = measured(name, net, IMAGES[WEIGHTS > 0], LABELS[WEIGHTS > 0])
    # The source of patching is the next image of the batch, which copies change.
    copies = REPEATED if name != "patching" else np.flatnonzero(WEIGHTS)
    weights = WEIGHTS if name != "patching" else 3 * (WEIGHTS > 0)
    weighted = measured(name, net, IMAGES, LABELS, weights[:, None])
    repeated = measured(name, net, IMAGES[copies], LABELS[copies])
    for found, expected in ((of_zero, left_out), (weighted, repeated)):
        if isinstance(expected, str):
            assert found == expected
        else:
            pd.testing.assert_frame_equal(found, expected, rtol=1e-4, check_dtype=False)


def test_standard_errors_of_weighted_means(net):
    found = probes.block_metrics(net, (IMAGES, LABELS, WEIGHTS))
    rows = probes.block_metrics(net, (IMAGES, LABELS, WEIGHTS), per_image=True)
    shares = WEIGHTS[WEIGHTS > 0] / WEIGHTS.sum()
    for row in found.itertuples():
        values = rows[(rows["stage"] == row.stage) & (rows["block"] == row.block)]["cosine_loss"]
        mean = (shares * values).sum()
        expected = np.sqrt(5 / 4 * (shares**2 * (values - mean) ** 2).sum())
        np.testing.assert_allclose([row.cosine_loss, row.cosine_loss_se], [mean, expected])


def test_callbacks_take_weights(net):
    history = net.fit(
        IMAGES, LABELS, verbose=0,
        callbacks=[callbacks.BlockMetrics((IMAGES, LABELS, WEIGHTS))],
    ).history  # fmt: skip
    expected = probes.block_metrics(net, (IMAGES[REPEATED], LABELS[REPEATED]))
    np.testing.assert_allclose(
        history["stage1/block1/gradient_norm"], expected["gradient_norm"][1], rtol=1e-5
    )


# What is near a number in float32, relative to its size, and cosines and deviations.
IN_HALF = {
    "block_metrics": (["l2_ratio", "perturbation", "gradient_norm"], ["cosine_loss"], 0.03),
    # Rounding is all that a state of bfloat16 differs from a sum by.
    "signal_propagation": ([*METRICS[:-1]], ["sum_deviation"], 0.01),
    "repeat_last_block": (["l2_ratio"], ["cosine_loss"], 0.05),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", IN_HALF)
def test_mixed_precision_is_near_float32(name):
    net, low = (random_network(dtype=d, blocks=(2, 1)) for d in ("float32", "mixed_bfloat16"))
    low.set_weights(net.get_weights())
    batch, given = random_batch(net, images=8), ARGUMENTS.get(name, {})
    expected, found = (getattr(probes, name)(one, batch, **given) for one in (net, low))
    relative, absolute, tolerance = IN_HALF[name]
    np.testing.assert_allclose(found[relative], expected[relative], rtol=0.05)
    np.testing.assert_allclose(found[absolute], expected[absolute], atol=tolerance)


# Batches of several shapes


def bucketed(kind):
    """A network for images or sequences of any size, and batches of several sizes for it."""
    if kind == "images":
        net = random_network(blocks=2, widths=(4,), input_shape=(None, None, 3))
        batches = [(IMAGES[:4], LABELS[:4]), (IMAGES[4:, :6, :7], LABELS[4:])]
    else:
        inputs = keras.Input((None,), dtype="int32")
        state = layers.Embedding(9, 6, mask_zero=True)(inputs)
        for _ in range(2):
            state = layers.Add()([state, layers.Dense(6, activation="tanh")(state)])
        net = keras.Model(inputs, layers.Dense(5, activation="softmax")(state))
        tokens = [rng.integers(1, 9, shape) for shape in ((3, 4), (4, 7))]
        tokens[1][0, 5:] = 0
        batches = [(one, rng.integers(0, 5, one.shape)) for one in tokens]
    net.compile("sgd", "sparse_categorical_crossentropy")
    return net, batches


@functools.cache
def chain_and_batches(kind):
    """The same for all probes."""
    net, batches = bucketed(kind)
    return tfr.chain(net), batches


def dataset(batches):
    images, labels = batches[0]
    signature = (
        tf.TensorSpec([None] * (images.ndim - 1) + [images.shape[-1] if images.ndim > 2 else None]),
        tf.TensorSpec([None] * labels.ndim, tf.int64),
    )
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=signature)


# The means of these are over positions, if the outputs have some.
OVER_POSITIONS = ("attribution", "drop_blocks", "lens", "readout", "shuffle_blocks")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", ["images", "sequences"])
@pytest.mark.parametrize(
    "name",
    marked(
        [
            *OVER_POSITIONS,
            "block_metrics",
            "line_element",
            "perturbation",
            "signal_propagation",
        ]
    ),
)
def test_the_mean_over_batches_of_several_shapes(name, kind):
    chain, batches = chain_and_batches(kind)
    probe = getattr(probes, name)
    together = probe(chain, dataset(batches))
    alone = [probe(chain, batch) for batch in batches]
    numbers = [len(images) for images, _ in batches]
    if kind == "sequences" and name in OVER_POSITIONS:
        numbers = [(images != 0).sum() for images, _ in batches]
    columns = [
        one for one in together.select_dtypes(float) if not (one in OF_IMAGES or "_se" in one)
    ]
    expected = sum(n * one[columns] for n, one in zip(numbers, alone, strict=True)) / sum(numbers)
    pd.testing.assert_frame_equal(together[columns], expected, rtol=1e-4)
