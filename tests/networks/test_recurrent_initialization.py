"""Blocks of a stage that begin equal, and go their own ways from there."""

import keras
import numpy as np
import pytest
from reference.random_network import TRANSITIONS, random_batch

from tfresidual.networks import ResidualNetwork

SMALL = {"input_shape": (8, 8, 3), "classes": 5, "blocks": 3, "widths": (8, 8)}


def network(**kwargs):
    return ResidualNetwork(**SMALL | {"recurrent_initialization": True} | kwargs)


def equal_units(net):
    """The units that keep the shape of the state, stage by stage."""
    return [[unit for unit in units if unit.resizing is None] for _, units in net.sections()[1]]


KINDS = [
    *({"transition": transition} for transition in TRANSITIONS),
    {"layout": "original", "shortcut": "exclusive_gate"},
    {"bottleneck": True, "shortcut": "conv1x1", "layout": "bn_after_addition"},
    {"shortcut": "dropout"},
    {"widths": (4, 8), "stem_width": 6},
    pytest.param({"lipschitz": 0.9, "anchor": "input"}, marks=pytest.mark.system),
    {"share_from": 1, "batch_norm": "unshared", "blocks": 4},
    {"share_from": 0, "batch_norm": "unshared_scale", "blocks": 4},
]


@pytest.mark.parametrize("kwargs", KINDS, ids=lambda kwargs: "-".join(map(str, kwargs.values())))
def test_all_blocks_of_a_stage_begin_equal(kwargs):
    net = network(**kwargs)
    stages = equal_units(net)
    assert [len(units) for units in stages] == [
        net.blocks[0] - (first.resizing is not None) for _, (first, *_) in net.sections()[1]
    ]
    for first, *others in stages:
        mine = first.weights_by_role()
        for unit in others:
            theirs = unit.weights_by_role()
            assert theirs.keys() == mine.keys()
            for role, variable in theirs.items():
                np.testing.assert_array_equal(variable, mine[role], err_msg=role)
                is_one = "share_from" not in kwargs and variable is mine[role]
                assert not is_one, role
        # As random as ever: not equal from stage to stage, nor zeros.
        kernels = [np.asarray(units[0].convolution1.kernel) for units in stages]
        assert all(kernel.std() > 0.01 for kernel in kernels)
    if kernels[0].shape == kernels[1].shape:
        assert np.any(kernels[0] != kernels[1])


def test_the_first_block_keeps_what_it_drew():
    keras.utils.set_random_seed(1)
    net = network()
    keras.utils.set_random_seed(1)
    plain = network(recurrent_initialization=False)
    for (first, *others), (drawn, *rest) in zip(equal_units(net), equal_units(plain), strict=True):
        for role, variable in first.weights_by_role().items():
            np.testing.assert_array_equal(variable, drawn.weights_by_role()[role])
        assert np.any(np.asarray(rest[0].convolution1.kernel) != drawn.convolution1.kernel)
        assert others
    np.testing.assert_array_equal(net.get_layer("stem").kernel, plain.get_layer("stem").kernel)


def test_blocks_that_change_the_shape_keep_what_they_drew():
    keras.utils.set_random_seed(1)
    net = network()
    keras.utils.set_random_seed(1)
    plain = network(recurrent_initialization=False)
    for mine, theirs in zip(
        net.get_layer("stage2_block0").weights,
        plain.get_layer("stage2_block0").weights,
        strict=True,
    ):
        np.testing.assert_array_equal(mine, theirs)


def test_equal_blocks_compute_the_same():
    net = network(transition="convolution")
    images, _ = random_batch(net)
    state = net.get_layer("stem")(images)
    first, *others = equal_units(net)[0]
    for unit in others:
        np.testing.assert_array_equal(unit(state), first(state))


def test_bounds_are_those_of_the_equal_weights():
    # The vectors of the power iteration are not copied, but must belong to the weights that are.
    for first, *others in equal_units(network(lipschitz=0.5)):
        expected = first.lipschitz_bound()
        assert expected["residual"] < 1e-3
        assert expected["divisor"] > 1.5
        for unit in others:
            found = unit.lipschitz_bound()
            assert found["estimate"] == pytest.approx(expected["estimate"], rel=1e-5)
            assert found["residual"] < 1e-3


@pytest.mark.eager
def test_training_leads_them_apart():
    net = network()
    net.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy", jit_compile=False)
    net.fit(*random_batch(net, images=8), verbose=0)
    for first, second, *_ in equal_units(net):
        assert np.any(np.asarray(first.convolution1.kernel) != second.convolution1.kernel)


@pytest.mark.parametrize(
    "kwargs",
    [
        pytest.param({}, marks=pytest.mark.system),
        pytest.param({"lipschitz": 0.9}, marks=pytest.mark.nightly),
    ],
    ids=["plain", "bounded"],
)
def test_files_and_configurations_after_training(tmp_path, kwargs):
    net = network(blocks=2, widths=(8,), **kwargs)
    images, labels = random_batch(net, images=8)
    net.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    net.fit(images, labels, verbose=0)
    net.save(tmp_path / "net.keras")
    loaded = keras.models.load_model(tmp_path / "net.keras")
    # Loading builds the network, which makes its blocks equal, before it reads the weights.
    for mine, theirs in zip(net.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=mine.path)
    np.testing.assert_array_equal(loaded.predict(images, verbose=0), net.predict(images, verbose=0))
    assert loaded.recurrent_initialization is True
    revived = ResidualNetwork.from_config(net.get_config())
    assert revived.get_config() == net.get_config()
    first, second = equal_units(revived)[0][:2]
    np.testing.assert_array_equal(first.convolution1.kernel, second.convolution1.kernel)
