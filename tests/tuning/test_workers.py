"""Chief and workers as processes of their own, which are killed.

Not covered: several machines.
"""

import os
import subprocess
import sys
import time

import pytest
from tuning.forked_search import is_alive, notes, wait_until

from tfresidual import tuning

pytestmark = pytest.mark.system


def outcomes_of(folder):
    found = tuning.outcomes_of(tuning.read_search(folder))
    return [(outcome.status, outcome.blocks, outcome.hyperparameters) for outcome in found]


def assert_complete(folder, expected, begun=None, but=()):
    """The result of another search, and every setting trained once.

    Args:
        folder: the folder of a search.
        expected: that of the other one.
        begun: the trials that were begun, each once.
        but: those that were begun twice.
    """
    assert outcomes_of(folder) == outcomes_of(expected)
    trials = tuning.read_search(folder).in_order()
    assert {trial.status for trial in trials} == {"COMPLETED"}
    settings = [tuple(sorted(trial.hyperparameters.values.items())) for trial in trials]
    assert len(set(settings)) == len(settings)
    ids = [trial.trial_id for trial in trials]
    if begun is not None:
        assert sorted(begun) == sorted([*ids, *but])
    return ids


def test_a_killed_worker_gets_its_trial_back(cluster, alone):
    cluster.start("chief")
    cluster.start("worker0", sleep=30)
    cluster.start("worker1")
    cluster.wait_for_trials(1, "worker0")
    cluster.kill("worker0")
    cluster.start("worker0")
    cluster.wait("chief", "worker0", "worker1")
    lost, again, *_ = cluster.begun("worker0")
    assert lost == again
    assert_complete(cluster.folder, alone("large"), cluster.begun(), but=[lost])


@pytest.mark.nightly
def test_a_killed_search_is_resumed_by_other_workers(cluster, alone):
    for name in ("chief", "worker0", "worker1"):
        cluster.start(name, sleep=0.2)
    cluster.wait_for_trials(6)
    for name in ("worker1", "chief", "worker0"):
        cluster.kill(name)
    before = cluster.begun()
    for name in ("chief", "worker1"):
        cluster.start(name)
    cluster.wait("chief", "worker1")
    # What ran is run again, and nothing else.
    begun = cluster.begun()
    assert_complete(cluster.folder, alone("large"))
    twice = [trial for trial in before if begun.count(trial) == 2]
    assert 1 <= len(twice) <= 2
    assert max(map(begun.count, begun)) == 2


@pytest.mark.nightly
@pytest.mark.parametrize("moment", [1, 3, 6, 9, 14])
def test_a_chief_killed_at_a_move_of_a_file(cluster, alone, moment):
    cluster.start("chief", kill_at=moment)
    cluster.start("worker0", sleep=0)
    cluster.ended("chief")
    cluster.kill("worker0")
    for name in ("chief", "worker0"):
        cluster.start(name, sleep=0)
    cluster.wait("chief", "worker0")
    trials = assert_complete(cluster.folder, alone("large"))
    assert len(cluster.begun()) <= len(trials) + 1


@pytest.mark.nightly
def test_trials_that_fail_at_a_worker(cluster):
    cluster.start("chief")
    cluster.start("worker0", all_fail=True)
    output = cluster.output_of_failure("chief")
    assert "SearchError: Number of consecutive failures exceeded the limit of 3" in output
    assert "The last: keras_tuner.src.errors.FailedTrialError: it could not be trained" in output
    cluster.wait("worker0")
    assert len(cluster.begun()) == 3


@pytest.mark.nightly
def test_two_searches_in_one_folder(cluster):
    cluster.start("alone", sleep=30)
    cluster.wait_for_trials(1)
    cluster.start("chief")
    assert "FolderInUseError: " in cluster.output_of_failure("chief")
    # The system frees the folder of a process that is killed.
    cluster.kill("alone")
    cluster.start("alone")
    cluster.wait("alone")


# Programs that are no searches


def program(chief, worker):
    """A program that begins something at once, without TensorFlow."""
    lines = [
        "import os, pathlib, sys, time",
        "name = os.environ['KERASTUNER_TUNER_ID']",
        f"exec({chief!r} if name == 'chief' else {worker!r})",
    ]
    return [sys.executable, "-c", "\n".join(lines)]


def noted(folder):
    """A program that notes its process, as `notes` reads it."""
    return f"open({f'{folder}-pids.txt'!r}, 'a').write(f'{{name}} {{os.getpid()}}\\n')\n"


def test_what_processes_are_told(monkeypatch, capfd):
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    names = ("KERASTUNER_TUNER_ID", "KERASTUNER_ORACLE_IP", "TF_NUM_INTRAOP_THREADS")
    names += ("OMP_NUM_THREADS", "KERASTUNER_ORACLE_PORT")
    tell = f"print(*map(os.environ.get, {names}), flush=True)"
    tuning.run_workers(program(tell, tell), 2)
    told = sorted(line.split() for line in capfd.readouterr().out.splitlines())
    threads = str(max(1, os.cpu_count() // 2))
    ports = {line.pop() for line in told}
    assert len(ports) == 1
    workers = [[f"worker{place}", "127.0.0.1", threads, "7"] for place in range(2)]
    assert told == [["chief", "127.0.0.1", "None", "7"], *workers]


def test_a_process_that_fails_ends_all(tmp_path):
    folder = tmp_path / "search"
    wait = f"{noted(folder)}time.sleep(60)"
    fail = f"{noted(folder)}time.sleep(1)\nif name == 'worker1': sys.exit(3)\ntime.sleep(60)"
    begun = time.monotonic()
    with pytest.raises(tuning.SearchError, match=r"worker1 .* exit code 3"):
        tuning.run_workers(program(wait, fail), 2)
    assert time.monotonic() - begun < 30
    wait_until(lambda: not any(is_alive(int(pid)) for _, pid in notes(folder, "pids")))


@pytest.mark.nightly
def test_processes_end_with_the_one_that_runs_them(tmp_path):
    folder = tmp_path / "search"
    wait = "from tfresidual.tuning.workers import end_with_parent\nend_with_parent()\n"
    wait += f"{noted(folder)}time.sleep(300)"
    run = f"from tfresidual import tuning\ntuning.run_workers({program(wait, wait)!r}, 1)"
    with subprocess.Popen([sys.executable, "-c", run]) as process:
        wait_until(lambda: len(notes(folder, "pids")) == 2)
        process.kill()
    wait_until(lambda: not any(is_alive(int(pid)) for _, pid in notes(folder, "pids")))
