"""The series of SavedModels that a training leaves behind, in real fits."""

import copy
import json
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers
from reference.unchanged import assert_same, unchanged
from refusals import refused

import tfresidual as tfr
from tfresidual import callbacks
from tfresidual.layers import ResidualUnit
from tfresidual.machine.locks import LOCK, FolderInUseError
from tfresidual.sources.saved_model import pieces, signatures
from tfresidual.sources.saved_model.format import LAYOUT_FILE, series_of, series_path

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


@pytest.mark.sampled(3)
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
    is_refused(model, ExportForProbing(tmp_path / "series", epochs=[99, 3]), "epochs", epochs=2)
    # The epochs before a training that is resumed were its own.
    fit(model, ExportForProbing(tmp_path / "series", epochs=[1]), epochs=3, initial_epoch=2)
    assert calls == [] and names_in(tmp_path) == []


def is_refused(model, callback, name, kind=ValueError, **kwargs):
    """A training that does not begin."""
    with unchanged(model), pytest.raises(kind, match=r"(?s)Received: ") as caught:
        fit(model, callback, **kwargs)
    assert f"`{name}`" in str(caught.value)
    return str(caught.value)


def test_two_trainings_into_one_folder(tmp_path):
    """The other process holds the folder as its own callback does."""
    script = (
        "import sys; from tfresidual.machine.locks import locked\n"
        f"with locked({str(tmp_path)!r}): print('held', flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as other:
        assert other.stdout.readline() == b"held\n"
        callback = ExportForProbing(tmp_path)
        is_refused(network(), callback, "folder", FolderInUseError, epochs=2)
        other.stdin.close()
    assert names_in(tmp_path) == []


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


def test_training_is_left_as_it_was(tmp_path):
    weights = []
    for chosen in ([], [ExportForProbing(tmp_path, epochs=[0, 1, 2])]):
        model = network()
        fit(model, chosen, epochs=2)
        weights.append(model.get_weights())
    assert_same(*weights)


# What is there already


def mark_as_there(folder, *numbers):
    """What the series takes for an export."""
    for number in numbers:
        (series_path(folder, number) / LAYOUT_FILE).parent.mkdir(parents=True)
        (series_path(folder, number) / LAYOUT_FILE).write_text("{}")


def test_a_training_that_would_replace_an_export_does_not_begin(tmp_path):
    mark_as_there(tmp_path, 2, 3)
    text = is_refused(network(), ExportForProbing(tmp_path), "folder", FileExistsError, epochs=3)
    assert text.endswith("which holds those of epochs 2, 3")
    assert names_in(tmp_path) == of_epochs(2, 3)
    mark_as_there(tmp_path, 5)
    kwargs = {"epochs": 6, "initial_epoch": 3}
    is_refused(network(), ExportForProbing(tmp_path), "folder", FileExistsError, **kwargs)


def make_foreign(path):
    path.mkdir()
    (path / "mine").write_text("mine")


FOREIGN = {
    "empty": lambda path: path.mkdir(),
    "foreign": make_foreign,
    "file": lambda path: path.write_text("mine"),
    "dangling": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize(
    ("name", "overwrite"),
    [*((name, False) for name in FOREIGN), *((name, True) for name in list(FOREIGN)[1:])],
)
def test_nothing_is_trained_where_a_later_export_has_no_room(tmp_path, name, overwrite):
    """Or where it would replace something else than an empty folder."""
    FOREIGN[name](tmp_path / "epoch0002")
    callback = ExportForProbing(tmp_path, overwrite=overwrite)
    is_refused(network(), callback, "folder", FileExistsError, epochs=2)
    assert names_in(tmp_path) == of_epochs(2)


def test_overwrite_replaces_them(tmp_path):
    model, outputs = network(), Outputs()
    mark_as_there(tmp_path, 1)
    fit(model, [outputs, ExportForProbing(tmp_path, overwrite=True)])
    opened = tfr.chain(tmp_path / "epoch0001")
    np.testing.assert_allclose(opened(IMAGES), outputs.by_epoch[1], rtol=1e-5)
    assert names_in(tmp_path) == of_epochs(1)


# Trainings that resume


@pytest.mark.sampled(2)
@pytest.mark.parametrize("settings", [{}, {"epochs": [0, 1, 2, 3, 4]}], ids=["every", "epochs"])
@pytest.mark.parametrize("there", [(), (1, 2)], ids=["elsewhere", "there"])
def test_a_training_that_goes_on_adds_to_the_series(tmp_path, monkeypatch, settings, there):
    """There is no network before the first epoch to be exported."""
    calls = count_exports(monkeypatch)
    mark_as_there(tmp_path, *there)
    fit(network(), ExportForProbing(tmp_path, **settings), epochs=4, initial_epoch=2)
    assert [path.name for path in calls] == of_epochs(3, 4)


# Copies and arguments


def test_deep_copies_work_as_the_callback_does(tmp_path):
    """keras-tuner copies callbacks before every trial."""
    callback = ExportForProbing(tmp_path / "a", every=3, overwrite=True)
    copied = copy.deepcopy(callback)
    assert (copied.folder, copied.every, copied.epochs) == (tmp_path / "a", 3, None)
    assert copied.overwrite
    callback = ExportForProbing(tmp_path / "b", epochs=[1])
    model, outputs = network(), Outputs()
    copied = copy.deepcopy(callback)
    fit(model, [outputs, copied])
    assert names_in(tmp_path / "b") == of_epochs(1)
    np.testing.assert_allclose(
        tfr.chain(tmp_path / "b" / "epoch0001")(IMAGES), outputs.by_epoch[1], rtol=1e-5
    )


BAD = {
    "every": (0, -1, 1.5, "2", True, None),
    "folder": (None, 3, b"series", "a\0b", "a[b]"),
    "overwrite": ("no",),
    "epochs": ([], "12", 3, [1, -1], [1.0], [True], [None], {1: 2}, b"1", np.array(3), [np.nan]),
}


def test_bad_arguments(tmp_path):
    for name, values in BAD.items():
        for value in values:
            with refused(name):
                ExportForProbing(**{"folder": tmp_path} | {name: value})
    with refused("every", "epochs"):
        ExportForProbing(tmp_path, every=2, epochs=[1])


def test_a_network_that_has_no_chain_is_not_trained(tmp_path):
    inputs = keras.Input((4, 4, 1))
    plain = keras.Model(inputs, layers.Dense(3)(layers.Flatten()(inputs)))
    plain.compile("sgd", "sparse_categorical_crossentropy")
    is_refused(plain, ExportForProbing(tmp_path / "series", every=2), "source", epochs=4)
    assert names_in(tmp_path) == []
    # Where nothing is to be exported, nothing is in the way.
    with pytest.warns(UserWarning, match="nothing will be exported"):
        fit(plain, ExportForProbing(tmp_path / "series", every=2), epochs=1)


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
