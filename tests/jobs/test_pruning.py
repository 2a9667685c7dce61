"""A saved run, pruned into a folder: what is there, what resumes, and what is refused."""

import dataclasses
import shutil
import signal

import keras
import pandas as pd
import processes
import pytest
from refusals import refused

from tfresidual import surgery
from tfresidual.definitions.chance import AT_CHANCE
from tfresidual.definitions.settings import CRITERIA, PruningSettings
from tfresidual.jobs import pruning, training
from tfresidual.jobs.run_folder import settings_of
from tfresidual.jobs.settings import Settings

pytestmark = pytest.mark.system

TINY = {"depth": 14, "width": 4, "epochs": 1, "batch_size": 32}
TINY |= {"train_size": 64, "validation": 40, "test_size": 48}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "net"
    data_dir = str(tmp_path_factory.mktemp("clutter"))
    training.train(folder, Settings(**TINY, data_dir=data_dir))
    return folder


@pytest.fixture(
    scope="module", params=[False, pytest.param(True, marks=pytest.mark.nightly)], ids=str
)
def pruned(run, request):
    """By one criterion, or with the curves of all."""
    settings = PruningSettings(blocks=2, tuning_epochs=2, by="influence", compare=request.param)
    shutil.rmtree(run / "pruned", ignore_errors=True)
    frame = pruning.run(run, run / "pruned", settings)
    return run / "pruned", settings, frame


def test_what_is_there(pruned, run):
    folder, settings, frame = pruned
    assert frame["what"].tolist() == ["network", *["removed"] * 2, "statistics", "fine-tuned"]
    pd.testing.assert_frame_equal(pd.read_csv(folder / "frames" / "pruned.csv"), frame)
    criteria = CRITERIA if settings.compare else ["influence"]
    plans = {path.stem: pd.read_csv(path) for path in (folder / "frames").glob("plan_*.csv")}
    assert {name: len(plan) for name, plan in plans.items()} == {f"plan_{by}": 3 for by in criteria}
    smaller = keras.saving.load_model(folder / "model.keras")
    whole = keras.saving.load_model(run / "model.keras")
    assert smaller.count_params() == frame["parameters"].iloc[-1] < whole.count_params()
    chosen = surgery.without_blocks(whole, plans["plan_influence"])
    assert chosen.blocks == smaller.blocks and smaller.compiled
    # One epoch of 64 images.
    assert AT_CHANCE in (folder / "report.html").read_text()
    assert (folder / "figures" / "pruning.png").exists()


KILLED = """
import os, signal, sys
from tfresidual.definitions.settings import PruningSettings
from tfresidual.jobs import pruning

def watch(event, arguments):
    # Just before the checkpoint of the second epoch takes its place.
    if event == "os.rename" and os.fsdecode(arguments[1]).endswith("epoch-0001.keras"):
        os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
pruning.run(sys.argv[1], sys.argv[2], PruningSettings(**eval(sys.argv[3])))
"""


@pytest.mark.nightly
def test_it_resumes(pruned, run, tmp_path):
    """Killed while it trains: from the curves and epochs that are complete, the same numbers."""
    folder, settings, frame = pruned
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    shutil.rmtree(again / "tuning")
    for name in ("report.html", "model.keras", "frames/pruned.csv"):
        (again / name).unlink()
    result = processes.run(KILLED, run, again, repr(dataclasses.asdict(settings)))
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert not (again / "model.keras").exists()
    kept = again / "frames" / "plan_influence.csv"
    before = kept.stat().st_mtime_ns
    pd.testing.assert_frame_equal(pruning.run(run, again, settings), frame)
    assert kept.stat().st_mtime_ns == before
    assert AT_CHANCE in (again / "report.html").read_text()


@pytest.mark.nightly
def test_a_network_of_no_run_has_the_settings_of_its_data_alone(pruned, run, tmp_path):
    settings = PruningSettings(blocks=1, by="l2_ratio", compare=False)
    path = tmp_path / "net.keras"
    shutil.copy(run / "model.keras", path)
    names = ("data", "digits", "data_dir", "train_size", "validation", "test_size")
    of_run = settings_of(run)
    pruning.run(path, tmp_path / "out", settings, {name: getattr(of_run, name) for name in names})
    reports = [(one / "report.html").read_text() for one in (pruned[0], tmp_path / "out")]
    assert [" layout<" in text for text in reports] == [True, False]
    assert all(" train_size<" in text for text in reports)


def test_refusals(pruned, run, tmp_path):
    folder, settings, _ = pruned
    with refused("folder") as caught:
        pruning.run(run, folder, dataclasses.replace(settings, blocks=1))
    assert "`blocks` was 2" in str(caught.value) and "blocks=1" in str(caught.value)
    with refused("folder"):
        pruning.run(run, run, settings)
    other = tmp_path / "net"
    shutil.copytree(run, other)
    model = keras.saving.load_model(other / "model.keras")
    model.set_weights([2 * weight for weight in model.get_weights()])
    model.save(other / "model.keras")
    with refused("folder") as caught:
        pruning.run(other, folder, settings)
    assert f"target={str(other / 'model.keras')!r}" in str(caught.value)
    with refused("speed"):
        pruning.run(run, tmp_path / "new", PruningSettings())
    with refused("blocks"):
        pruning.run(run, tmp_path / "new", PruningSettings(blocks=99))
    for value in ({"blocks": 0}, {"speed": 1.0}, {"most_error": 2}, {"by": "x"}, {"compare": 1}):
        with refused(next(iter(value))):
            PruningSettings(**value)
    assert not (tmp_path / "new" / "model.keras").exists()
    with pytest.raises(FileNotFoundError):
        pruning.run(tmp_path / "nowhere", tmp_path / "new", settings)
