"""Callbacks of the lens and of attribution in real fits; `test_callbacks.py` covers the rest."""

import keras
import numpy as np
import pytest
from reference.random_network import random_batch, random_network

import tfresidual as tfr
from tfresidual import callbacks, probes

pytestmark = pytest.mark.eager


@pytest.mark.system
def test_they_publish_what_the_probes_measure():
    net = random_network(blocks=(1, 3))
    net.compile(keras.optimizers.SGD(0.01), "sparse_categorical_crossentropy")
    net.run_eagerly = True
    data = {"few": random_batch(net, images=4), "more": random_batch(net, images=6, seed=2)}
    chosen = [callbacks.Lens(data), callbacks.Attribution(data, every=2)]
    history = net.fit(*data["more"], epochs=2, verbose=0, callbacks=chosen).history
    chain = tfr.chain(net)
    expected = {}
    for row in probes.lens(chain, data).query("stage == 2 and block >= 0").to_dict("records"):
        for name in ("cross_entropy", "rank", "probability", "kl"):
            place = f"{row['split']}/stage2/block{row['block']}"
            expected[f"{place}/lens_{name}"] = row[name]
    # The first block of the second stage changes the shape.
    for row in probes.attribution(chain, data).query("part == 'block'").to_dict("records"):
        if row["stage"] == 2 and row["block"] > 0:
            expected[f"{row['split']}/stage2/block{row['block']}/attribution"] = row["attribution"]
    keys = [key for callback in chosen for key in callback.keys(chain)]
    assert keys == list(expected) == [key for key in history if key != "loss"]
    for key, value in expected.items():
        assert history[key][-1] == pytest.approx(value, rel=1e-4, abs=1e-6)
    read = probes.from_logs(history)
    assert {"lens_kl", "attribution"} <= set(read.columns)
    assert read["attribution"].notna().sum() == 4


def test_they_publish_what_was_chosen():
    keras.utils.set_random_seed(0)
    inputs = state = keras.Input((4,))
    for _ in range(2):
        state = keras.layers.add([state, keras.layers.Dense(4, "tanh")(state)])
    state = keras.layers.LayerNormalization()(state)
    net = keras.Model(inputs, keras.layers.Dense(3)(state))
    net.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    data = np.random.default_rng(0).normal(size=(6, 4)).astype("float32"), np.arange(6) % 3
    lens, target = {"normalize": "final"}, {"target": ("label", 1), "freeze_normalization": True}
    chosen = [callbacks.Lens(data, **lens), callbacks.Attribution(data, **target)]
    logs = net.fit(*data, verbose=0, callbacks=chosen).history
    chain = tfr.chain(net)
    found = [probes.lens(chain, data, **lens)["kl"], probes.attribution(chain, data, **target)]
    expected = {
        "stage1/block0/lens_kl": found[0].iloc[1],
        "stage1/block0/attribution": found[1]["attribution"].iloc[1],
    }
    for key, value in expected.items():
        assert logs[key][-1] == pytest.approx(value, rel=1e-4)
    for kind, name in ((callbacks.Lens, "normalize"), (callbacks.Attribution, "target")):
        with pytest.raises(ValueError, match=rf"`{name}` must .*Received: "):
            kind(data, **{name: "none"})


def test_values_are_refused():
    net = random_network(blocks=1, widths=(4,), classifier_activation=None)
    net.compile("sgd", "mse")
    for kind in (callbacks.Lens, callbacks.Attribution):
        callback = kind(random_batch(net))
        callback.set_model(net)
        with pytest.raises(ValueError, match=r"`chain` must return classes.*Received: "):
            callback.on_train_begin()
