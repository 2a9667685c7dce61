"""Outputs per position: which labels count, losses, scores and routes."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from reference import sequences
from reference.route_values import TOLERANCE
from refusals import refused

from tfresidual import probes, routes
from tfresidual.routing import evaluate
from tfresidual.routing.data import batches_of
from tfresidual.routing.losses import loss_from
from tfresidual.routing.positions import counted

pytestmark = pytest.mark.eager

WEIGHTS = sequences.random_weights()
TOKENS, LABELS = sequences.batch("decoder")
LOGITS = np.random.default_rng(1).normal(size=(2, 3, 4)).astype("float32")
INDICES = np.array([[0, 3, 1], [2, 2, 0]])
ROWS = np.eye(4, dtype="float32")[INDICES]


@pytest.fixture(scope="module")
def decoder():
    return sequences.sequence_chain("decoder", WEIGHTS)


def prepared(chain, *data):
    return [labels.numpy() for _, labels, _ in batches_of(data, chain)]


# Labels


def test_padding_and_weights_leave_positions_out(decoder):
    labels = np.where(LABELS < 0, 0, LABELS)
    (found,) = prepared(decoder, TOKENS, labels)
    np.testing.assert_array_equal(found, LABELS)
    weights = np.ones(LABELS.shape)
    weights[0, 1] = weights[3, 4] = 0
    expected = LABELS.copy()
    expected[0, 1] = -1
    for one in (weights, weights == 1, weights[..., None].astype("int32")):
        (found,) = prepared(decoder, TOKENS, labels, one)
        np.testing.assert_array_equal(found, expected)
    # Labels of type uint8 have no -1, and a column is as good.
    (found,) = prepared(decoder, TOKENS, labels.astype("uint8")[..., None], weights)
    np.testing.assert_array_equal(found[..., 0], expected)
    # Weights of images leave out images.
    (found,) = prepared(decoder, TOKENS, labels, np.arange(4))
    np.testing.assert_array_equal(found, LABELS[1:])


@pytest.mark.parametrize("fill", [np.nan, -1.0, 0.25])
def test_rows_are_left_out_by_nan(decoder, fill):
    rows = np.where((LABELS < 0)[..., None], fill, np.eye(4)[LABELS])
    (found,) = prepared(decoder, TOKENS, rows)
    np.testing.assert_array_equal(np.isnan(found), np.repeat(LABELS[..., None] < 0, 4, axis=-1))
    np.testing.assert_array_equal(counted(tf.constant(found), 4), LABELS >= 0)


def test_negative_values_and_signs_count():
    plain = sequences.sequence_chain("decoder", WEIGHTS)
    values = dataclasses.replace(plain, outputs="values")
    signs = dataclasses.replace(
        plain, outputs="label_logits", loss=loss_from({"loss": "hinge", "config": None})
    )
    rows = np.full((*LABELS.shape, 4), -1)
    for chain in (values, signs):
        (found,) = prepared(chain, TOKENS, rows)
        np.testing.assert_array_equal(np.isnan(found).all(axis=-1), LABELS < 0)


def test_the_class_that_the_loss_ignores(decoder):
    config = {"from_logits": True, "ignore_class": 3}
    loss = loss_from({"loss": "SparseCategoricalCrossentropy", "config": config})
    chain = dataclasses.replace(decoder, loss=loss)
    (found,) = prepared(chain, TOKENS, LABELS)
    np.testing.assert_array_equal(found, np.where(LABELS == 3, -1, LABELS))
    outputs = tf.constant(np.random.default_rng(0).normal(size=(4, 5, 4)), tf.float32)
    np.testing.assert_allclose(loss(LABELS, outputs), decoder.loss(found, outputs), rtol=1e-5)


WRONG = {
    "weights": ((LABELS, LABELS * 0 + 0.5), "sample weights of 0 and 1"),
    "their shape": ((LABELS, np.ones((4, 3))), "one sample weight per position"),
    "of images": ((LABELS[:, 0],), "one label per position"),
    "too few": ((LABELS[:, :3],), "one label per position"),
    "too large": ((LABELS + 1,), "labels from 0 to 3, or a row of 4 per position"),
    "NaN": ((np.where(LABELS == 3, np.nan, LABELS),), "labels from 0 to 3"),
    "other rows": ((np.ones((4, 5, 3)),), "labels from 0 to 3"),
    "none that counts": ((-np.ones_like(LABELS),), "at least one position that counts"),
}


@pytest.mark.parametrize("name", WRONG)
def test_labels_that_are_refused(name, decoder):
    (labels, *weights), words = WRONG[name]
    for probe in (probes.drop_blocks, probes.block_metrics):
        with refused("data") as caught:
            probe(decoder, (TOKENS, labels, *weights))
        # The loss says by itself what of images it does not take.
        assert words in str(caught.value) or name == "of images"


# Routes


def all_routes(chain):
    return [
        routes.unperturbed(chain),
        routes.drop(chain, (1, 1)),
        routes.readout(chain, 1, 0),
        routes.repeat_last_block(chain, 1, 2, 0.5),
        routes.swap(chain, 1, 0, 2),
    ]


def by_numpy(kind, route):
    """A row per example: its place and what NumPy finds on a route."""
    records = []
    for image, sequence in enumerate(sequences.SEQUENCES):
        first = WEIGHTS["embedding"][np.array(sequence)]
        last = [
            sequences.walk(WEIGHTS, kind, first, applied)[-1]
            for applied in (((0, 1.0), (1, 1.0), (2, 1.0)), route.stages[0])
        ]
        plain, changed = (np.atleast_2d(sequences.logits(WEIGHTS, kind, one)) for one in last)
        labels = np.atleast_1d(sequences.LABELS[kind][image])
        for position, (row, label) in enumerate(zip(changed, labels, strict=True)):
            p = sequences.softmax(row)
            moved = last[1] - last[0]
            record = {"route": route.name, "image": image, "position": position}
            record |= {"error": float(p.argmax() != label), "cross_entropy": -np.log(p[label])}
            record |= {"entropy": -(p * np.log(p)).sum()}
            record |= {"agreement": float(p.argmax() == plain[position].argmax())}
            record |= {"margin": p[label] - np.delete(p, label).max()}
            moved = moved[position] if kind == "decoder" else moved
            record |= {"stage1_distance": np.linalg.norm(moved)}
            records.append(record)
    frame = pd.DataFrame(records)
    return frame if kind == "decoder" else frame.drop(columns="position")


@pytest.mark.parametrize("kind", sequences.KINDS)
def test_routes_equal_numpy(kind):
    chain = sequences.sequence_chain(kind, WEIGHTS)
    data = sequences.batch(kind, fill=0)
    chosen = all_routes(chain)
    found = probes.evaluate_routes(chain, data, chosen, per_image=True)
    expected = pd.concat([by_numpy(kind, route) for route in chosen], ignore_index=True)
    pd.testing.assert_frame_equal(found, expected, check_dtype=False, **TOLERANCE)
    means = probes.evaluate_routes(chain, data, chosen)
    by_route = expected.groupby("route", sort=False)
    for name in means.columns[1:]:
        np.testing.assert_allclose(means[name], by_route[name].mean(), **TOLERANCE, err_msg=name)


def test_losses_stay_those_of_images(decoder):
    values = evaluate(decoder, (TOKENS, LABELS), [routes.unperturbed(decoder)], with_losses=True)
    expected = [
        values.cross_entropy[0][values.image == image].mean() for image in range(len(TOKENS))
    ]
    np.testing.assert_allclose(values.losses[0], expected, rtol=1e-5)


def test_a_state_with_other_positions_has_one_distance(decoder):
    # A head for every second position, so that outputs have fewer than states.
    chain = dataclasses.replace(
        decoder, head=lambda state, context: decoder.head(state, context)[:, ::2]
    )
    labels = LABELS[:, ::2]
    frame = probes.evaluate_routes(
        chain, (TOKENS, labels), [routes.drop(chain, (1, 1))], per_image=True
    )
    of_positions = by_numpy("decoder", routes.drop(chain, (1, 1))).set_index("image")
    squares = of_positions["stage1_distance"].pow(2).groupby("image").sum()
    expected = np.sqrt(squares[frame["image"]])
    np.testing.assert_allclose(frame["stage1_distance"], expected, **TOLERANCE)
