"""Dropped blocks against the NumPy version and by hand."""

import dataclasses
import warnings

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from keras import ops
from reference import sequences
from reference.batches import Batches
from reference.numpy_lens import Images
from reference.plane import plane_chain
from reference.random_network import random_batch, random_network, sample
from reference.route_probes import (
    CONSTRAINED_NETWORKS,
    METRICS,
    NETWORKS,
    assert_equals_numpy,
    constrained,
    counted,
    counting_chain,
    network,
    numpy_means,
    numpy_values,
    shape_changing,
    trained_applications,
    with_stage,
)

import tfresidual as tfr
from tfresidual import probes

pytestmark = pytest.mark.eager


@pytest.mark.parametrize(
    "settings",
    [
        *sample(NETWORKS, every=3, others=pytest.mark.nightly),
        *constrained("at its anchor"),
        pytest.param(CONSTRAINED_NETWORKS["bounded"], id="bounded", marks=pytest.mark.nightly),
    ],
)
def test_equals_numpy(settings):
    net, batch = network(settings)
    fixed = shape_changing(net, batch[0])
    expected, routes = [], []
    for stage, applications in enumerate(trained_applications(net), start=1):
        for block in range(len(applications)):
            kept = with_stage(net, stage, applications[:block] + applications[block + 1 :])
            routes.append(None if (stage, block) in fixed else kept)
            expected.append(numpy_means(net, batch, stage, routes[-1]))
    frame = probes.drop_blocks(net, batch)
    rises = [f"{name}_rise{end}" for name in ("error", "cross_entropy") for end in ("", "_se")]
    assert frame.columns.tolist() == ["stage", "block", *METRICS, "unperturbed_error", *rises]
    assert_equals_numpy(frame, expected)
    whole = numpy_values(net, batch, trained_applications(net))
    for row, route in zip(frame.itertuples(), routes, strict=True):
        if route is None:
            assert np.isnan([getattr(row, name) for name in rises]).all()
            continue
        without = numpy_values(net, batch, route)
        for name, key in (("error", "wrong"), ("cross_entropy", "cross_entropy")):
            each = without[key] - whole[key].astype(float)
            found = [getattr(row, f"{name}_rise{end}") for end in ("", "_se")]
            wanted = [each.mean(), each.std(ddof=1) / len(each) ** 0.5]
            np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-4)
    assert frame["error"].isna().sum() == len(fixed)
    unperturbed = numpy_values(net, batch, trained_applications(net))["wrong"].mean()
    np.testing.assert_allclose(frame["unperturbed_error"], unperturbed)


def test_solved_by_hand():
    # Without block b of 4, (b + 1) tenths of the images are wrong; with all of them, none.
    weights = np.array([0.1, 0.2, 0.3, 0.4], "float32")
    chain = counting_chain(lambda n: ops.sum((1 - n) * weights, axis=1), 3, 1)
    frame = probes.drop_blocks(chain, counted(np.arange(20) % 4))
    assert frame[["stage", "block"]].to_numpy().tolist() == [[1, 0], [1, 1], [1, 2], [2, 0]]
    np.testing.assert_allclose(frame["error"], [0.1, 0.2, 0.3, 0.4], rtol=1e-6)
    np.testing.assert_allclose(frame["agreement"], [0.9, 0.8, 0.7, 0.6], rtol=1e-6)
    np.testing.assert_allclose(frame["distance"], [1, 1, 1, 1], rtol=1e-6)
    assert frame["unperturbed_error"].tolist() == [0] * 4


# What takes the place of what a block adds


def normalized(state):
    return state / np.sqrt(np.mean(state**2, axis=-1, keepdims=True) + 0.1)


def post_norm_chain():
    """The encoder of `reference.sequences`, with a normalization after every addition."""
    chain = sequences.sequence_chain("encoder")

    def after(state):
        return state / ops.sqrt(ops.mean(state**2, axis=-1, keepdims=True) + 0.1)

    blocks = tuple(
        dataclasses.replace(
            block,
            apply=lambda state, context, block=block: after(block.apply(state, context)),
            join=lambda base, branch, context: after(base + branch),
        )
        for block in chain.blocks
    )
    stage = dataclasses.replace(chain.stages[0], blocks=blocks)
    return dataclasses.replace(chain, stages=(stage,))


def numpy_fill(fill, added, image, order):
    """What takes the place of what a block adds for an image, `(positions, features)`."""
    own = added[image]
    if fill == "zero":
        return np.zeros_like(own)
    if fill == "mean":
        # Of every position, over the sequences that are as long.
        return np.array(
            [np.mean([one[p] for one in added if len(one) > p], axis=0) for p in range(len(own))]
        )
    other = added[order[(order.index(image) + 1) % len(order)]]
    return np.array([other[p] if p < len(other) else own[p] for p in range(len(own))])


@pytest.mark.compiled
@pytest.mark.parametrize(
    ("fill", "keep_norm"),
    [
        ("zero", False),
        pytest.param("resample", True, marks=pytest.mark.nightly),
        pytest.param("mean", False, marks=pytest.mark.nightly),
        pytest.param("zero", True, marks=pytest.mark.nightly),
        pytest.param("resample", False, marks=pytest.mark.nightly),
        pytest.param("mean", True, marks=pytest.mark.nightly),
    ],
)
def test_fills_of_post_norm_blocks_equal_numpy(fill, keep_norm):
    chain, (tokens, labels) = post_norm_chain(), sequences.batch("encoder")
    settings = {"fill": fill, "keep_norm": keep_norm, "seed": 3}
    frame = probes.drop_blocks(chain, (tokens, labels), **settings)
    weights, order = sequences.random_weights(), np.random.default_rng(3).permutation(4).tolist()

    def branch(index, state):
        return sequences.branch(weights, "encoder", index, state)

    first = [weights["embedding"][np.array(one)] for one in sequences.SEQUENCES]
    for dropped, row in enumerate(frame.to_dict("records")):
        states = first
        for index in range(3):
            branches = [branch(index, state) for state in states]
            pairs = list(zip(states, branches, strict=True))
            plain = [normalized(state + own) for state, own in pairs]
            if index != dropped:
                states = plain
                continue
            added = branches if keep_norm else [a - b for a, b in zip(plain, states, strict=True)]
            sums = [s + numpy_fill(fill, added, i, order) for i, s in enumerate(states)]
            states = [normalized(one) for one in sums] if keep_norm else sums
        losses = [
            sequences.loss(weights, "encoder", state, label)
            for state, label in zip(states, labels, strict=True)
        ]
        assert row["cross_entropy"] == pytest.approx(np.mean(losses), rel=1e-4)
    # What is padding, how much of it, and what stands in sequences of padding alone is no matter.
    again = probes.drop_blocks(chain, sequences.batch("encoder", length=8), **settings)
    pd.testing.assert_frame_equal(again, frame, rtol=1e-4, atol=1e-6)
    # Nor whether the batches are of one length.
    halves = [slice(2), slice(2, None)]
    ends = [max(map(len, sequences.SEQUENCES[half])) for half in halves]
    assert ends[0] != ends[1]
    frames = [
        probes.drop_blocks(
            chain,
            Batches(*[(tokens[half, :end], labels[half]) for half, end in pairs]),
            **settings,
        )
        for pairs in (zip(halves, ends, strict=True), zip(halves, [None] * 2, strict=True))
    ]
    pd.testing.assert_frame_equal(*frames, rtol=1e-4, atol=1e-6)
    if fill != "resample":
        pd.testing.assert_frame_equal(frames[0], frame, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("fill", ["zero", "mean", "resample"])
def test_fills_equal_numpy(fill):
    net, (images, labels) = network(NETWORKS["original"])
    run, chain = Images(net, images, labels), tfr.chain(net)
    order = np.random.default_rng(0).permutation(len(labels))
    others = np.empty(len(labels), int)
    others[order] = np.roll(order, -1)
    frame = probes.drop_blocks(chain, (images, labels), fill=fill)
    for row in frame.to_dict("records"):
        stage, block = row["stage"], row["block"]
        if not chain.stages[stage - 1].blocks[block].keeps_shape:
            assert np.isnan(row["cross_entropy"])
            continue
        state = run.states[stage, block - 1]
        added = run.states[stage, block] - state
        state = state + {"zero": 0, "mean": added.mean(axis=0), "resample": added[others]}[fill]
        logits = run.continue_from(state, stage, block)
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        loss = -np.log(p[range(len(labels)), labels]).mean()
        assert row["cross_entropy"] == pytest.approx(loss, rel=2e-3)


def test_fills_by_hand():
    # The block doubles (1, 0) and (3, 0) to (2, 0) and (6, 0): it adds (1, 0) and (3, 0).
    chain, images = plane_chain(lambda h: h), np.array([[[[1, 0]]], [[[3, 0]]]], "float32")
    for fill, distance in (("zero", 2), ("mean", 1), ("resample", 2)):
        data = {"both": (images, [0, 0]), "alone": (images[[1, 1]], [0, 0])}
        frame = probes.drop_blocks(chain, data, fill=fill)
        wanted = [distance, 3 if fill == "zero" else 0]
        np.testing.assert_allclose(frame["distance"], wanted, atol=1e-6)
        # An image of weight 0 is not there.
        weighted = images[[0, 1, 1]], np.zeros(3, int), np.array([1.0, 1, 0])
        frame = probes.drop_blocks(chain, weighted, fill=fill)
        assert frame["distance"].iloc[0] == pytest.approx(distance, rel=1e-6)
    # The mean is (3 * 1 + 3) / 4, the distances 1/2 and 3/2.
    frame = probes.drop_blocks(chain, (images, [0, 0], np.array([3.0, 1])), fill="mean")
    assert frame["distance"].iloc[0] == pytest.approx(0.75, rel=1e-6)
    # A last batch of one image follows on the one before it.
    data = tf.data.Dataset.from_tensor_slices((images[[0, 0, 1]], [0, 0, 0])).batch(2)
    frame = probes.drop_blocks(chain, data, fill="resample")
    assert frame["distance"].iloc[0] == pytest.approx(2 / 3)


@pytest.mark.parametrize("learnt", [True, False])
def test_a_network_at_chance_is_said_to_lose_nothing(learnt):
    net = random_network()
    images, _ = random_batch(net, images=64)
    answers = np.argmax(net(images, training=False), axis=-1)
    labels = answers if learnt else (answers + 1) % net.output_shape[-1]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        probes.drop_blocks(net, (images, labels))
        probes.block_importance(net, (images, labels), by="loss")
    assert [one.category for one in said] == [UserWarning] * (0 if learnt else 2)
