"""Callbacks of signal propagation and of Lipschitz bounds in real fits.

`test_callbacks.py` covers what all callbacks share.
"""

import copy

import keras
import numpy as np
import pandas as pd
import pytest
from reference.random_network import random_batch, random_network

import tfresidual as tfr
from tfresidual import callbacks, probes

pytestmark = pytest.mark.eager

SIGNAL = ("state_norm", "state_l1", "state_gradient_norm", "gradient_ratio", "shortcut_share",
          "shortcut_norm", "shortcut_product", "sum_deviation")  # fmt: skip
BOUNDS = ("estimate", "residual", "certified", "divisor")


def network(**kwargs):
    net = random_network(**{"blocks": (1, 2)} | kwargs)
    net.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy")
    return net


def fit(net, chosen, epochs=1):
    data = random_batch(net, images=10)
    return net.fit(*data, epochs=epochs, batch_size=5, verbose=0, callbacks=chosen).history


def own_keys(history):
    return [key for key in history if key != "loss"]


def test_signal_propagation_is_that_of_the_probe():
    net = network()
    data = random_batch(net, images=6, seed=2)
    callback = callbacks.SignalPropagation(data)
    history = fit(net, [callback], epochs=2)
    frame = probes.signal_propagation(net, data)
    expected = {
        f"stage{row['stage']}/block{row['block']}/{name}": row[name]
        for row in frame.to_dict("records")
        for name in SIGNAL
        # The first block of the second stage changes the shape.
        if name != "sum_deviation" or (row["stage"], row["block"]) != (2, 0)
    }
    assert own_keys(history) == list(expected) == callback.keys(tfr.chain(net))
    for key, value in expected.items():
        assert history[key][-1] == pytest.approx(value, rel=1e-4)
        assert isinstance(history[key][-1], float)
    assert history["stage1/block0/state_norm"][0] != history["stage1/block0/state_norm"][1]


@pytest.fixture(scope="module")
def bounded(tmp_path_factory):
    """A bounded network, and the logs of two epochs, of which the second one is measured."""
    keras.utils.set_random_seed(0)
    net = network(lipschitz=0.9)
    # Compiling a step with bounds takes longer than a few of them.
    net.run_eagerly = True
    data = {split: random_batch(net, images=4, seed=seed) for seed, split in enumerate("ab")}
    path = tmp_path_factory.mktemp("logs") / "log.csv"
    chosen = [callbacks.SignalPropagation(data, every=2), callbacks.Lipschitz(every=2)]
    history = fit(net, [*chosen, keras.callbacks.CSVLogger(path)], epochs=2)
    chain = tfr.chain(net)
    assert own_keys(history) == [key for callback in chosen for key in callback.keys(chain)]
    return chain, path, history


@pytest.mark.system
@pytest.mark.compiled
def test_lipschitz_is_that_of_the_probe(bounded):
    chain, _, history = bounded
    history = {key: values[1:] for key, values in history.items() if "/lipschitz_" in key}
    frame = probes.lipschitz(chain)
    # The first block of the second stage changes the shape.
    expected = {
        f"stage{row['stage']}/block{row['block']}/lipschitz_{name}": row[name]
        for row in frame.to_dict("records")
        for name in BOUNDS
    }
    assert list(history) == list(expected) == callbacks.Lipschitz().keys(chain)
    assert len(expected) == 2 * 4
    for key, value in expected.items():
        assert history[key][-1] == pytest.approx(value, rel=1e-3, abs=1e-4)
    read = probes.from_logs(history)
    assert read["lipschitz_divisor"].ge(1).all()
    assert len(read) == 2


@pytest.mark.compiled
@pytest.mark.system
def test_every_key_from_the_first_epoch_on(bounded):
    _, path, history = bounded
    table = pd.read_csv(path)
    own = own_keys(history)
    assert sum(key.startswith("a/stage1/block0/") for key in own) == len(SIGNAL)
    assert table.loc[0, own].isna().all()
    assert table.loc[1, own].notna().all()


@pytest.mark.compiled
@pytest.mark.system
def test_no_key_of_another_callback(bounded):
    chain, _, _ = bounded
    data = np.zeros((3, 8, 8, 3), "float32"), np.zeros(3, int)
    # These take no images, or publish nothing.
    others = {"ProbeCallback", "Lipschitz", "StepMetrics", "ExportForProbing", "Figures"}
    others.add("use_blocks")
    names = [name for name in callbacks.__all__ if name not in others]
    assert {"BlockMetrics", "Readout", "SignalPropagation"} <= set(names)
    chosen = [callbacks.Lipschitz(), *(getattr(callbacks, name)(data) for name in names)]
    keys = [key for callback in chosen for key in callback.keys(chain)]
    assert len(set(keys)) == len(keys)


@pytest.mark.nightly
@pytest.mark.compiled
def test_training_is_left_as_it_was():
    """With a bound; `test_route_callbacks.py` has the test without one, for all callbacks."""
    weights = []
    for with_probes in (False, True):
        keras.utils.set_random_seed(4)
        net = network(blocks=2, widths=(4,), lipschitz=0.9, shortcut="dropout")
        net.run_eagerly = True
        chosen = [callbacks.SignalPropagation(random_batch(net, seed=3)), callbacks.Lipschitz()]
        fit(net, chosen * with_probes, epochs=2)
        # Inference keeps the norms it has sought for the weights as they were; no step of training
        # reads them.
        kept = ("/vector_of_", "/known_weights")
        weights.append([w.numpy() for w in net.weights if not any(k in w.path for k in kept)])
    for plain, probed in zip(*weights, strict=True):
        np.testing.assert_array_equal(plain, probed)


def test_deep_copies_keep_their_settings():
    callback = copy.deepcopy(callbacks.Lipschitz(every=3))
    assert (callback.every, callback.splits()) == (3, [None])
    data = random_batch(network())
    assert copy.deepcopy(callbacks.SignalPropagation(data, every=2)).data is data


def test_no_bounded_block_is_said_before_training():
    net = network()
    before = net.get_weights()
    with pytest.raises(ValueError, match=r"`chain` must have a block.*Received: "):
        fit(net, [callbacks.Lipschitz()])
    for old, new in zip(before, net.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("every", [0, -1, 1.5, "2"])
def test_bad_every(every):
    with pytest.raises(ValueError, match=r"`every`.*Received: every="):
        callbacks.Lipschitz(every=every)
    with pytest.raises(ValueError, match=r"`every`.*Received: every="):
        callbacks.SignalPropagation(None, every=every)
