"""Malformed files, folders, options and arguments: each ends in one line, and nothing is lost.

All of them run in this process: the command line by its `main`, as the installed command calls
it, the package by its functions. Every command is given a folder that holds data, a run that was
interrupted, a finished one, a network, a SavedModel and a series; afterwards all files in it are
the same to the byte, and there are no new ones.

Not covered: what only another process sees (kills, locks, interrupts, a full disk), which stands
in the tests of what they happen to.
"""

import contextlib
import dataclasses
import hashlib
import json
import pathlib
import re
import shutil
import signal
import zipfile
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfresidual as tfr
import tfresidual_cli
from tfresidual import callbacks, datasets, export, layers, networks, probes, training, tuning
from tfresidual.jobs.settings import Settings
from tfresidual.jobs.training import train
from tfresidual.routing import evaluate, routes

pytestmark = pytest.mark.system

# No refusal may take longer; most take milliseconds.
SECONDS = 20
HUGE = "99999999999999999999"
EPOCHS = 3
RUNS = ("run", "done")
SIZES = ["--train-size", "64", "--validation", "40", "--test-size", "40", "--batch-size", "32"]
TINY = [*SIZES, "--depth", "8", "--width", "4", "--data-dir", "data"]
DATA = ["--data", "digitclutter", *SIZES, "--data-dir", "data"]
TRAIN = ["train", *TINY, "--epochs", str(EPOCHS), "--out"]


class Stop(keras.callbacks.Callback):
    """Interrupts a training after its second epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == EPOCHS - 1:
            raise KeyboardInterrupt


def watched_and_stopped(images):
    data = images["validation"]
    return [
        callbacks.BlockMetrics(data),
        callbacks.Perturbation(data, epsilon=0.1),
        callbacks.Readout(data),
        Stop(),
    ]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A folder with everything that commands can be pointed at."""
    home = tmp_path_factory.mktemp("home")
    sizes = {"train_size": 64, "validation": 40, "test_size": 40, "batch_size": 32}
    settings = Settings(**sizes, depth=8, width=4, epochs=EPOCHS, data_dir="data")
    with contextlib.chdir(home):
        with pytest.raises(KeyboardInterrupt):
            train("run", settings, callbacks=watched_and_stopped)
        shutil.copytree("run", "done")
        train("done", settings)
        shutil.copy("done/model.keras", "net.keras")
        export(keras.saving.load_model("net.keras"), "saved")
        for epoch in (1, 2):
            shutil.copytree("saved", f"series/epoch000{epoch}")
        pathlib.Path("file").write_text("mine")
        pathlib.Path("empty").mkdir()
    return home


class TooLongError(BaseException):
    """What is to be refused was begun; no `except` of the package takes it for an error."""


@contextlib.contextmanager
def bounded():
    """Ends whatever runs for too long."""

    def end(*_):
        raise TooLongError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, SECONDS, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def contents(folder):
    """Every file and folder below a folder, with a digest of what it holds."""
    return {
        str(path.relative_to(folder)): hashlib.sha1(path.read_bytes()).hexdigest()
        if path.is_file()
        else "folder"
        for path in folder.rglob("*")
        # The holder of a folder is noted next to it; see tfresidual/machine/locks.py.
        if not path.name.endswith(".lock")
    }


# The command line


@dataclasses.dataclass(frozen=True)
class Command:
    """A command that is refused.

    Attributes:
        line: str or list of str, its arguments.
        says: str, what its message must hold; an option that is wrong is named.
        damage: the function that damages the folder beforehand, or `None`.
    """

    line: str | list
    says: str
    damage: Callable | None = None

    @property
    def arguments(self):
        return self.line.split() if isinstance(self.line, str) else list(self.line)


def text(path, content):
    """Puts a text into a file, whatever was there."""
    return lambda: pathlib.Path(path).write_text(content)


EVERY_BYTE = bytes(range(256))


def binary(path, content=EVERY_BYTE):
    def damage():
        for found in list(pathlib.Path().glob(path)) or [pathlib.Path(path)]:
            found.write_bytes(content)

    return damage


def cut(path, share=0.5):
    """Cuts a file short."""

    def damage():
        (found,) = pathlib.Path().glob(path)
        content = found.read_bytes()
        found.write_bytes(content[: int(len(content) * share)])

    return damage


def removed(path):
    def damage():
        (found,) = pathlib.Path().glob(path)
        shutil.rmtree(found) if found.is_dir() else found.unlink()

    return damage


def made_a_folder(path):
    def damage():
        pathlib.Path(path).unlink()
        pathlib.Path(path).mkdir()

    return damage


def edited(path, edit):
    """Changes the content of a JSON file by a function of it."""

    def damage():
        content = json.loads(pathlib.Path(path).read_text())
        edit(content)
        pathlib.Path(path).write_text(json.dumps(content))

    return damage


def replaced(path, old, new, count=1):
    def damage():
        content = pathlib.Path(path).read_text()
        assert old in content
        pathlib.Path(path).write_text(content.replace(old, new, count))

    return damage


def in_archive(path, name, content):
    """Replaces one file in an archive, or leaves it out."""

    def damage():
        (found,) = pathlib.Path().glob(path)
        with zipfile.ZipFile(found) as archive:
            parts = {entry: archive.read(entry) for entry in archive.namelist()}
        parts.pop(name)
        with zipfile.ZipFile(found, "w") as archive:
            for entry, part in (parts | ({} if content is None else {name: content})).items():
                archive.writestr(entry, part)

    return damage


def last_row_of_log(change):
    """Changes the last row of the log, a list of texts."""

    def damage():
        path = pathlib.Path("run/log.csv")
        *rows, last = path.read_text().splitlines()
        path.write_text("\n".join([*rows, ",".join(change(last.split(",")))]) + "\n")

    return damage


def column_of_log(name, value):
    """Gives every row of the log one value in a column."""

    def damage():
        path = pathlib.Path("run/log.csv")
        head, *rows = (line.split(",") for line in path.read_text().splitlines())
        for row in rows:
            row[head.index(name)] = value
        path.write_text("\n".join(",".join(row) for row in [head, *rows]) + "\n")

    return damage


def without_column_of_log(name):
    def damage():
        path = pathlib.Path("run/log.csv")
        rows = [line.split(",") for line in path.read_text().splitlines()]
        place = rows[0].index(name)
        kept = [",".join(row[:place] + row[place + 1 :]) for row in rows]
        path.write_text("\n".join(kept) + "\n")

    return damage


def cut_log():
    """The log as a copy that broke off in its last row leaves it."""
    path = pathlib.Path("run/log.csv")
    content = path.read_text()
    path.write_text(content[: content.rstrip().rindex(",") - 30])


def first_rows(path, count):
    return "".join(pathlib.Path(path).read_text().splitlines(keepends=True)[:count])


OPTIONS = {
    "unknown command": Command("stduy", "No such command"),
    "unknown option": Command("study --epoch-count 3", "--epoch-count"),
    "surplus argument": Command("train cifar10", "unexpected extra argument"),
    "epochs 0": Command("train --epochs 0", "--epochs"),
    "epochs negative": Command("train --epochs -3", "--epochs"),
    "epochs fraction": Command("train --epochs 2.5", "--epochs"),
    "epochs text": Command("train --epochs many", "--epochs"),
    "epochs empty": Command(["train", "--epochs", ""], "--epochs"),
    "epochs huge": Command(f"train --epochs {HUGE}", "--epochs"),
    "depth huge": Command(f"train --depth {HUGE}", "--depth"),
    "depth large": Command("train --depth 60000002", "--depth"),
    "depth of another kind": Command("train --depth 7", "--depth"),
    "depth of a fixed network": Command("train --network wide --depth 8", "--depth"),
    "width 0": Command("train --width 0", "--width"),
    "width huge": Command(f"train --width {HUGE}", "--width"),
    "width large": Command("train --width 100000000", "--width"),
    "width that takes all memory": Command("train --width 100000", "memory"),
    "width of a fixed network": Command("train --network resnet110 --width 8", "--width"),
    "batch size 0": Command("train --batch-size 0", "--batch-size"),
    "batch size huge": Command(f"train --batch-size {HUGE}", "--batch-size"),
    "train size 0": Command("train --train-size 0", "--train-size"),
    "train size huge": Command(f"train --train-size {HUGE}", "--train-size"),
    "validation huge": Command(f"train --validation {HUGE}", "--validation"),
    "test size huge": Command(f"train --test-size {HUGE}", "--test-size"),
    "digits 6": Command("train --digits 6", "--digits"),
    "network unknown": Command("train --network resnet50", "--network"),
    "layout unknown": Command("train --layout none", "--layout"),
    "shortcut unknown": Command("train --shortcut none", "--shortcut"),
    "gamma nan": Command("train --gamma nan", "--gamma"),
    "gamma text": Command("train --gamma large", "--gamma"),
    "share from beyond the last block": Command("train --depth 8 --share-from 99", "--share-from"),
    "share from huge": Command(f"train --share-from {HUGE}", "--share-from"),
    "share from negative": Command("train --share-from -1", "--share-from"),
    "unshared of nothing shared": Command("train --batch-norm unshared", "--batch-norm"),
    "coupling 2": Command("train --coupling 2", "--coupling"),
    "coupling nan": Command("train --coupling nan", "--coupling"),
    "kernel without coupling": Command("train --kernel triangular", "--kernel"),
    "coupling from without coupling": Command("train --coupling-from 1", "--coupling-from"),
    "coupling from beyond": Command("train --coupling 1 --coupling-from 99", "--coupling-from"),
    "lipschitz 0": Command("train --lipschitz 0", "--lipschitz"),
    "lipschitz nan": Command("train --lipschitz nan", "--lipschitz"),
    "lipschitz inf": Command("train --lipschitz inf", "--lipschitz"),
    "anchor unknown": Command("train --anchor first", "--anchor"),
    "recipe unknown": Command("train --recipe none", "--recipe"),
    "learning rate 0": Command("train --learning-rate 0", "--learning-rate"),
    "learning rate nan": Command("train --learning-rate nan", "--learning-rate"),
    "learning rate inf": Command("train --learning-rate inf", "--learning-rate"),
    "epsilon 0": Command("train --epsilon 0", "--epsilon"),
    "epsilon nan": Command("train --epsilon nan", "--epsilon"),
    "epsilon inf": Command("train --epsilon inf", "--epsilon"),
    "dtype unknown": Command("train --dtype float16", "--dtype"),
    "seed negative": Command("train --seed -1", "--seed"),
    "seed huge": Command(f"train --seed {2**32}", "--seed"),
    "data unknown": Command("train --data imagenet", "--data"),
    "data missing": Command("train --data cifar10 --data-dir empty", "--data"),
    "data folder a file": Command("train --data cifar10 --data-dir file", "--data-dir"),
    "data folder empty text": Command(["train", "--data-dir", ""], "--data-dir"),
    "out empty text": Command(["train", "--out", ""], "--out"),
    "out a file": Command([*TRAIN, "file"], "--out"),
    "out below a file": Command([*TRAIN, "file/run"], "--out"),
    "out of other settings": Command(["train", *TINY, "--epochs", "9", "--out", "run"], "epochs"),
    "study out empty text": Command(["study", "--out", ""], "--out"),
    "study epochs huge": Command(f"study --epochs {HUGE}", "--epochs"),
    "study width large": Command("study --width 100000000", "--width"),
    "tune start 0": Command("tune --start 0", "--start"),
    "tune start text": Command("tune --start 4,x,4", "--start"),
    "tune start of two stages": Command("tune --start 4,4", "--start"),
    "tune start beyond the largest": Command("tune --start 9 --max-blocks 8", "--start"),
    "tune start huge": Command(f"tune --start {HUGE}", "--start"),
    "tune min above max": Command("tune --min-blocks 9 --max-blocks 8", "blocks"),
    "tune max blocks huge": Command(f"tune --max-blocks {HUGE}", "--max-blocks"),
    "tune tolerance negative": Command("tune --tolerance -1", "--tolerance"),
    "tune executions 0": Command("tune --executions 0", "--executions"),
    "tune trials huge": Command(f"tune --max-trials {HUGE}", "--max-trials"),
    "tune workers 0": Command("tune --workers 0", "--workers"),
    "tune workers huge": Command(f"tune --workers {HUGE}", "--workers"),
    "tune a fixed network": Command("tune --network wide", "--network"),
    "tune out empty text": Command(["tune", "--out", ""], "--out"),
    "tune in the folder of a training": Command(["tune", *DATA, "--out", "run"], "--out"),
    "train in the folder of nothing": Command(["train", "--out", "saved/saved_model.pb"], "--out"),
    "probe nothing": Command("probe nothing", "nothing"),
    "probe empty text": Command(["probe", ""], "NETWORK"),
    "probe an empty folder": Command("probe empty", "empty"),
    "probe a text file": Command(["probe", "file", *DATA], "file"),
    "probe unknown": Command("probe done --probe readouts", "--probe"),
    "probe split unknown": Command("probe done --split validation", "--split"),
    "probe images 0": Command("probe done --images 0", "--images"),
    "probe images huge": Command(f"probe done --images {HUGE}", "--images"),
    "probe times 0": Command("probe done --times 0", "--times"),
    "probe times huge": Command(f"probe done --times {HUGE}", "--times"),
    "probe scale nan": Command("probe done --scale nan", "--scale"),
    "probe scale large": Command("probe done --scale 1e39", "--scale"),
    "probe scale text": Command("probe done --scale half", "--scale"),
    "probe chance unknown": Command("probe done --chance largest_class", "--chance"),
    "probe chance 2": Command("probe done --chance 2", "--chance"),
    "probe chance nan": Command("probe done --chance nan", "--chance"),
    "probe memory 0": Command("probe done --memory-limit 0", "--memory-limit"),
    "probe memory nan": Command("probe done --memory-limit nan", "--memory-limit"),
    "probe memory too low": Command(
        "probe done --probe readout --memory-limit 1e-6", "--memory-limit"
    ),
    "probe epsilon 0": Command("probe done --epsilon 0", "--epsilon"),
    "probe pixels unknown": Command("probe done --pixels 0-2", "--pixels"),
    "probe without data": Command("probe net.keras", "--data"),
    "probe on data of another shape": Command("probe net.keras --data cifar10", "--data"),
    "probe on data of other labels": Command("probe net.keras --data mnist", "--data"),
    "probe out empty text": Command(["probe", "done", "--out", ""], "--out"),
    "probe out a file": Command("probe done --out file", "--out"),
    "probe out below a file": Command("probe done --out file/probes", "--out"),
    "export nothing": Command("export nothing new", "nothing"),
    "export without a target": Command("export net.keras", "DIR"),
    "export empty text": Command(["export", "", "new"], "NETWORK"),
    "export to empty text": Command(["export", "net.keras", ""], "DIR"),
    "export a text file": Command("export file new", "file"),
    "export to what is there": Command("export net.keras saved", "--overwrite"),
    "export over what is none": Command("export net.keras run --overwrite", "run"),
    "export over a file": Command("export net.keras file --overwrite", "file"),
    "export below a file": Command("export net.keras file/net", "file"),
    "data unknown to data": Command("data imagenet", "NAME"),
    "data of six digits": Command("data digitclutter --digits 6", "--digits"),
    "data that is missing": Command("data mnist --data-dir empty", "mnist"),
    "data of too many images": Command(
        f"data digitclutter --data-dir data --train-size {HUGE}", "--train-size"
    ),
    "data below a file": Command("data digitclutter --data-dir file", "--data-dir"),
}

SETTINGS = {
    "truncated": cut("done/settings.json"),
    "empty": text("done/settings.json", ""),
    "binary": binary("done/settings.json"),
    "null": text("done/settings.json", "null"),
    "a list": text("done/settings.json", "[]"),
    "of an unknown key": edited("done/settings.json", lambda c: c["settings"].update(colour=3)),
    "of a wrong type": edited("done/settings.json", lambda c: c["settings"].update(depth="deep")),
    "without settings": edited("done/settings.json", lambda c: c.pop("settings")),
    "whose settings are a list": edited("done/settings.json", lambda c: c.update(settings=[3])),
    "a folder": made_a_folder("done/settings.json"),
}
# By file, what is done to it, and the commands that must name it.
DAMAGED = {
    f"{command[0]}: settings {name}": Command(
        # A depth that is none is another one than that of the command.
        command,
        "deep" if name == "of a wrong type" else "settings.json",
        damage,
    )
    for name, damage in SETTINGS.items()
    for command in ([*TRAIN, "done"], ["probe", "done", "--probe", "readout"], ["compare", *RUNS])
}
LOGS = {
    "empty": text("run/log.csv", ""),
    "binary": binary("run/log.csv"),
    "a text": text("run/log.csv", "nothing of the kind\n"),
    "cut in its last row": cut_log,
    "cut in its first row": cut("run/log.csv", 0.1),
    "without a row": last_row_of_log(lambda row: []),
    "without its monitored column": without_column_of_log("val_exact_match"),
    "with text in its monitored column": column_of_log("val_exact_match", "good"),
    "with text in one cell": last_row_of_log(lambda row: [*row[:-1], "good"]),
    "with a cell too many": last_row_of_log(lambda row: [*row, "1.0"]),
    "with a fraction of an epoch": last_row_of_log(lambda row: ["0.5", *row[1:]]),
    "with an epoch twice": last_row_of_log(lambda row: ["0", *row[1:]]),
    "a folder": made_a_folder("run/log.csv"),
}
DAMAGED |= {
    f"{command[0]}: log {name}": Command(command, "log.csv", damage)
    for name, damage in LOGS.items()
    for command in ([*TRAIN, "run"], ["compare", *RUNS])
}
DAMAGED["compare: log cut between its rows"] = Command(
    ["compare", *RUNS], "log.csv", lambda: text("run/log.csv", first_rows("run/log.csv", 2))()
)
CHECKPOINT = "run/checkpoints/epoch-0001.keras"
CHECKPOINTS = {
    "cut": cut(CHECKPOINT),
    "empty": binary(CHECKPOINT, b""),
    "a text": text(CHECKPOINT, "mine"),
    "with a broken config": in_archive(CHECKPOINT, "config.json", b'{"module": '),
    "with another config": in_archive(CHECKPOINT, "config.json", b"[]"),
    "without weights": in_archive(CHECKPOINT, "model.weights.h5", None),
    "with broken weights": in_archive(CHECKPOINT, "model.weights.h5", b"mine"),
    "with broken generators": in_archive(CHECKPOINT, "tfresidual-generators.json", b"{"),
    "a folder": made_a_folder(CHECKPOINT),
}
DAMAGED |= {
    f"train: checkpoint {name}": Command([*TRAIN, "run"], "epoch-0001.keras", damage)
    for name, damage in CHECKPOINTS.items()
}
NETWORKS = {
    "missing": removed("done/model.keras"),
    "cut": cut("done/model.keras"),
    "empty": binary("done/model.keras", b""),
    "a text": text("done/model.keras", "mine"),
    "with a broken config": in_archive("done/model.keras", "config.json", b"{"),
    "of unknown classes": in_archive(
        "done/model.keras",
        "config.json",
        b'{"module": "elsewhere", "class_name": "Net", "config": {}, "registered_name": "e>Net"}',
    ),
    "without weights": in_archive("done/model.keras", "model.weights.h5", None),
    "a folder": made_a_folder("done/model.keras"),
}
DAMAGED |= {
    f"probe: network {name}": Command("probe done --probe readout", "model.keras", damage)
    for name, damage in NETWORKS.items()
}
DAMAGED |= {
    f"export: network {name}": Command("export done new", "model.keras", damage)
    for name, damage in NETWORKS.items()
}
LAYOUT = "saved/assets.extra/tfresidual.json"
SAVED = {
    "without a graph": removed("saved/saved_model.pb"),
    "with a cut graph": cut("saved/saved_model.pb"),
    "with an empty graph": binary("saved/saved_model.pb", b""),
    "with a graph of text": text("saved/saved_model.pb", "mine"),
    "without values": removed("saved/variables/variables.data-*"),
    "with cut values": cut("saved/variables/variables.data-*"),
    "with a cut index": cut("saved/variables/variables.index"),
    "without variables": removed("saved/variables"),
    "without a layout": removed(LAYOUT),
    "with a cut layout": cut(LAYOUT),
    "with a layout of null": text(LAYOUT, "null"),
    "with a binary layout": binary(LAYOUT),
    "with an unknown loss": edited(LAYOUT, lambda c: c.update(loss={"loss": "os", "config": {}})),
    "with stages in another order": edited(LAYOUT, lambda c: c["stages"].reverse()),
    "with a weight that is none": edited(
        LAYOUT, lambda c: c["stages"][0]["blocks"][0].update(weights={"kernel": 10**6})
    ),
    "of a newer format": edited(LAYOUT, lambda c: c.update(format=99)),
}
DAMAGED |= {
    f"probe: SavedModel {name}": Command(
        ["probe", "saved", *DATA, "--probe", "readout"], "saved", damage
    )
    for name, damage in SAVED.items()
}
SERIES = ["probe", "series", *DATA, "--probe", "readout"]
OF_DATA = "data/digitclutter/*/*"
RECORDS = f"{OF_DATA}/digitclutter-train.tfrecord-*"
OTHERS = {
    "series: a damaged member": Command(
        SERIES, "epoch0002", binary("series/epoch0002/saved_model.pb", b"")
    ),
    "series: a member of nothing": Command(
        SERIES, "epoch0001", removed("series/epoch0001/saved_model.pb")
    ),
    "train: a finished run without its network": Command(
        [*TRAIN, "done"], "model.keras", removed("done/model.keras")
    ),
    "train: a finished run with a cut network": Command(
        [*TRAIN, "done"], "model.keras", cut("done/model.keras")
    ),
    "train: a network without its checkpoints": Command(
        [*TRAIN, "run"], "checkpoints", removed("run/checkpoints")
    ),
    "train: records cut": Command([*TRAIN, "run"], "digits3-64", cut(RECORDS)),
    "train: records empty": Command([*TRAIN, "run"], "digits3-64", binary(RECORDS, b"")),
    "train: records missing": Command([*TRAIN, "run"], "data", removed(RECORDS)),
    "train: data without its description": Command(
        [*TRAIN, "run"], "digits3-64", removed(f"{OF_DATA}/dataset_info.json")
    ),
    "train: data with a cut description": Command(
        [*TRAIN, "run"], "digits3-64", cut(f"{OF_DATA}/dataset_info.json")
    ),
    "probe: records cut": Command(
        ["probe", "done", "--split", "train", "--probe", "readout"], "digits3-64", cut(RECORDS)
    ),
    "probe: a record of probes that is none": Command(
        "probe done --probe effective_parameters",
        "probes.json",
        lambda: (pathlib.Path("done/probes").mkdir(), binary("done/probes/probes.json")()),
    ),
}
# Of the tables every fifth case runs in every run, so that each of their commands does, and of the
# others every second one.
DAMAGED_FILES = [
    pytest.param(case, id=name, marks=[] if i % every == 0 else [pytest.mark.nightly])
    for cases, every in ((DAMAGED, 5), (OTHERS, 2))
    for i, (name, case) in enumerate(cases.items())
]


def assert_one_line(capfd, arguments, says):
    """Runs a command, which must fail with one line that holds a text."""
    with bounded(), pytest.raises(SystemExit) as stopped:
        tfresidual_cli.main(arguments)
    out, err = capfd.readouterr()
    assert stopped.value.code in (1, 2), err
    assert out == ""
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if line.startswith("tfresidual: ")]
    assert len(lines) == 1, err
    assert err.splitlines()[-1] == lines[0]
    assert says in lines[0]
    # Options are called what the user calls them; of arguments only NETWORK, DIR and NAME are.
    assert not re.match("tfresidual: Argument `[a-z]", lines[0])


@pytest.fixture
def copied(home, tmp_path, monkeypatch):
    """A copy of the folder, which may be damaged."""
    shutil.copytree(home, tmp_path, dirs_exist_ok=True, symlinks=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", OPTIONS)
def test_options(copied, capfd, name):
    before = contents(copied)
    assert_one_line(capfd, OPTIONS[name].arguments, OPTIONS[name].says)
    assert contents(copied) == before


@pytest.mark.parametrize("case", DAMAGED_FILES)
def test_damaged_files(copied, capfd, case):
    case.damage()
    before = contents(copied)
    assert_one_line(capfd, case.arguments, case.says)
    assert contents(copied) == before


# The package

IMAGES = np.zeros((8, 32, 32, 1), "float32")
LABELS = np.eye(10, dtype="float32")[[0, 1, 2, 3, 4, 5, 6, 7]]
PAIR = (IMAGES, LABELS)


@pytest.fixture(scope="module")
def net(home):
    return keras.saving.load_model(home / "net.keras")


@pytest.fixture(scope="module")
def chain(net):
    return tfr.chain(net)


def plain_model():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])


def two_inputs():
    inputs = [keras.Input((4,)), keras.Input((4,))]
    return keras.Model(inputs, keras.layers.Add()(inputs))


# What chains, routes, probes and callbacks are given; `c` is a chain.
ARGUMENTS = {
    "a chain of nothing": (lambda c: tfr.chain(None), "source"),
    "a chain of a number": (lambda c: tfr.chain(3), "source"),
    "a chain of an empty text": (lambda c: tfr.chain(""), "source"),
    "a chain of no file": (lambda c: tfr.chain("nothing"), "source"),
    "a chain of a file of another kind": (lambda c: tfr.chain(__file__), "source"),
    "a chain of a model without blocks": (lambda c: tfr.chain(plain_model()), "source"),
    "a chain of two inputs": (lambda c: tfr.chain(two_inputs()), "source"),
    "a stage that is none": (lambda c: routes.drop(c, (9, 0)), "stage"),
    "stage 0": (lambda c: routes.drop(c, (0, 0)), "stage"),
    "a block that is none": (lambda c: routes.drop(c, (1, 99)), "block"),
    "a block that changes the shape": (lambda c: routes.drop(c, (2, 0)), "shape"),
    "a block of text": (lambda c: routes.drop(c, (1, "first")), "Received"),
    "times 0": (lambda c: routes.repeat_last_block(c, 1, 0), "times"),
    "times True": (lambda c: routes.repeat_last_block(c, 1, True), "times"),
    "times huge": (lambda c: probes.repeat_last_block(c, PAIR, times=int(HUGE)), "times"),
    "a scale of nan": (lambda c: routes.repeat_last_block(c, 1, 2, scale=float("nan")), "scale"),
    "a route of text": (lambda c: evaluate(c, PAIR, ["first"]), "routes"),
    "memory nan": (
        lambda c: evaluate(c, PAIR, [routes.unperturbed(c)], memory_limit=float("nan")),
        "memory_limit",
    ),
    "no data": (lambda c: probes.readout(c, None), "data"),
    "data of one array": (lambda c: probes.readout(c, (IMAGES,)), "data"),
    "empty data": (lambda c: probes.readout(c, (IMAGES[:0], LABELS[:0])), "data"),
    "endless data": (
        lambda c: probes.readout(c, tf.data.Dataset.from_tensors(PAIR).repeat()),
        "data",
    ),
    "images without labels": (
        lambda c: probes.readout(c, tf.data.Dataset.from_tensors(IMAGES)),
        "data",
    ),
    "more images than labels": (lambda c: probes.readout(c, (IMAGES, LABELS[:4])), "data"),
    "images of another shape": (lambda c: probes.readout(c, (IMAGES[:, :9], LABELS)), "data"),
    "images of other channels": (
        lambda c: probes.block_metrics(c, (np.repeat(IMAGES, 3, axis=-1), LABELS)),
        "data",
    ),
    "images of text": (lambda c: probes.readout(c, (np.full((8,), "image"), LABELS)), "data"),
    "labels of text": (lambda c: probes.readout(c, (IMAGES, np.full(8, "cat"))), "data"),
    "labels out of range": (lambda c: probes.readout(c, (IMAGES, np.full(8, 99))), "data"),
    "labels of other classes": (lambda c: probes.readout(c, (IMAGES, LABELS[:, :3])), "data"),
    "labels of another rank": (
        lambda c: probes.readout(c, (IMAGES, LABELS[:, None, None])),
        "data",
    ),
    "labels that are negative": (lambda c: probes.readout(c, (IMAGES, -LABELS)), "data"),
    "per image in words": (
        lambda c: probes.block_metrics(c, PAIR, per_image="yes"),
        "per_image",
    ),
    "progress in words": (lambda c: probes.block_metrics(c, PAIR, progress="no"), "progress"),
    "a first block that is none": (
        lambda c: probes.effective_parameters(c, first_block=99),
        "first_block",
    ),
    "a chance of 2": (lambda c: probes.convergence_indices(c, PAIR, chance=2), "chance"),
    "every True": (lambda c: callbacks.BlockMetrics(PAIR, every=True), "every"),
    "every 0": (lambda c: callbacks.Readout(PAIR, every=0), "every"),
    "every in words": (lambda c: callbacks.DropBlocks(PAIR, every="2"), "every"),
    "callback data None": (lambda c: callbacks.BlockMetrics(None), "data"),
    "callback data endless": (
        lambda c: callbacks.Readout(tf.data.Dataset.from_tensors(PAIR).repeat()),
        "data",
    ),
    "epsilon in words": (lambda c: callbacks.Perturbation(PAIR, epsilon="0.1"), "epsilon"),
    "series in a number": (lambda c: callbacks.ExportForProbing(3), "folder"),
    "series of no epochs": (lambda c: callbacks.ExportForProbing("s", epochs=[]), "epochs"),
    "export of nothing": (lambda c: export(None, "new"), "source"),
    "export to a number": (lambda c: export(c, 3), "path"),
    "export to empty text": (lambda c: export(c, ""), "path"),
    "export overwrite in words": (lambda c: export(c, "new", overwrite="yes"), "overwrite"),
    "a network of no width": (lambda c: networks.resnet(8, widths=(4, 0, 4)), "widths"),
    "a network of huge width": (
        lambda c: networks.ResidualNetwork((32, 32, 3), 10, blocks=1, widths=(10**8,)),
        "memory",
    ),
    "a network of depth True": (lambda c: networks.resnet(depth=True), "depth"),
    "a network of depth 9": (lambda c: networks.resnet(depth=9), "depth"),
    "a network of no classes": (
        lambda c: networks.ResidualNetwork((32, 32, 3), 0, blocks=1, widths=(4,)),
        "classes",
    ),
    "a network of an image of two axes": (
        lambda c: networks.ResidualNetwork((32, 32), 10, blocks=1, widths=(4,)),
        "input_shape",
    ),
    "sharing from beyond": (lambda c: networks.resnet(depth=8, share_from=99), "share_from"),
    "a bound of nan": (lambda c: networks.resnet(depth=8, lipschitz=float("nan")), "lipschitz"),
    "a bound of True": (lambda c: networks.resnet(depth=8, lipschitz=True), "lipschitz"),
    "a unit of no filters": (lambda c: layers.ResidualUnit(0), "filters"),
    "a unit of an unknown layout": (lambda c: layers.ResidualUnit(4, layout="none"), "layout"),
    "coupling of 2": (lambda c: training.GradientCoupling("sgd", 2.0), "coupling"),
    "a recipe that is none": (lambda c: training.recipe("none"), "name"),
    "a depth for no epsilon": (lambda c: tuning.depth_for(1.0, 0), "epsilon"),
    "a dataset that is none": (lambda c: datasets.load("imagenet", 32), "name"),
    "a batch size of True": (lambda c: datasets.load("digitclutter", True), "batch_size"),
    "a download in words": (
        lambda c: datasets.load("digitclutter", 32, download="no"),
        "download",
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments(tmp_path, chain, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    call, says = ARGUMENTS[name]
    with bounded(), pytest.raises((ValueError, OSError)) as raised:
        call(chain)
    assert says in str(raised.value)
    assert "Received: " in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_the_list_is_long():
    assert len(OPTIONS) + len(DAMAGED_FILES) + len(ARGUMENTS) >= 150
