"""Effective parameters against NumPy on the paths of the weights, and by hand.

Not covered here: which weights belong together, which `tests/networks/test_weight_groups.py` is
about.
"""

import dataclasses
import re

import keras
import numpy as np
import pytest
from reference.plane import plane_chain
from reference.random_network import random_network, randomise

import tfresidual as tfr
from tfresidual import networks, probes
from tfresidual.probes.effective_parameters import normalized_deviations

NETWORKS = {
    "projection": {"blocks": (2, 3, 1), "widths": (4, 8, 12)},
    "bottleneck": {
        "bottleneck": True,
        "blocks": (3, 2),
        "layout": "original",
        "widths": (8, 16),
    },
    "gates": {"shortcut": "exclusive_gate", "transition": "convolution", "blocks": 3},
    "convolutions": {"shortcut": "conv1x1", "transition": "downsampling_block"},
    "shared": {"blocks": 3, "share_from": 1},
    "unshared normalization": {"blocks": (3, 2), "share_from": 1, "batch_norm": "unshared"},
    "unshared scale": {"blocks": 3, "share_from": 0, "batch_norm": "unshared_scale"},
    "anchor": {"lipschitz": 0.9, "anchor": "input", "transition": "average_pooling"},
}
all_networks = pytest.mark.parametrize("settings", NETWORKS.values(), ids=NETWORKS, scope="module")


@pytest.fixture(scope="module")
def net(settings):
    """A network whose weights each test sets by itself."""
    return random_network(**settings)


def numpy_groups(net):
    """The weights of each (stage, role) that can be coupled: a dict of block indices to arrays.

    By the names of the weights: a block with a projection is left out, and so is a weight that
    neither has a counterpart nor is shared.
    """
    values = {v.path: np.asarray(v, "float64") for v in net.trainable_variables}
    projects = {path.split("/")[0] for path in values if "/projection/" in path}
    groups = {}
    for path, value in values.items():
        match = re.fullmatch(r"stage(\d+)_block(\d+)/(.+)", path)
        if match and path.split("/")[0] not in projects:
            stage, block, role = int(match[1]), int(match[2]), match[3]
            groups.setdefault((stage, role), {})[block] = value
    kept = {stage: len(units) for stage, (_, units) in enumerate(net.sections()[1], start=1)}
    for name in projects:
        kept[int(name[5])] -= 1
    return {key: group for key, group in groups.items() if kept[key[0]] > 1}


def numpy_deviations(group):
    mean = sum(group.values()) / len(group)
    spread = np.std(np.concatenate([value.ravel() for value in group.values()]))
    return {block: (value - mean) / spread for block, value in group.items()}


@all_networks
def test_equals_numpy(settings, net):
    randomise(net, seed=3)
    groups = numpy_groups(net)
    frame = probes.weight_deviations(net)
    assert len(frame) == sum(map(len, groups.values()))
    expected = {
        (stage, block, role): value
        for (stage, role), group in groups.items()
        for block, value in numpy_deviations(group).items()
    }
    for row in frame.to_dict("records"):
        # Roles of the chain name the layer by its place, those of the paths by its name.
        value = expected[row["stage"], row["block"], path_role(settings, row["role"])]
        assert row["parameters"] == value.size
        assert row["deviation"] == pytest.approx(np.abs(value).mean(), rel=1e-9)
        assert row["l1"] == pytest.approx(np.abs(value).sum(), rel=1e-9)
    row = probes.effective_parameters(net).iloc[0]
    raw = sum(np.size(v) for v in net.trainable_variables)
    coupled = sum(value.size for group in groups.values() for value in group.values())
    of_one = sum(next(iter(group.values())).size for group in groups.values())
    assert (row["raw"], row["uncoupled"]) == (raw, raw - coupled)
    assert row["recurrent"] == raw - coupled + of_one
    total = sum(np.abs(value).sum() for value in expected.values())
    assert row["effective"] == pytest.approx(raw - coupled + of_one + total, rel=1e-9)
    assert row["recurrent"] <= row["effective"] <= row["recurrent"] + coupled


def path_role(settings, role):
    part = {"exclusive_gate": "gate", "conv1x1": "convolution"}.get(settings.get("shortcut"))
    return role.replace("shortcut/", f"shortcut/{part}/")


@all_networks
def test_equal_blocks_count_as_one(net):
    randomise(net, seed=3)
    for _, units in net.sections()[1]:
        first, *others = [unit for unit in units if unit.resizing is None] or [None]
        for unit in others:
            for variable, value in zip(
                unit.trainable_variables, first.trainable_variables, strict=True
            ):
                variable.assign(value)
    assert (probes.weight_deviations(net)["l1"] == 0).all()
    row = probes.effective_parameters(net).iloc[0]
    assert row["effective"] == row["recurrent"]


def test_recurrent_initialization_and_a_random_one():
    size = {"input_shape": (8, 8, 3), "classes": 5, "blocks": 6, "widths": (8, 16)}
    equal = probes.effective_parameters(
        networks.ResidualNetwork(**size, recurrent_initialization=True)
    ).iloc[0]
    assert equal["effective"] == equal["recurrent"] < equal["raw"]
    drawn = probes.effective_parameters(networks.ResidualNetwork(**size)).iloc[0]
    assert drawn["recurrent"] == equal["recurrent"]
    # E|D| of normal numbers is 0.8; the blocks' share of the mean takes a little of that.
    assert 0.7 * drawn["raw"] < drawn["effective"] < drawn["raw"]


def test_shared_blocks_are_recurrent():
    net = networks.resnet(32, share_from=0)
    row = probes.effective_parameters(net).iloc[0]
    assert row["raw"] == row["recurrent"] == row["effective"] > row["uncoupled"]
    frame = probes.weight_deviations(net)
    assert frame["block"].groupby(frame["stage"]).unique().map(list).tolist() == [[0], [1], [1]]


def test_uncoupled_weights_of_the_papers_networks():
    # Stem, head, and the blocks that change the shape: two convolutions, two batch norms and a
    # projection, all with a bias.
    def change(narrow, wide):
        return 9 * narrow * wide + 9 * wide**2 + narrow * wide + 3 * wide + 2 * narrow + 2 * wide

    ends = 27 * 16 + 16 + 2 * 64 + 64 * 10 + 10
    row = probes.effective_parameters(networks.resnet(32)).iloc[0]
    assert row["raw"] == 467_946
    assert row["uncoupled"] == ends + change(16, 32) + change(32, 64)
    hauser = probes.effective_parameters(networks.hauser(3)).iloc[0]
    assert hauser["uncoupled"] == ends + 16 * 32 + 32 + 32 * 64 + 64


def test_late_coupling():
    net = random_network(blocks=5, widths=(4,))
    early, late = (probes.effective_parameters(net, first_block=first).iloc[0] for first in (0, 3))
    one = (early["raw"] - early["uncoupled"]) // 5
    assert late["uncoupled"] == early["uncoupled"] + 3 * one
    assert late["recurrent"] == early["recurrent"] + 3 * one
    frame = probes.weight_deviations(net, first_block=3)
    assert sorted(set(frame["block"])) == [3, 4]
    # Of two blocks, both are as far from the mean.
    l1 = frame.pivot(index="role", columns="block", values="l1")
    np.testing.assert_allclose(l1[3], l1[4])
    alone = probes.effective_parameters(net, first_block=4).iloc[0]
    assert alone["raw"] == alone["uncoupled"] == alone["recurrent"] == alone["effective"]
    shared = random_network(blocks=5, widths=(4,), share_from=0)
    frame = probes.weight_deviations(shared, first_block=3)
    assert set(frame["block"]) == {3}


def weighted_chain(*weights):
    """A chain in the plane whose blocks hold these weights, a dict each."""
    chain = plane_chain(*[lambda h: h] * len(weights))
    blocks = tuple(
        dataclasses.replace(block, weights=own)
        for block, own in zip(chain.blocks, weights, strict=True)
    )
    every = tuple(variable for own in weights for variable in own.values())
    stages = (dataclasses.replace(chain.stages[0], blocks=blocks),)
    return dataclasses.replace(chain, stages=stages, weights=every)


def test_solved_by_hand():
    # Kernels (1, 1) and (3, 3): mean 2 and deviation 1. Biases 5 and 5: none.
    first, second = (
        {"kernel": keras.Variable([[value, value]]), "bias": keras.Variable([5.0])}
        for value in (1.0, 3.0)
    )
    chain = weighted_chain(first, second)
    frame = probes.weight_deviations(chain)
    assert frame.to_dict("list") == {
        "stage": [1] * 4,
        "block": [0, 0, 1, 1],
        "role": ["kernel", "bias"] * 2,
        "parameters": [2, 1] * 2,
        "deviation": [1.0, 0.0] * 2,
        "l1": [2.0, 0.0] * 2,
    }
    other = keras.Variable([[7.0] * 4])
    chain = dataclasses.replace(chain, weights=(*chain.weights, other, other))
    row = probes.effective_parameters(chain).iloc[0]
    assert row.to_dict() == {"raw": 10, "uncoupled": 4, "recurrent": 7, "effective": 11}
    # A weight that blocks share counts once, at the first of them.
    frame = probes.weight_deviations(weighted_chain(first, second, first))
    assert frame["block"].tolist() == [0, 0, 1, 1]
    assert frame["l1"].sum() == 4


def test_deviations_by_hand():
    values = np.array([[[0.0, 3.0]], [[6.0, 3.0]]])
    # Means (3, 3); of 0, 3, 6, 3 the variance is 18 / 4.
    expected = np.array([[[-3, 0]], [[3, 0]]]) / np.sqrt(4.5)
    np.testing.assert_allclose(normalized_deviations(values), expected)
    np.testing.assert_allclose(normalized_deviations(1e6 * values - 7), expected)
    # 0.1 is no number of the computer's: its mean may differ in the last digit.
    for shape in ((7, 10), (10, 3, 3), (1, 5)):
        assert (normalized_deviations(np.full(shape, 0.1)) == 0).all()
    row = np.random.default_rng(0).normal(size=(1, 50)) * 0.1
    assert (normalized_deviations(np.repeat(row, 7, axis=0)) == 0).all()


def test_follows_the_weights_and_leaves_them():
    net = random_network(dtype="mixed_bfloat16", blocks=2, widths=(4,))
    chain = tfr.chain(net)
    before = [v.numpy().copy() for v in net.variables]
    first = probes.effective_parameters(chain)
    for old, new in zip(before, net.variables, strict=True):
        np.testing.assert_array_equal(old, new.numpy())
    unit = net.get_layer("stage1_block1").convolution1
    unit.kernel.assign(net.get_layer("stage1_block0").convolution1.kernel)
    assert probes.effective_parameters(chain)["effective"][0] < first["effective"][0]


def test_network_without_two_blocks_of_a_kind():
    net = random_network(blocks=1)
    frame = probes.weight_deviations(net)
    assert frame.empty
    assert frame.columns.tolist() == ["stage", "block", "role", "parameters", "deviation", "l1"]
    row = probes.effective_parameters(net).iloc[0]
    assert row["raw"] == row["uncoupled"] == row["recurrent"] == row["effective"]


@pytest.mark.parametrize("probe", [probes.weight_deviations, probes.effective_parameters])
def test_bad_arguments(probe):
    with pytest.raises(ValueError, match=r"must know the trainable weights.*Received: plane"):
        probe(plane_chain(lambda h: h))
    with pytest.raises(ValueError, match=r"`first_block` must be an int.*Received: first_block=-1"):
        probe(random_network(), first_block=-1)
    # The longer stage has three blocks.
    net = random_network(blocks=(2, 3), widths=(4, 8))
    probe(net, first_block=2)
    with pytest.raises(ValueError, match=r"`first_block`.*up to 2\. Received: first_block=3$"):
        probe(net, first_block=3)
    with pytest.raises(ValueError, match=r"`source` must be.*Received"):
        probe(3)
