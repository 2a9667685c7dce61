"""What readers of states refuse alike; what each refuses besides stands in its own test.

Right numbers for one image and with padding, where these are no mistakes.
"""

import keras
import numpy as np
import pytest
from reference import sequences
from reference.random_network import random_batch, random_network
from refusals import refused

import tfresidual as tfr
from tfresidual import probes, training

pytestmark = pytest.mark.eager

NET = random_network(blocks=(1, 2), widths=(2, 3), classes=3)
BATCH = random_batch(NET, images=8)[0], np.arange(8) % 3
HEADS = training.fit_readouts(NET, BATCH, kind="head")

CALLS = {
    "save_states": lambda net, data: probes.save_states(net, data, "states"),
    "similarity": lambda net, data: probes.similarity(net, data),
    "linear_probe": lambda net, data: probes.linear_probe(net, {"train": data, "test": data}),
    "fit_readouts": lambda net, data: training.fit_readouts(net, data, kind="head"),
    "lens": lambda net, data: probes.lens(net, data, readouts=HEADS),
    "readout": lambda net, data: probes.readout(net, data, readouts=HEADS),
    "early_exit": lambda net, data: probes.early_exit(net, HEADS, data, data),
    "export": lambda net, data: tfr.export(net, "net", exits=HEADS, threshold=0.5),
}
OF_CLASSES = ("linear_probe", "fit_readouts", "lens", "readout", "early_exit")
WITH_HEADS = ("lens", "readout", "early_exit", "export")


def functional(**units):
    images = state = keras.Input((8, 8, 3))
    for _ in range(2):
        state += keras.layers.Conv2D(3, 3, padding="same")(state)
    state = keras.layers.GlobalAveragePooling2D()(state)
    outputs = {name: keras.layers.Dense(size)(state) for name, size in units.items()}
    model = keras.Model(images, outputs if len(units) > 1 else outputs.popitem()[1])
    model.compile("sgd", "mse")
    return model


# A network and data, which calls do not take them, and what the error names; `None` for Keras' own.
WRONG = {
    "several outputs and none chosen": (
        lambda: (functional(a=3, b=2), (BATCH[0], {"a": BATCH[1], "b": BATCH[1]})),
        dict.fromkeys(CALLS, "output"),
    ),
    "regression": (
        lambda: (functional(a=1), (BATCH[0], BATCH[1] / 7)),
        dict.fromkeys(OF_CLASSES, "chain"),
    ),
    "no labels": (lambda: (NET, (BATCH[0],)), dict.fromkeys(OF_CLASSES, "data")),
    "labels of other classes": (
        lambda: (NET, (BATCH[0], BATCH[1] + 1)),
        dict.fromkeys(OF_CLASSES, "data"),
    ),
    "no images": (
        lambda: (NET, tuple(part[:0] for part in BATCH)),
        dict.fromkeys(("save_states", "similarity", *OF_CLASSES), "data"),
    ),
    "more blocks": (
        lambda: (random_network(blocks=(1, 3), widths=(2, 3), classes=3), BATCH),
        dict.fromkeys(WITH_HEADS, "readouts") | {"export": "exits"},
    ),
    "more channels": (
        lambda: (random_network(blocks=(1, 2), widths=(4, 3), classes=3), BATCH),
        dict.fromkeys(WITH_HEADS),
    ),
    "images of another size": (
        lambda: (NET, (BATCH[0][:, :4], BATCH[1])),
        dict.fromkeys([name for name in CALLS if name != "export"]),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_refuses(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made, calls = WRONG[name]
    net, data = made()
    for call, argument in calls.items():
        with refused(argument) if argument else pytest.raises(ValueError, match="expected"):
            CALLS[call](net, data)
            pytest.fail(call)
        assert not list(tmp_path.iterdir())


def test_one_image_is_read_as_among_others():
    one = tuple(part[:1] for part in BATCH)
    alone = probes.lens(NET, one, readouts=HEADS)
    among = probes.lens(NET, BATCH, readouts=HEADS, per_image=True).query("image == 0")
    np.testing.assert_allclose(alone, among.drop(columns="image"), rtol=1e-5, atol=1e-6)
    made = training.fit_readouts(NET, one, kind="head", epochs=9)
    assert (probes.readout(NET, one, readouts=made)["error"][:-1] == 0).all()


def test_padding_is_not_read_by_early_exits():
    chain, (tokens, labels) = sequences.sequence_chain("encoder"), sequences.batch("encoder")
    heads = training.fit_readouts(chain, (tokens, labels), kind="head", epochs=3)
    padded = np.pad(tokens, [(0, 0), (0, 3)])
    frames = [
        probes.early_exit(chain, heads, (one, labels), (one, labels)).drop(columns="milliseconds")
        for one in (tokens, padded)
    ]
    columns = ["threshold", "error", "random_error", "blocks"]
    np.testing.assert_allclose(frames[0][columns], frames[1][columns], rtol=1e-5)
