"""Attributions against NumPy versions of the head's gradient, and cases solved by hand."""

import dataclasses
import functools
import itertools

import numpy as np
import pandas as pd
import pytest
from keras import ops
from reference.decoder import Decoder
from reference.numpy_lens import Images, gradient_of
from reference.plane import chain_of
from reference.random_network import sample
from reference.route_probes import NETWORKS, constrained, network

import tfresidual as tfr
from tfresidual import probes
from tfresidual.probes.attribution import VALUES
from tfresidual.routing import Block

pytestmark = pytest.mark.eager


def weights_of_target(target, labels, logits):
    """What the logits are multiplied by to give the one that was chosen, in each image."""
    hot = labels if labels.ndim == 2 else np.eye(logits.shape[1])[labels]
    if target == "label":
        return hot / hot.sum(axis=1, keepdims=True)
    if target == "margin":
        lowest = np.where(hot > 0, logits, np.inf).argmin(axis=1)
        highest = np.where(hot > 0, -np.inf, logits).argmax(axis=1)
        return np.eye(logits.shape[1])[lowest] - np.eye(logits.shape[1])[highest]
    if isinstance(target, tuple):
        first, second = (weights_of_target(one, labels, logits) for one in target)
        return first - second
    return np.eye(logits.shape[1])[[target] * len(labels)]


@pytest.mark.parametrize(
    ("settings", "target"),
    [
        pytest.param(*case.values, target, marks=case.marks, id=f"{case.id}, {target}")
        for case, target in zip(
            [*sample(NETWORKS, 3, pytest.mark.nightly), *constrained("shared")],
            ["label", "margin", 2, ("label", 1), "label", (2, 0), "label"],
            strict=True,
        )
    ],
)
def test_equals_numpy(settings, target):
    net, (images, labels) = network(settings)
    chain = tfr.chain(net)
    run = Images(net, images, labels)
    weights = weights_of_target(target, labels, run.logits)
    last = run.states[max(run.states)]
    gradient = run.head_gradient(last, weights)
    logit = np.sum(run.logits * weights, axis=1)

    def part(state):
        return np.array([np.vdot(*pair) for pair in zip(gradient, state, strict=True)])

    # The last blocks of the last stage with an identity that keep the shape.
    depth = len(net.get_config()["blocks"])
    first = net.get_config()["blocks"][-1]
    while (depth, first - 1) in run.states and first:
        block = chain.stages[-1].blocks[first - 1]
        if not block.keeps_shape or block.shortcut != "identity" or block.takes_anchor:
            break
        first -= 1
    frame = probes.attribution(chain, (images, labels), target=target, per_image=True)
    assert frame.columns.tolist() == ["stage", "block", "part", "image", *VALUES]
    tolerance = {"rtol": 1e-3, "atol": 2e-5}
    logits = np.tile(logit, len(frame) // len(logit))
    np.testing.assert_allclose(frame["logit"], logits, **tolerance)
    for (stage, block), rows in frame.groupby(["stage", "block"]):
        (kind,) = set(rows["part"])
        if kind == "head":
            wanted = logit - part(last)
        elif kind == "first state":
            wanted = part(run.states[depth, first - 1])
        elif stage == depth and block >= first:
            wanted = part(run.states[stage, block] - run.states[stage, block - 1])
        else:
            wanted = np.full(len(images), np.nan)
        np.testing.assert_allclose(rows["attribution"], wanted, **tolerance)
    sums = frame.groupby("image")["attribution"].sum()
    np.testing.assert_allclose(sums, frame["logit"].iloc[: len(images)], rtol=1e-9, atol=1e-9)
    assert frame["deviation"].max() < 1e-9


class TestDecoder:
    model = Decoder()

    def test_equals_numpy_by_differences(self):
        inputs, labels = self.model.batch(images=3, positions=4)
        states, logits = self.model.run(inputs["ids"], inputs["mask"])
        frame = probes.attribution(self.model.chain(), (inputs, labels), per_position=True)
        assert len(frame) == (labels >= 0).sum() * 6
        rows = frame.set_index(["image", "position", "block"])["attribution"]
        for place in zip(*np.nonzero(labels >= 0), strict=True):
            label = labels[place]
            gradient = gradient_of(lambda h, y=label: self.model.logits(h)[y], states[-1][place])
            parts = [gradient @ states[0][place]]
            parts += [
                gradient @ (after[place] - before[place])
                for before, after in itertools.pairwise(states)
            ]
            parts.append(logits[place][label] - gradient @ states[-1][place])
            found = [rows[*place, block] for block in range(-1, 5)]
            np.testing.assert_allclose(found, parts, rtol=1e-4, atol=1e-5)


def linear_chain(*blocks, **changes):
    """A chain in the plane whose logits are 1 + x, 2 y and 0."""
    kernel, bias = np.array([[1, 0, 0], [0, 2, 0]], "float32"), np.array([1, 0, 0], "float32")
    return chain_of(
        *blocks, head=lambda h: ops.matmul(ops.reshape(h, (-1, 2)), kernel) + bias, **changes
    )


def changed(chain, **changes):
    """The chain with other functions, which shares nothing compiled with it."""
    return dataclasses.replace(chain, **changes, compiled={})


POINTS = np.array([[[[3, 4]]], [[[1, -2]]]], "float32"), np.array([0, 1])
DOUBLED = Block(1, 0, True, lambda h: 2 * h)
MOVED = Block(1, 1, True, lambda h: h + np.array([10, 100], "float32"))


def test_a_linear_head_by_hand():
    frame = probes.attribution(linear_chain(DOUBLED, MOVED), POINTS, per_image=True)
    assert frame["part"].tolist() == [*["first state"] * 2, *["block"] * 4, *["head"] * 2]
    assert frame["block"].tolist() == [-1, -1, 0, 0, 1, 1, 2, 2]
    # 1 + x = 1 + 2 * 3 + 10 of the first image, 2 y = 2 * (2 * -2 + 100) of the second.
    assert frame["attribution"].tolist() == [3, -4, 3, -4, 10, 200, 1, 0]
    assert frame["logit"].tolist() == [17, 192] * 4
    assert frame["deviation"].tolist() == [0] * 8


def test_targets_by_hand():
    chain = linear_chain(DOUBLED, MOVED)
    # The states are (16, 108) and (12, 96): the logits are (17, 216, 0) and (13, 192, 0).
    for target, wanted in (
        ("margin", [17 - 216, 192 - 13]),
        (2, [0, 0]),
        (np.int64(0), [17, 13]),
        (("label", 2), [17, 192]),
        (("label", 0), [0, 179]),
    ):
        frame = probes.attribution(chain, POINTS, target=target, per_image=True)
        assert frame["logit"].iloc[:2].tolist() == wanted
    several = dataclasses.replace(chain, outputs="label_logits")
    rows = np.array([[1, 1, 0], [1, 0, 1]])
    for target, wanted in (("label", [(17 + 216) / 2, 13 / 2]), ("margin", [17, 0 - 192])):
        frame = probes.attribution(several, (POINTS[0], rows), target=target, per_image=True)
        assert frame["logit"].iloc[:2].tolist() == wanted


def test_a_margin_needs_a_label_and_another_class():
    """What has none is not there, in `attribution` and in `patching`."""
    chain = changed(linear_chain(DOUBLED, MOVED), outputs="label_logits")
    images = np.concatenate([POINTS[0], POINTS[0]])
    rows = np.array([[1, 1, 0], [0, 0, 0], [1, 1, 1], [1, 0, 1]])
    few, source = [0, 3], images[::-1]
    runs = [
        functools.partial(probes.attribution, chain),
        lambda data, **settings: probes.patching(
            chain,
            data,
            (source[few] if len(data[0]) == 2 else source, data[1]),
            what="addition",
            **settings,
        ),
    ]
    for run in runs:
        frame = run((images, rows), target="margin", per_image=True)
        logits = frame["logit"].to_numpy().reshape(-1, 4)
        np.testing.assert_array_equal(logits[0], [17, np.nan, np.nan, 0 - 192])
        assert not np.isinf(frame.select_dtypes("number")).any(axis=None)
        means = [run((images[f], rows[f]), target="margin") for f in (few, slice(None))]
        pd.testing.assert_frame_equal(*means)
        with pytest.raises(ValueError, match="at least one position that counts"):
            run((images, np.zeros_like(rows)), target="margin")
