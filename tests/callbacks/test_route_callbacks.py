"""Callbacks that run routes, in real fits: what stands in the logs, and that nothing else changes.

`test_callbacks.py` covers what all callbacks share.
"""

import copy
import math

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
    batch = random_batch(net, images=12) if data is None else data
    return net.fit(
        dataset(batch), epochs=epochs, verbose=0, shuffle=False, callbacks=chosen
    ).history


def own_keys(history):
    """The keys of the probes."""
    return [key for key in history if key not in ("loss", "accuracy")]


def test_readout_is_that_of_the_probe():
    net = network()
    data = random_batch(net, images=9, seed=2)
    history = fit(net, [callbacks.Readout(data)])
    frame = probes.readout(net, data)
    for row in frame.to_dict("records"):
        for name in ("error", "cross_entropy", "entropy"):
            values = history[f"stage{row['stage']}/block{row['block']}/readout_{name}"]
            assert values[-1] == pytest.approx(row[name], rel=1e-5)
            assert isinstance(values[-1], float)
    assert len(own_keys(history)) == 5 * 3
    # The network has been trained between the epochs.
    assert (
        history["stage1/block0/readout_entropy"][0] != history["stage1/block0/readout_entropy"][1]
    )


def test_drop_blocks_is_that_of_the_probe():
    net = network()
    data = random_batch(net, images=9, seed=2)
    history = fit(net, [callbacks.DropBlocks(data)])
    frame = probes.drop_blocks(net, data).set_index(["stage", "block"])
    expected = {
        f"stage{stage}/block{block}/drop_{name}": frame.loc[(stage, block), name]
        for stage, block in [(1, 0), (1, 1), (2, 1), (2, 2)]  # not what changes the shape
        for name in ("error", "cross_entropy", "agreement")
    }
    assert own_keys(history) == list(expected)
    for key, value in expected.items():
        assert history[key][-1] == pytest.approx(value, rel=1e-5)


def test_convergence_indices_are_those_of_the_probe():
    net = network()
    data = learnt(net)
    history = fit(net, [callbacks.ConvergenceIndices(data, times=2)], data)
    table = probes.convergence_indices(net, data, times=2).set_index(["basis", "stage"])
    expected = {}
    for basis, prefix in (("labels", ""), ("agreement", "agreement_")):
        for stage, place in ((1, "stage1/"), (2, "stage2/"), ("mean", "")):
            for name in INDICES:
                expected[f"{place}{prefix}{name}"] = table.loc[(basis, stage), name]
    assert own_keys(history) == list(expected)
    for key, value in expected.items():
        assert history[key][-1] == pytest.approx(value, abs=1e-6)
    assert np.isfinite(list(expected.values())).all()


def test_chance_of_convergence_indices():
    net = network()
    images, labels = learnt(net)
    data = images, np.append(labels[:6], (labels[6:] + 1) % 5)
    history = fit(net, [callbacks.ConvergenceIndices(data, times=2, chance=0.9)], data)
    table = probes.convergence_indices(net, data, times=2, chance=0.9)
    assert table["error"][0] > 0
    mean = table[(table["basis"] == "labels") & (table["stage"] == "mean")]
    for name in INDICES:
        assert history[name][-1] == pytest.approx(mean[name].item(), abs=1e-6)


def test_borderline_is_that_of_the_probe():
    net = network()
    data = random_batch(net, images=12, seed=2)
    callback = callbacks.Borderline(data, blocks=2, probability=0.3)
    history = fit(net, [callback])
    frame = probes.borderline(net, data, blocks=2, times=0, probability=0.3)
    expected = {
        f"stage2/block{row['block']}/{row['group']}_{name}": row[name]
        for row in frame.to_dict("records")
        for name in ("accuracy", "cross_entropy", "entropy", "images")
    }
    assert sorted(own_keys(history)) == sorted(expected)
    assert len(expected) == 2 * 3 * 4
    for key, value in expected.items():
        assert history[key][-1] == pytest.approx(value, rel=1e-5, nan_ok=True)
    assert 0 < history["stage2/block1/borderline_images"][0] <= 12


@all_kinds
def test_every_key_from_the_first_epoch_on(kind, tmp_path):
    net = network()
    data = learnt(net)
    callback, path = kind(data, every=2), tmp_path / "log.csv"
    history = fit(net, [callback, keras.callbacks.CSVLogger(path)], data, epochs=4)
    own = own_keys(history)
    assert own == callback.keys(callback._chain)
    table = pd.read_csv(path)
    assert table["epoch"].tolist() == [0, 1, 2, 3]
    assert table.loc[[0, 2], own].isna().all(axis=None)
    for key in own:
        # Groups may be empty; all else was measured.
        if not key.split("/")[-1].startswith(("borderline_", "correct_")):
            assert table.loc[[1, 3], key].notna().all(), key
        np.testing.assert_array_equal(table[key], history[key])


@pytest.mark.parametrize("with_splits", [False, True], ids=["one split", "splits"])
def test_logs_there_and_back(with_splits, tmp_path):
    net = network()
    batch = random_batch(net, images=6, seed=2)
    data = {"train": learnt(net), "test": batch} if with_splits else batch
    path = tmp_path / "log.csv"
    chosen = [
        callbacks.Readout(data),
        callbacks.DropBlocks(data, every=2),
        callbacks.ConvergenceIndices(data, every=2, times=1),
        keras.callbacks.CSVLogger(path),
    ]
    history = fit(net, chosen, epochs=2)
    frame, splits = probes.from_logs(path), ["split"] * with_splits
    # The file has the keys in the order of the alphabet.
    places = ["epoch", *splits, "stage", "block"]
    pd.testing.assert_frame_equal(
        frame.set_index(places).sort_index(),
        probes.from_logs(history).set_index(places).sort_index(),
        check_like=True,
    )
    assert frame.columns.tolist()[: 3 + with_splits] == ["epoch", *splits, "stage", "block"]
    assert len(frame) == 2 * 5 * (1 + with_splits)
    # Behind the last epoch the network is what it is now.
    reads, drops = probes.readout(net, data), probes.drop_blocks(net, data)
    places = places[1:]
    last = frame[frame["epoch"] == 1].set_index(places)
    for probe, prefix, names in (
        (reads, "readout", ["error", "cross_entropy", "entropy"]),
        (drops, "drop", ["error", "cross_entropy", "agreement"]),
    ):
        measured = last[[f"{prefix}_{name}" for name in names]].sort_index()
        np.testing.assert_allclose(measured, probe.set_index(places)[names].sort_index(), rtol=1e-5)
    assert frame.loc[frame["epoch"] == 0, "drop_error"].isna().all()
    assert frame.loc[frame["epoch"] == 0, "readout_error"].notna().all()


@all_kinds
def test_splits_begin_the_keys(kind):
    net = network()
    data = {"train": learnt(net), "held out": learnt(net, images=7, seed=5)}
    history = fit(net, [kind(data)], data["train"], epochs=1)
    keys = own_keys(history)
    halves = [[key for key in keys if key.startswith(f"{split}/")] for split in data]
    assert halves[0] + halves[1] == keys
    without = kind(data["held out"]).keys(tfr.chain(net))
    assert [key.removeprefix("held out/") for key in halves[1]] == without
    assert any(history[one] != history[other] for one, other in zip(*halves, strict=True))


@all_kinds
def test_stage_whose_only_block_changes_the_shape(kind):
    net = network(blocks=(2, 1))
    data = learnt(net)
    callback = kind(data)
    history = fit(net, [callback], data, epochs=1)
    assert own_keys(history) == callback.keys(callback._chain)
    if kind is callbacks.Readout:
        assert "stage2/block0/readout_error" in history
    if kind is callbacks.DropBlocks:
        assert not any(key.startswith("stage2") for key in history)
        assert "stage1/block1/drop_error" in history
    if kind is callbacks.ConvergenceIndices:
        assert history["stage2/convergence_index"] == [1]
        assert math.isnan(history["stage2/recurrence_index"][0])
        assert math.isnan(history["stage2/divergence_index"][0])
        assert history["divergence_index"] == history["stage1/divergence_index"]
    if kind is callbacks.Borderline:
        assert {key.rsplit("/", 1)[0] for key in own_keys(history)} == {"stage2/block0"}
        assert history["stage2/block0/all_images"] == [12]


def constant_network(classes=5):
    """A network that always names the first class, and is not trained."""
    net = network(rate=0.0, classes=classes)
    classifier = net.layers[-1]
    classifier.set_weights([0 * weights for weights in classifier.get_weights()])
    return net


@pytest.mark.parametrize("classes", [3, 5])
def test_indices_of_constant_predictions_are_nan(classes):
    net = constant_network(classes)
    images, _ = random_batch(net, images=15)
    data = images, np.arange(15) % classes
    history = fit(net, [callbacks.ConvergenceIndices(data, times=2)], data)
    of_labels = [key for key in own_keys(history) if "agreement" not in key]
    assert len(of_labels) == 9
    assert np.isnan([history[key] for key in of_labels]).all()


def test_agreement_indices_of_constant_predictions_are_nan():
    # "All are NaN while the network errs as often as chance or more."
    net = constant_network()
    images, _ = random_batch(net, images=15)
    data = images, np.arange(15) % 5
    history = fit(net, [callbacks.ConvergenceIndices(data, times=2)], data)
    assert np.isnan([history[key] for key in own_keys(history)]).all()


@pytest.mark.compiled
def test_network_is_left_as_it_was():
    histories, weights = [], []
    for with_probes in (False, True):
        keras.utils.set_random_seed(4)
        net = network(shortcut="dropout", rate=0.01, blocks=(1, 2))
        data = random_batch(net, images=10, seed=3)
        chosen = [kind(data) for kind in KINDS.values()] * with_probes
        histories.append(fit(net, chosen)["loss"])
        # Moving statistics are among the weights.
        weights.append(net.get_weights())
    assert histories[0] == histories[1]
    for plain, probed in zip(*weights, strict=True):
        np.testing.assert_array_equal(plain, probed)


def all_callbacks(data):
    return [
        callbacks.BlockMetrics(data),
        callbacks.Perturbation(data),
        *(kind(data) for kind in KINDS.values()),
    ]


def test_no_key_is_published_twice():
    net = network(blocks=(1, 2))
    batch = random_batch(net, images=6, seed=2)
    chosen = all_callbacks({"train": batch, "test": batch})
    history = fit(net, chosen, epochs=1)
    keys = [key for callback in chosen for key in callback.keys(callback._chain)]
    assert len(set(keys)) == len(keys)
    assert keys == own_keys(history)
    for callback in chosen:
        assert callback.probe(callback._chain).keys() == set(callback.keys(callback._chain))


@pytest.mark.compiled
def test_nothing_is_compiled_after_the_first_epoch():
    net = network(blocks=(1, 2))
    # Batches of 5, 5 and 2.
    chosen = all_callbacks(dataset(random_batch(net, images=12, seed=2)))
    counts = []
    count = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: counts.append(
            [list(map(id, callback._chain.compiled.values())) for callback in chosen]
        )
    )
    fit(net, [*chosen, count], epochs=3)
    assert all(len(compiled) > 0 for compiled in counts[0])
    assert counts[0] == counts[1] == counts[2]
    # A second fit of the same network compiles nothing either.
    fit(net, [*chosen, count], epochs=1)
    assert counts[3] == counts[0]


@all_kinds
def test_deep_copies_before_and_after_a_fit(kind):
    net, other = network(blocks=(1, 2)), network(rate=0.0, blocks=(1, 2), layout="original")
    data = learnt(net)
    callback = kind(data)
    early = copy.deepcopy(callback)
    first = fit(net, [callback], data, epochs=1)
    late = copy.deepcopy(callback)
    assert late._chain is None
    assert late.data is callback.data
    again = fit(net, [early], data, epochs=1)
    assert again.keys() == first.keys()
    # Trained with another network, the copy measures that one.
    measured = fit(other, [late], data, epochs=1)
    expected = callback.probe(tfr.chain(other))
    for key in own_keys(measured):
        assert measured[key][0] == pytest.approx(expected[key], rel=1e-5, nan_ok=True)


def test_deep_copies_keep_their_settings():
    data = (np.zeros((2, 8, 8, 3), "f"), np.zeros(2, int))
    one = copy.deepcopy(callbacks.Borderline(data, every=3, blocks=2, probability=0.3))
    assert (one.every, one.blocks, one.probability) == (3, 2, 0.3)
    two = copy.deepcopy(callbacks.ConvergenceIndices(data, every=4, times=5, chance=0.5))
    assert (two.every, two.times, two.chance) == (4, 5, 0.5)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        *[(kind, "every", value) for kind in KINDS.values() for value in (0, -1, 1.5, "2")],
        *[(callbacks.ConvergenceIndices, "times", value) for value in (0, -1, 1.5, "2", None)],
        *[
            (callbacks.ConvergenceIndices, "chance", value)
            for value in ("largest", 0, 1.5, True, None)
        ],
        *[(callbacks.Borderline, "blocks", value) for value in (0, -1, 1.5, True, None)],
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
    net = network()
    keys = callbacks.ConvergenceIndices({"a": learnt(net)}).keys(tfr.chain(net))
    assert log_key("agreement_recurrence_index", split="a") in keys
    assert log_key("divergence_index", 2, split="a") in keys
    assert "a/convergence_index" in keys
