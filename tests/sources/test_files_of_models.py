"""Chains of `.keras` files, and what these do not keep of a loss."""

import inspect
import json
import zipfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops
from refusals import refused

import tfresidual as tfr
from tfresidual.routing.losses import loss_from

pytestmark = pytest.mark.eager


def small_model(last="softmax", branch=None):
    keras.utils.set_random_seed(3)
    inputs = keras.Input((4, 4, 1))
    state = layers.Conv2D(2, 3, padding="same")(inputs)
    branch = layers.ReLU() if branch is None else branch
    state = state + branch(layers.Conv2D(2, 3, padding="same")(state))
    state = layers.GlobalAveragePooling2D()(state)
    return keras.Model(inputs, layers.Dense(3, activation=last)(state), name="small")


def images():
    return np.random.default_rng(0).normal(size=(4, 4, 4, 1)).astype("float32")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "net.keras"
    model = small_model()
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.save(path)
    return path


def test_a_whole_file_and_a_compressed_one(saved, tmp_path):
    path = tmp_path / "net.keras"
    with (
        zipfile.ZipFile(saved) as archive,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as compressed,
    ):
        for name in archive.namelist():
            compressed.writestr(name, archive.read(name))
    expected = keras.saving.load_model(saved).predict(images(), verbose=0)
    for chain in map(tfr.chain, (saved, path)):
        assert chain.notes == ()
        np.testing.assert_allclose(chain(images()), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("net.h5", "`keras.models.load_model`"),
        *((f"a.weights.{end}", "weights alone") for end in ("h5", "json")),
    ],
)
def test_files_of_other_kinds(tmp_path, name, advice):
    (tmp_path / name).touch()
    with refused("source") as caught:
        tfr.chain(tmp_path / name)
    assert advice in str(caught.value)


# What a file does not keep of a loss

# Other values than the defaults, by type or name.
OTHERS = {"ignore_class": 1, "axis": 1, "delta": 0.2, "reduction": "sum", "dtype": "float64"}
# That of pairs of images has no value for an image.
OTHER_LOSSES = (keras.Loss, keras.losses.Circle)
LOSSES = [
    loss
    for loss in vars(keras.losses).values()
    if isinstance(loss, type) and issubclass(loss, keras.losses.Loss) and loss not in OTHER_LOSSES
]
# Labels and outputs, of images and of positions; every loss takes some of them.
OUTPUTS = ops.softmax(np.random.default_rng(0).normal(size=(4, 5, 3))).numpy()
ROWS = np.eye(3, dtype="float32")[np.random.default_rng(1).integers(0, 3, (4, 5))]
BATCHES = [
    (labels, outputs)
    for outputs, rows in ((OUTPUTS, ROWS), (OUTPUTS[:, 0], ROWS[:, 0]))
    for labels in (rows, rows.argmax(-1), 3 * outputs + rows)
]


def other_arguments(loss):
    """The arguments of a loss, none of them with its default."""

    def other(name, default):
        if name in OTHERS:
            return OTHERS[name]
        return not default if isinstance(default, bool) else default / 2 + 0.1

    names = inspect.signature(loss).parameters.items()
    return {name: other(name, one.default) for name, one in names if name != "name"}


def values_of(loss):
    """The losses of all batches; `None` for those that the loss does not take."""
    found = []
    for labels, outputs in BATCHES:
        try:
            found.append(ops.convert_to_numpy(loss(labels, ops.convert_to_tensor(outputs))))
        except (ValueError, tf.errors.InvalidArgumentError):
            found.append(None)
    assert any(one is not None for one in found)
    return found


def assert_equal(some, others):
    for one, other in zip(values_of(some), values_of(others), strict=True):
        assert (one is None) == (other is None)
        np.testing.assert_allclose(one, other, rtol=1e-5) if one is not None else None


def model_of_positions(loss):
    inputs = keras.Input((5, 3))
    model = keras.Model(inputs, layers.Softmax()(inputs + layers.Dense(3)(inputs)))
    model.compile("sgd", loss)
    return model


def saved_with(loss, path):
    model = model_of_positions(loss)
    model.save(path / "net.keras")
    return tfr.chain(model).loss, tfr.chain(path / "net.keras")


# Those of which a file does not keep everything.
LOST = {"Huber": {"delta"}, "CosineSimilarity": {"axis"}}


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(one, marks=[pytest.mark.nightly] * (i % 2 == 0 and one.__name__ not in LOST))
        for i, one in enumerate(LOSSES)
    ],
    ids=lambda loss: loss.__name__,
)
def test_every_loss_of_keras_is_kept_or_noted(loss, tmp_path):
    arguments = other_arguments(loss)
    # TensorFlow has this one for the last axis alone.
    if loss is keras.losses.SparseCategoricalCrossentropy:
        del arguments["axis"]
    live, chain = saved_with(loss(**arguments), tmp_path)
    lost = {note.split("`")[1] for note in chain.notes}
    assert all(loss.__name__ in note for note in chain.notes)
    # What the notes name has its default, and everything else its value.
    kept = {name: value for name, value in arguments.items() if name not in lost}
    whole = live if kept == arguments else tfr.chain(model_of_positions(loss(**kept))).loss
    assert_equal(chain.loss, whole)
    assert lost == LOST.get(loss.__name__, set())
    # What is exported is described completely, or written as a function.
    if hasattr(live, "description"):
        assert_equal(loss_from(json.loads(json.dumps(live.description))), live)
