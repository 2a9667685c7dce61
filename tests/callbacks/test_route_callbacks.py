"""Callbacks that run routes, in real fits: what stands in the logs, and that nothing else changes.

`test_callbacks.py` covers what all callbacks share.
"""

import copy
import dataclasses
import math
import pathlib

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from reference.random_network import random_batch, random_network

import tfresidual as tfr
from tfresidual import callbacks, probes
from tfresidual.probes.logs import log_key

pytestmark = pytest.mark.eager

KINDS = {
    "Readout": callbacks.Readout,
    "DropBlocks": callbacks.DropBlocks,
    "ConvergenceIndices": callbacks.ConvergenceIndices,
    "Borderline": callbacks.Borderline,
}
all_kinds = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
INDICES = ("convergence_index", "recurrence_index", "divergence_index")


def network(rate=1e-3, **kwargs):
    net = random_network(**{"blocks": (2, 3), "widths": (4, 8)} | kwargs)
    net.compile(keras.optimizers.SGD(rate), "sparse_categorical_crossentropy")
    return net


def learnt(net, images=12, seed=1):
    """Images with the labels that the network gives them now: it errs on none."""
    pictures, _ = random_batch(net, images=images, seed=seed)
    return pictures, np.argmax(net(pictures), axis=-1)


def dataset(batch):
    return tf.data.Dataset.from_tensor_slices(batch).batch(5)


def fit(net, chosen, data=None, epochs=2):
    """Trains a network, in one step an epoch; returns the logs of all epochs."""
    images, labels = random_batch(net, images=12) if data is None else data
    kwargs = {"batch_size": len(images), "shuffle": False, "callbacks": chosen}
    return net.fit(images, labels, epochs=epochs, verbose=0, **kwargs).history


def own_keys(history):
    """The keys of the probes."""
    return [key for key in history if key not in ("loss", "accuracy")]


def keys_of(chosen):
    return [key for callback in chosen for key in callback.keys(callback._chain)]


def all_callbacks(data, **kwargs):
    return [
        callbacks.BlockMetrics(data, **kwargs),
        callbacks.Perturbation(data, **kwargs),
        *(kind(data, **kwargs) for kind in KINDS.values()),
    ]


# One training with all callbacks that run routes, which the tests of their numbers look at.


@dataclasses.dataclass
class Training:
    """A network, what it was probed with, and the logs of every epoch."""

    network: keras.Model
    chain: tfr.routing.Chain
    data: object
    chosen: list
    history: dict
    path: pathlib.Path

    def values(self, kind):
        """The logs of a callback."""
        (callback,) = (one for one in self.chosen if type(one) is kind)
        return {key: self.history[key] for key in callback.keys(callback._chain)}


def trained(net, data, chosen, path, training_data, epochs):
    history = fit(net, [*chosen, keras.callbacks.CSVLogger(path)], training_data, epochs)
    return Training(net, tfr.chain(net), data, chosen, history, path)


@pytest.fixture(scope="module")
def one_split(tmp_path_factory):
    """Two epochs; read-outs and borderline images are measured after both."""
    keras.utils.set_random_seed(0)
    net = network()
    images, labels = learnt(net)
    # Half of them are errors.
    data = images, np.append(labels[:6], (labels[6:] + 1) % 5)
    chosen = [
        callbacks.Readout(data),
        callbacks.DropBlocks(data, every=2),
        callbacks.ConvergenceIndices(data, every=2, times=2, chance=0.9, reading="trapezoid"),
        callbacks.Borderline(data, blocks=2, probability=0.3),
    ]
    path = tmp_path_factory.mktemp("logs") / "log.csv"
    return trained(net, data, chosen, path, data, epochs=2)


@pytest.fixture(scope="module")
def two_splits(tmp_path_factory):
    """Two epochs, of which the second is measured, with two splits."""
    keras.utils.set_random_seed(0)
    net = network()
    data = {"train": learnt(net), "held out": learnt(net, images=7, seed=5)}
    path = tmp_path_factory.mktemp("logs") / "log.csv"
    chosen = all_callbacks(data, every=2)
    return trained(net, data, chosen, path, data["train"], epochs=2)


def test_readout_is_that_of_the_probe(one_split):
    history = one_split.values(callbacks.Readout)
    frame = probes.readout(one_split.chain, one_split.data)
    for row in frame.to_dict("records"):
        for name in ("error", "cross_entropy", "entropy"):
            values = history[f"stage{row['stage']}/block{row['block']}/readout_{name}"]
            assert values[-1] == pytest.approx(row[name], rel=1e-5)
            assert isinstance(values[-1], float)
    assert len(history) == 5 * 3
    # The network has been trained between the epochs.
    assert (
        history["stage1/block0/readout_entropy"][0] != history["stage1/block0/readout_entropy"][1]
    )


def test_drop_blocks_is_that_of_the_probe(one_split):
    history = one_split.values(callbacks.DropBlocks)
    frame = probes.drop_blocks(one_split.chain, one_split.data).set_index(["stage", "block"])
    expected = {
        f"stage{stage}/block{block}/drop_{name}": frame.loc[(stage, block), name]
        for stage, block in [(1, 0), (1, 1), (2, 1), (2, 2)]  # not what changes the shape
        for name in ("error", "cross_entropy", "agreement")
    }
    assert list(history) == list(expected)
    for key, value in expected.items():
        assert history[key][-1] == pytest.approx(value, rel=1e-5)


def assert_convergence_indices(history, table):
    expected = {}
    for basis, prefix in (("labels", ""), ("agreement", "agreement_")):
        for stage, place in ((1, "stage1/"), (2, "stage2/"), ("mean", "")):
            for name in INDICES:
                expected[f"{place}{prefix}{name}"] = table.loc[(basis, stage), name]
    assert list(history) == list(expected)
    for key, value in expected.items():
        assert history[key][-1] == pytest.approx(value, abs=1e-6, nan_ok=True)
    return expected


def test_convergence_indices_are_those_of_the_probe():
    net = network()
    data = learnt(net)
    history = fit(net, [callbacks.ConvergenceIndices(data, times=2)], data, epochs=1)
    table = probes.convergence_indices(net, data, times=2).set_index(["basis", "stage"])
    history = {key: history[key] for key in own_keys(history)}
    expected = assert_convergence_indices(history, table)
    assert np.isfinite(list(expected.values())).all()


def test_chance_of_convergence_indices(one_split):
    history = one_split.values(callbacks.ConvergenceIndices)
    chain, data = one_split.chain, one_split.data
    table = probes.convergence_indices(chain, data, times=2, chance=0.9, reading="trapezoid")
    assert table["error"][0] > 0
    assert_convergence_indices(history, table.set_index(["basis", "stage"]))
    mean = table[(table["basis"] == "labels") & (table["stage"] == "mean")]
    for name in INDICES:
        assert history[name][-1] == pytest.approx(mean[name].item(), abs=1e-6)


def test_borderline_groups_of_the_next_block():
    net = network()
    data = learnt(net)
    probe = callbacks.Borderline(data, blocks=2, probability=0.3, groups="next block")
    history = fit(net, [probe], data, epochs=1)
    frame = probes.borderline(net, data, blocks=2, times=0, probability=0.3, groups="next block")
    assert frame["block"].unique().tolist() == [2]
    expected = {
        f"stage2/block2/{row['group']}_{name}": row[name]
        for row in frame.to_dict("records")
        for name in frame.columns[frame.columns.get_loc("images") :]
    }
    assert len(expected) == 3 * (4 + 5)
    assert sorted(own_keys(history)) == sorted(expected)
    for key, value in expected.items():
        assert history[key][0] == pytest.approx(value, rel=1e-5, nan_ok=True)


def test_borderline_groups_of_a_next_block_that_is_missing():
    net = network(blocks=(2, 1))
    data = learnt(net)
    with pytest.raises(ValueError, match=r"`groups` must be 'fixed' .*Received: groups="):
        fit(net, [callbacks.Borderline(data, groups="next block")], data, epochs=1)


def test_borderline_is_that_of_the_probe(one_split):
    history = one_split.values(callbacks.Borderline)
    options = {"blocks": 2, "times": 0, "probability": 0.3}
    frame = probes.borderline(one_split.chain, one_split.data, **options)
    expected = {
        f"stage2/block{row['block']}/{row['group']}_{name}": row[name]
        for row in frame.to_dict("records")
        for name in ("accuracy", "cross_entropy", "entropy", "images")
    }
    assert sorted(history) == sorted(expected)
    assert len(expected) == 2 * 3 * 4
    for key, value in expected.items():
        assert history[key][-1] == pytest.approx(value, rel=1e-5, nan_ok=True)
    assert 0 < history["stage2/block1/borderline_images"][0] <= 12


@all_kinds
@pytest.mark.system
def test_every_key_from_the_first_epoch_on(kind, two_splits):
    history = two_splits.values(kind)
    table = pd.read_csv(two_splits.path)
    own = list(history)
    assert table["epoch"].tolist() == [0, 1]
    assert table.loc[0, own].isna().all()
    for key in own:
        # Groups may be empty; all else was measured.
        if not key.split("/")[-1].startswith(("borderline_", "correct_")):
            assert not np.isnan(table.loc[1, key]), key
        np.testing.assert_allclose(table[key], history[key], rtol=1e-12)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("one_split", id="one split"),
        pytest.param("two_splits", id="splits", marks=pytest.mark.system),
    ],
)
def test_logs_there_and_back(name, request):
    training = request.getfixturevalue(name)
    frame = probes.from_logs(training.path)
    splits = ["split"] if name == "two_splits" else []
    # The file has the keys in the order of the alphabet.
    places = ["epoch", *splits, "stage", "block"]
    pd.testing.assert_frame_equal(
        frame.set_index(places).sort_index(),
        probes.from_logs(training.history).set_index(places).sort_index(),
        check_like=True,
    )
    assert frame.columns.tolist()[: 3 + len(splits)] == places
    epochs = [1] if splits else [0, 1]
    assert frame["epoch"].unique().tolist() == epochs
    assert len(frame) == 2 * 5
    # After the last epoch the network is what it is now.
    reads, drops = (
        probe(training.chain, training.data) for probe in (probes.readout, probes.drop_blocks)
    )
    places = places[1:]
    last = frame[frame["epoch"] == epochs[-1]].set_index(places)
    for probe, prefix, names in (
        (reads, "readout", ["error", "cross_entropy", "entropy"]),
        (drops, "drop", ["error", "cross_entropy", "agreement"]),
    ):
        measured = last[[f"{prefix}_{name}" for name in names]].sort_index()
        np.testing.assert_allclose(measured, probe.set_index(places)[names].sort_index(), rtol=1e-5)
    if not splits:
        first = frame[frame["epoch"] == 0]
        assert first["drop_error"].isna().all()
        assert first["readout_error"].notna().all()


@all_kinds
@pytest.mark.system
def test_splits_begin_the_keys(kind, two_splits):
    history = two_splits.values(kind)
    data = two_splits.data
    halves = [[key for key in history if key.startswith(f"{split}/")] for split in data]
    assert halves[0] + halves[1] == list(history)
    without = kind(data["held out"]).keys(two_splits.chain)
    assert [key.removeprefix("held out/") for key in halves[1]] == without
    assert any(history[one][-1] != history[other][-1] for one, other in zip(*halves, strict=True))


@pytest.mark.system
def test_no_key_is_published_twice(two_splits):
    keys = keys_of(two_splits.chosen)
    assert len(set(keys)) == len(keys)
    assert keys == own_keys(two_splits.history)
    for callback in two_splits.chosen:
        assert callback.probe(callback._chain).keys() == set(callback.keys(callback._chain))


@pytest.mark.system
def test_stage_whose_only_block_changes_the_shape():
    net = network(blocks=(2, 1))
    data = learnt(net)
    chosen = [kind(data) for kind in KINDS.values()]
    history = fit(net, chosen, data, epochs=1)
    assert own_keys(history) == keys_of(chosen)
    assert "stage2/block0/readout_error" in history
    drops = [key for key in history if "/drop_" in key]
    assert not any(key.startswith("stage2") for key in drops)
    assert "stage1/block1/drop_error" in drops
    assert history["stage2/convergence_index"] == [1]
    assert math.isnan(history["stage2/recurrence_index"][0])
    assert math.isnan(history["stage2/divergence_index"][0])
    assert history["divergence_index"] == history["stage1/divergence_index"]
    groups = [key for key in history if key.endswith("_images")]
    assert {key.rsplit("/", 1)[0] for key in groups} == {"stage2/block0"}
    assert history["stage2/block0/all_images"] == [12]


@pytest.mark.parametrize("classes", [pytest.param(3, marks=pytest.mark.nightly), 5])
def test_indices_of_constant_predictions_are_nan(classes):
    """Of a network that always names the first class, and is not trained."""
    net = network(rate=0.0, classes=classes, blocks=(1, 2))
    classifier = net.layers[-1]
    classifier.set_weights([0 * weights for weights in classifier.get_weights()])
    images, _ = random_batch(net, images=15)
    data = images, np.arange(15) % classes
    history = fit(net, [callbacks.ConvergenceIndices(data, times=2)], data, epochs=1)
    keys = own_keys(history)
    of_labels = [key for key in keys if "agreement" not in key]
    assert len(of_labels) == 9
    # "All are NaN while the network errs as often as chance or more."
    assert np.isnan([history[key] for key in keys]).all()


@pytest.mark.system
@pytest.mark.compiled
def test_network_is_left_as_it_was():
    """By every callback that runs images through it."""
    histories, weights = [], []
    for with_probes in (False, True):
        keras.utils.set_random_seed(4)
        net = network(shortcut="dropout", rate=0.01, blocks=2, widths=(4,))
        data = random_batch(net, images=10, seed=3)
        chosen = [*all_callbacks(data), callbacks.SignalPropagation(data)] * with_probes
        histories.append(fit(net, chosen)["loss"])
        # Moving statistics are among the weights.
        weights.append(net.get_weights())
    assert histories[0] == histories[1]
    for plain, probed in zip(*weights, strict=True):
        np.testing.assert_array_equal(plain, probed)


@pytest.mark.system
@pytest.mark.compiled
def test_nothing_is_compiled_after_the_first_epoch():
    net = network(blocks=2, widths=(4,))
    # Only what the callbacks compile is of interest here.
    net.run_eagerly = True
    # Batches of 5, 5 and 2.
    chosen = all_callbacks(dataset(random_batch(net, images=12, seed=2)))
    counts = []
    count = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: counts.append(
            [list(map(id, callback._chain.compiled.values())) for callback in chosen]
        )
    )
    fit(net, [*chosen, count], epochs=2)
    assert all(len(compiled) > 0 for compiled in counts[0])
    assert counts[0] == counts[1]
    # A second fit of the same network compiles nothing either.
    fit(net, [*chosen, count], epochs=1)
    assert counts[2] == counts[0]


@pytest.mark.system
def test_deep_copies_before_and_after_a_fit():
    small = {"blocks": 2, "widths": (4,)}
    net, other = network(**small), network(rate=0.0, layout="original", **small)
    data = learnt(net)
    chosen = [kind(data) for kind in KINDS.values()]
    early = [copy.deepcopy(callback) for callback in chosen]
    first = fit(net, chosen, data, epochs=1)
    late = [copy.deepcopy(callback) for callback in chosen]
    for callback, copied in zip(chosen, late, strict=True):
        assert copied._chain is None
        assert copied.data is callback.data
    again = fit(net, early, data, epochs=1)
    assert again.keys() == first.keys()
    # Trained with another network, the copy measures that one.
    measured = fit(other, late, data, epochs=1)
    chain, expected = tfr.chain(other), {}
    for callback in chosen:
        expected |= callback.probe(chain)
    for key in own_keys(measured):
        assert measured[key][0] == pytest.approx(expected[key], rel=1e-5, nan_ok=True)


def test_deep_copies_keep_their_settings():
    data = (np.zeros((2, 8, 8, 3), "f"), np.zeros(2, int))
    settings = {"every": 3, "blocks": 2, "probability": 0.3, "groups": "next block"}
    one = copy.deepcopy(callbacks.Borderline(data, **settings))
    assert {name: getattr(one, name) for name in settings} == settings
    kind = callbacks.ConvergenceIndices
    two = copy.deepcopy(kind(data, every=4, times=5, chance=0.5, reading="all but last"))
    assert (two.every, two.times, two.chance, two.reading) == (4, 5, 0.5, "all but last")


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        *[(kind, "every", value) for kind in KINDS.values() for value in (0, -1, 1.5, "2")],
        *[(callbacks.ConvergenceIndices, "times", value) for value in (0, -1, 1.5, "2", None)],
        *[
            (callbacks.ConvergenceIndices, "chance", value)
            for value in ("largest", 0, 1.5, True, None)
        ],
        *[(callbacks.ConvergenceIndices, "reading", value) for value in ("area", "", 1, None)],
        *[(callbacks.Borderline, "blocks", value) for value in (0, -1, 1.5, True, None)],
        *[(callbacks.Borderline, "groups", value) for value in ("next", "", True, None)],
        *[
            (callbacks.Borderline, "probability", value)
            for value in (0, 1.5, -0.1, True, "0.1", None)
        ],
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_bad_arguments(kind, name, value):
    with pytest.raises(ValueError, match=rf"`{name}`.*Received: {name}="):
        kind((np.zeros((2, 8, 8, 3), "f"), np.zeros(2, int)), **{name: value})


def test_keys_are_made_by_log_key():
    net = network(blocks=(1, 2))
    keys = callbacks.ConvergenceIndices({"a": learnt(net)}).keys(tfr.chain(net))
    assert log_key("agreement_recurrence_index", split="a") in keys
    assert log_key("divergence_index", 2, split="a") in keys
    assert "a/convergence_index" in keys
