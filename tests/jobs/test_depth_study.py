"""The search of `tfresidual tune`: what it writes, and what it resumes from."""

import dataclasses
import json
import re
import shutil
import signal
import time

import keras
import pandas as pd
import processes
import pytest
from refusals import refused

from tfresidual import probes, tuning
from tfresidual.jobs import depth_study
from tfresidual.jobs.building import compile_for
from tfresidual.jobs.data import prepare
from tfresidual.jobs.settings import Settings
from tfresidual.jobs.training import train
from tfresidual.machine.locks import locked

pytestmark = [pytest.mark.eager, pytest.mark.system]

TINY = {"width": 2, "epochs": 1, "batch_size": 32, "epsilon": 1.5}
TINY |= {"train_size": 96, "validation": 64, "test_size": 40}
SEARCH = depth_study.SearchSettings(start=2, max_blocks=6)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return Settings(**TINY, data_dir=tmp_path_factory.mktemp("clutter"))


@pytest.fixture(scope="module")
def done(tmp_path_factory, settings):
    """The folder of a search that was not interrupted, and its outcome."""
    folder = tmp_path_factory.mktemp("runs") / "new" / "depth"
    return folder, depth_study.run(folder, settings, SEARCH)


def trace_of(folder):
    return tuning.trace_of(tuning.read_search(folder / "search"))


def without_time(frame):
    return frame.drop(columns="seconds")


def trials_written(folder):
    return {path: path.stat().st_mtime_ns for path in folder.glob("search/trial_*/*")}


def test_what_is_written(done, settings):
    folder, outcome = done
    # It is trained too little to be better than guessing.
    assert outcome.status == "no better than chance"
    content = json.loads((folder / "outcome.json").read_text())
    assert tuple(content["blocks"]) == outcome.blocks
    assert content["message"] == outcome.message
    trace = pd.read_csv(folder / "frames" / "trace.csv")
    pd.testing.assert_frame_equal(trace, trace_of(folder), check_dtype=False)
    assert (folder / "figures" / "depth_search.png").read_bytes().startswith(b"\x89PNG")
    page = (folder / "report.html").read_text()
    assert outcome.message in page
    assert "No better than chance" in page
    assert "Depth found" not in page
    assert f"{' '.join(map(str, outcome.blocks))}, error {outcome.error:.1%}" in page
    settings_file = json.loads((folder / "settings.json").read_text())
    assert settings_file["search"]["start"] == 2
    assert settings_file["settings"]["epsilon"] == settings.epsilon


def test_the_answer_is_the_network_beside_it(done, settings):
    """Measured again on the validation images, it meets the rule; the error is its own."""
    folder, outcome = done
    network = keras.saving.load_model(folder / "model.keras")
    assert tuple(network.blocks) == outcome.blocks
    _, validation, test = prepare(settings)
    measured = probes.computational_distance(network, validation)[:3]
    trace = trace_of(folder).query(f"trial == {outcome.trial}").reset_index(drop=True)
    for name in ("distance", "scaled_distance", "mean_scaled_perturbation"):
        assert measured[name].tolist() == pytest.approx(trace[name].tolist(), rel=1e-5)
    assert (measured["mean_scaled_perturbation"] <= settings.epsilon).all()
    metric = compile_for(network, settings, 1)
    values = network.evaluate(validation, return_dict=True, verbose=0)
    assert trace["error"][0] == pytest.approx(1 - values[metric])
    of_test = network.evaluate(test, return_dict=True, verbose=0)
    content = json.loads((folder / "outcome.json").read_text())
    assert content["test_error"] == pytest.approx(1 - of_test[metric])


def test_the_same_command_trains_nothing(done, settings):
    """Nor one with settings that may change."""
    folder, outcome = done
    before = trials_written(folder)
    more = dataclasses.replace(SEARCH, max_trials=50, max_blocks=7)
    assert depth_study.run(folder, settings, more) == outcome
    assert trials_written(folder) == before
    assert json.loads((folder / "settings.json").read_text())["search"]["max_trials"] == 50


@pytest.mark.parametrize("change", [{"epsilon": 0.5}, {"width": 4}, {"seed": 1}])
def test_other_settings_are_refused(done, settings, change):
    folder, _ = done
    before = trials_written(folder)
    ((name, value),) = change.items()
    with pytest.raises(ValueError, match=rf"`{name}` was .*Received: .*{name}={value}"):
        depth_study.run(folder, dataclasses.replace(settings, **change), SEARCH)
    with pytest.raises(ValueError, match=r"`start` was 2\. Received: .*start=3"):
        depth_study.run(folder, settings, dataclasses.replace(SEARCH, start=3))
    assert trials_written(folder) == before


# One search at a time


def state_of(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(("held", "workers"), [(".", 1), ("search", 2)])
def test_a_folder_that_is_being_searched_is_left_alone(
    done, settings, tmp_path, elsewhere, held, workers
):
    folder = tmp_path / "run"
    shutil.copytree(done[0], folder)
    more = dataclasses.replace(SEARCH, max_blocks=7)
    with elsewhere(locked(folder / held)):
        before = state_of(folder)
        begun = time.monotonic()
        with pytest.raises(OSError, match=r"^Another process .* this folder.*`folder`.*Received: "):
            depth_study.run(folder, settings, more, workers=workers)
        assert time.monotonic() - begun < 5
        changed = {path.name for path, when in state_of(folder).items() if before.get(path) != when}
    assert changed <= {".lock"}


# A part of a search, by the environment


# The experiment around it


def test_folders_of_other_runs_are_refused(done, settings, tmp_path):
    with pytest.raises(ValueError, match=r"holds a search\. Received: folder="):
        train(done[0], settings)
    (tmp_path / "settings.json").write_text(json.dumps({"settings": {}}))
    with pytest.raises(ValueError, match=r"holds a training\. Received: folder="):
        depth_study.run(tmp_path, settings, SEARCH)
    assert [path.name for path in tmp_path.iterdir()] == ["settings.json"]


@pytest.mark.nightly
def test_warm_starts_say_where_from(settings, tmp_path):
    warm = dataclasses.replace(SEARCH, warm_start=True, max_trials=2)
    depth_study.run(tmp_path, settings, warm)
    trace = trace_of(tmp_path)
    assert trace["from_trial"].isna().tolist()[:3] == [True] * 3
    assert trace["blocks"][3] > 2
    assert trace["from_trial"].tolist()[3:] == ["0"] * 3


KILLED = """
import os, signal, sys
import tensorflow as tf
from tfresidual.jobs import depth_study
from tfresidual.jobs.settings import Settings

seen = []

def watch(event, arguments):
    # While the second trial's weights take their place.
    if event == "os.rename" and os.fsdecode(arguments[1]).endswith("checkpoint.weights.h5"):
        seen.append(arguments[1])
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(watch)
# As the tests do.
tf.config.run_functions_eagerly(True)
search = depth_study.SearchSettings(**eval(sys.argv[3]))
depth_study.run(sys.argv[1], Settings(**eval(sys.argv[2])), search)
"""


@pytest.mark.nightly
def test_a_killed_search_goes_on(done, settings, tmp_path):
    folder, outcome = done
    arguments = [repr(dataclasses.asdict(part)) for part in (settings, SEARCH)]
    result = processes.run(KILLED, tmp_path, *arguments, cwd=tmp_path)
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert depth_study.run(tmp_path, settings, SEARCH) == outcome
    pd.testing.assert_frame_equal(
        without_time(trace_of(tmp_path)), without_time(trace_of(folder)), rtol=1e-6
    )


@pytest.mark.nightly
def test_workers_find_the_same(done, settings, tmp_path, capfd):
    """Trials are seeded by their depths: whoever trains them measures the same."""
    outcome = depth_study.run(tmp_path, settings, SEARCH, workers=2)
    assert outcome.blocks == done[1].blocks
    told = re.findall(r"trial \d+: \d \d \d blocks, mean .* rule", capfd.readouterr().err)
    assert len(told) == len(trace_of(tmp_path)) // 3
    alone, together = (
        without_time(trace_of(folder)).query("status == 'completed'")
        for folder in (done[0], tmp_path)
    )
    compared = 0
    for _, rows in together.groupby("trial"):
        depths = rows["blocks"].tolist()
        for _, others in alone.groupby("trial"):
            if others["blocks"].tolist() == depths:
                expected = pytest.approx(others["scaled_distance"].tolist(), rel=1e-3)
                assert rows["scaled_distance"].tolist() == expected
                compared += 1
    assert compared == alone["trial"].nunique()


@pytest.mark.parametrize(
    ("name", "of_settings", "of_search"),
    [
        ("depth", {"depth": 20}, {}),
        ("network", {"network": "wide_resnet"}, {}),
        ("start", {}, {"start": (3, 3)}),
        ("start", {}, {"start": 9}),
        ("executions", {}, {"executions": 0}),
        ("max_trials", {}, {"max_trials": 0}),
        ("tolerance", {}, {"tolerance": -1}),
        ("coupling", {"coupling": 0.5, "coupling_from": 4}, {"max_blocks": 5}),
        ("warm_start", {"share_from": 1}, {"warm_start": True}),
    ],
)
def test_wrong_arguments_write_nothing(
    settings, tmp_path, monkeypatch, name, of_settings, of_search
):
    monkeypatch.chdir(tmp_path)
    with refused(name):
        settings = dataclasses.replace(settings, **of_settings)
        search = dataclasses.replace(SEARCH, **of_search)
        depth_study.run("new", settings, search)
    assert list(tmp_path.iterdir()) == []
