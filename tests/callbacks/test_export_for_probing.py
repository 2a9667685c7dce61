"""The series of SavedModels that a training leaves behind, in real fits."""

import subprocess
import sys

import keras
import numpy as np
import pytest
from keras import layers
from reference.unchanged import assert_same, unchanged

import tfresidual as tfr
from tfresidual import callbacks
from tfresidual.machine.locks import FolderInUseError
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
    monkeypatch.setattr(f"{module}.export", lambda chain, path, **options: calls.append(path))
    return calls


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
