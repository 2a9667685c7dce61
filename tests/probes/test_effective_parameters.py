"""Effective parameters against NumPy on the paths of the weights, and by hand.

Not covered here: which weights of networks of this package are coupled in training, which
`tests/networks/test_weight_groups.py` is about.
"""

import dataclasses
import itertools
import re

import keras
import numpy as np
import pandas as pd
import pytest
from keras import layers
from reference.plane import plane_chain
from reference.random_network import random_network, randomise
from refusals import refused

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


def test_uncoupled_weights_of_the_papers_networks():
    # Stem, head, and the blocks that change the shape: two convolutions, two batch norms and a
    # projection, all with a bias.
    def change(narrow, wide):
        return 9 * narrow * wide + 9 * wide**2 + narrow * wide + 3 * wide + 2 * narrow + 2 * wide

    ends = 27 * 16 + 16 + 2 * 64 + 64 * 10 + 10
    row = probes.effective_parameters(networks.resnet(32)).iloc[0]
    assert row["raw"] == 467_946
    assert row["uncoupled"] == ends + change(16, 32) + change(32, 64)
    hauser = probes.effective_parameters(networks.hauser_resnet(3)).iloc[0]
    assert hauser["uncoupled"] == ends + 16 * 32 + 32 + 32 * 64 + 64


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


# Models of Keras: which weights are counterparts, by the layers that a builder made.


class Models:
    """Makes blocks of tokens `(positions, WIDTH)` and keeps `(stage, kind, layers)` of each."""

    WIDTH = 4

    def __init__(self):
        self.blocks, self.stage, self.one_norm = [], 1, layers.LayerNormalization()
        self.shared = [layers.LayerNormalization(), *self.denses(6)]

    def denses(self, hidden, bias=True):
        sizes = (hidden, self.WIDTH)
        return [layers.Dense(size, activation="tanh", use_bias=bias) for size in sizes]

    def add(self, state, kind, inner, shortcut=None):
        branch = state
        for layer in inner:
            is_attention = isinstance(layer, layers.MultiHeadAttention)
            branch = layer(branch, branch) if is_attention else layer(branch)
        known = [layer for layer in (*inner, shortcut) if layer is not None]
        self.blocks.append((self.stage, kind, known))
        return layers.add([state if shortcut is None else shortcut(state), branch])

    def mlp(self, state, hidden=6, bias=True, norm=None):
        norm = norm or layers.LayerNormalization()
        return self.add(state, "mlp", [norm, *self.denses(hidden, bias)])

    def attention(self, state, bias=True, norm=None):
        inner = layers.MultiHeadAttention(2, 3, use_bias=bias)
        return self.add(state, "attention", [norm or layers.LayerNormalization(), inner])

    def mixing(self, state):
        # As many positions as channels: the shapes do not tell the two kinds of mixing apart.
        turn, back = layers.Permute((2, 1)), layers.Permute((2, 1))
        return self.add(state, "mixing", [layers.LayerNormalization(), turn, *self.denses(6), back])

    def projection(self, state):
        return self.add(state, "projection", self.denses(6), layers.Dense(self.WIDTH))

    def wider(self, state):
        self.WIDTH, self.stage = self.WIDTH + 1, self.stage + 1
        return self.add(state, "wider", self.denses(6), layers.Dense(self.WIDTH))

    def frozen(self, state):
        state = self.mlp(state)
        for layer in self.blocks[-1][2]:
            layer.trainable = False
        return state

    def build(self, names):
        """The model of some blocks, such as `"mlp"`, or `"mlp 9"` with another hidden size."""
        inputs = state = keras.Input((4, 4))
        made = {
            "odd": lambda state: self.mlp(state, 9),
            "unbiased": lambda state: self.mlp(state, bias=False),
            "unbiased attention": lambda state: self.attention(state, bias=False),
            "plain": lambda state: self.add(state, "plain", self.denses(6)),
            "same": lambda state: self.add(state, "mlp", self.shared),
            "one norm": lambda state: self.mlp(state, norm=self.one_norm),
            "one norm attention": lambda state: self.attention(state, norm=self.one_norm),
        }
        for name in names.split(", "):
            state = (made.get(name) or getattr(self, name))(state)
        outputs = layers.Dense(3)(layers.GlobalAveragePooling1D()(state))
        model = keras.Model(inputs, outputs)
        rng = np.random.default_rng(0)
        model.set_weights([rng.normal(size=weight.shape) for weight in model.get_weights()])
        return model

    def counts(self, model, first_block=0):
        """The row of `effective_parameters` in plain NumPy, by the layers of the blocks."""
        indices, alike = {}, {}
        for stage, kind, inner in self.blocks:
            index = indices[stage] = indices.get(stage, -1) + 1
            if kind == "wider" or index < first_block:
                continue
            for number, layer in enumerate(inner):
                # If blocks of two kinds share a norm, all norms of both kinds are counterparts.
                is_joined = layer is inner[0] and self.one_norm.built and first_block == 0
                for weight in layer.weights:
                    place = "norm" if is_joined else (kind, number)
                    inside = weight.path.removeprefix(layer.path)
                    key = (stage, place, inside, tuple(weight.shape))
                    alike.setdefault(key, {})[index, kind] = weight
        raw = sum(np.size(weight) for weight in model.get_weights())
        uncoupled, one, deviations = raw, 0, 0.0
        for own in alike.values():
            if len(own) < 2:
                continue
            values = {id(w): np.asarray(w, "float64") for w in own.values()}
            uncoupled -= sum(value.size for value in values.values())
            one += next(iter(values.values())).size
            if len(values) > 1:
                every = np.stack(list(values.values()))
                deviations += np.abs((every - every.mean(axis=0)) / every.std()).sum()
        recurrent = uncoupled + one
        return {
            "raw": raw,
            "uncoupled": uncoupled,
            "recurrent": recurrent,
            "effective": pytest.approx(recurrent + deviations, rel=1e-6),
        }


@pytest.mark.parametrize(
    "names",
    [
        "mlp, odd, mlp, odd",
        pytest.param("unbiased, mlp, mlp, unbiased", marks=pytest.mark.nightly),
        "unbiased attention, attention, mlp",
        "attention, mlp, plain, attention, plain",
        "mixing, mlp, mixing, mlp",
        "projection, plain, plain",
        "mlp, wider, mlp, mlp, wider, mlp",
        "same, mlp, same",
        "one norm attention, one norm, attention, mlp",
        "mlp, frozen, mlp",
    ],
)
def test_models_of_keras_equal_numpy(names):
    models = Models()
    model = models.build(names)
    chain = tfr.chain(model)
    for first in range(2):
        row = probes.effective_parameters(chain, first_block=first).iloc[0].to_dict()
        assert row == models.counts(model, first)
    frame, row = probes.weight_deviations(chain, first_block=1), pd.Series(row)
    assert frame["l1"].sum() == pytest.approx(row["effective"] - row["recurrent"])
    assert frame["parameters"].sum() == row["raw"] - row["uncoupled"]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_a_block_of_another_hidden_width_by_hand(order):
    # Two kernels and two biases: of 1, 1, 1, 1 parameters in two blocks, 2, 2, 2, 1 in the third.
    values = [
        ([[[1.0]], [7.0], [[2.0]], [5.0]], 1),
        ([[[3.0]], [7.0], [[2.0]], [5.0]], 1),
        ([[[1.0, 9.0]], [7.0, 7.0], [[2.0], [4.0]], [8.0]], 2),
    ]
    inputs = state = keras.Input((1,))
    for own, hidden in [values[index] for index in order]:
        first, second = layers.Dense(hidden, "relu"), layers.Dense(1)
        state = layers.add([state, second(first(state))])
        for layer, weights in ((first, own[:2]), (second, own[2:])):
            layer.set_weights([np.array(weight) for weight in weights])
    row = probes.effective_parameters(keras.Model(inputs, state)).iloc[0].to_dict()
    # Counterparts are three weights of two blocks, and the last bias of all three. Only the first
    # kernels 1, 3 (each |D| is 1) and the biases 5, 5, 8 (deviations 1, 1, 2, in units of the root
    # of 2) differ.
    assert (row["raw"], row["uncoupled"], row["recurrent"]) == (15, 6, 10)
    assert row["effective"] == pytest.approx(10 + 2 + 4 / np.sqrt(2))


@pytest.mark.parametrize(
    ("kind", "mode"),
    [
        *itertools.product([layers.Embedding, layers.Dense, layers.EinsumDense], ["int8", "int4"]),
        *itertools.product([layers.Dense, layers.EinsumDense], ["float8"]),
    ],
)
def test_quantized_weights(kind, mode):
    """float8 keeps its kernels, and adds scales; integers of two kernels have no common unit."""
    inputs = keras.Input((4,))
    state = layers.Embedding(9, 6)(inputs)
    for layer in (layers.Dense(6), layers.EinsumDense("abc,cd->abd", (None, 6))):
        state = layers.add([state, layer(state)])
    model = keras.Model(inputs, layers.Dense(3)(state))
    whole = probes.effective_parameters(model)
    next(layer for layer in model.layers if isinstance(layer, kind)).quantize(mode)
    if mode == "float8":
        pd.testing.assert_frame_equal(probes.effective_parameters(model), whole)
        return
    for probe in (probes.effective_parameters, probes.weight_deviations):
        with refused("chain"):
            probe(model)
