"""Shared blocks: what is one and what is not, in training, in files, and in the papers' numbers.

What the blocks compute at inference is compared with NumPy in test_residual_network.py.
"""

import json

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from reference.numpy_network import OWN
from reference.random_network import case_id, random_batch, random_network

import tfresidual as tfr
from tfresidual import networks
from tfresidual.layers import ResidualUnit
from tfresidual.networks import ResidualNetwork

pytestmark = pytest.mark.eager

SWITCHES = ("shared", "unshared_statistics", "unshared_scale", "unshared")
STATISTICS, SCALES = ("moving_mean", "moving_variance"), ("gamma", "beta")
all_switches = pytest.mark.parametrize("batch_norm", SWITCHES)
# Everything is one, or nothing but the kernels; the two between are nightly.
most_different = pytest.mark.parametrize(
    "batch_norm",
    [
        pytest.param(switch, marks=[pytest.mark.nightly] if switch in SWITCHES[1:3] else [])
        for switch in SWITCHES
    ],
)
SMALL = {"input_shape": (8, 8, 3), "classes": 5, "blocks": 4, "widths": (4, 8), "share_from": 1}


def count(variables):
    return sum(int(np.prod(variable.shape)) for variable in variables)


def units_of(net):
    """The units by (stage, index)."""
    return {
        (stage, index): unit
        for stage, (_, units) in enumerate(net.sections()[1], start=1)
        for index, unit in enumerate(units)
    }


def roles_of(unit):
    """All variables of a unit's branch by what they do."""
    return {
        f"{layer}/{v.name}": v
        for layer in ("convolution1", "convolution2", "normalization1", "normalization2")
        for v in getattr(unit, layer).variables
    }


# Numbers of parameters


@pytest.mark.parametrize(
    ("depth", "classes", "trainable"),
    [
        (110, 10, 570_762),
        pytest.param(146, 100, 579_300, marks=pytest.mark.nightly),
        pytest.param(182, 10, 576_138, marks=pytest.mark.nightly),
        pytest.param(110, 100, 576_612, marks=pytest.mark.nightly),
        pytest.param(146, 10, 573_450, marks=pytest.mark.nightly),
        pytest.param(182, 100, 581_988, marks=pytest.mark.nightly),
    ],
)
def test_parameters_of_the_papers_networks(depth, classes, trainable):
    net = networks.resnet(depth, classes=classes, share_from=5, batch_norm="unshared")
    assert count(net.trainable_variables) == trainable
    assert count(tfr.chain(net).weights) == trainable


@pytest.mark.parametrize(
    ("share_from", "batch_norm"),
    [
        pytest.param(i, switch, marks=[pytest.mark.nightly] if (i + j) % 2 else [])
        for i in range(4)
        for j, switch in enumerate(SWITCHES)
    ],
)
def test_parameters_by_hand(share_from, batch_norm):
    net = ResidualNetwork(**SMALL | {"share_from": share_from, "batch_norm": batch_norm})
    expected = {"trainable": 0, "statistics": 0}
    stem, _, head = net.sections()
    for layer in (*stem, *head):
        expected["trainable"] += count(layer.trainable_variables)
        expected["statistics"] += count(layer.non_trainable_variables)
    own = OWN[batch_norm]
    for stage, width in ((1, 4), (2, 8)):
        # The first block of the second stage brings 4 channels to 8 and is never shared.
        indices = range(4) if stage == 1 else range(1, 4)
        shared = [index for index in indices if index >= share_from]
        alone = len(indices) - len(shared) + min(len(shared), 1)
        again = max(len(shared) - 1, 0)
        kernels = 2 * (9 * width**2 + width)
        expected["trainable"] += alone * (kernels + 4 * width)
        expected["trainable"] += again * 4 * width * ("gamma" in own)
        expected["statistics"] += alone * 4 * width + again * 4 * width * ("moving_mean" in own)
    expected["trainable"] += (9 * 4 * 8 + 8) + (9 * 8 * 8 + 8) + (4 * 8 + 8) + 2 * 4 + 2 * 8
    expected["statistics"] += 2 * 4 + 2 * 8
    assert count(net.trainable_variables) == expected["trainable"]
    assert count(net.non_trainable_variables) == expected["statistics"]
    assert net.count_params() == sum(expected.values())


# Which variables are one


@all_switches
def test_what_is_one_and_what_is_not(batch_norm):
    net = ResidualNetwork(**SMALL, batch_norm=batch_norm)
    units = units_of(net)
    for stage in (1, 2):
        alone, leader, *others = (units[stage, index] for index in range(4))
        assert alone.shares is leader.shares is None
        mine = roles_of(leader)
        assert all(v is not mine[role] for role, v in roles_of(alone).items())
        for i, unit in enumerate(others):
            assert unit.shares is leader
            theirs = roles_of(unit)
            assert theirs.keys() == mine.keys()
            apart = {role for role, variable in theirs.items() if variable is not mine[role]}
            assert apart == {f"normalization{k}/{name}" for k in (1, 2) for name in OWN[batch_norm]}
            for another in others[:i]:
                assert all(theirs[role] is not roles_of(another)[role] for role in apart)
    # Each of them once, for the optimizer and for files.
    assert len({id(v) for v in net.variables}) == len(net.variables)
    assert len({v.path for v in net.variables}) == len(net.variables)
    every = {id(v) for unit in units.values() for v in unit.variables}
    assert every <= {id(v) for v in net.variables}
    net.compile(keras.optimizers.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy")
    net.optimizer.build(net.trainable_variables)
    # A momentum for each, the iteration and the learning rate.
    assert len(net.optimizer.variables) == len(net.trainable_variables) + 2


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({"batch_norm": "unshared"}, 0.1),
        ({"batch_norm": "shared"}, 1),
        ({"batch_norm": "unshared_statistics"}, 1),
        ({"batch_norm": "unshared_scale"}, 1),
        ({"share_from": None}, 1),
        ({"batch_norm": "unshared", "gamma_initializer": "ones"}, 1),
        ({"gamma_initializer": keras.initializers.Constant(0.1)}, 0.1),
    ],
)
def test_initial_scale(kwargs, expected):
    first = ResidualNetwork(**SMALL | {"blocks": (1, 3)} | kwargs)
    for net in (first, ResidualNetwork.from_config(first.get_config())):
        for unit in units_of(net).values():
            for normalization in (unit.normalization1, unit.normalization2):
                np.testing.assert_allclose(normalization.gamma, expected, rtol=1e-6)
        np.testing.assert_array_equal(net.get_layer("head_normalization").gamma, 1)


# Training


def copied_without_sharing(net):
    """A network of the same outputs whose blocks all have weights of their own."""
    changes = {"share_from": None, "batch_norm": "shared"}
    free = ResidualNetwork.from_config(net.get_config() | changes)
    for place, unit in units_of(free).items():
        source = units_of(net)[place]
        for mine, theirs in zip(unit.variables, source.variables, strict=True):
            assert mine.shape == theirs.shape
        roles = roles_of(source)
        for role, variable in roles_of(unit).items():
            variable.assign(roles[role])
        if unit.resizing is not None:
            unit.resizing.set_weights(source.resizing.get_weights())
    for name in ("stem", "head_normalization", "classifier"):
        free.get_layer(name).set_weights(net.get_layer(name).get_weights())
    return free


@most_different
def test_gradient_is_the_sum_over_the_applications(batch_norm):
    net = random_network(blocks=(4, 1), share_from=1, batch_norm=batch_norm)
    free = copied_without_sharing(net)
    images, labels = random_batch(net, images=8)
    np.testing.assert_array_equal(free(images), net(images))
    gradients = []
    for network in (net, free):
        with tf.GradientTape() as tape:
            outputs = network(images, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, outputs)
        found = tape.gradient(losses, network.trainable_variables)
        pairs = zip(network.trainable_variables, found, strict=True)
        gradients.append({id(v): np.asarray(gradient, "f8") for v, gradient in pairs})
    sums = {}
    for place, unit in units_of(net).items():
        theirs = roles_of(units_of(free)[place])
        for role, variable in roles_of(unit).items():
            if id(variable) in gradients[0]:
                sums[id(variable)] = sums.get(id(variable), 0) + gradients[1][id(theirs[role])]
    for key, expected in sums.items():
        size = np.abs(expected).max()
        np.testing.assert_allclose(gradients[0][key], expected, atol=1e-4 * size + 1e-6)
    shared = id(units_of(net)[1, 1].convolution1.kernel)
    own = gradients[1][id(units_of(free)[1, 1].convolution1.kernel)]
    assert np.abs(gradients[0][shared] - own).max() > 0.1 * np.abs(own).max()


# Configurations and files


KINDS = [
    {"batch_norm": "unshared"},
    {"batch_norm": "unshared_scale", "shortcut": "conv1x1", "transition": "convolution"},
    {"batch_norm": "unshared_statistics", "anchor": "input", "bottleneck": True},
    {"batch_norm": "shared", "lipschitz": 0.9, "anchor": "input", "layout": "original"},
    {"batch_norm": "unshared", "lipschitz": 0.9, "recurrent_initialization": True},
]


# With an anchor or without, and with bounds in every submission.
MARKS = [(), *[pytest.mark.nightly] * 4]


def assert_same_sharing(net, other):
    """Whether the same variables are one in both."""

    def groups(net):
        places = {}
        for place, unit in units_of(net).items():
            for role, variable in roles_of(unit).items():
                places.setdefault(id(variable), []).append((place, role))
        return sorted(places.values())

    assert groups(other) == groups(net)
    assert len(other.variables) == len(net.variables)


def assert_same_network(net, other, images):
    assert type(other) is ResidualNetwork
    assert_same_sharing(net, other)
    for mine, theirs in zip(net.variables, other.variables, strict=True):
        assert mine.path == theirs.path
        np.testing.assert_array_equal(mine, theirs, err_msg=mine.path)
    np.testing.assert_array_equal(other(images), net(images))


@pytest.mark.parametrize(
    "kwargs",
    [
        pytest.param(kind, id=case_id(kind), marks=marks)
        for kind, marks in zip(KINDS, MARKS, strict=True)
    ],
)
def test_configurations_and_files(kwargs, tmp_path):
    net = random_network(**SMALL | {"blocks": 3} | kwargs)
    config = net.get_config()
    for name, value in ({"share_from": 1} | kwargs).items():
        assert config[name] == getattr(net, name) == value
    text = json.dumps(config)
    revived = ResidualNetwork.from_config(json.loads(text))
    assert json.dumps(revived.get_config()) == text
    assert [(v.path, v.shape) for v in revived.variables] == [
        (v.path, v.shape) for v in net.variables
    ]
    images, _ = random_batch(net)
    net.save(tmp_path / "net.keras")
    loaded = keras.models.load_model(tmp_path / "net.keras")
    assert_same_network(net, loaded, images)
    assert loaded.get_config() == net.get_config()
    net.save_weights(tmp_path / "net.weights.h5")
    assert np.any(np.asarray(revived(images)) != net(images))
    revived.load_weights(tmp_path / "net.weights.h5")
    assert_same_network(net, revived, images)
    # The file holds no weight twice.
    with h5py.File(tmp_path / "net.weights.h5") as file:
        sizes = []
        file.visititems(lambda name, item: sizes.append(getattr(item, "size", 0)))
    own = sum(count([v]) for v in net.variables if "seed" not in v.name)
    assert sum(sizes) == own


@pytest.mark.compiled
@most_different
def test_units_in_a_model_of_ones_own(batch_norm, tmp_path):
    inputs = keras.Input((8, 8, 4))
    first = ResidualUnit(4, name="first", lipschitz=0.9)
    state = first(inputs)
    for name in ("second", "third"):
        unit = ResidualUnit(4, name=name, shares=first, batch_norm=batch_norm, lipschitz=0.9)
        state = unit(state, inputs)
    model = keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(state))
    rng = np.random.default_rng(0)
    for variable in model.variables:
        variable.assign(rng.uniform(0.2, 1, variable.shape))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    x = rng.normal(size=(3, 8, 8, 4)).astype("float32")
    np.testing.assert_array_equal(loaded(x), model(x))
    assert len(loaded.variables) == len(model.variables)
    leader = roles_of(loaded.get_layer("first"))
    for name in ("second", "third"):
        unit = loaded.get_layer(name)
        assert unit.shares is loaded.get_layer("first")
        apart = {role for role, variable in roles_of(unit).items() if variable is not leader[role]}
        assert apart == {f"normalization{k}/{own}" for k in (1, 2) for own in OWN[batch_norm]}
    # And they stay one: a change of the leader's kernel is a change of all of them.
    before = np.asarray(loaded.get_layer("third")(x))
    loaded.get_layer("first").convolution1.kernel.assign_add(rng.normal(size=(3, 3, 4, 4)))
    assert np.any(np.asarray(loaded.get_layer("third")(x)) != before)


def test_summary():
    texts = []
    networks.resnet(56, share_from=5, batch_norm="unshared").summary(print_fn=texts.append)
    lines = {line.split("│")[1].strip(): line for line in texts[0].splitlines() if "│" in line}
    assert "4 x full_preactivation, one shared" in lines["stage 1, blocks 5 to 8"]
    assert "5 x full_preactivation " in lines["stage 1, blocks 0 to 4"]
    assert "4 x full_preactivation " in lines["stage 3, blocks 1 to 4"]
    # Two convolutions of 16 to 16, once, and two batch norms of 16, four times.
    assert f"{2 * 2320 + 4 * 2 * 64:,}" in lines["stage 1, blocks 5 to 8"]
