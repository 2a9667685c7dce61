"""Damaged files and folders given to commands: each ends in one line, and nothing is lost.

All of them run in this process, by `main`, as the installed command calls it. Every command is
given a folder that holds data, a run that was interrupted, a finished one, a network, a SavedModel
and a series; afterwards all files in it are the same to the byte, and there are no new ones.

Options that are wrong by themselves stand in test_cli.py. What else can be wrong with a file is
tested with the function that reads it: jobs/test_run_folder.py, jobs/test_comparison.py,
training/test_train.py, datasets/test_load.py, sources/test_files_of_models.py and
saved_model/test_reader.py. Not covered: what only another process sees (kills, locks, interrupts, a
full disk), which stands in the tests of what they happen to.
"""

import contextlib
import hashlib
import pathlib
import re
import shlex
import shutil

import keras
import pytest
from reference.random_network import sample

import tfresidual_cli
from tfresidual import callbacks, export
from tfresidual.jobs.settings import Settings
from tfresidual.jobs.training import train

pytestmark = pytest.mark.system

EPOCHS = 3
SIZES = {"train_size": 64, "validation": 40, "test_size": 40, "batch_size": 32}
DATA = " ".join(f"--{name.replace('_', '-')} {size}" for name, size in SIZES.items())
DATA += " --data-dir data"
TRAIN = f"train {DATA} --depth 8 --width 4 --epochs {EPOCHS} --out"


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
    settings = Settings(**SIZES, depth=8, width=4, epochs=EPOCHS, data_dir="data")
    with contextlib.chdir(home):
        with pytest.raises(KeyboardInterrupt):
            train(
                "run",
                settings,
                callbacks=watched_and_stopped,
            )
        shutil.copytree("run", "done")
        train("done", settings)
        shutil.copy("done/model.keras", "net.keras")
        export(keras.saving.load_model("net.keras"), "saved")
        for epoch in (1, 2):
            shutil.copytree("saved", f"series/epoch000{epoch}")
        pathlib.Path("file").write_text("mine")
    return home


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


def cut(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(path):
    path.write_bytes(b"")


def remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def make_a_folder(path):
    path.unlink()
    path.mkdir()


OF_SAVED = f"probe saved --data digitclutter {DATA} --probe readout"
OF_SERIES = OF_SAVED.replace("saved", "series")
# A command, the text its error must contain, the damage done first, and the damaged file.
CASES = [
    (f"{TRAIN.replace('--epochs 3', '--epochs 9')} run", "`--epochs` was 3", None),
    (f"tune {DATA} --out run", "--out", None),
    ("probe done --probe readout --memory-limit 1e-6", "--memory-limit", None),
    ("probe net.keras --data cifar10", "--data", None),
    ("probe done --out ''", "--out", None),
    ("probe done --out file/probes", "--out", None),
    ("export '' new", "NETWORK", None),
    ("export net.keras ''", "DIR", None),
    ("export net.keras saved", "--overwrite", None),
    ("export net.keras file/net", "file", None),
    ("export nothing new", "there is no nothing. Received: NETWORK='nothing'", None),
    ("export . new", "Received: NETWORK='.'", None),
    ("export file new", "Received: NETWORK='file'", None),
    ("export net.keras file", "Received: DIR='file', which already exists", None),
    ("export net.keras run --overwrite", "Received: DIR='run', which is something else", None),
    (f"{TRAIN} done", "settings.json", cut, "done/settings.json"),
    (f"{TRAIN} run", "epoch-0001.keras", cut, "run/checkpoints/epoch-0001.keras"),
    (f"{TRAIN} run", "epoch-0001.keras", make_a_folder, "run/checkpoints/epoch-0001.keras"),
    (f"{TRAIN} run", "checkpoints", remove, "run/checkpoints"),
    (f"{TRAIN} done", "model.keras", remove, "done/model.keras"),
    (f"{TRAIN} done", "model.keras", cut, "done/model.keras"),
    ("export done new", "model.keras", cut, "done/model.keras"),
    ("probe done --probe readout", "model.keras", remove, "done/model.keras"),
    ("probe done --probe readout", "model.keras", make_a_folder, "done/model.keras"),
    (OF_SAVED, "saved", cut, "saved/saved_model.pb"),
    (OF_SAVED, "saved", remove, "saved/variables"),
    (OF_SERIES, "epoch0002", empty, "series/epoch0002/saved_model.pb"),
    (OF_SERIES, "epoch0001", remove, "series/epoch0001/saved_model.pb"),
]


@pytest.mark.parametrize(
    "case", sample(dict(enumerate(CASES)), every=4, others=pytest.mark.nightly)
)
def test_one_line_and_nothing_lost(home, tmp_path, monkeypatch, capfd, case):
    shutil.copytree(home, tmp_path, dirs_exist_ok=True, symlinks=True)
    monkeypatch.chdir(tmp_path)
    line, says, damage, *paths = case
    if damage is not None:
        (path,) = tmp_path.glob(*paths)
        damage(path)
    before = contents(tmp_path)
    with pytest.raises(SystemExit) as stopped:
        tfresidual_cli.main(shlex.split(line))
    out, err = capfd.readouterr()
    assert stopped.value.code in (1, 2), err
    assert out == ""
    assert "Traceback" not in err
    (told,) = [line for line in err.splitlines() if line.startswith("tfresidual: ")]
    assert err.splitlines()[-1] == told
    assert says in told
    # Options are called what the user calls them; of arguments only NETWORK, DIR and NAME are.
    assert not re.match("tfresidual: Argument `[a-z]", told)
    assert contents(tmp_path) == before
