"""Networks whose branches have no normalization, factors, Fixup, or are dropped in training."""

import keras
import numpy as np
import pandas as pd
import pytest
from reference.random_network import random_batch, random_network

import tfresidual as tfr
from tfresidual import networks, probes
from tfresidual.networks import ResidualNetwork
from tfresidual.networks.weight_groups import blocks_of, groups_of
from tfresidual.training import GradientCoupling

SMALL = {"input_shape": (8, 8, 3), "classes": 5, "widths": (4, 8)}
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
    net = ResidualNetwork(**SMALL, blocks=(2, 3), **options)
    sections = net.sections()[1]
    rates = [unit.stochastic_depth for _, units in sections for unit in units]
    # Huang et al. 2016, eq. 4: they survive with probability 1 - l / L (1 - p_L).
    np.testing.assert_allclose(rates, [1 - (1 - i / 5 * (1 - 0.5)) for i in range(1, 6)])
    transitions = [one for one, _ in sections if one is not None]
    assert [one.stochastic_depth for one in transitions] == [0.0] * len(transitions)


@pytest.mark.parametrize("transition", ["projection", "downsampling_block"])
def test_fixup_counts_all_branches_and_begins_with_a_classifier_of_zeros(transition):
    net = ResidualNetwork(**SMALL, blocks=(2, 3), normalization="fixup", transition=transition)
    stages = net.sections()[1]
    units = [unit for _, of_stage in stages for unit in of_stage]
    units += [one for one, _ in stages if one is not None]
    assert {unit.blocks for unit in units} == {len(units)}
    images, _ = random_batch(net)
    np.testing.assert_allclose(net(images), 1 / 5)
    assert not any("normalization" in weight.path for weight in net.weights)


@pytest.mark.parametrize("name", BRANCHES)
def test_summary_and_published_counts(name, capsys):
    net = ResidualNetwork(**SMALL, **BRANCHES[name])
    net.summary()
    text = " ".join(capsys.readouterr().out.split())
    for part in {
        "dropped": ["dropped at 0.15 to 0.45"],
        "SkipInit": ["no normalization, ReZero"],
        "Fixup": ["Fixup"],
        "shared": ["LayerScale", "one shared"],
    }[name]:
        assert part in text
    # Of the network of He et al.; two factors per block in each of three stages.
    plain = networks.resnet(20).count_params()
    options = {"stochastic_depth": 0.5, "multiplier": "rezero"}
    assert networks.resnet(20, **options).count_params() == plain + 9


@pytest.mark.system
@pytest.mark.parametrize("name", BRANCHES)
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


@pytest.mark.system
@pytest.mark.parametrize("name", BRANCHES)
def test_training_coupling_and_files(name, tmp_path):
    """Coupled blocks that begin equal stay equal, with all their scalars; files are the network."""
    keras.utils.set_random_seed(0)
    options = {"recurrent_initialization": True, "blocks": (3, 3)} | BRANCHES[name]
    net = ResidualNetwork(**SMALL, **options)
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


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"normalization": "layer"}, "'batch', 'fixup'.* Received: normalization='layer'"),
        ({"stochastic_depth": 1}, "under 1. Received: stochastic_depth=1"),
        ({"multiplier": 1.0}, "Received: multiplier=1.0"),
        (
            {"normalization": None, "share_from": 0, "batch_norm": "unshared"},
            "`normalization` must be .* Received: normalization=None, batch_norm='unshared'",
        ),
    ],
)
def test_errors(kwargs, message):
    with pytest.raises(ValueError, match=message):
        ResidualNetwork(**SMALL, **kwargs)
