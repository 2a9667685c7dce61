"""Inputs and labels in the structures that Keras takes, and in some that it refuses."""

import pickle

import keras
import numpy as np
import pytest
from keras import layers
from refusals import refused

import tfresidual as tfr
from tfresidual import callbacks, probes

pytestmark = [pytest.mark.eager, pytest.mark.filterwarnings("ignore:The structure of `inputs`")]

RNG = np.random.default_rng(0)
A, B, C = RNG.normal(size=(3, 6, 4)).astype("float32")
LABELS = np.arange(6) % 2
# Structures of the inputs of a model, by the two that they may hold.
MODELS = {
    "tensor": lambda a, b: a,
    "list of one": lambda a, b: [a],
    "tuple of one": lambda a, b: (a,),
    "dict of one": lambda a, b: {"a": a},
    "list": lambda a, b: [a, b],
    "list in another order": lambda a, b: [b, a],
    "dict": lambda a, b: {"a": a, "b": b},
    "dict that is not sorted": lambda a, b: {"b": b, "a": a},
    "dict with other names": lambda a, b: {"p": a, "q": b},
    "nested": lambda a, b: {"x": [a, b]},
}
DATA = [
    A,
    [A],
    (A,),
    {"a": A},
    {"a": A, "z": C},
    {"0": C, "a": A},
    {"z": A},
    [A, B],
    (A, B),
    {"a": A, "b": B},
    {"b": B, "a": A},
    {"a": A, "b": B, "z": C},
    {"p": A, "q": B},
    [A, B, C],
    {"x": [A, B]},
    [[A, B]],
]


def model_of(structure):
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    inputs = structure(a, b)
    state = a + 2 * b if len(keras.tree.flatten(inputs)) == 2 else a
    state = layers.Add()([state, layers.Dense(4, activation="tanh")(state)])
    return keras.Model(inputs, layers.Dense(2)(state))


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
@pytest.mark.parametrize("name", MODELS)
def test_inputs_are_those_of_predict(name):
    """Where Keras takes the data, outputs are equal; where it does not, nor do we."""
    model = model_of(MODELS[name])
    chain = tfr.chain(model)
    taken = 0
    for data in DATA:
        try:
            expected = model.predict_on_batch(data)
        except Exception:
            with pytest.raises(ValueError, match="Received"):
                probes.readout(chain, (data, LABELS))
            continue
        taken += 1
        np.testing.assert_allclose(chain(data), expected, rtol=1e-5, atol=1e-6)
        frame = probes.readout(chain, (data, LABELS))
        error = np.mean(expected.argmax(axis=1) != LABELS)
        assert frame["error"].iloc[-1] == pytest.approx(error), data
    assert taken > 1


def test_an_axis_that_keras_adds_or_takes_away():
    inputs = keras.Input((4, 1))
    state = layers.Add()([inputs, layers.Dense(1)(inputs)])
    model = keras.Model(inputs, layers.Dense(2)(layers.Flatten()(state)))
    chain = tfr.chain(model)
    for data in (A, A[..., None], A[..., None, None]):
        np.testing.assert_allclose(chain(data), model(data), rtol=1e-5)
        assert len(probes.readout(chain, (data, LABELS))) == 1


@pytest.mark.parametrize("is_list", [True, False])
def test_labels_of_one_output(is_list, tmp_path):
    inputs = keras.Input((4,), name="a")
    state = layers.Add()([inputs, layers.Dense(4)(inputs)])
    outputs = layers.Dense(2, name="head")(state)
    model = keras.Model([inputs], [outputs]) if is_list else keras.Model(inputs, outputs)
    chain = tfr.chain(model)
    expected = probes.block_metrics(chain, (A, LABELS))
    tfr.export(chain, tmp_path / "saved")
    for source in (chain, tfr.chain(tmp_path / "saved")):
        for labels in (LABELS, [LABELS], (LABELS,), {"head": LABELS}):
            for data in ((A, labels), ({"a": A}, labels)):
                found = probes.block_metrics(source, data)["gradient_norm"]
                np.testing.assert_allclose(found, expected["gradient_norm"], rtol=1e-4)


def test_labels_in_another_structure_are_refused():
    with refused("data"):
        probes.readout(tfr.chain(model_of(MODELS["tensor"])), (A, {"other": LABELS}))


def test_a_chain_is_not_pickled_and_a_callback_is():
    model = model_of(MODELS["tensor"])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    readout = callbacks.Readout((A, LABELS))
    first = model.fit(A, LABELS, verbose=0, callbacks=[readout]).history
    with pytest.raises(TypeError, match="make another chain"):
        pickle.dumps(tfr.chain(model))
    again = pickle.loads(pickle.dumps(readout))
    assert set(model.fit(A, LABELS, verbose=0, callbacks=[again]).history) == set(first)


def test_files_of_other_formats_have_a_way_out(tmp_path):
    model = model_of(MODELS["tensor"])
    model.save(tmp_path / "m.h5")
    model.save_weights(tmp_path / "m.weights.h5")
    model.export(tmp_path / "saved", verbose=False)
    for name, way_out in (
        *((name, "pass (it|the model)") for name in ("m.h5", "m.weights.h5")),
        ("saved", "`tfresidual"),
    ):
        with pytest.raises(ValueError, match=way_out):
            tfr.chain(tmp_path / name)
