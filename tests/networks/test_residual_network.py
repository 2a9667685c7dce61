"""The network: against the NumPy version, its configuration, files, dtypes, summary and arguments.

Shared blocks are in test_sharing.py, bounded ones in test_bounded_networks.py.
"""

import json

import keras
import numpy as np
import pandas as pd
import pytest
from reference import numpy_network as reference
from reference.random_network import (
    CASES,
    CONSTRAINED_CASES,
    TRANSITIONS,
    case_id,
    of_every_kind,
    random_batch,
    random_network,
    states_of,
)
from refusals import refused

import tfresidual as tfr
from tfresidual import probes
from tfresidual.layers import LayerScale, ScaledShortcut
from tfresidual.networks import ResidualNetwork
from tfresidual.networks.weight_groups import blocks_of, groups_of
from tfresidual.training import GradientCoupling

pytestmark = pytest.mark.eager

SMALL = {"input_shape": (8, 8, 3), "classes": 4, "blocks": 1, "widths": (4, 8)}


def assert_close(actual, expected, tolerance=1e-4):
    """Relative to the largest value."""
    actual = np.asarray(actual)
    assert actual.shape == expected.shape
    assert np.abs(actual - expected).max() <= tolerance * np.abs(expected).max()


VARIANTS = [
    {"pooling": 2},
    {"classifier_activation": "sigmoid"},
    {"classifier_activation": None},
    {"input_shape": (12, 8, 2), "pooling": 1},
    {"input_shape": (28, 28, 1), "blocks": 1},
    {"input_shape": (None, None, 3), "blocks": 1},
    {"stem_width": 6},
    {"blocks": (1, 3), "widths": (8, 4)},
    {"blocks": 2, "widths": (4,)},
    {"shortcut": ScaledShortcut(0.75, 0.25)},
    {"gamma_initializer": "zeros"},
    {"transition": "max_pooling"},
    {"transition": "max_pooling", "layout": "original", "widths": (4, 4)},
    {"normalization": None, "stochastic_depth": 0.5},
    {"normalization": None, "input_shape": (8, 4, 3), "lipschitz": 0.9, "layout": "original"},
    {"normalization": "fixup", "bottleneck": True, "share_from": 0},
    {"normalization": "fixup", "layout": "original", "transition": "downsampling_block"},
    {"normalization": None, "multiplier": "rezero", "transition": "convolution"},
    {"multiplier": "rezero", "layout": "relu_before_addition", "bottleneck": True},
    {"multiplier": "layer_scale", "share_from": 0, "batch_norm": "unshared"},
    {"multiplier": LayerScale(0.5, axis=1), "layout": "original", "anchor": "input"},
]


def marks_of(index):
    """A fifth of the constrained cases in every run, with every layout and kind of sharing."""
    place = index + index // 6
    if place % 5:
        return [pytest.mark.nightly]
    return [pytest.mark.nightly] if place % 2 else []


# In the second stage blocks are shared.
CONSTRAINED = [
    pytest.param(case | {"blocks": (1, 3)}, marks=marks_of(i), id=case_id(case))
    for i, case in enumerate(CONSTRAINED_CASES)
]
FREE = of_every_kind(others=pytest.mark.nightly)


@pytest.mark.sampled(16)
@pytest.mark.parametrize("case", FREE + VARIANTS + CONSTRAINED, ids=case_id)
def test_states_and_outputs_are_those_of_the_numpy_version(case):
    net = random_network(seed=2, **{"blocks": (1, 2)} | case)
    images, labels = random_batch(net)
    run = reference.analyse(net.get_config(), reference.weights_of(net), images, labels)
    states, last_states, outputs = states_of(net, images)
    for ours, theirs in zip(states, run.states, strict=True):
        for our, their in zip(ours, theirs, strict=True):
            assert_close(our, their)
    for our, their in zip(last_states, run.last_states, strict=True):
        assert_close(our, their)
    assert_close(outputs, run.outputs)
    np.testing.assert_allclose(net(images), outputs, rtol=1e-5, atol=1e-6)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("case", [CASES[2], CASES[11], CASES[16], *VARIANTS[6:]], ids=case_id)
def test_configurations_and_files(case, tmp_path):
    net = random_network(seed=1, **{"blocks": 1} | case)
    config = net.get_config()
    text = json.dumps(config)
    revived = ResidualNetwork.from_config(json.loads(text))
    assert ResidualNetwork.from_config(config).get_config() == config
    assert json.dumps(revived.get_config()) == text
    assert [w.shape for w in revived.weights] == [w.shape for w in net.weights]
    images, _ = random_batch(net)
    expected = np.asarray(net(images))
    net.save(tmp_path / "net.keras")
    loaded = keras.models.load_model(tmp_path / "net.keras")
    assert type(loaded) is ResidualNetwork
    assert loaded.get_config() == config
    np.testing.assert_array_equal(loaded(images), expected)
    net.save_weights(tmp_path / "net.weights.h5")
    revived.load_weights(tmp_path / "net.weights.h5")
    np.testing.assert_array_equal(revived(images), expected)


def test_sections_hold_every_layer_once_in_order():
    net = random_network(transition="convolution", layout="original", pooling=2)
    stem, stages, head = net.sections()
    assert [layer.name for layer in stem] == ["stem", "stem_normalization", "stem_relu"]
    assert [layer.name for layer in head] == ["head_pooling", "head_flatten", "classifier"]
    names = [
        [transition and transition.name, *(unit.name for unit in units)]
        for transition, units in stages
    ]
    assert names == [
        [None, "stage1_block0", "stage1_block1"],
        ["stage2_transition", "stage2_block0", "stage2_block1"],
    ]
    found = {*stem, *head}.union(*(set(units) for _, units in stages))
    found |= {transition for transition, _ in stages if transition is not None}
    assert found == set(net.layers) - {net.layers[0]}
    _, _, head = random_network(blocks=1).sections()
    names = ["head_normalization", "head_relu", "head_pooling", "classifier"]
    assert [layer.name for layer in head] == names


def test_precision(global_policy, tmp_path):
    global_policy("mixed_bfloat16")
    net = ResidualNetwork(**SMALL, shortcut="exclusive_gate")
    assert net.get_config()["dtype"]["config"]["name"] == "mixed_bfloat16"
    images, _ = random_batch(net)
    outputs = net(images)
    assert outputs.dtype == net.get_layer("classifier").compute_dtype == "float32"
    for layer in net._flatten_layers(include_self=False):
        if layer.name not in ("classifier", "images"):
            assert layer.compute_dtype == "bfloat16", layer.path
            assert layer.variable_dtype == "float32", layer.path
    exact = ResidualNetwork(**SMALL, shortcut="exclusive_gate", dtype="float32")
    exact.set_weights(net.get_weights())
    np.testing.assert_allclose(outputs, exact(images), atol=0.03)
    net.save(tmp_path / "net.keras")
    global_policy("mixed_float16")
    loaded = keras.models.load_model(tmp_path / "net.keras")
    assert loaded.dtype_policy.name == "mixed_bfloat16"
    assert loaded.get_layer("stage1_block0").convolution1.compute_dtype == "bfloat16"
    np.testing.assert_array_equal(loaded(images), outputs)
    double = ResidualNetwork(**SMALL, dtype="float64")
    assert double.get_layer("stage2_block0").output.dtype == "float64"


def test_initial_values():
    net = ResidualNetwork((8, 8, 16), 200, blocks=1, widths=(64,))
    stem, classifier = (np.asarray(net.get_layer(n).kernel) for n in ("stem", "classifier"))
    # He normal: variance 2 over the number of inputs.
    assert stem.std() == pytest.approx(np.sqrt(2 / (9 * 16)), rel=0.03)
    assert classifier.std() == pytest.approx(np.sqrt(2 / 64), rel=0.03)
    for weight in net.weights:
        if weight.name in ("bias", "beta"):
            assert not np.any(weight)


# Branches without normalization, with factors, Fixup, dropping


BRANCHES = {
    "dropped": {"stochastic_depth": 0.9},
    "SkipInit": {"normalization": None, "multiplier": "rezero"},
    "Fixup": {"normalization": "fixup", "layout": "original"},
    "shared": {"multiplier": "layer_scale", "share_from": 0, "stochastic_depth": 0.5},
}


@pytest.mark.parametrize("transition", ["projection", "downsampling_block"])
@pytest.mark.parametrize("share_from", [None, 0])
def test_blocks_are_dropped_more_often_the_deeper_they_are(transition, share_from):
    options = {"transition": transition, "share_from": share_from, "stochastic_depth": 0.5}
    net = ResidualNetwork(**SMALL | {"blocks": (2, 3)}, **options)
    sections = net.sections()[1]
    rates = [unit.stochastic_depth for _, units in sections for unit in units]
    # Huang et al. 2016, eq. 4: they survive with probability 1 - l / L (1 - p_L).
    np.testing.assert_allclose(rates, [1 - (1 - i / 5 * (1 - 0.5)) for i in range(1, 6)])
    transitions = [one for one, _ in sections if one is not None]
    assert [one.stochastic_depth for one in transitions] == [0.0] * len(transitions)


@pytest.mark.parametrize("transition", ["projection", "downsampling_block"])
def test_fixup_counts_all_branches_and_begins_with_a_classifier_of_zeros(transition):
    net = ResidualNetwork(
        **SMALL | {"blocks": (2, 3)}, normalization="fixup", transition=transition
    )
    stages = net.sections()[1]
    units = [unit for _, of_stage in stages for unit in of_stage]
    units += [one for one, _ in stages if one is not None]
    assert {unit.blocks for unit in units} == {len(units)}
    images, _ = random_batch(net)
    np.testing.assert_allclose(net(images), 1 / 4)
    assert not any("normalization" in weight.path for weight in net.weights)


@pytest.mark.system
@pytest.mark.parametrize(
    "name", ["dropped", *(pytest.param(n, marks=pytest.mark.nightly) for n in list(BRANCHES)[1:])]
)
def test_probes_routes_and_exports_see_no_dropping(name, tmp_path):
    """Frames are those of the same weights without dropping, also from a SavedModel."""
    keras.utils.set_random_seed(0)
    options = {"blocks": (2, 3)} | BRANCHES[name]
    net = random_network(**options)
    kept = random_network(**options | {"stochastic_depth": 0.0})
    for one, other in zip(kept.weights, net.weights, strict=True):
        assert one.path == other.path
        one.assign(other)
    data = random_batch(net, images=6)
    for each in (net, kept):
        each.compile("sgd", "sparse_categorical_crossentropy")
    tfr.export(net, tmp_path / "saved")
    chains = [tfr.chain(kept), tfr.chain(net), tfr.chain(tmp_path / "saved")]
    for probe in (probes.block_metrics, probes.drop_blocks, probes.readout):
        expected, *others = (probe(chain, data) for chain in chains)
        assert np.isfinite(expected.select_dtypes("number")).any().all()
        for frame in others:
            pd.testing.assert_frame_equal(frame, expected, rtol=1e-4)


@pytest.mark.sampled(2)
@pytest.mark.system
@pytest.mark.parametrize("name", BRANCHES)
def test_training_coupling_and_files(name, tmp_path):
    """Coupled blocks that begin equal stay equal, with all their scalars; files are the network."""
    keras.utils.set_random_seed(0)
    options = {"recurrent_initialization": True, "blocks": (3, 3)} | BRANCHES[name]
    net = ResidualNetwork(**SMALL | options)
    optimizer = keras.optimizers.SGD(0.05)
    if name != "shared":
        optimizer = GradientCoupling(optimizer, 1.0)
    net.compile(optimizer, "sparse_categorical_crossentropy")
    images, labels = random_batch(net, images=32)
    roles = {group.role for group in groups_of(blocks_of(net.trainable_variables))}
    assert "multiplier/gamma" in roles or name == "dropped"
    assert ("scalar_bias1/bias" in roles) == (name == "Fixup")
    before = {weight.path: np.asarray(weight) for weight in net.trainable_weights}
    net.fit(images, labels, batch_size=8, verbose=0)
    # The last ones have zeros in their way in the first step alone.
    assert all(np.any(np.asarray(w) != before[w.path]) for w in net.trainable_weights)
    first, second, _ = (net.get_layer(f"stage1_block{index}") for index in range(3))
    assert (first.multiplier is second.multiplier) == (name in ("shared", "dropped"))
    for role, weight in second.weights_by_role().items():
        np.testing.assert_array_equal(weight, first.weights_by_role()[role])
    net.save(tmp_path / "net.keras")
    loaded = keras.saving.load_model(tmp_path / "net.keras")
    assert loaded.get_config() == net.get_config()
    np.testing.assert_array_equal(loaded(images), net(images))


# Blocks of a stage that begin equal


def recurrent(is_one=True, **kwargs):
    usual = {"blocks": 3, "widths": (8, 8), "recurrent_initialization": is_one}
    return ResidualNetwork(**SMALL | usual | kwargs)


def equal_units(net):
    """The units that keep the shape of the state, stage by stage."""
    return [[unit for unit in units if unit.resizing is None] for _, units in net.sections()[1]]


KINDS = [
    *({"transition": transition} for transition in TRANSITIONS),
    {"layout": "original", "shortcut": "exclusive_gate"},
    {"bottleneck": True, "shortcut": "conv1x1", "layout": "bn_after_addition"},
    {"shortcut": "dropout"},
    {"widths": (4, 8), "stem_width": 6},
    pytest.param({"lipschitz": 0.9, "anchor": "input"}, marks=pytest.mark.nightly),
    {"share_from": 1, "batch_norm": "unshared", "blocks": 4},
    {"share_from": 0, "batch_norm": "unshared_scale", "blocks": 4},
]


@pytest.mark.parametrize("kwargs", KINDS, ids=lambda kwargs: "-".join(map(str, kwargs.values())))
def test_all_blocks_of_a_stage_begin_equal(kwargs):
    net = recurrent(**kwargs)
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


@pytest.mark.system
def test_blocks_that_began_equal_part_and_stay_apart_in_files(tmp_path):
    net = recurrent(blocks=2, widths=(8,))
    images, labels = random_batch(net, images=8)
    net.compile("sgd", "sparse_categorical_crossentropy", jit_compile=False)
    net.fit(images, labels, verbose=0)
    first, second = equal_units(net)[0]
    assert np.any(np.asarray(first.convolution1.kernel) != second.convolution1.kernel)
    net.save(tmp_path / "net.keras")
    loaded = keras.models.load_model(tmp_path / "net.keras")
    # Loading builds the network, which makes its blocks equal, before it reads the weights.
    for mine, theirs in zip(net.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(mine, theirs, err_msg=mine.path)


VALUES = {
    "blocks": ((1, 2, 3), 0, "12"), "widths": ((), (4, 8.0)),
    "transition": ("pool", None), "layout": ("post",), "shortcut": ("gate",),
    "input_shape": ((8, 9, 3), (0, 8, 3)),
    "pooling": ("max", 3, 0),
    "normalization": ("layer",), "stochastic_depth": (1, -0.5), "multiplier": (1.0,),
    "share_from": (-1, 1.0, 1), "batch_norm": ("private", "unshared"),
    "anchor": ("first",), "lipschitz": (0, float("nan")),
}  # fmt: skip
TOGETHER = [
    ("pooling", {"pooling": 2, "input_shape": (None, 8, 3)}),
    ("filters", {"bottleneck": True, "widths": (8, 6)}),
    ("filters", {"transition": "downsampling_block", "widths": (8, 4)}),
    ("normalization", {"normalization": None, "share_from": 0, "batch_norm": "unshared"}),
    ("lipschitz", {"input_shape": (None, 8, 3), "lipschitz": 0.5}),
    *(("batch_norm", {"batch_norm": name}) for name in ("unshared_statistics", "unshared_scale")),
]


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [*((name, {name: value}) for name, bad in VALUES.items() for value in bad), *TOGETHER],
)
def test_bad_arguments(name, kwargs):
    with refused(name):
        ResidualNetwork(**SMALL | kwargs)
