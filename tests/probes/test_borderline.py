"""Groups of images: by hand, and against the NumPy version."""

import numpy as np
import pandas as pd
import pytest
from keras import ops
from reference.plane import blocks_of, chain_of
from reference.route_probes import (
    TOLERANCE,
    all_networks,
    network,
    numpy_values,
    shape_changing,
    trained_applications,
    with_stage,
)
from refusals import refused

from tfresidual import probes

pytestmark = pytest.mark.eager

PLACES = ["along", "stage", "block", "scale"]
COLUMNS = [*PLACES, "group", "images", "accuracy", "cross_entropy", "entropy"]
OF_IMAGES = [
    *(*PLACES, "image", "borderline", "correct", "label", "prediction", "margin"),
    *("accuracy", "cross_entropy", "entropy"),
]
VALUES = ["accuracy", "cross_entropy", "entropy"]
# Of groups of the next block.
COMPARED = [*(f"{name}_before" for name in VALUES), "put_right", "put_wrong"]
GROUPS = ["borderline", "correct", "all"]


def output_chain(*blocks, classes=2, outputs="logits"):
    """A chain of one stage whose state is what the network puts out."""
    settings = {"input_shape": (1, 1, classes), "outputs": outputs}
    return chain_of(
        *blocks_of(*blocks), head=lambda state: ops.reshape(state, (-1, classes)), **settings
    )


def same(h):
    return h + 0


def rows_of(*outputs):
    return np.array(outputs, "float32")[:, None, None, :]


def ahead(*differences):
    """Logits of two classes, the first of which is ahead by so much."""
    return rows_of(*[(difference, 0) for difference in differences])


def of_margin(*margins):
    """Logits of two classes with so much between their probabilities."""
    return ahead(*[np.log((1 + m) / (1 - m)) for m in margins])


def members(frame, group="borderline"):
    """How many images a group has."""
    (images,) = frame.loc[frame["group"] == group, "images"].unique()
    return images


@pytest.mark.parametrize(
    ("margin", "is_member"),
    [(0.0, True), (0.1, True), (0.1999, True), (0.2001, False), (0.9, False)],
)
@pytest.mark.parametrize("sign", [1, -1], ids=["right", "wrong"])
def test_half_of_the_gap_is_less_than_the_probability(margin, sign, is_member):
    data = of_margin(sign * margin), np.array([0])
    frame = probes.borderline(output_chain(same), data, times=0)
    assert members(frame) == is_member
    # The mirror image: the other label.
    other = probes.borderline(output_chain(same), (of_margin(-sign * margin), [1]), times=0)
    assert members(other) == is_member


@pytest.mark.parametrize(
    ("labels", "least"),
    [
        ([1, 1, 0, 0], 0.05),  # lowest label 0.6, highest other 0.5
        ([1, 0, 1, 0], 0.05),  # 0.5 and 0.6: wrong
        ([1, 0, 0, 0], 0.15),
        ([1, 1, 1, 0], 0.2),
        ([0, 0, 1, 1], 0.4),
    ],
)
@pytest.mark.parametrize("kind", ["label_probabilities", "label_logits"])
def test_gap_of_several_labels(kind, labels, least):
    p = np.array([0.9, 0.6, 0.5, 0.1])
    outputs = p if kind == "label_probabilities" else np.log(p / (1 - p))
    chain = output_chain(same, classes=4, outputs=kind)
    data = rows_of(outputs), np.array([labels])
    for probability, is_member in ((least - 0.001, False), (least + 0.001, True)):
        frame = probes.borderline(chain, data, times=0, probability=probability)
        assert members(frame) == is_member


def cross_entropy(difference):
    return np.log1p(np.exp(-difference))


def entropy(difference):
    p = 1 / (1 + np.exp(-difference))
    return -p * np.log(p) - (1 - p) * np.log(1 - p)


def test_groups_are_decided_where_a_curve_begins():
    # The first class, which is the label, is ahead by
    #   -0.1, 3, -5, -1   after block 0,
    #   1.9, 5, -3, 1     after block 1, at the trained network,
    #   3.9, 7, -1, 3     after one repetition, and so on.
    chain = output_chain(same, lambda h: h + np.array([2, 0], "float32"))
    frame = probes.borderline(chain, (ahead(-0.1, 3, -5, -1), np.zeros(4, int)), times=2)
    curves = {
        ("blocks", 0): ([-0.1, 3, -5, -1], [[0], [1], [0, 1, 2, 3]]),
        ("blocks", 1): ([1.9, 5, -3, 1], [[0], [1], [0, 1, 2, 3]]),
        ("repetitions", 1): ([1.9, 5, -3, 1], [[], [0, 1, 3], [0, 1, 2, 3]]),
        ("repetitions", 2): ([3.9, 7, -1, 3], [[], [0, 1, 3], [0, 1, 2, 3]]),
        ("repetitions", 3): ([5.9, 9, 1, 5], [[], [0, 1, 3], [0, 1, 2, 3]]),
    }
    assert frame[[*PLACES, "group"]].to_numpy().tolist() == [
        [along, 1, block, 1.0, group] for along, block in curves for group in GROUPS
    ]
    rows = iter(frame.to_dict("records"))
    for differences, groups in curves.values():
        for places in groups:
            row, chosen = next(rows), np.array(differences)[places]
            assert row["images"] == len(places)
            expected = [(chosen > 0), cross_entropy(chosen), entropy(chosen)]
            for name, values in zip(VALUES, expected, strict=True):
                wanted = values.mean() if len(values) else np.nan
                assert row[name] == pytest.approx(wanted, rel=1e-5, nan_ok=True), (row, name)


def names(rows, several_labels):
    """Classes as the frame names them: one an image, or all of them as text."""
    if several_labels:
        return [" ".join(str(c) for c in range(len(row)) if row[c]) for row in rows]
    return [list(row).index(1) for row in rows]


# The other networks are nightly: what they share is in the tests of all routes.
@pytest.mark.sampled(2)
@all_networks("bounded", mark=pytest.mark.nightly)
@pytest.mark.parametrize("groups", ["fixed", "next block"])
def test_equals_numpy(settings, groups):
    net, batch = network(settings, images=12)
    is_fixed, is_several = groups == "fixed", settings.get("classifier_activation") == "sigmoid"
    applications = trained_applications(net)[-1]
    stage, last = len(trained_applications(net)), len(applications) - 1
    first = max([block for s, block in shape_changing(net, batch[0]) if s == stage], default=0)
    options = {"blocks": 2, "times": 2, "scale": 0.3, "probability": 0.2, "groups": groups}
    if first == last and not is_fixed:
        with refused("groups"):
            probes.borderline(net, batch, **options)
        return
    curves = {
        "blocks": [
            (block, applications[: block + 1]) for block in range(max(first, last - 1), last + 1)
        ],
        "repetitions": [(last + k, applications + [(last, 0.3)] * k) for k in range(3)],
    }
    labels = batch[1] if is_several else np.eye(net.classes)[batch[1]]
    counts = labels.sum(axis=1).astype(int)
    expected, of_images, predictions = [], [], []
    for along, curve in curves.items():
        values = [numpy_values(net, batch, with_stage(net, stage, route)) for _, route in curve]
        for index in range(0 if is_fixed else 1, len(curve)):
            here, before = values[index], values[0 if is_fixed else index - 1]
            gap = np.abs(before["margin"]) / 2
            assert np.abs(gap - 0.2).min() > 1e-4
            members = [gap < 0.2, before["wrong"] == 0, np.ones(12, bool)]
            columns = [1 - here["wrong"], here["cross_entropy"], here["entropy"]]
            if not is_fixed:
                columns += [1 - before["wrong"], before["cross_entropy"], before["entropy"]]
                columns.append((before["wrong"] == 1) & (here["wrong"] == 0))
                columns.append((before["wrong"] == 0) & (here["wrong"] == 1))
            place = [along, stage, curve[index][0], 0.3 if along == "repetitions" else 1.0]
            for group, inside in zip(GROUPS, members, strict=True):
                means = [column[inside].mean() if inside.any() else np.nan for column in columns]
                expected.append([*place, group, inside.sum(), *means])
            of_images.append(np.stack([*members[:2], here["margin"], *columns], axis=1))
            order = [np.argsort(-p)[:n] for p, n in zip(here["outputs"], counts, strict=True)]
            answers = [[c in row for c in range(net.classes)] for row in order]
            predictions += names(answers, is_several)
    compared = VALUES if is_fixed else [*VALUES, *COMPARED]
    frame = probes.borderline(net, batch, **options)
    expected = pd.DataFrame(expected, columns=[*COLUMNS[:6], *compared])
    assert frame.columns.tolist() == expected.columns.tolist()
    pd.testing.assert_frame_equal(frame[COLUMNS[:6]], expected[COLUMNS[:6]], check_dtype=False)
    np.testing.assert_allclose(frame[compared], expected[compared], **TOLERANCE)
    assert len(set(expected["images"])) > 1
    images = probes.borderline(net, batch, **options, per_image=True)
    assert images.columns.tolist() == OF_IMAGES + compared[3:]
    found = images[["borderline", "correct", "margin", *compared]].astype(float)
    np.testing.assert_allclose(found, np.concatenate(of_images), **TOLERANCE)
    curves = len(of_images)
    assert images["image"].tolist() == [*range(12)] * curves
    assert images["label"].tolist() == names(labels.astype(int), is_several) * curves
    assert images["prediction"].tolist() == predictions


@pytest.mark.filterwarnings("ignore:The data holds images in which no number is finite")
def test_images_of_two_classes_with_one_output():
    chain = output_chain(same, classes=1, outputs="label_probabilities")
    p = np.array([0.55, 0.9, 0.2, np.nan], "float32")
    for labels in ([1, 0, 0, 1], [[1], [0], [0], [1]]):
        data = p[:, None, None, None], np.array(labels)
        frame = probes.borderline(chain, data, times=0, per_image=True)
        assert frame["label"].tolist() == [1, 0, 0, 1]
        # Not a number is no class.
        assert frame["prediction"].tolist() == [1, 1, 0, pd.NA]
        assert frame["borderline"].tolist() == [True, False, False, False]
        assert frame["accuracy"].tolist() == [1, 0, 1, 0]
        np.testing.assert_allclose(frame["margin"][:3], [0.1, -0.8, 0.6], rtol=1e-5)


def test_groups_of_the_next_block():
    # The first class, which is the label, is ahead by these numbers after blocks 0, 1 and 2. An
    # image is borderline up to 0.4055, where the probabilities are 0.6 and 0.4.
    after = np.array([[-0.1, 0.3, 3, -5], [0.2, -0.4, 2.9, 0.1], [0.3, -0.6, -0.2, -0.3]])
    steps = [after[index + 1] - after[index] for index in range(2)]
    blocks = [lambda h, step=step: h + ops.convert_to_tensor(ahead(*step)) for step in steps]
    data = ahead(*after[0]), np.zeros(4, int)
    frame = probes.borderline(output_chain(same, *blocks), data, times=0, groups="next block")
    assert frame.columns.tolist() == COLUMNS + COMPARED
    assert frame["block"].tolist() == [1] * 3 + [2] * 3
    groups = {
        1: [[0, 1], [1, 2], [0, 1, 2, 3]],
        2: [[0, 1, 3], [0, 2, 3], [0, 1, 2, 3]],  # image 1 was wrong, image 3 right by a hair
    }
    rows = iter(frame.to_dict("records"))
    for block, members in groups.items():
        for places in members:
            row = next(rows)
            before, here = after[block - 1, places], after[block, places]
            assert row["images"] == len(places)
            expected = {
                "accuracy": here > 0,
                "cross_entropy": cross_entropy(here),
                "entropy": entropy(here),
                "accuracy_before": before > 0,
                "cross_entropy_before": cross_entropy(before),
                "entropy_before": entropy(before),
                "put_right": (before < 0) & (here > 0),
                "put_wrong": (before > 0) & (here < 0),
            }
            for name, values in expected.items():
                assert row[name] == pytest.approx(values.mean(), rel=1e-5), (row, name)
    assert frame.loc[0, ["put_right", "put_wrong"]].tolist() == [1 / 2, 1 / 2]
    gained = frame["put_right"] - frame["put_wrong"]
    np.testing.assert_allclose(frame["accuracy"], frame["accuracy_before"] + gained)
