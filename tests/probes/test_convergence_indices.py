"""The three indices by hand: as formulas, from hand-made frames, and of whole chains."""

import math

import numpy as np
import pandas as pd
import pytest
from keras import ops
from reference.route_probes import NETWORKS, counted, counting_chain, network
from refusals import refused

import tfresidual as tfr
from tfresidual import probes
from tfresidual.probes.convergence_indices import (
    INDICES,
    convergence_index,
    divergence_index,
    indices_of,
    recurrence_index,
)

pytestmark = pytest.mark.eager

NAN = math.nan
INDEX_NAMES = ["convergence_index", "recurrence_index", "divergence_index"]
READINGS = ["all blocks", "all but last", "trapezoid"]

# Twenty images, as many of each of four classes: guessing errs on 3/4.
IMAGES = counted(np.arange(20) % 4)


# The formulas


@pytest.mark.parametrize(
    ("errors", "error", "chance", "every", "but_last", "trapezoid"),
    [
        ([0.1, 0.1, 0.1], 0.1, 0.9, 1, 1, 1),
        # The last block's read-out counts; one triangle of three intervals.
        ([0.9, 0.9, 0.9, 0.1], 0.1, 0.9, 1 / 4, 0, 1 / 6),
        ([0.5, 0.1], 0.1, 0.9, 3 / 4, 1 / 2, 3 / 4),
        # Shares of 0.2, 0.6 and 1.
        ([0.6, 0.3, 0.0], 0.0, 0.75, (0.2 + 0.6 + 1) / 3, 0.4, (0.4 + 0.8) / 2),
        ([0.1], 0.1, 0.9, 1, NAN, NAN),
        ([1.0, 0.0], 0.0, 0.5, 0, -1, 0),  # worse than chance counts against it
        ([0.0, 0.25], 0.25, 0.5, 3 / 2, 2, 3 / 2),  # better than the whole network
        ([NAN, 0.1], 0.1, 0.9, NAN, NAN, NAN),
    ],
)
def test_convergence_index(errors, error, chance, every, but_last, trapezoid):
    found = [convergence_index(errors, error, chance, reading) for reading in READINGS]
    assert found == pytest.approx([every, but_last, trapezoid], nan_ok=True)
    assert convergence_index(errors, error, chance) == pytest.approx(every, nan_ok=True)


@pytest.mark.parametrize(
    ("errors", "chance", "index"),
    [
        ([0.4, 0.4, 0.4, 0.4], 0.9, 1),
        ([0.0, 0.0, 0.0], 0.9, 1),
        ([0.9, 0.9, 0.9], 0.9, 0),  # chance, whichever is dropped
        ([0.95, 0.9, 0.92], 0.9, 0),
        ([0.9, 0.9, 0.1], 0.9, 0),
        ([0.9, 0.1, 0.1], 0.9, 1 / 2),
        ([0.5, 0.3, 0.1], 0.9, 1 - (0.5 + 0.25) / 2),
        ([0.1, 0.5], 0.9, 2),  # the last is the one that matters
        ([NAN, 0.5, 0.1], 0.9, 1 / 2),  # what cannot be dropped is left out
        ([NAN, NAN, 0.5, 0.3, 0.1], 0.9, 1 - (0.5 + 0.25) / 2),
        ([0.5, 0.1, NAN], 0.9, NAN),
        ([NAN, 0.1], 0.9, NAN),
        ([0.1], 0.9, NAN),
        ([NAN], 0.9, NAN),
        ([0.1, 0.9], 0.9, NAN),  # chance without the last block only
        ([0.9, 0.1, 0.95], 0.9, NAN),
        ([NAN, 0.9, 0.9], 0.9, 0),
    ],
)
def test_recurrence_index(errors, chance, index):
    assert recurrence_index(errors, chance) == pytest.approx(index, nan_ok=True)


@pytest.mark.parametrize(
    ("errors", "error", "chance", "index"),
    [
        ([0.1] * 16, 0.1, 0.9, 0),
        ([0.9] * 16, 0.1, 0.9, 1),
        ([0.3, 0.5, 0.7, 0.9], 0.1, 0.9, (0.25 + 0.5 + 0.75 + 1) / 4),
        ([0.0], 0.1, 0.9, -1 / 8),  # repetition helps
        ([1.0], 0.0, 0.5, 2),
        ([], 0.1, 0.9, NAN),
    ],
)
def test_divergence_index(errors, error, chance, index):
    assert divergence_index(errors, error, chance) == pytest.approx(index, nan_ok=True)


# From frames


def frame(name, **errors):
    """A frame of a probe with the errors of its stages; agreement is 0.95 - error / 2."""
    rows = [
        {"stage": int(stage[-1]), name: place, "error": error, "agreement": 0.95 - error / 2}
        for stage, values in errors.items()
        for place, error in enumerate(values)
    ]
    return pd.DataFrame(rows)


FRAMES = {
    "readout": frame("block", stage1=[0.5, 0.1], stage2=[0.9, 0.9, 0.9, 0.1]),
    "drop_blocks": frame("block", stage1=[0.5, 0.1], stage2=[NAN, 0.3, 0.2, 0.1]),
    "repeat_last_block": frame("repetition", stage1=[0.1, 0.1, 0.1], stage2=[0.1, 0.5, 0.9]),
}


def test_indices_of_frames():
    table = indices_of(**FRAMES, chance=0.9)
    assert table.columns.tolist() == ["basis", "stage", *INDEX_NAMES, "error", "chance", "reading"]
    assert table["reading"].tolist() == ["all blocks"] * 6
    assert table["basis"].tolist() == ["labels"] * 3 + ["agreement"] * 3
    assert table["stage"].tolist() == [1, 2, "mean"] * 2
    assert table["error"].tolist() == pytest.approx([0.1] * 3 + [0.1] * 3)
    assert table["chance"].tolist() == [0.9] * 6
    of_labels = table[table["basis"] == "labels"].set_index("stage")[INDEX_NAMES]
    assert of_labels.loc[1].tolist() == pytest.approx([3 / 4, 1 / 2, 0])
    assert of_labels.loc[2].tolist() == pytest.approx([1 / 4, 1 - 3 / 16, 3 / 4])
    assert of_labels.loc["mean"].tolist() == pytest.approx([1 / 2, 21 / 32, 3 / 8])


def test_agreement_takes_the_place_of_the_error():
    # Disagreement is 0.05 + error / 2: 0.1 for 0.1, 0.3 for 0.5, 0.5 for 0.9; chance is 0.9.
    table = indices_of(**FRAMES, chance=0.9)
    rows = table[table["basis"] == "agreement"].set_index("stage")[INDEX_NAMES]
    assert rows.loc[1].tolist() == pytest.approx([(6 / 8 + 1) / 2, 1 - 2 / 8, 0])
    # Dropping gives 0.2, 0.15 and 0.1.
    expected = [(3 * 4 / 8 + 1) / 4, 1 - (1 / 8 + 0.5 / 8) / 2, (2 / 8 + 4 / 8) / 2]
    assert rows.loc[2].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("chance", [0.1, 0.05], ids=["at", "above"])
def test_frames_at_chance_or_above(chance):
    with refused("chain"):
        indices_of(**FRAMES, chance=chance)
    table = indices_of(**FRAMES, chance=chance, at_chance="nan")
    assert table[INDEX_NAMES].isna().all(axis=None)
    assert table["error"].tolist() == pytest.approx([0.1] * 6)


# Of chains whose answers are known


def measured(share_wrong, *depths, data=IMAGES, changes=(), basis="labels", **kwargs):
    """Rows of the indices, the mean's last."""
    chain = counting_chain(share_wrong, *depths, changes=changes)
    table = probes.convergence_indices(chain, data, **{"times": 4} | kwargs)
    return table.loc[table["basis"] == basis, INDEX_NAMES].to_numpy()


def either(condition, yes, no):
    return ops.where(condition, float(yes), float(no))


# The counts after the trained network are all 1. Every network below errs on 1/10.
SOLVED = {
    # The first block does all: without it, chance; the others neither help nor harm.
    "instant convergence": (lambda n: either(n[:, 0] > 0, 0.1, 0.75), [1, 1 - 1 / 3, 0]),
    # Without the last block chance, without any other nothing: the recurrence has no meaning.
    "the last block does all": (lambda n: either(n[:, 3] > 0, 0.1, 0.75), [1 / 4, NAN, 0]),
    "chance whichever is dropped": (
        lambda n: either(ops.min(n, axis=1) > 0, 0.1, 0.75),
        [1 / 4, 0, 0],
    ),
    # Read-outs and drops at 0.4, which leaves 0.35 of 0.65.
    "all drops equal": (
        lambda n: either(ops.min(n, axis=1) > 0, 0.1, 0.4),
        [(3 * 7 / 13 + 1) / 4, 1, 0],
    ),
    "chance after one repetition": (lambda n: either(ops.max(n, axis=1) > 1, 0.75, 0.1), [1, 1, 1]),
    # A tenth more for every block too few, a twentieth for every one too many.
    "in between": (
        lambda n: (
            0.1 + 0.1 * ops.maximum(4 - ops.sum(n, 1), 0) + 0.05 * ops.maximum(ops.sum(n, 1) - 4, 0)
        ),
        [(0.35 + 0.45 + 0.55 + 0.65) / 4 / 0.65, 1, (0.05 + 0.1 + 0.15 + 0.2) / 4 / 0.65],
    ),
    # Without block b, 0.1 (b + 2).
    "drops that differ": (
        lambda n: 0.1 + ops.sum((1 - ops.minimum(n, 1)) * np.array([0.1, 0.2, 0.3, 0.4], "f"), 1),
        [
            (0.65 - 0.9 + 0.65 - 0.7 + 0.65 - 0.4 + 0.65) / 4 / 0.65,
            1 - ((0.2 - 0.5) + (0.3 - 0.5) + (0.4 - 0.5)) / 3 / 0.25,
            0,
        ],
    ),
    "worse than chance": (
        lambda n: either(ops.sum(n, 1) == 4, 0.1, 1),
        [(3 * -0.25 / 0.65 + 1) / 4, 0, 0.9 / 0.65],
    ),
}


@pytest.mark.parametrize(("share_wrong", "expected"), SOLVED.values(), ids=SOLVED)
def test_chain_of_one_stage(share_wrong, expected):
    rows = measured(share_wrong, 4)
    np.testing.assert_allclose(rows, [expected, expected], rtol=1e-6, atol=1e-9)


def test_stages_and_their_mean():
    # Stage 1 converges at once, stage 2 (chance without any of its two blocks) does not.
    def share_wrong(n):
        works = ops.logical_and(n[:, 0] > 0, ops.min(n[:, 2:], axis=1) > 0)
        return either(works, 0.1, 0.75)

    rows = measured(share_wrong, 2, 2)
    expected = np.array([[1, 0, 0], [1 / 2, 0, 0]])
    np.testing.assert_allclose(rows, [*expected, expected.mean(axis=0)], atol=1e-9)


def test_blocks_that_change_shape():
    # Of stage 1 the last block, of stage 2 the first one.
    def share_wrong(n):
        return 0.1 + 0.1 * ops.sum(1 - ops.minimum(n, 1), axis=1)

    chain = counting_chain(share_wrong, 2, 3, changes=[(1, 1), (2, 0)])
    table = probes.convergence_indices(chain, {"a": IMAGES, "b": IMAGES}, times=2)
    stage2 = [(0.45 + 0.55 + 0.65) / 3 / 0.65, 1, 0]
    rows = table.loc[table["basis"] == "labels", INDEX_NAMES]
    expected = [[NAN, NAN, NAN], stage2, stage2] * 2
    np.testing.assert_allclose(rows, expected, rtol=1e-6, atol=1e-9)
    chain = counting_chain(lambda n: 0.1 + 0 * n[:, 0], 1, 2, changes=[(1, 0), (2, 1)])
    rows = probes.convergence_indices(chain, {"a": IMAGES, "b": IMAGES})[INDEX_NAMES]
    np.testing.assert_allclose(rows, [[1, NAN, NAN], [NAN, NAN, NAN], [1, NAN, NAN]] * 4)


# Chance


def chance_of(labels, chance="uniform", classes=4, outputs="logits", share=0.0):
    chain = counting_chain(lambda n: share + 0 * n[:, 0], 1, classes=classes, outputs=outputs)
    data = counted(labels, classes)
    table = probes.convergence_indices(chain, data, times=1, chance=chance)
    (value,) = table["chance"].unique()
    assert table["chance_from"].unique().tolist() == [
        chance if isinstance(chance, str) else "given"
    ]
    return value


TWO_OF_FIVE = np.array([[1, 1, 0, 0, 0], [0, 1, 0, 1, 0], [0, 0, 1, 1, 0], [0, 1, 0, 1, 0]])


def test_chance_of_classes():
    unbalanced = np.array([0] * 6 + [1] * 3 + [2])
    for labels in (unbalanced, np.eye(4)[unbalanced]):
        assert chance_of(labels) == pytest.approx(3 / 4)
        assert chance_of(labels, "largest class") == pytest.approx(4 / 10)
        assert chance_of(labels, 0.35) == 0.35
        assert chance_of(labels, 1) == 1
    chain = counting_chain(lambda n: 0 * n[:, 0], 1)
    images, labels = counted(unbalanced)
    table = probes.convergence_indices(chain, (images, labels[:, None]), chance="largest class")
    assert table["chance"].tolist() == pytest.approx([4 / 10] * 4)


def test_chance_of_several_labels():
    settings = {"classes": 5, "outputs": "label_logits"}
    assert chance_of(TWO_OF_FIVE, **settings) == pytest.approx(1 - 1 / 10)
    assert chance_of(TWO_OF_FIVE, "largest class", **settings) == pytest.approx(1 / 2)
    # Three of five labels: ten sets too; one of five: five.
    mixed = np.concatenate([1 - TWO_OF_FIVE[:2], np.eye(5)[:2]])
    assert chance_of(mixed, **settings) == pytest.approx(1 - (1 / 10 + 1 / 5) / 2)


def test_better_than_chance_by_less_than_noise():
    """Of four classes, an error of 0.70 on 400 images is 2.3 standard errors below chance."""
    assert chance_of(np.arange(400) % 4, share=0.70) == 0.75
    for images, share in ((400, 0.71), (40, 0.70)):
        with refused("chain"):
            chance_of(np.arange(images) % 4, share=share)
    # As known from frames: without the last block, the error is 0.88, within noise of chance.
    assert recurrence_index([0.5, 0.88], 0.9) == pytest.approx(20)
    assert np.isnan(recurrence_index([0.5, 0.88], 0.9, images=400))
    assert recurrence_index([0.89, 0.88], 0.9, images=400) == 0
    assert recurrence_index([0.5, 0.88], 0.9, images=4000) == pytest.approx(20)
    with refused("chain"):
        indices_of(**FRAMES, chance=0.11, images=100)
    assert indices_of(**FRAMES, chance=0.11, images=10_000)["convergence_index"].notna().all()
    with refused("images"):
        indices_of(**FRAMES, chance=0.9, images=0)


# Of networks


PROBED = ("only block changes shape", "original", "several labels")


@pytest.mark.parametrize(
    "settings",
    [
        NETWORKS[PROBED[0]],
        pytest.param(NETWORKS[PROBED[1]], marks=pytest.mark.nightly),
        pytest.param(NETWORKS[PROBED[2]], marks=pytest.mark.nightly),
    ],
    ids=PROBED,
)
def test_equals_the_indices_of_the_probes(settings):
    net, batch = network(settings, images=20)
    chain = tfr.chain(net)
    # A random network errs more than guessing; a chance of 1 is above any error.
    table = probes.convergence_indices(chain, batch, times=3, chance=1.0)
    assert table["chance_from"].tolist() == ["given"] * len(table)
    reads, drops = probes.readout(chain, batch), probes.drop_blocks(chain, batch)
    repeats = probes.repeat_last_block(chain, batch, times=3, block_metrics=False)
    own = indices_of(reads, drops, repeats, 1.0)
    pd.testing.assert_frame_equal(table.drop(columns="chance_from"), own)
    assert list(INDICES) == INDEX_NAMES
    # By the formulas, stage by stage.
    for basis in ("labels", "agreement"):
        parts = [part.assign(wrong=part["error"] if basis == "labels" else 1 - part["agreement"])
                 for part in (reads, drops, repeats)]  # fmt: skip
        rows = table[table["basis"] == basis].set_index("stage")
        e0 = parts[0]["wrong"].iloc[-1]
        for stage in reads["stage"].unique():
            r, d, k = (part.loc[part["stage"] == stage, "wrong"].to_numpy() for part in parts)
            others = d[:-1][~np.isnan(d[:-1])]
            expected = [
                np.mean((1 - r) / (1 - e0)),
                1 - np.mean((others - d[-1]) / (1 - d[-1])) if len(others) else NAN,
                np.mean((k[1:] - e0) / (1 - e0)) if len(k) else NAN,
            ]
            np.testing.assert_allclose(rows.loc[stage, INDEX_NAMES].astype(float), expected)


# Labels that are not 0 and 1
