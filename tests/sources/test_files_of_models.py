"""Chains of `.keras` files: whole, damaged, and with code that is not known here."""

import shutil
import zipfile

import keras
import numpy as np
import pytest
from keras import layers, ops

import tfresidual as tfr

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


def rewritten(path, change):
    """Writes an archive again: `change` takes name and content, and returns it, or `None`."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            content = change(name, content)
            if content is not None:
                archive.writestr(name, content)


def in_the_middle(content):
    middle = len(content) // 2
    return content[:middle] + bytes(255 - byte for byte in content[middle:])


DAMAGES = {
    "half a file": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "an empty file": lambda path: path.write_bytes(b""),
    "other bytes": lambda path: path.write_bytes(in_the_middle(path.read_bytes())),
    "changed bytes": lambda path: path.write_bytes(path.read_bytes().replace(b"conv2d", b"conv3d")),
    "no config": lambda path: rewritten(path, lambda name, c: None if "config" in name else c),
    "an empty config": lambda path: rewritten(
        path, lambda name, c: b"{}" if name == "config.json" else c
    ),
    "half a config": lambda path: rewritten(
        path, lambda name, c: c[: len(c) // 2] if name == "config.json" else c
    ),
    "no weights": lambda path: rewritten(path, lambda name, c: None if ".h5" in name else c),
    "half of the weights": lambda path: rewritten(
        path, lambda name, c: c[: len(c) // 2] if ".h5" in name else c
    ),
}


def test_a_whole_file(saved):
    chain = tfr.chain(saved)
    assert chain.notes == ()
    np.testing.assert_allclose(
        chain(images()), keras.saving.load_model(saved).predict(images(), verbose=0), rtol=1e-5
    )


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_files(saved, tmp_path, name):
    path = tmp_path / "net.keras"
    shutil.copy(saved, path)
    DAMAGES[name](path)
    with pytest.raises(ValueError, match=r"`source` must be .* complete .*Received: source="):
        tfr.chain(path)


def test_paths_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"or of a SavedModel.*which does not exist"):
        tfr.chain(tmp_path / "net.keras")
    (tmp_path / "net.h5").touch()
    with pytest.raises(ValueError, match=r"must be the path of a .keras file.*Received: "):
        tfr.chain(tmp_path / "net.h5")


def distance(labels, outputs):
    return ops.mean(ops.abs(ops.cast(labels, outputs.dtype) - outputs), axis=-1)


def test_a_loss_that_is_not_known_here(tmp_path):
    model = small_model()
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=[distance])
    model.save(tmp_path / "net.keras")
    chain = tfr.chain(tmp_path / "net.keras")
    (note,) = chain.notes
    assert note.startswith("the settings of `compile` cannot be loaded")
    assert note in str(chain)
    labels = np.array([0, 1, 2, 0])
    expected = tfr.chain(model).loss(labels, model(images()))
    np.testing.assert_allclose(chain.loss(labels, chain(images())), expected, rtol=1e-6)


class Own(layers.Layer):
    def call(self, inputs):
        return inputs


@pytest.mark.parametrize("branch", [Own, lambda: layers.Lambda(lambda state: 2 * state)])
def test_layers_that_are_not_known_here(tmp_path, branch):
    model = small_model(branch=branch())
    model.save(tmp_path / "net.keras")
    with pytest.raises(
        ValueError, match=r"`keras.saving.load_model` and pass the model.*Received: "
    ):
        tfr.chain(tmp_path / "net.keras")
    assert len(tfr.chain(model).blocks) == 1
