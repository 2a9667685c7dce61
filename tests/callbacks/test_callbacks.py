"""Callbacks in real fits: what stands in the logs.

That nothing else changes is tested in `test_route_callbacks.py`, of all callbacks at once.
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
from tfresidual import callbacks, probes, tuning

pytestmark = pytest.mark.eager


def network(**kwargs):
    net = random_network(**{"blocks": 2} | kwargs)
    net.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy")
    return net


def dataset(net, images=12, seed=1):
    return tf.data.Dataset.from_tensor_slices(random_batch(net, images=images, seed=seed)).batch(4)


def fit(net, chosen, epochs=1, batch=12):
    """Trains a network, in one step an epoch if not said otherwise; returns its logs."""
    images, labels = random_batch(net, images=12)
    kwargs = {"batch_size": batch, "shuffle": False, "callbacks": chosen}
    return net.fit(images, labels, epochs=epochs, verbose=0, **kwargs).history


@pytest.fixture(scope="module")
def trained():
    """A network, the data of its callbacks, and the logs of two epochs."""
    keras.utils.set_random_seed(0)
    net = network()
    data = dataset(net, seed=2)
    chosen = [callbacks.BlockMetrics(data), callbacks.Perturbation(data, epsilon=0.05)]
    return tfr.chain(net), data, fit(net, chosen, epochs=2)


def test_block_metrics_are_those_of_the_probe(trained):
    chain, data, history = trained
    expected = probes.block_metrics(chain, data).set_index(["stage", "block"])
    for (stage, block), row in expected.iterrows():
        for name in ("cosine_loss", "l2_ratio", "gradient_norm", "readout_cosine_loss"):
            key = f"stage{stage}/block{block}/{name}"
            if math.isnan(row[name]):
                assert key not in history
            else:
                assert history[key][-1] == pytest.approx(row[name], rel=1e-5)
                assert history[key][0] != history[key][-1]
                assert isinstance(history[key][0], float)


def test_perturbation_logs_distances_and_the_depth_asked_for(trained):
    chain, data, history = trained
    blocks = probes.perturbation(chain, data).set_index(["stage", "block"])
    stages = probes.computational_distance(chain, data).set_index("stage")
    for stage in (1, 2):
        distance = stages.loc[stage, "scaled_distance"]
        assert history[f"stage{stage}/scaled_distance"][-1] == pytest.approx(distance, rel=1e-5)
        assert history[f"stage{stage}/depth"][-1] == tuning.depth_for(
            history[f"stage{stage}/scaled_distance"][-1], 0.05
        )
    assert history["stage2/block1/perturbation"][-1] == pytest.approx(
        blocks.loc[(2, 1), "perturbation"], rel=1e-5
    )
    assert "stage2/block0/perturbation" not in history


def test_depth_of_a_stage_without_a_measured_block_is_nan():
    net = random_network(blocks=1)
    net.compile("sgd", "sparse_categorical_crossentropy")
    history = fit(net, [callbacks.Perturbation(dataset(net))], epochs=1)
    assert math.isnan(history["stage2/depth"][0])
    assert history["stage1/depth"][0] >= 1


@pytest.mark.system
def test_every_key_from_the_first_epoch_on_begins_with_its_split(tmp_path):
    net = network(widths=(4,))
    data = {"train": dataset(net), "test": dataset(net, seed=2)}
    path = tmp_path / "log.csv"
    chosen = [kind(data, every=2) for kind in (callbacks.BlockMetrics, callbacks.Perturbation)]
    history = fit(net, [*chosen, keras.callbacks.CSVLogger(path)], epochs=4)
    table = pd.read_csv(path)
    for callback in chosen:
        own = callback.keys(callback._chain)
        assert {key.split("/")[0] for key in own} == set(data)
        measured = table[own].notna().all(axis=1)
        assert measured.tolist() == [False, True, False, True]
        assert table.loc[~measured, own].isna().all(axis=None)
    train, test = (history[f"{split}/stage1/block0/l2_ratio"][1] for split in data)
    assert train != test
    assert history["test/stage1/block0/scaled_perturbation"][1] == pytest.approx(test, rel=1e-5)
    assert "test/stage1/depth" in history


def test_seen_by_early_stopping_and_tensorboard_order():
    net = random_network(blocks=1, widths=(4,))
    net.compile("sgd", "sparse_categorical_crossentropy")
    stop = keras.callbacks.EarlyStopping("stage1/block0/l2_ratio", patience=1, mode="max",
                                         min_delta=1e6)  # fmt: skip
    history = fit(net, [callbacks.BlockMetrics(dataset(net)), stop], epochs=6)
    # No epoch improves by a million, so that it stops after the second.
    assert len(history["loss"]) == 2


@pytest.mark.system
@pytest.mark.compiled
def test_two_fits_and_another_model():
    net, other = network(blocks=(1, 2)), network(blocks=(1, 2), layout="original")
    # Only what the callbacks compile is of interest here.
    net.run_eagerly = other.run_eagerly = True
    callback = callbacks.BlockMetrics(dataset(net))
    fit(net, [callback], epochs=1)
    (function,) = callback._chain.compiled.values()
    fit(net, [callback], epochs=2)
    assert list(callback._chain.compiled.values()) == [function]
    assert function.experimental_get_tracing_count() == 1
    history = fit(other, [callback], epochs=1)
    expected = probes.block_metrics(other, dataset(net))["l2_ratio"][0]
    assert history["stage1/block0/l2_ratio"][0] == pytest.approx(expected, rel=1e-5)


def test_one_callback_in_a_training_during_another():
    net, other = (random_network(blocks=1, widths=(4,)) for _ in range(2))
    callback = callbacks.BlockMetrics(dataset(net))
    for one in (net, other):
        one.compile("sgd", "sparse_categorical_crossentropy")
    inner = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: fit(other, [callback], epochs=1)
    )
    with pytest.raises(ValueError, match=r"`callbacks` must not hold.*Received: BlockMetrics"):
        fit(net, [inner, callback], epochs=1)


@pytest.mark.system
def test_deep_copies_before_and_after_a_fit():
    net = network(blocks=(2, 1))
    callback = callbacks.Perturbation(dataset(net), epsilon=0.2)
    early = copy.deepcopy(callback)
    first = fit(net, [callback], epochs=1)
    late = copy.deepcopy(callback)
    assert late._chain is None and late.epsilon == 0.2
    for copied in (early, late):
        assert fit(net, [copied], epochs=1).keys() == first.keys()


def test_several_steps_an_execution():
    net = random_network(blocks=1)
    net.compile("sgd", "sparse_categorical_crossentropy", steps_per_execution=2)
    history = fit(net, [callbacks.BlockMetrics(dataset(net))], epochs=2, batch=4)
    assert np.isfinite(history["stage1/block0/cosine_loss"]).all()


@pytest.mark.parametrize("every", [0, -1, 1.5, "2"])
def test_bad_every(every):
    with pytest.raises(ValueError, match=r"`every`.*Received: every="):
        callbacks.BlockMetrics(None, every=every)


def test_bad_epsilon():
    with pytest.raises(ValueError, match=r"`epsilon`.*Received: epsilon=0"):
        callbacks.Perturbation((np.zeros((1, 8, 8, 3)), np.zeros(1)), epsilon=0)
