"""Where `export` may write, and what of the network it takes along."""

import os
import pathlib
import resource
import tempfile
import types

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from reference.small_networks import small_network

import tfresidual as tfr
from tfresidual.callbacks import ExportForProbing
from tfresidual.machine.locks import FolderInUseError, locked
from tfresidual.sources.exporting import export

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def chain():
    """Compiled for the first export, and then only written."""
    return tfr.chain(small_network())


def content_of(folder):
    return {str(path): path.is_file() and path.read_bytes() for path in folder.rglob("*")}


def assert_is_refused(chain, path, words, **kwargs):
    before = content_of(path.parent)
    with pytest.raises(FileExistsError) as raised:
        export(chain, path, **kwargs)
    assert str(raised.value) == (
        "Argument `path` must be new, or a SavedModel to replace with `overwrite=True`. "
        f"Received: path={str(path)!r}, {words}"
    )
    assert content_of(path.parent) == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_nothing_is_written_below_a_file(chain, tmp_path, overwrite):
    file = tmp_path / "file"
    file.write_text("mine")
    words = f"below {str(file)!r}, which is not a folder"
    for path in (file / "net", file / "a" / "net"):
        assert_is_refused(chain, path, words, overwrite=overwrite)
    assert file.read_text() == "mine"


def test_a_link_is_neither_followed_nor_replaced(chain, tmp_path):
    export(chain, tmp_path / "net")
    (tmp_path / "link").symlink_to("net")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("link", "dangling"):
        assert_is_refused(chain, tmp_path / name, "which already exists")
        words = "which is a symbolic link"
        assert_is_refused(chain, tmp_path / name, words, overwrite=True)
        assert (tmp_path / name).is_symlink()
    # Of the folders above, links may be.
    (tmp_path / "runs").mkdir()
    (tmp_path / "linked").symlink_to("runs")
    export(chain, tmp_path / "linked" / "net")
    assert os.listdir(tmp_path / "runs") == ["net"]
    below = tmp_path / "dangling" / "net"
    assert_is_refused(chain, below, f"below {str(tmp_path / 'dangling')!r}, which is not a folder")


@pytest.mark.parametrize("name", ["mine.txt", "checkpoints", ".hidden"])
def test_a_folder_with_more_than_a_saved_model_is_not_replaced(chain, tmp_path, name):
    path = tmp_path / "net"
    export(chain, path)
    (path / name).write_text("mine")
    assert_is_refused(chain, path, "which is something else", overwrite=True)
    (path / name).unlink()
    export(chain, path, overwrite=True)


def test_saved_models_of_others_are_replaced(chain, tmp_path):
    """All that TensorFlow and Keras write, assets too."""
    module = tf.Module()
    (tmp_path / "words").write_text("one\ntwo\n")
    module.words = tf.saved_model.Asset(str(tmp_path / "words"))
    tf.saved_model.save(module, str(tmp_path / "plain"))
    small_network().export(tmp_path / "keras", verbose=False)
    (tmp_path / "keras" / "keras_metadata.pb").write_bytes(b"")
    for name in ("plain", "keras"):
        export(chain, tmp_path / name, overwrite=True)
        assert tfr.chain(tmp_path / name).name == "small"


@pytest.mark.parametrize("path", [None, 3, b"net", "a\0b", pathlib.Path("a\0b"), ["net"]], ids=str)
def test_what_is_no_path(chain, path):
    with pytest.raises(ValueError, match=r"^Argument `path` must be a path.*Received: path="):
        export(chain, path)


def test_the_folder_of_the_process_is_not_replaced(chain, tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    for path in (".", ".."):
        for overwrite in (False, True):
            with pytest.raises(FileExistsError, match=r"`path` must be new.*Received: path="):
                export(chain, path, overwrite=overwrite)
    assert os.listdir(tmp_path) == ["in"]


@pytest.mark.parametrize("name", ["probing", "overwrite"])
def test_words_are_no_bools(chain, tmp_path, name):
    for value in ("no", 0, None):
        with pytest.raises(ValueError, match=rf"`{name}` must be a bool\. Received: {name}="):
            export(chain, tmp_path / "net", **{name: value})
    assert os.listdir(tmp_path) == []
    export(chain, tmp_path / "net", **{name: np.bool_(False)})


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


@pytest.mark.parametrize("probing", [False, True])
def test_what_no_saved_model_can_hold_leaves_nothing(tmp_path, probing):
    """No folder, and none above it."""
    with pytest.raises(ValueError, match=r"^Argument `net` must.*Received: net=with_table, which"):
        export(network_with(BareTable()), tmp_path / "new" / "net", probing=probing)
    assert os.listdir(tmp_path) == []


def test_a_network_that_no_saved_model_can_hold_is_not_trained(tmp_path):
    net = network_with(BareTable())
    net.compile("sgd", "sparse_categorical_crossentropy")
    before = net.get_weights()
    images, labels = np.ones((4, 4, 4, 1), "float32"), np.arange(4) % 3
    callback = tfr.callbacks.ExportForProbing(tmp_path / "series", every=2)
    with pytest.raises(ValueError, match=r"^Argument `net` must.*Received: net=with_table, which"):
        net.fit(images, labels, epochs=2, verbose=0, callbacks=[callback])
    for old, new in zip(before, net.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert os.listdir(tmp_path) == []
    net.fit(images, labels, verbose=0)
    assert not np.allclose(before[0], net.get_weights()[0])


class NotToBeMadeAgain(tf.saved_model.experimental.TrackableResource):
    """Does not say how the table is made where it is loaded."""


@pytest.mark.parametrize("there", ["there", ""])
def test_what_tensorflow_says_is_told_and_nothing_is_left(tmp_path, there):
    """No folder above either that was not there."""
    (tmp_path / there).mkdir(exist_ok=True)
    before = content_of(tmp_path)
    message = (
        r"^Argument `net` must.*TensorFlow says: .*_create_resource.*Received: net=with_table$"
    )
    with pytest.raises(ValueError, match=message):
        path = tmp_path / there / "new" / "newer" / "net"
        export(network_with(BareTable(NotToBeMadeAgain())), path, probing=False)
    assert content_of(tmp_path) == before


@pytest.mark.parametrize("name", ["n[1]", "n[1]/net", "a\\b", "[", "\udcff"])
def test_paths_that_tensorflow_cannot_open(chain, tmp_path, monkeypatch, name):
    """Absolute, relative, and where this process stands."""
    monkeypatch.chdir(tmp_path)
    for path in (tmp_path / name, name):
        with pytest.raises(ValueError, match=r"`path` must .* TensorFlow .*Received: path="):
            export(chain, path)
        with pytest.raises(ValueError, match=r"`folder` must .* TensorFlow .*Received: folder="):
            ExportForProbing(path)
    (tmp_path / "n[1]").mkdir()
    monkeypatch.chdir(tmp_path / "n[1]")
    with pytest.raises(ValueError, match=r"`path` must .* TensorFlow "):
        export(chain, "net")
    assert content_of(tmp_path) == {str(tmp_path / "n[1]"): False}


def test_a_path_to_which_it_was_moved_and_names_that_can_be_opened(chain, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    expected = chain(np.ones((2, *chain.input_shape)))
    for name in ("a*b?", "n]1", "~", "two words \n"):
        export(chain, name)
        for path in (name, tmp_path / name):
            np.testing.assert_allclose(
                tfr.chain(path)(np.ones((2, *chain.input_shape))), expected, rtol=1e-5
            )
    (tmp_path / "~").rename("n[1]")
    with pytest.raises(ValueError, match=r"must be a path that TensorFlow can open.*Rename it"):
        tfr.chain("n[1]")


def test_a_full_disk_leaves_nothing_and_loses_nothing(chain, tmp_path):
    export(chain, tmp_path / "net")
    before = content_of(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        for path in (tmp_path / "net", tmp_path / "new" / "net"):
            with pytest.raises(OSError, match=r"could not be written: .*Free some space") as raised:
                export(chain, path, overwrite=True)
            assert str(raised.value).startswith(repr(str(path)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert content_of(tmp_path) == before


def test_what_a_killed_export_left_is_put_right(chain, tmp_path, killed_while_writing):
    """Killed while it wrote, and between the two steps that exchange old and new."""
    export(chain, tmp_path / "net")
    (tmp_path / "sub").mkdir()
    half, exchanged = (
        killed_while_writing(tmp_path / name, "replacing_folder") for name in ("sub/other", "net")
    )
    (half / "variables").mkdir()
    half.parent.rename(tmp_path / half.parent.name)
    (tmp_path / "sub").rmdir()
    (tmp_path / "net").rename(exchanged)
    (exchanged.parent / ".replaced").mkdir()
    (exchanged.parent / ".replaced" / "saved_model.pb").write_text("old")
    # The new one was whole: without `overwrite` it stays.
    with pytest.raises(FileExistsError, match="which already exists"):
        export(chain, tmp_path / "net")
    assert [path.name for path in tmp_path.iterdir()] == ["net"]
    tfr.chain(tmp_path / "net")


def test_one_export_at_a_time(chain, tmp_path, elsewhere):
    with elsewhere(locked(tmp_path / "net", beside=True)):
        with pytest.raises(FolderInUseError, match=r"choose another `path`\. Received: path="):
            export(chain, tmp_path / "net")
        assert [path.name for path in tmp_path.iterdir()] == [".net.lock"]
        # Another one may be written next to it, and one inside it.
        export(chain, tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    export(chain, tmp_path / "net")


@pytest.fixture
def as_nobody():
    """A folder, in which this process may read only what everybody may."""
    if os.geteuid():
        pytest.skip("only root can be somebody else")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield pathlib.Path(folder), lambda: os.seteuid(65534)
        os.seteuid(0)


def test_what_may_not_be_read_is_not_called_damaged(chain, as_nobody):
    folder, become_nobody = as_nobody
    small_network().save(folder / "net.keras")
    export(chain, folder / "net")
    (folder / "net.keras").chmod(0o600)
    (folder / "net" / "assets.extra" / "tfresidual.json").chmod(0o600)
    become_nobody()
    for name in ("net.keras", "net"):
        with pytest.raises(PermissionError, match="Permission denied"):
            tfr.chain(folder / name)
