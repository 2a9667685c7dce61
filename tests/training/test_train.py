"""Trainings that write their folder, are interrupted, killed and resumed.

Not covered: a machine that loses its power.
"""

import io
import pathlib
import re
import shutil
import signal

import keras
import numpy as np
import pandas as pd
import processes
import pytest
import tensorflow as tf
from refusals import refused
from rich.console import Console
from training import small_training

from tfresidual import training

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
    training.compile_network(network, "mnist", epochs=EPOCHS, steps_per_epoch=STEPS)
    return network


def train(folder, data, network=None, epochs=EPOCHS, metric="accuracy", **kwargs):
    network = network or dense_network()
    return training.train(network, *data, folder=folder, epochs=epochs, metric=metric, **kwargs)


class Interruption(keras.callbacks.Callback):
    """Raises an error at a batch, or at the end, of an epoch."""

    def __init__(self, epoch, batch=None, error=KeyboardInterrupt):
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


def interrupted(folder, data, epoch, batch=None, network=None, error=KeyboardInterrupt, **kwargs):
    """Trains until an interruption."""
    others = kwargs.pop("callbacks", [])
    callbacks = [*others, Interruption(epoch, batch, error)]
    with pytest.raises(error):
        train(folder, data, network, callbacks=callbacks, **kwargs)


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def files_of(folder):
    return sorted(str(path.relative_to(folder)) for path in contents(folder))


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


def assert_same_weights(network, weights):
    for ours, theirs in zip(network.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_files_and_log(tmp_path, data):
    result = train(tmp_path / "runs" / "one", data)
    assert files_of(tmp_path / "runs" / "one") == FILES
    log = pd.read_csv(tmp_path / "runs" / "one" / "log.csv")
    pd.testing.assert_frame_equal(log, result.log, check_exact=True)
    assert list(log["epoch"]) == [0, 1, 2]
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} <= set(log)
    # 12 steps: 0.025 for six of them, 0.01 for three, 0.004 for three.
    assert list(log["learning_rate"]) == pytest.approx([0.025, 0.025, 0.01])
    assert not log.isna().any(axis=None)


@pytest.mark.compiled
@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_the_result_is_the_network_of_the_best_epoch(tmp_path, data):
    weights, logged = [], []
    # Of unknown length, in batches of fixed size.
    validation = data[1].rebatch(8, drop_remainder=True)

    def record(epoch, logs):
        weights.append(network.get_weights())
        logged.append(logs["val_accuracy"])

    # It learns for three epochs, and is then thrown far away.
    network = dense_network(dropout=0)
    rates = keras.optimizers.schedules.PiecewiseConstantDecay([11], [0.2, 1000.0])
    network.compile(
        keras.optimizers.SGD(rates), "sparse_categorical_crossentropy", metrics=["accuracy"]
    )
    recorder = keras.callbacks.LambdaCallback(on_epoch_end=record)
    result = train(tmp_path, (data[0], validation), network, epochs=6, callbacks=[recorder])
    best = int(np.argmax(logged))
    assert 0 < best < 5, "the training does not show what it should"
    assert (result.best_epoch, result.metric) == (best, "accuracy")
    assert_same_weights(result.network, weights[best])
    assert_same_weights(keras.saving.load_model(tmp_path / "model.keras"), weights[best])
    measured = result.network.evaluate(data[1], return_dict=True, verbose=0)
    assert measured["accuracy"] == pytest.approx(max(logged), abs=1e-6)


def test_a_training_that_diverges_says_so(tmp_path, data):
    def spoil(epoch, logs):
        logs["val_accuracy"] = float("nan")

    spoiled = keras.callbacks.LambdaCallback(on_epoch_end=spoil)
    for _ in range(2):  # while it trains, and when it is read
        with pytest.raises(ValueError, match=r"diverged. Received: 2 epochs"):
            train(tmp_path, data, epochs=2, callbacks=[spoiled])
        assert list(pd.read_csv(tmp_path / "log.csv")["epoch"]) == [0, 1]
        assert not (tmp_path / "model.keras").exists()


def test_a_finished_training_is_read(tmp_path, data):
    first = train(tmp_path, data)
    before = contents(tmp_path)
    again = train(tmp_path, data, callbacks=[Interruption(0, 0, AssertionError)])
    assert contents(tmp_path) == before
    assert (again.best_epoch, again.metric) == (first.best_epoch, first.metric)
    pd.testing.assert_frame_equal(again.log, first.log, check_exact=True)
    assert_same_weights(again.network, first.network.get_weights())


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A function that trains the dense network of a dtype once, without an interruption."""
    done = {}

    def get(data, dtype="float32"):
        if dtype not in done:
            done[dtype] = tmp_path_factory.mktemp("whole")
            train(done[dtype], data, dense_network(dtype))
        return done[dtype]

    return get


@pytest.fixture
def run(tmp_path, data, uninterrupted):
    """A finished training."""
    return shutil.copytree(uninterrupted(data), tmp_path / "run")


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("dtype", "error", "epoch", "batch"),
    [
        ("float32", RuntimeError, 1, 2),
        ("float32", KeyboardInterrupt, 1, None),
        ("mixed_bfloat16", KeyboardInterrupt, 1, 2),
    ],
)
def test_an_interrupted_training_resumes(tmp_path, data, uninterrupted, dtype, error, epoch, batch):
    interrupted(tmp_path, data, epoch, batch, dense_network(dtype), error)
    assert files_of(tmp_path) == [
        f"checkpoints/epoch-{epoch - 1:04d}.keras",
        "log.csv",
        "model.keras",
    ]
    began = []
    seen = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: began.append(epoch))
    train(tmp_path, data, dense_network(dtype), callbacks=[seen])
    assert began == list(range(epoch, EPOCHS))
    assert_same_training(tmp_path, uninterrupted(data, dtype))


def test_more_epochs_are_added_to_a_finished_training(tmp_path, data):
    first = train(tmp_path, data, epochs=2)
    (tmp_path / "checkpoints" / "epoch-best.keras").write_text("mine")
    result = train(tmp_path, data, epochs=4)
    assert (tmp_path / "checkpoints" / "epoch-best.keras").read_text() == "mine"
    assert list(result.log["epoch"]) == [0, 1, 2, 3]
    pd.testing.assert_frame_equal(result.log[:2], first.log, check_exact=True)
    assert files_of(tmp_path)[0] == "checkpoints/epoch-0003.keras"


def test_leftovers_of_a_kill_do_no_harm(tmp_path, data, uninterrupted, killed_while_writing):
    interrupted(tmp_path, data, 2, 1)
    half = (tmp_path / "checkpoints" / "epoch-0001.keras").read_bytes()[:1000]
    # Half-written files, an older checkpoint, a row without its checkpoint, no best network.
    for name in ("checkpoints/epoch-0002.keras", "model.keras", "log.csv"):
        killed_while_writing(tmp_path / name).write_bytes(half)
    (tmp_path / "checkpoints" / "epoch-0000.keras").write_bytes(half)
    row = (tmp_path / "log.csv").read_text().splitlines()[-1]
    with (tmp_path / "log.csv").open("a") as file:
        file.write("2" + row[1:] + "\n")
    train(tmp_path, data)
    # They are taken away, too: killed often, a folder would grow without end.
    assert_same_training(tmp_path, uninterrupted(data))


# Damaged folders: left as they are, since nobody asked to start again.


def cut_log(run):
    path = run / "log.csv"
    path.write_text("".join(path.read_text().splitlines(True)[:2]))


def cut_checkpoint(run):
    (path,) = (run / "checkpoints").iterdir()
    path.write_bytes(path.read_bytes()[:2000])


def no_checkpoints(run):
    shutil.rmtree(run / "checkpoints")


@pytest.mark.parametrize("damage", [cut_log, cut_checkpoint, no_checkpoints])
def test_a_damaged_training_is_not_begun_anew(run, data, damage):
    damage(run)
    before = contents(run)
    with pytest.raises(ValueError, match="Received: path="):
        train(run, data)
    assert contents(run) == before


# Arguments.


def test_compile_network():
    network = dense_network()
    assert training.compile_network(network, "mnist", epochs=3, steps_per_epoch=5) == "accuracy"
    assert network.loss == "sparse_categorical_crossentropy"
    assert (
        training.compile_network(network, "cifar10", epochs=3, steps_per_epoch=5, multi_label=True)
        == "exact_match"
    )
    labels, outputs = np.array([[1.0, 0.0]]), np.array([[0.5, 0.5]])
    assert float(network.loss(labels, outputs)) == pytest.approx(2 * np.log(2))
    assert float(network.optimizer.learning_rate) == pytest.approx(0.1)
    with refused("coupling"):
        training.compile_network(network, "cifar10", epochs=3, steps_per_epoch=5, kernel="uniform")


def test_progress_on_a_console(tmp_path, data):
    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    interrupted(tmp_path, data, 1, 1, console=console)
    result = train(tmp_path, data, console=console)
    lines = [line for line in console.file.getvalue().splitlines() if line.strip()]
    for epoch, line in enumerate(lines):
        assert re.match(rf"epoch +{epoch + 1} of {EPOCHS} ", line)
        shown = dict(re.findall(r"(\w+) (\d+\.\d+)", line))
        assert set(shown) == {"loss", "accuracy", "val_loss", "val_accuracy"}
        for key, value in shown.items():
            assert float(value) == pytest.approx(result.log[key][epoch], abs=5e-5)
    assert len(lines) == EPOCHS


def test_a_progress_bar_ends_with_an_interruption(tmp_path, data):
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    interrupted(tmp_path, data, 1, 1, console=console)
    written = console.file.getvalue()
    # In the second of three epochs of 4 steps.
    assert "training, epoch 2 of 3" in written and "4/12" in written
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


def run_process(clutter, folder, moment):
    """Runs small_training.py; returns the exit code."""
    result = processes.run(pathlib.Path(small_training.__file__), clutter, folder, moment)
    assert result.stdout, result.stderr
    return int(result.stdout.split(" ")[1])


# Every step of the writing of the second epoch; one of those between two files in every submission.
@pytest.mark.parametrize(
    "moment",
    [
        "rename:model.keras:1",
        *(
            pytest.param(moment, marks=pytest.mark.nightly)
            for moment in (
                "rename:epoch-0001.keras:1",
                "rename:log.csv:2",
                "open:epoch-0001.keras:1",
                "remove:epoch-0000.keras:1",
            )
        ),
    ],
)
def test_a_killed_training_resumes(tmp_path, clutter, whole, moment):
    assert run_process(clutter, tmp_path, moment) == -signal.SIGKILL
    folder = tmp_path / "0"
    assert files_of(folder) != FILES
    small_training.train(folder, clutter)
    assert_same_training(folder, whole)
    log = pd.read_csv(folder / "log.csv")
    assert list(log["epoch"]) == [0, 1, 2]
    assert "stage1/block0/cosine_loss" in log
    assert not log.isna().any(axis=None)
