"""Trainings that write their folder, are interrupted, killed and gone on with.

Not covered: a machine that loses its power, two processes that train into one folder at once.
"""

import io
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile

import keras
import numpy as np
import pandas as pd
import processes
import pytest
import tensorflow as tf
from reference.unsafe_files import IN_WEIGHTS, change_weights, with_secret
from rich.console import Console
from training import small_training

from tfresidual import training
from tfresidual.training.checkpoints import GENERATORS, TrainingFolder

pytestmark = [pytest.mark.eager, pytest.mark.system]

EPOCHS = 3
STEPS = 4


# A dense network of milliseconds, for everything that does not depend on the network.


@pytest.fixture
def data():
    rng = np.random.default_rng(3)
    images = rng.normal(size=(STEPS * 8, 5)).astype("float32")
    labels = rng.integers(0, 3, STEPS * 8)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).batch(8)
    return dataset, dataset.take(2)


def dense_network(dtype="float32", dropout=0.4):
    keras.utils.set_random_seed(11)
    network = keras.Sequential(
        [
            keras.Input((5,)),
            keras.layers.Dense(8, activation="relu", dtype=dtype),
            keras.layers.BatchNormalization(dtype=dtype),
            keras.layers.Dropout(dropout, dtype=dtype),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    # The rate changes at steps 6 and 9, inside the second epoch and the third.
    training.compile_network(network, "mnist", EPOCHS, STEPS)
    return network


def train(folder, data, network=None, epochs=EPOCHS, **kwargs):
    network = network or dense_network()
    return training.train(network, *data, folder, epochs, "accuracy", **kwargs)


class Interruption(keras.callbacks.Callback):
    """Raises an error at a batch, or at the end, of an epoch."""

    def __init__(self, error, epoch, batch=None):
        super().__init__()
        self.error, self.where = error, (epoch, batch)

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.where == (self.epoch, batch):
            raise self.error

    def on_epoch_end(self, epoch, logs=None):
        if self.where == (epoch, None):
            raise self.error


def files_of(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


FILES = ["checkpoints/epoch-0002.keras", "log.csv", "model.keras"]


def variables_of(path):
    """Weights, statistics and the optimizer's state."""
    network = keras.saving.load_model(path)
    return [
        keras.ops.convert_to_numpy(variable)
        for variable in [*network.variables, *network.optimizer.variables]
        # Keras leaves it out of a .keras file; what dropout did shows in the weights.
        if variable.name != "seed_generator_state"
    ]


def assert_same_training(folder, expected):
    """Bit for bit the same state, best network and log."""
    assert files_of(folder) == files_of(expected) == FILES
    for name in ("checkpoints/epoch-0002.keras", "model.keras"):
        ours, theirs = variables_of(folder / name), variables_of(expected / name)
        assert len(ours) == len(theirs) > 6
        for one, other in zip(ours, theirs, strict=True):
            assert one.dtype == other.dtype
            np.testing.assert_array_equal(one, other)
    assert (folder / "log.csv").read_text() == (expected / "log.csv").read_text()


def test_files_and_log(tmp_path, data):
    result = train(tmp_path / "runs" / "one", data)
    assert files_of(tmp_path / "runs" / "one") == FILES
    log = pd.read_csv(tmp_path / "runs" / "one" / "log.csv")
    pd.testing.assert_frame_equal(log, result.log, check_exact=True)
    assert list(log["epoch"]) == [0, 1, 2]
    assert {"loss", "accuracy", "val_loss", "val_accuracy", "learning_rate"} <= set(log)
    # 12 steps: 0.025 for six of them, 0.01 for three, 0.004 for three.
    assert list(log["learning_rate"]) == pytest.approx([0.025, 0.025, 0.01])
    assert not log.isna().any(axis=None)


def test_the_result_is_the_network_of_the_best_epoch(tmp_path, data):
    weights, logged = [], []

    class Recorder(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            weights.append(self.model.get_weights())
            logged.append(logs["val_accuracy"])

    # It learns for three epochs, and is then thrown far away.
    network = dense_network(dropout=0)
    rates = keras.optimizers.schedules.PiecewiseConstantDecay([11], [0.2, 1000.0])
    network.compile(
        keras.optimizers.SGD(rates), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    result = train(tmp_path, data, network, epochs=6, callbacks=[Recorder()])
    best = int(np.argmax(logged))
    assert 0 < best < 5, "the training does not show what it should"
    assert (result.best_epoch, result.metric) == (best, "accuracy")
    for ours, theirs in zip(result.network.get_weights(), weights[best], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert result.network.compiled
    measured = result.network.evaluate(data[1], return_dict=True, verbose=0)
    assert measured["accuracy"] == pytest.approx(max(logged), abs=1e-6)
    saved = keras.saving.load_model(tmp_path / "model.keras")
    for ours, theirs in zip(saved.get_weights(), weights[best], strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ([0.1, 0.3, 0.2], 1),
        ([0.3, 0.1, 0.3], 0),  # the earliest of equals
        ([np.nan, 0.1, np.nan], 1),
        ([0.0, 0.0], 0),
    ],
)
def test_best_epoch_of_a_log(tmp_path, values, best):
    log = pd.DataFrame({"epoch": range(len(values)), "val_accuracy": values})
    assert TrainingFolder(tmp_path, "val_accuracy").best_epoch(log) == best


def test_a_log_of_nan_has_no_best_epoch(tmp_path):
    log = pd.DataFrame({"epoch": [0, 1], "val_accuracy": [np.nan, np.nan]})
    with pytest.raises(ValueError, match="diverged") as raised:
        TrainingFolder(tmp_path, "val_accuracy").best_epoch(log)
    assert "Received: 2 epochs" in str(raised.value)


def test_a_training_that_diverges_says_so(tmp_path, data):
    class Spoiled(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            logs["val_accuracy"] = float("nan")

    for _ in range(2):  # while it trains, and when it is read
        with pytest.raises(ValueError, match="diverged"):
            train(tmp_path, data, epochs=2, callbacks=[Spoiled()])
        assert list(pd.read_csv(tmp_path / "log.csv")["epoch"]) == [0, 1]
        assert not (tmp_path / "model.keras").exists()


def test_a_finished_training_is_read(tmp_path, data):
    first = train(tmp_path, data)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    class NoStep(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            raise AssertionError("it trains")

    again = train(tmp_path, data, callbacks=[NoStep()])
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert (again.best_epoch, again.metric) == (first.best_epoch, first.metric)
    pd.testing.assert_frame_equal(again.log, first.log, check_exact=True)
    for ours, theirs in zip(again.network.get_weights(), first.network.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A function that trains the dense network of a dtype once, without an interruption."""
    done = {}

    def get(data, dtype="float32", dropout=0.4):
        if (dtype, dropout) not in done:
            folder = tmp_path_factory.mktemp("whole")
            train(folder, data, dense_network(dtype, dropout))
            done[dtype, dropout] = folder
        return done[dtype, dropout]

    return get


@pytest.mark.parametrize(
    ("dtype", "dropout", "error", "epoch", "batch"),
    [
        pytest.param("float32", 0.0, KeyboardInterrupt, 1, 2, marks=pytest.mark.nightly),
        ("float32", 0.4, RuntimeError("out of memory"), 1, 2),
        ("float32", 0.4, KeyboardInterrupt, 1, None),
        ("mixed_bfloat16", 0.4, KeyboardInterrupt, 1, 2),
    ],
)
def test_an_interrupted_training_goes_on(
    tmp_path, data, uninterrupted, dtype, dropout, error, epoch, batch
):
    kind = error if isinstance(error, type) else type(error)
    with pytest.raises(kind):
        train(
            tmp_path,
            data,
            dense_network(dtype, dropout),
            callbacks=[Interruption(error, epoch, batch)],
        )
    expected = [f"checkpoints/epoch-{epoch - 1:04d}.keras", "log.csv", "model.keras"]
    assert files_of(tmp_path) == (expected if epoch else [])
    began = []
    seen = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: began.append(epoch))
    train(tmp_path, data, dense_network(dtype, dropout), callbacks=[seen])
    assert began == list(range(epoch, EPOCHS))
    assert_same_training(tmp_path, uninterrupted(data, dtype, dropout))


def test_interrupted_in_every_epoch(tmp_path, data, uninterrupted):
    for epoch in range(EPOCHS):
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path, data, callbacks=[Interruption(KeyboardInterrupt, epoch, 3)])
    train(tmp_path, data)
    assert_same_training(tmp_path, uninterrupted(data))


def test_more_epochs_are_added_to_a_finished_training(tmp_path, data):
    first = train(tmp_path, data, epochs=2)
    (tmp_path / "checkpoints" / "epoch-best.keras").write_text("mine")
    result = train(tmp_path, data, epochs=4)
    assert (tmp_path / "checkpoints" / "epoch-best.keras").read_text() == "mine"
    assert list(result.log["epoch"]) == [0, 1, 2, 3]
    pd.testing.assert_frame_equal(result.log[:2], first.log, check_exact=True)
    assert files_of(tmp_path)[0] == "checkpoints/epoch-0003.keras"


def test_a_key_that_is_nan_at_first_keeps_its_column(tmp_path, data, recwarn):
    class Every(keras.callbacks.Callback):
        """An int in every second epoch, as the callbacks of the package publish depths."""

        def on_epoch_end(self, epoch, logs=None):
            logs["depth"] = 7 if epoch % 2 else float("nan")

    train(tmp_path / "whole", data, callbacks=[Every()])
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "two", data, callbacks=[Every(), Interruption(KeyboardInterrupt, 1, 1)])
    train(tmp_path / "two", data, callbacks=[Every()])
    logs = [pd.read_csv(tmp_path / name / "log.csv") for name in ("whole", "two")]
    assert logs[0]["depth"].tolist() == pytest.approx([np.nan, 7, np.nan], nan_ok=True)
    pd.testing.assert_frame_equal(*logs, check_exact=True)


def test_a_checkpoint_that_leads_elsewhere(tmp_path, data):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", data, callbacks=[Interruption(KeyboardInterrupt, 1, 1)])
    path = tmp_path / "run" / "checkpoints" / "epoch-0000.keras"
    change_weights(path, IN_WEIGHTS["external_data"], with_secret(tmp_path / "secret.h5"))
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"not opened: .*Received: path="):
        train(tmp_path / "run", data)
    assert path.read_bytes() == before


def test_leftovers_of_a_kill_do_no_harm(tmp_path, data, uninterrupted, killed_while_writing):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, data, callbacks=[Interruption(KeyboardInterrupt, 2, 1)])
    newest = tmp_path / "checkpoints" / "epoch-0001.keras"
    half = newest.read_bytes()[:1000]
    # Half-written files, an older checkpoint, a row without its checkpoint, no best network.
    left = killed_while_writing
    for name in ("checkpoints/epoch-0002.keras", "model.keras", "log.csv"):
        left(tmp_path / name).write_bytes(half)
    (tmp_path / "checkpoints" / "epoch-0000.keras").write_bytes(half)
    row = (tmp_path / "log.csv").read_text().splitlines()[-1]
    with (tmp_path / "log.csv").open("a") as file:
        file.write("2" + row[1:] + "\n")
    train(tmp_path, data)
    # They are taken away, too: killed often, a folder would grow without end.
    assert_same_training(tmp_path, uninterrupted(data))


def test_the_best_network_is_made_again_from_its_checkpoint(tmp_path, data, uninterrupted):
    best = int(pd.read_csv(uninterrupted(data) / "log.csv")["val_accuracy"].idxmax())
    if best == EPOCHS - 1:
        train(tmp_path, data)
    else:
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path, data, callbacks=[Interruption(KeyboardInterrupt, best + 1, 0)])
    # As a kill between the checkpoint and the network leaves it.
    (tmp_path / "model.keras").unlink()
    train(tmp_path, data)
    assert_same_training(tmp_path, uninterrupted(data))


def without_generators(path):
    """What `model.save` alone writes: dropout would not resume where it stopped."""
    content = io.BytesIO()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(content, "w") as copy:
        for name in archive.namelist():
            if name != GENERATORS:
                copy.writestr(name, archive.read(name))
    return content.getvalue()


def test_a_damaged_checkpoint_is_named(tmp_path, data):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, data, callbacks=[Interruption(KeyboardInterrupt, 1, 0)])
    path = tmp_path / "checkpoints" / "epoch-0000.keras"
    whole = path.read_bytes()
    damaged = {"truncated": whole[: len(whole) // 2], "empty": b"", "no zip": b"x" * 2000}
    damaged["no states of dropout"] = without_generators(path)
    for kind, content in damaged.items():
        path.write_bytes(content)
        before = contents(tmp_path)
        # The only checkpoint: nothing older to go back to, and nobody asked to start again.
        with pytest.raises(ValueError, match="damaged") as raised:
            train(tmp_path, data)
        assert str(raised.value).split("Received: ")[1].strip() == f"path={str(path)!r}", kind
        assert contents(tmp_path) == before, kind
    path.write_bytes(whole)
    train(tmp_path, data)


@pytest.mark.parametrize("content", [None, "", "epoch,loss\n"])
def test_a_checkpoint_without_its_log_is_an_error_that_says_so(tmp_path, data, content):
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, data, callbacks=[Interruption(KeyboardInterrupt, 1, 0)])
    if content is None:
        (tmp_path / "log.csv").unlink()
    else:
        (tmp_path / "log.csv").write_text(content)
    with pytest.raises(ValueError, match=r"log\.csv.*Received: "):
        train(tmp_path, data)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def with_cell(row, column, value):
    """A function that puts a value into a log, as text."""

    def change(text):
        lines = [line.split(",") for line in text.splitlines()]
        lines[row][lines[0].index(column)] = value
        return "".join(",".join(line) + "\n" for line in lines)

    return change


DAMAGED_LOGS = {
    "binary": lambda text: "\udcff\udcfe" + text,
    "a null character": lambda text: text[:-30] + "\0" + text[-29:],
    "empty": lambda text: "",
    "a header alone": lambda text: text.splitlines()[0] + "\n",
    "no monitored column": lambda text: text.replace("val_accuracy", "val_exact_match"),
    "no epochs": lambda text: text.replace("epoch", "step"),
    "text as the metric": with_cell(1, "val_accuracy", "good"),
    "text as another metric": with_cell(2, "loss", "low"),
    "text as an epoch": with_cell(2, "epoch", "first"),
    "an epoch is missing": lambda text: "".join(text.splitlines(True)[:2]),
    "cut in the last row": lambda text: text[:-60],
    "cut in the last cell": lambda text: text[:-3],
    "cut before the last line ends": lambda text: text[:-1],
    "a cell more": lambda text: text[:-1] + ",7\n",
    "a row that is cut in the middle": lambda text: "\n".join(
        line[:25] if number == 1 else line for number, line in enumerate(text.split("\n"))
    ),
}


@pytest.mark.parametrize("kind", DAMAGED_LOGS)
def test_a_damaged_log_is_named_and_stays(tmp_path, data, uninterrupted, kind):
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted(data), folder)
    text = (folder / "log.csv").read_text()
    damaged = DAMAGED_LOGS[kind](text)
    (folder / "log.csv").write_bytes(damaged.encode(errors="surrogateescape"))
    before = contents(folder)
    with pytest.raises(ValueError, match=r"log\.csv .*Put it back.*Received: path=") as raised:
        train(folder, data)
    assert str(raised.value).endswith(f"path={str(folder / 'log.csv')!r}")
    assert contents(folder) == before


def test_a_log_with_a_column_of_text_is_whole(tmp_path, data, uninterrupted):
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted(data), folder)
    lines = (folder / "log.csv").read_text().splitlines()
    cells = ["phase", "first", "second", "second"]
    text = "".join(f"{line},{cell}\n" for line, cell in zip(lines, cells, strict=True))
    (folder / "log.csv").write_text(text)
    train(folder, data)
    assert (folder / "log.csv").read_text() == text


def changed_archive(path, name, content):
    """Rewrites a file in an archive; the archive is intact."""
    with zipfile.ZipFile(path) as archive:
        files = {member: archive.read(member) for member in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for member, before in files.items():
            archive.writestr(member, content if member == name else before)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", "{"),
        ("config.json", "null"),
        ("config.json", '{"module": "keras", "class_name": "Nothing", "config": {}}'),
        ("model.weights.h5", "no weights"),
        ("tfresidual-generators.json", "[[1"),
        ("tfresidual-generators.json", "[]"),
    ],
)
def test_a_checkpoint_that_keras_cannot_open_is_named(tmp_path, data, uninterrupted, name, content):
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted(data), folder)
    (path,) = (folder / "checkpoints").iterdir()
    changed_archive(path, name, content)
    before = contents(folder)
    with pytest.raises(ValueError, match=r"epoch-0002\.keras is damaged: .* another f") as raised:
        train(folder, data)
    assert str(raised.value).endswith(f"Received: path={str(path)!r}")
    assert "\n" not in str(raised.value)
    assert contents(folder) == before


@pytest.mark.parametrize("kind", ["missing", "cut", "not opened"])
def test_a_lost_best_network_is_named(tmp_path, data, uninterrupted, kind):
    """Only where it is of an epoch before the newest: else the checkpoint has it."""
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted(data), folder)
    text = with_cell(1, "val_accuracy", "1.0")((folder / "log.csv").read_text())
    text = with_cell(2, "val_accuracy", "0.5")(text)
    (folder / "log.csv").write_text(with_cell(3, "val_accuracy", "0.5")(text))
    path = folder / "model.keras"
    train(folder, data)
    if kind == "missing":
        path.unlink()
    elif kind == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    else:
        changed_archive(path, "config.json", "{")
    before = contents(folder)
    with pytest.raises((ValueError, FileNotFoundError), match="Put it back") as raised:
        train(folder, data)
    assert str(raised.value).endswith(f"Received: path={str(path)!r}")
    assert contents(folder) == before


def test_a_training_without_its_checkpoints_is_not_begun_anew(tmp_path, data, uninterrupted):
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted(data), folder)
    shutil.rmtree(folder / "checkpoints")
    before = contents(folder)
    with pytest.raises(ValueError, match=r"no checkpoint of it.*Received: path="):
        train(folder, data)
    (folder / "model.keras").unlink()
    with pytest.raises(ValueError, match=r"no checkpoint of it.*Received: path="):
        train(folder, data)
    assert contents(folder).items() <= before.items()
    # As a kill before the first checkpoint leaves it.
    lines = (folder / "log.csv").read_text().splitlines(True)
    (folder / "log.csv").write_text("".join(lines[:2]))
    train(folder, data)
    assert_same_training(folder, uninterrupted(data))


def test_a_file_that_cannot_be_read_is_not_called_damaged(tmp_path, data, uninterrupted):
    folder = tmp_path / "run"
    shutil.copytree(uninterrupted(data), folder)
    (folder / "log.csv").unlink()
    (folder / "log.csv").mkdir()
    with pytest.raises(IsADirectoryError):
        train(folder, data)


@pytest.mark.parametrize("epochs", [0, -1, 2.0, "3", None])
def test_epochs_are_a_positive_int(tmp_path, data, epochs):
    with pytest.raises(ValueError, match="`epochs`") as raised:
        train(tmp_path / "new", data, epochs=epochs)
    assert str(raised.value).endswith(f"Received: epochs={epochs!r}")
    assert not (tmp_path / "new").exists()


def test_a_metric_that_is_not_compiled_is_an_error(tmp_path, data):
    with pytest.raises(ValueError, match="`metric`") as raised:
        training.train(dense_network(), *data, tmp_path / "new", EPOCHS, "f1")
    assert str(raised.value).endswith("Received: metric='f1'")


def test_a_network_that_is_not_compiled_is_an_error(tmp_path, data):
    network = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    with pytest.raises(ValueError, match="compile"):
        train(tmp_path / "new", data, network)
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    ("arguments", "received"),
    [
        (("nope", 1, 1), "name='nope'"),
        (("mnist", 0, 1), "epochs=0"),
        (("mnist", 1, 0), "steps_per_epoch=0"),
    ],
)
def test_compile_network_checks_its_arguments(arguments, received):
    network = dense_network()
    with pytest.raises(ValueError, match="must be") as raised:
        training.compile_network(network, *arguments)
    assert str(raised.value).endswith(f"Received: {received}")


def test_compile_network():
    network = dense_network()
    assert training.compile_network(network, "mnist", 3, 5) == "accuracy"
    assert network.loss == "sparse_categorical_crossentropy"
    assert training.compile_network(network, "cifar10", 3, 5, multi_label=True) == "exact_match"
    labels, outputs = np.array([[1.0, 0.0]]), np.array([[0.5, 0.5]])
    assert float(network.loss(labels, outputs)) == pytest.approx(2 * np.log(2))
    assert float(network.optimizer.learning_rate) == pytest.approx(0.1)


def test_progress_on_a_console(tmp_path, data):
    written = io.StringIO()
    console = Console(file=written, width=120, force_terminal=False)
    with pytest.raises(KeyboardInterrupt):
        train(
            tmp_path,
            data,
            callbacks=[Interruption(KeyboardInterrupt, 1, 1)],
            console=console,
        )
    result = train(tmp_path, data, console=console)
    lines = [line for line in written.getvalue().splitlines() if line.strip()]
    for epoch, line in enumerate(lines):
        assert re.match(rf"epoch +{epoch + 1} of {EPOCHS} ", line)
        shown = dict(re.findall(r"(\w+) (\d+\.\d+)", line))
        assert set(shown) == {"loss", "accuracy", "val_loss", "val_accuracy"}
        for key, value in shown.items():
            assert float(value) == pytest.approx(result.log[key][epoch], abs=5e-5)
    assert len(lines) == EPOCHS


def test_an_interruption_stops_the_progress_bar(tmp_path, data):
    before = set(threading.enumerate())
    console = Console(file=io.StringIO(), width=120, force_terminal=True)
    with pytest.raises(KeyboardInterrupt):
        train(
            tmp_path,
            data,
            callbacks=[Interruption(KeyboardInterrupt, 0, 1)],
            console=console,
        )
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=5)
        assert not thread.is_alive(), thread
    assert console._live_stack == []


# A residual network on Digitclutter, with the callbacks of a study, in killed processes.


@pytest.fixture(scope="module")
def clutter(tmp_path_factory):
    return tmp_path_factory.mktemp("clutter")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, clutter):
    """The training without an interruption, in this process."""
    folder = tmp_path_factory.mktemp("whole")
    small_training.train(folder, clutter)
    return folder


def run_processes(clutter, folder, *moments):
    """Runs small_training.py; returns the exit codes."""
    result = processes.run(pathlib.Path(small_training.__file__), clutter, folder, *moments)
    lines = result.stdout.splitlines()
    assert len(lines) == len(moments), result.stderr
    return [int(line.split(" ")[1]) for line in lines]


@pytest.mark.nightly
def test_a_seeded_training_repeats_in_another_process(tmp_path, clutter, whole):
    assert run_processes(clutter, tmp_path, "never") == [0]
    assert_same_training(tmp_path / "0", whole)


# Every step of the writing of the second epoch; those between two files in every submission.
@pytest.mark.parametrize(
    "moment",
    [
        "rename:epoch-0001.keras:1",
        "rename:model.keras:1",
        pytest.param("rename:log.csv:2", marks=pytest.mark.nightly),
        pytest.param("open:.epoch-0001:1", marks=pytest.mark.nightly),
        pytest.param("remove:epoch-0000.keras:1", marks=pytest.mark.nightly),
    ],
)
def test_a_killed_training_goes_on(tmp_path, clutter, whole, moment):
    assert run_processes(clutter, tmp_path, moment) == [-signal.SIGKILL]
    folder = tmp_path / "0"
    assert files_of(folder) != FILES
    small_training.train(folder, clutter)
    assert_same_training(folder, whole)
    log = pd.read_csv(folder / "log.csv")
    assert list(log["epoch"]) == [0, 1, 2]
    assert "stage1/block0/cosine_loss" in log
    assert not log.isna().any(axis=None)


@pytest.mark.nightly
def test_mixed_precision_goes_on(tmp_path, clutter):
    small_training.train(tmp_path / "whole", clutter, "mixed_bfloat16")
    with pytest.raises(KeyboardInterrupt):
        small_training.train(
            tmp_path / "two",
            clutter,
            "mixed_bfloat16",
            [Interruption(KeyboardInterrupt, 1, 1)],
        )
    result = small_training.train(tmp_path / "two", clutter, "mixed_bfloat16")
    assert_same_training(tmp_path / "two", tmp_path / "whole")
    assert {layer.compute_dtype for layer in result.network.layers} == {"bfloat16", "float32"}
    assert {variable.dtype for variable in result.network.trainable_variables} == {"float32"}


@pytest.mark.nightly
def test_killed_again_and_again_at_any_moment(tmp_path, clutter, whole):
    """Kills by the clock, each a little after the start or after a new checkpoint."""
    rng = random.Random(5)
    command = [sys.executable, small_training.__file__, str(clutter), str(tmp_path), "never"]
    folder = tmp_path / "0"
    checkpoints = folder / "checkpoints"
    kills = 0
    for _ in range(8):
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        seen = set(checkpoints.glob("epoch-*")) if checkpoints.exists() else set()
        while process.poll() is None:
            now = set(checkpoints.glob("epoch-*")) if checkpoints.exists() else set()
            if now - seen:
                break
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.05))
        if process.poll() is None:
            # The whole group: the training is the child of the process.
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
        process.wait()
    assert kills > 0
    small_training.train(folder, clutter)
    assert_same_training(folder, whole)
