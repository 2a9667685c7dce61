"""Where `export` may write, what of the network it takes along, and what failures leave."""

import json
import os
import pathlib
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from reference.small_networks import small_images, small_network
from refusals import refused

import tfresidual as tfr
from tfresidual.callbacks import ExportForProbing
from tfresidual.machine.locks import FolderInUseError, locked
from tfresidual.routing import Block, Chain, Stage
from tfresidual.sources.exporting import export

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def chain():
    """Compiled for the first export, and then only written."""
    return tfr.chain(small_network())


def content_of(folder):
    return {str(path): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


# What is there, the target, and whether an export with `overwrite` replaces it.
OBSTACLES = {
    "a file above": ("file", "file/net", False),
    "a link to nowhere above": ("dangling", "dangling/net", False),
    "a link": ("link", "link", False),
    "a file": ("file", "file", False),
    "an empty folder": ("empty", "empty", True),
    "a folder": ("mine", "mine", False),
    "a SavedModel": ("net", "net", True),
    "a SavedModel and a file": ("net/mine.txt", "net", False),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_what_is_there_is_not_replaced(chain, tmp_path, name):
    there, target, is_replaced = OBSTACLES[name]
    path = tmp_path / there
    if there in ("link", "dangling"):
        path.symlink_to("linked" if there == "link" else "nowhere")
    elif there.startswith("net"):
        export(chain, tmp_path / "net")
    elif there == "file":
        path.write_text("mine")
    else:
        path.mkdir()
    if there == "mine":
        (path / "text").write_text("mine")
    if there == "link":
        export(chain, tmp_path / "linked")
    if "/" in there:
        path.write_text("mine")
    before = content_of(tmp_path)
    for overwrite in (False,) if is_replaced else (False, True):
        with pytest.raises(FileExistsError, match="path"):
            export(chain, str(tmp_path / target), overwrite=overwrite)
        assert content_of(tmp_path) == before
    if is_replaced:
        export(chain, tmp_path / target, probing=False, overwrite=True)
        loaded = tf.saved_model.load(str(tmp_path / target))
        assert list(loaded.signatures) == ["serving_default"]


# What the network computes with


def network_with(layer):
    """A layer for the stem, one block, a head."""
    inputs = keras.Input((4, 4, 1))
    state = layers.Conv2D(2, 3, padding="same")(layers.Rescaling(1.0)(layer(inputs)))
    state = state + layers.Conv2D(2, 3, padding="same", activation="relu")(state)
    outputs = layers.Dense(3, activation="softmax")(layers.GlobalAveragePooling2D()(state))
    return keras.Model(inputs, outputs, name="with_table")


def test_tables_of_the_network_are_written(tmp_path):
    net = network_with(layers.IntegerLookup(vocabulary=[5, 7, 9]))
    images = np.random.default_rng(0).integers(4, 11, (3, 4, 4, 1)).astype("float32")
    expected = net(images).numpy()
    assert not np.allclose(net(np.zeros_like(images)), expected, atol=1e-3)
    chain = tfr.chain(net)
    export(chain, tmp_path / "net")
    export(chain, tmp_path / "again")
    export(chain, tmp_path / "to_serve", probing=False)
    export(tmp_path / "net", tmp_path / "of_saved_model")
    for name in ("net", "again", "of_saved_model"):
        np.testing.assert_allclose(tfr.chain(tmp_path / name)(images), expected, rtol=1e-5)
    for name in ("net", "to_serve", "of_saved_model"):
        serve = tf.saved_model.load(str(tmp_path / name)).signatures["serving_default"]
        np.testing.assert_allclose(serve(images=images)["outputs"], expected, rtol=1e-5)


class BareTable(layers.Layer):
    """Looks numbers up in a table that no object of TensorFlow holds, or another one."""

    def __init__(self, holder=None):
        super().__init__()
        self.holder = holder or types.SimpleNamespace()
        self.holder.handle = tf.raw_ops.HashTableV2(key_dtype=tf.int64, value_dtype=tf.float32)
        tf.raw_ops.LookupTableImportV2(
            table_handle=self.holder.handle,
            keys=tf.constant([0, 1], tf.int64),
            values=tf.constant([2.0, 3.0]),
        )

    def call(self, inputs):
        found = tf.raw_ops.LookupTableFindV2(
            table_handle=self.holder.handle, keys=tf.cast(inputs, tf.int64), default_value=0.0
        )
        return tf.ensure_shape(found, inputs.shape)

    def compute_output_spec(self, inputs):
        return keras.KerasTensor(inputs.shape, "float32")


def test_a_network_that_no_saved_model_can_hold_is_not_trained(tmp_path):
    net = network_with(BareTable())
    net.compile("sgd", "sparse_categorical_crossentropy")
    before = net.get_weights()
    images, labels = np.ones((4, 4, 4, 1), "float32"), np.arange(4) % 3
    with refused("net"):
        callback = ExportForProbing(tmp_path / "series", every=2)
        net.fit(images, labels, epochs=2, verbose=0, callbacks=[callback])
    for old, new in zip(before, net.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert os.listdir(tmp_path) == []


def failing():
    """A chain whose head raises an error."""

    def head(state):
        raise ValueError("Received: a head that fails")

    stages = (Stage(1, (Block(1, 0, True, lambda state: state + 1),)),)
    return Chain("failing", tf.identity, stages, head, None, (4, 4, 1))


@pytest.mark.parametrize("probing", [True, False])
@pytest.mark.parametrize("make", [lambda: network_with(BareTable()), failing], ids=["", "failing"])
def test_what_cannot_be_written_leaves_nothing(tmp_path, make, probing):
    """No folder above either that was not there."""
    with pytest.raises(ValueError, match="Received: "):
        export(make(), tmp_path / "new" / "net", probing=probing)
    assert content_of(tmp_path) == {}


@pytest.mark.parametrize("name", ["n[1]", "n[1]/net", "a\\b", "[", "\udcff"])
def test_paths_that_tensorflow_cannot_open(chain, tmp_path, monkeypatch, name):
    """Absolute, relative, and where this process stands."""
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / name, name):
        with refused("path"):
            export(chain, path)
        with refused("folder"):
            ExportForProbing(path)
    (tmp_path / "n[1]").mkdir()
    monkeypatch.chdir(tmp_path / "n[1]")
    with refused("path"):
        export(chain, "net")
    assert content_of(tmp_path) == {str(tmp_path / "n[1]"): False}


def test_names_that_can_be_opened(chain, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = chain(small_images())
    for name in ("a*b?", "n]1", "~", "two words \n"):
        export(chain, name)
        for path in (name, tmp_path / name):
            np.testing.assert_allclose(tfr.chain(path)(small_images()), expected, rtol=1e-5)


# Failures


@pytest.mark.parametrize("there", [False, True], ids=["new", "there"])
@pytest.mark.parametrize("moment", ["graph", "layout", "move"])
@pytest.mark.parametrize(
    "error", [OSError, pytest.param(KeyboardInterrupt, marks=pytest.mark.nightly)]
)
def test_a_failure_leaves_the_target_as_it_was(chain, tmp_path, monkeypatch, there, moment, error):
    path = tmp_path / "net"
    if there:
        export(chain, path, probing=False)
    before = content_of(path)

    def fail(*args, **kwargs):
        raise error("no space left")

    def half(root, folder, signatures):
        pathlib.Path(folder, "saved_model.pb").write_bytes(b"half")
        fail()

    if moment == "graph":
        monkeypatch.setattr(tf.saved_model, "save", half)
    elif moment == "layout":
        monkeypatch.setattr(json, "dumps", fail)
    else:
        replace = os.replace

        def moved(source, target):
            if pathlib.Path(target) == path and pathlib.Path(source).name == ".net.new":
                fail()
            replace(source, target)

        monkeypatch.setattr(os, "replace", moved)
    with pytest.raises(error, match="no space left"):
        export(chain, path, overwrite=True)
    monkeypatch.undo()
    assert content_of(path) == before
    assert os.listdir(tmp_path) == ["net"] * there


def test_one_export_at_a_time(chain, tmp_path, elsewhere):
    with elsewhere(locked(tmp_path / "net", beside=True)):
        with pytest.raises(FolderInUseError, match=r"choose another `path`\. Received: path="):
            export(chain, tmp_path / "net")
        assert [path.name for path in tmp_path.iterdir()] == [".net.lock"]
        # Another one may be written next to it, and one inside it.
        export(chain, tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    export(chain, tmp_path / "net")
