"""The series of SavedModels that a training leaves behind, in real fits."""

import copy
import json
import pathlib
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers

import tfresidual as tfr
from tfresidual import callbacks, probes
from tfresidual.layers import ResidualUnit
from tfresidual.machine.locks import LOCK, FolderInUseError
from tfresidual.saved_model import pieces, signatures
from tfresidual.saved_model.format import LAYOUT_FILE, series_of, series_path

pytestmark = [pytest.mark.eager, pytest.mark.system]

ExportForProbing = callbacks.ExportForProbing
IMAGES = np.random.default_rng(0).normal(size=(6, 4, 4, 1)).astype("float32")
LABELS = np.array([0, 2, 1, 2, 0, 1])


def network(seed=2):
    """Two blocks with a normalization, whose statistics move while it trains."""
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((4, 4, 1))
    state = layers.Conv2D(2, 3, padding="same")(inputs)
    for _ in range(2):
        branch = layers.BatchNormalization(momentum=0.5)(state)
        state = state + layers.Conv2D(2, 3, padding="same", activation="relu")(branch)
    state = layers.GlobalAveragePooling2D()(state)
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(state), name="small")
    model.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy")
    return model


def fit(model, chosen, epochs=1, **kwargs):
    chosen = chosen if isinstance(chosen, list) else [chosen]
    return model.fit(
        IMAGES, LABELS, batch_size=3, epochs=epochs, verbose=0, callbacks=chosen, **kwargs
    )


def names_in(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def of_epochs(*numbers):
    return [f"epoch{number:04d}" for number in numbers]


class Outputs(keras.callbacks.Callback):
    """What the network returns after every epoch; 0 is before the first."""

    def __init__(self):
        super().__init__()
        self.by_epoch = {}

    def on_train_begin(self, logs=None):
        self.by_epoch.setdefault(0, self.model(IMAGES, training=False).numpy())

    def on_epoch_end(self, epoch, logs=None):
        self.by_epoch[epoch + 1] = self.model(IMAGES, training=False).numpy()


@pytest.mark.compiled
def test_each_export_holds_the_weights_of_its_epoch(tmp_path):
    """All of them, in folders that were not there."""
    outputs = Outputs()
    folder = tmp_path / "runs" / "series"
    fit(network(), [outputs, ExportForProbing(str(folder), epochs=range(4))], epochs=3)
    assert names_in(folder) == of_epochs(0, 1, 2, 3)
    assert list(series_of(folder)) == [0, 1, 2, 3]
    for number, path in series_of(folder).items():
        assert path == series_path(folder, number) == folder / f"epoch{number:04d}"
        np.testing.assert_allclose(tfr.chain(path)(IMAGES), outputs.by_epoch[number], rtol=1e-5)
    assert not np.allclose(outputs.by_epoch[2], outputs.by_epoch[3], atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "epochs", "expected"),
    [
        ({}, 2, (1, 2)),
        ({"every": 2}, 3, (2,)),
        ({"epochs": [0]}, 1, (0,)),
        ({"epochs": (3, 1, 7, 1)}, 3, (1, 3)),
        ({"every": np.int64(2)}, 3, (2,)),
        ({"epochs": np.arange(1, 5, 2)}, 3, (1, 3)),
    ],
    ids=str,
)
def test_which_epochs(tmp_path, monkeypatch, settings, epochs, expected):
    """Without writing: what is written is tested above."""
    calls = count_exports(monkeypatch)
    fit(network(), ExportForProbing(tmp_path / "series", **settings), epochs)
    assert [path.name for path in calls] == of_epochs(*expected)


def test_every_so_many_epochs_of_a_shorter_training(tmp_path, monkeypatch):
    calls = count_exports(monkeypatch)
    with pytest.warns(
        UserWarning, match=r"every 5 epochs, but the training has only 3: nothing will be export"
    ):
        fit(network(), ExportForProbing(tmp_path / "series", every=5), epochs=3)
    with pytest.warns(UserWarning, match="only epochs 6 to 7: nothing will be exported"):
        fit(network(), ExportForProbing(tmp_path / "series", every=5), epochs=7, initial_epoch=5)
    assert calls == [] and names_in(tmp_path) == []


def test_epochs_that_do_not_come(tmp_path, monkeypatch):
    calls, model = count_exports(monkeypatch), network()
    before = model.get_weights()
    with pytest.raises(ValueError, match=r"`epochs` .*from 0 to 2\. Received: epochs=\[3, 99\]$"):
        fit(model, ExportForProbing(tmp_path / "series", epochs=[99, 3]), epochs=2)
    assert_untrained(model, before)
    assert calls == [] and names_in(tmp_path) == []
    # The epochs before a training that is resumed were its own.
    fit(model, ExportForProbing(tmp_path / "series", epochs=[1]), epochs=3, initial_epoch=2)
    assert calls == [] and names_in(tmp_path) == []


def test_two_trainings_into_one_folder(tmp_path):
    """The other process holds the folder as its own callback does."""
    script = (
        "import sys; from tfresidual.machine.locks import locked\n"
        f"with locked({str(tmp_path)!r}): print('held', flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    model = network()
    before = model.get_weights()
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(FolderInUseError, match=rf"process {other.pid} .*Received: folder="):
            fit(model, ExportForProbing(tmp_path), epochs=2)
        other.stdin.close()
    assert_untrained(model, before)
    assert names_in(tmp_path) == []


class Fails(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        raise RuntimeError("the training fails")


def test_the_folder_of_a_training_that_failed(tmp_path, monkeypatch):
    """The same callback lets go of it, and another one in the process may have it, too."""
    count_exports(monkeypatch)
    callback, model = ExportForProbing(tmp_path), network()
    with pytest.raises(RuntimeError, match="the training fails"):
        fit(model, [callback, Fails()])
    fit(model, copy.deepcopy(callback))
    fit(model, callback)
    assert names_in(tmp_path) == []


class RemovesTheFolder(keras.callbacks.Callback):
    def __init__(self, folder, fails=False):
        super().__init__()
        self.folder, self.fails = folder, fails

    def on_epoch_end(self, epoch, logs=None):
        shutil.rmtree(self.folder)
        if self.fails:
            raise RuntimeError("the training fails")


def test_a_folder_that_is_removed_during_training(tmp_path, monkeypatch):
    """The history of the training is not lost, and the callback can be used again."""
    count_exports(monkeypatch)
    model, folder = network(), tmp_path / "series"
    for on_error, fails in (("warn", False), ("raise", False), ("warn", True)):
        callback = ExportForProbing(folder, on_error=on_error)
        if on_error == "raise" or fails:
            with pytest.raises(RuntimeError if fails else FileNotFoundError):
                fit(model, [callback, RemovesTheFolder(folder, fails)])
        else:
            with pytest.warns(UserWarning, match="ExportForProbing failed.*was removed"):
                history = fit(model, [callback, RemovesTheFolder(folder)])
            assert len(history.history["loss"]) == 1
        fit(model, callback)
        assert names_in(folder) == []


def count_exports(monkeypatch):
    calls = []
    module = ExportForProbing.__module__
    assert module.endswith("export_for_probing")
    monkeypatch.setattr(f"{module}.export", lambda chain, path, overwrite: calls.append(path))
    return calls


def test_functions_are_compiled_once_for_the_series(tmp_path, monkeypatch):
    compiled = []
    inner = pieces.compile_function

    def counted(function, *specs):
        compiled.append(names_in(tmp_path))
        return inner(function, *specs)

    for module in (pieces, signatures):
        monkeypatch.setattr(module, "compile_function", counted)
    model = network()
    fit(model, ExportForProbing(tmp_path), epochs=3)
    assert names_in(tmp_path) == of_epochs(1, 2, 3)
    # All before the first one was there.
    assert len(compiled) > 5
    assert all(there == [LOCK] for there in compiled)
    layouts = [(path / LAYOUT_FILE).read_text() for path in series_of(tmp_path).values()]
    assert len(set(layouts)) == 1
    assert json.loads(layouts[0])["probing"]


@pytest.mark.nightly
def test_it_shares_the_chain_of_other_callbacks(tmp_path):
    """And what they measure after an epoch equals what is measured on its export."""
    model = network()
    measured = callbacks.BlockMetrics((IMAGES, LABELS))
    history = fit(model, [measured, ExportForProbing(tmp_path)], epochs=2).history
    for number, path in series_of(tmp_path).items():
        frame = probes.block_metrics(path, (IMAGES, LABELS))
        for row in frame.to_dict("records"):
            key = f"stage{row['stage']}/block{row['block']}/l2_ratio"
            assert history[key][number - 1] == pytest.approx(row["l2_ratio"], rel=1e-4)


def test_training_is_left_as_it_was(tmp_path):
    weights = []
    for chosen in ([], [ExportForProbing(tmp_path, epochs=[0, 1, 2])]):
        model = network()
        fit(model, chosen, epochs=2)
        weights.append(model.get_weights())
    for plain, exported in zip(*weights, strict=True):
        np.testing.assert_array_equal(plain, exported)


# What is there already


def mark_as_there(folder, *numbers):
    """What the series takes for an export."""
    for number in numbers:
        (series_path(folder, number) / LAYOUT_FILE).parent.mkdir(parents=True)
        (series_path(folder, number) / LAYOUT_FILE).write_text("{}")


def test_a_training_that_would_replace_an_export_does_not_begin(tmp_path):
    mark_as_there(tmp_path, 2, 3)
    model = network()
    before = model.get_weights()
    with pytest.raises(FileExistsError) as raised:
        fit(model, ExportForProbing(tmp_path), epochs=3)
    message = str(raised.value)
    assert message.startswith("Argument `folder` must hold no exports of the epochs to come")
    assert f"Received: folder={str(tmp_path)!r}, which holds those of epochs 2, 3" in message
    assert_untrained(model, before)
    assert names_in(tmp_path) == of_epochs(2, 3)


def assert_untrained(model, before):
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("below", ["", "series", "a/series"], ids=["itself", "parent", "above"])
def test_nothing_is_trained_where_the_folder_is_a_file(tmp_path, below):
    (tmp_path / "file").write_text("mine")
    model = network()
    before = model.get_weights()
    folder = tmp_path / "file" / below
    with pytest.raises(NotADirectoryError) as raised:
        fit(model, ExportForProbing(folder), epochs=2)
    message = str(raised.value)
    assert message.startswith("Argument `folder` must be a folder, or a path where one can be ")
    expected = f"Received: folder={str(folder)!r}, but {str(tmp_path / 'file')!r} is not a folder"
    assert message.endswith(expected)
    assert_untrained(model, before)
    assert (tmp_path / "file").read_text() == "mine"


def make_empty(path):
    path.mkdir()


def make_foreign(path):
    path.mkdir()
    (path / "mine").write_text("mine")


def make_file(path):
    path.write_text("mine")


def make_dangling(path):
    path.symlink_to("nowhere")


FOREIGN = (make_empty, make_foreign, make_file, make_dangling)


@pytest.mark.parametrize("make", FOREIGN)
def test_nothing_is_trained_where_a_later_export_has_no_room(tmp_path, make):
    make(tmp_path / "epoch0002")
    model = network()
    before = model.get_weights()
    with pytest.raises(FileExistsError, match=r"`folder`.*Received: folder=.*epochs 2$"):
        fit(model, ExportForProbing(tmp_path), epochs=2)
    assert_untrained(model, before)
    assert names_in(tmp_path) == of_epochs(2)


@pytest.mark.parametrize("make", FOREIGN[1:])
def test_nothing_is_trained_where_a_later_export_would_replace_something_else(tmp_path, make):
    make(tmp_path / "epoch0002")
    model = network()
    before = model.get_weights()
    with pytest.raises(FileExistsError, match=r"`folder`.*Received: folder=.* with epoch0002, whi"):
        fit(model, ExportForProbing(tmp_path, overwrite=True), epochs=2)
    assert_untrained(model, before)
    assert names_in(tmp_path) == of_epochs(2)


def test_exports_of_other_epochs_do_no_harm(tmp_path, monkeypatch):
    calls = count_exports(monkeypatch)
    mark_as_there(tmp_path, 0, 1, 3, 9)
    fit(network(), ExportForProbing(tmp_path, every=2), epochs=3)
    assert [path.name for path in calls] == of_epochs(2)


def test_overwrite_replaces_them(tmp_path):
    model, outputs = network(), Outputs()
    mark_as_there(tmp_path, 1)
    fit(model, [outputs, ExportForProbing(tmp_path, overwrite=True)])
    opened = tfr.chain(tmp_path / "epoch0001")
    np.testing.assert_allclose(opened(IMAGES), outputs.by_epoch[1], rtol=1e-5)
    assert names_in(tmp_path) == of_epochs(1)


# Trainings that resume


def test_a_training_that_goes_on_adds_to_the_series(tmp_path, monkeypatch):
    calls = count_exports(monkeypatch)
    mark_as_there(tmp_path, 1, 2)
    fit(network(), ExportForProbing(tmp_path), epochs=4, initial_epoch=2)
    assert [path.name for path in calls] == of_epochs(3, 4)


@pytest.mark.parametrize("settings", [{}, {"epochs": [0, 1, 2, 3]}], ids=["every", "epochs"])
def test_a_training_that_goes_on_elsewhere_begins_where_it_is(tmp_path, monkeypatch, settings):
    """There is no network before the first epoch to be exported."""
    calls = count_exports(monkeypatch)
    fit(network(), ExportForProbing(tmp_path, **settings), epochs=3, initial_epoch=2)
    assert [path.name for path in calls] == of_epochs(3)


def test_a_training_that_goes_on_is_refused_as_well(tmp_path):
    mark_as_there(tmp_path, 4)
    with pytest.raises(FileExistsError, match=r"which holds those of epochs 4$"):
        fit(network(), ExportForProbing(tmp_path), epochs=5, initial_epoch=2)


@pytest.mark.nightly
def test_it_is_used_for_a_second_training(tmp_path):
    """Of another model, which it is to export then."""
    callback = ExportForProbing(tmp_path, epochs=[1], overwrite=True)
    outputs = {}
    for seed in (2, 3):
        model = network(seed)
        fit(model, callback)
        outputs[seed] = model(IMAGES, training=False).numpy()
        np.testing.assert_allclose(
            tfr.chain(tmp_path / "epoch0001")(IMAGES), outputs[seed], rtol=1e-5
        )
    assert not np.allclose(outputs[2], outputs[3], atol=1e-3)


def test_a_second_training_of_the_same_callback_is_refused(tmp_path, monkeypatch):
    count_exports(monkeypatch)
    callback, model = ExportForProbing(tmp_path), network()
    fit(model, callback)
    mark_as_there(tmp_path, 1)
    with pytest.raises(FileExistsError):
        fit(model, callback)


# Copies and arguments


def test_deep_copies_work_as_the_callback_does(tmp_path):
    """keras-tuner copies callbacks before every trial."""
    callback = ExportForProbing(tmp_path / "a", every=3, overwrite=True)
    copied = copy.deepcopy(callback)
    assert (copied.folder, copied.every, copied.epochs) == (tmp_path / "a", 3, None)
    assert copied.overwrite
    callback = ExportForProbing(tmp_path / "b", epochs=[1])
    model, outputs = network(), Outputs()
    fit(model, [outputs, copy.deepcopy(callback)])
    assert names_in(tmp_path / "b") == of_epochs(1)
    np.testing.assert_allclose(
        tfr.chain(tmp_path / "b" / "epoch0001")(IMAGES), outputs.by_epoch[1], rtol=1e-5
    )


def test_a_copy_after_a_training(tmp_path, monkeypatch):
    calls = count_exports(monkeypatch)
    callback = ExportForProbing(tmp_path)
    fit(network(), callback)
    copied = copy.deepcopy(callback)
    fit(network(3), copied)
    assert [path.name for path in calls] == of_epochs(1, 1)


@pytest.mark.parametrize("every", [0, -1, 1.5, "2", True, None])
def test_bad_every(tmp_path, every):
    with pytest.raises(ValueError, match=rf"`every` must be.*Received: every={every!r}$"):
        ExportForProbing(tmp_path, every=every)


@pytest.mark.parametrize("folder", [None, 3, b"series", "a\0b"])
def test_bad_folders(folder):
    with pytest.raises(ValueError, match=r"`folder` must be a path.*Received: folder="):
        ExportForProbing(folder)


def test_bad_overwrite(tmp_path):
    with pytest.raises(ValueError, match=r"`overwrite` must be a bool\. Received: overwrite='no'$"):
        ExportForProbing(tmp_path, overwrite="no")


def test_every_and_epochs_exclude_one_another(tmp_path):
    with pytest.raises(ValueError, match=r"`every` and `epochs`.*Received: every=2, epochs=\[1\]$"):
        ExportForProbing(tmp_path, every=2, epochs=[1])


BAD_EPOCHS = [[], "12", 3, [1, -1], [1.0], [True], [None], {1: 2}, b"1", np.array(3), [np.nan]]


@pytest.mark.parametrize("epochs", BAD_EPOCHS)
def test_bad_epochs(tmp_path, epochs):
    with pytest.raises(ValueError, match=r"`epochs` must hold ints, 0 or more\. Received: epochs="):
        ExportForProbing(tmp_path, epochs=epochs)


def test_epochs_of_numpy_and_iterators(tmp_path):
    assert ExportForProbing(tmp_path, epochs=iter([1, 2])).epochs == {1, 2}
    assert ExportForProbing(tmp_path, epochs={4}).epochs == {4}


def test_a_network_that_has_no_chain_is_not_trained(tmp_path):
    inputs = keras.Input((4, 4, 1))
    plain = keras.Model(inputs, layers.Dense(3)(layers.Flatten()(inputs)))
    plain.compile("sgd", "sparse_categorical_crossentropy")
    before = plain.get_weights()
    with pytest.raises(ValueError, match=r"`source` must be.*Received: "):
        fit(plain, ExportForProbing(tmp_path / "series", every=2), epochs=4)
    assert_untrained(plain, before)
    assert names_in(tmp_path) == []
    # Where nothing is to be exported, nothing is in the way.
    with pytest.warns(UserWarning, match="nothing will be exported"):
        fit(plain, ExportForProbing(tmp_path / "series", every=2), epochs=1)


class FailsInGraph(layers.Layer):
    """Works while the model is built and trained, and not in a graph of its own."""

    def call(self, inputs, training=None):
        if not training:
            raise RuntimeError("no graph of this")
        return inputs

    def compute_output_spec(self, inputs, training=None):
        return keras.KerasTensor(inputs.shape, inputs.dtype)


def test_a_network_that_cannot_be_traced_is_not_trained(tmp_path):
    inner = network()
    inputs = keras.Input((4, 4, 1))
    model = keras.Model(inputs, inner(FailsInGraph()(inputs)))
    model.compile("sgd", "sparse_categorical_crossentropy")
    before = model.get_weights()
    with pytest.raises(RuntimeError, match="no graph of this"):
        fit(model, ExportForProbing(tmp_path, every=2), epochs=2)
    assert_untrained(model, before)
    assert names_in(tmp_path) == []


def test_a_network_that_is_built_by_its_first_batch(tmp_path):
    model = keras.Sequential(
        [
            layers.Conv2D(2, 3, padding="same"),
            ResidualUnit(2),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile("sgd", "sparse_categorical_crossentropy")
    assert not model.built
    fit(model, ExportForProbing(tmp_path), epochs=2)
    assert names_in(tmp_path) == of_epochs(1, 2)
    expected = model(IMAGES, training=False)
    np.testing.assert_allclose(tfr.chain(tmp_path / "epoch0002")(IMAGES), expected, rtol=1e-5)


# The folder of a series


def test_what_in_a_folder_is_a_series(tmp_path):
    assert series_of(tmp_path / "nothing") == series_of(tmp_path) == {}
    mark_as_there(tmp_path, 10, 2, 0, 12345)
    (tmp_path / "epoch0003").mkdir()
    (tmp_path / "epoch0004").write_text("a file")
    (tmp_path / "epochs").mkdir()
    (tmp_path / "epoch-1").mkdir()
    (tmp_path / "probes").mkdir()
    for name in ("epoch1", "epoch00002", "epoch012345"):
        (tmp_path / name / LAYOUT_FILE).parent.mkdir(parents=True)
        (tmp_path / name / LAYOUT_FILE).write_text("{}")
    assert list(series_of(tmp_path)) == [0, 2, 10, 12345]
    assert list(series_of(str(tmp_path)).values())[1] == tmp_path / "epoch0002"
    assert isinstance(series_path(str(tmp_path), 3), pathlib.Path)
