"""Chief, workers and supervisor as processes of their own, which are killed.

Not covered: several machines.
"""

import ast
import errno
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
from keras_tuner.src.distribute.oracle_client import OracleClient
from refusals import refused
from tuning.forked_search import (
    PATIENCE,
    Cluster,
    command,
    free_port,
    is_alive,
    notes,
    wait_until,
)

from tfresidual import tuning
from tfresidual.tuning import supervision, workers

pytestmark = pytest.mark.system


@pytest.fixture
def left_running(tmp_path):
    """Ends what a supervisor may have left behind."""
    yield
    for _, pid in notes(tmp_path / "search", "pids"):
        if is_alive(int(pid)):
            os.kill(int(pid), signal.SIGKILL)


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


@pytest.fixture
def complete(cluster, alone):
    """A function that asserts that the search of the cluster is complete."""

    def check(begun=None, but=(), size="large"):
        return assert_complete(cluster.folder, alone(size), begun, but)

    return check


# Chief and workers


@pytest.mark.nightly
def test_two_workers_that_wait_for_their_chief(cluster, complete):
    cluster.start("worker0")
    cluster.start("worker1")
    wait_until(lambda: len(notes(cluster.folder, "pids")) == 2)
    time.sleep(0.5)
    cluster.start("chief")
    cluster.wait("chief", "worker0", "worker1")
    complete(cluster.begun())
    assert min(len(cluster.begun(name)) for name in ("worker0", "worker1")) >= 3


@pytest.mark.nightly
def test_a_search_that_is_over(cluster, complete, alone):
    cluster.start("alone")
    cluster.wait("alone")
    begun = cluster.begun()
    statuses = [status for status, *_ in outcomes_of(alone("large"))]
    assert statuses == ["found", "found"]
    # A chief has nothing to serve; a worker finds no chief, and that there is nothing to do.
    cluster.start("chief")
    cluster.start("worker0", chief_timeout=2)
    cluster.wait("chief", "worker0")
    assert cluster.begun() == begun
    complete()


def test_a_killed_worker_gets_its_trial_back(cluster, complete):
    cluster.start("chief")
    cluster.start("worker0", sleep=30)
    cluster.start("worker1")
    cluster.wait_for_trials(1, "worker0")
    cluster.kill("worker0")
    cluster.start("worker0")
    cluster.wait("chief", "worker0", "worker1")
    lost, again, *_ = cluster.begun("worker0")
    assert lost == again
    complete(cluster.begun(), but=[lost])


@pytest.mark.nightly
def test_the_trial_of_a_worker_that_stays_away(cluster, complete):
    cluster.start("chief", lease=2)
    cluster.start("worker0", sleep=30)
    cluster.wait_for_trials(1, "worker0")
    cluster.start("worker1", heartbeat=0.2)
    cluster.kill("worker0")
    cluster.wait("chief", "worker1")
    complete(cluster.begun("worker1"))
    complete(cluster.begun(), but=cluster.begun("worker0"))


@pytest.mark.nightly
def test_a_trial_that_takes_long(cluster, complete):
    # Five times as long as a worker may be silent.
    cluster.start("chief", lease=1)
    cluster.start("worker0", sleep_of_first=5, heartbeat=0.2)
    cluster.wait_for_trials(1, "worker0")
    cluster.start("worker1", heartbeat=0.2)
    cluster.wait("chief", "worker0", "worker1")
    complete(cluster.begun())


@pytest.mark.nightly
def test_a_worker_killed_after_its_report(cluster, complete):
    cluster.start("chief")
    cluster.start("worker0", die_after_report=True)
    cluster.ended("worker0")
    cluster.start("worker0")
    cluster.wait("chief", "worker0")
    # What was reported is not measured again.
    complete(cluster.begun())


@pytest.mark.nightly
def test_a_killed_chief(cluster, complete):
    for name in ("chief", "worker0", "worker1"):
        cluster.start(name, sleep=0.2)
    for count in (2, 6):
        cluster.wait_for_trials(count)
        time.sleep(0.1)
        # Both workers train.
        cluster.kill("chief")
        cluster.start("chief")
    cluster.wait("chief", "worker0", "worker1")
    complete(cluster.begun())


def survive(cluster, moment, size):
    """A search whose chief is killed at a move of a file; who dies of it is started again."""
    cluster.start("chief", kill_at=moment, size=size)
    cluster.start("worker0", sleep=0, size=size)
    codes = []

    def is_over():
        for name in ("chief", "worker0"):
            if cluster.poll(name) not in (None, 0):
                codes.append((name, cluster.poll(name)))
                cluster.start(name, sleep=0, size=size)
        return cluster.poll("chief") == 0 and cluster.poll("worker0") == 0

    wait_until(is_over, cluster.logs)
    return ("chief", -signal.SIGKILL) in codes


def assert_survived(cluster, expected):
    trials = assert_complete(cluster.folder, expected)
    assert {*cluster.begun()} == {*trials}
    # What the chief did not have on the disk is done again.
    assert len(cluster.begun()) <= len(trials) + 1


# The files of a small search, a trial that begins, its measurements, and its end, each twice.
@pytest.mark.parametrize(("size", "first", "last"), [("small", 1, 7), ("large", 8, None)])
@pytest.mark.nightly
def test_a_chief_killed_at_every_move_of_a_file(tmp_path, launcher, alone, size, first, last):
    moment = first
    while last is None or moment <= last:
        cluster = Cluster(launcher, tmp_path / f"search{moment}")
        try:
            if not survive(cluster, moment, size):
                break
            assert_survived(cluster, alone(size))
        finally:
            cluster.close()
        moment += 1
    assert moment >= (8 if last else 4 * 10)


# A trial that begins, its measurements, its end, and the one that follows.
@pytest.mark.parametrize("moment", [2, 3, 4, 5])
@pytest.mark.nightly
def test_a_chief_without_space_on_the_disk(cluster, alone, moment):
    cluster.start("chief", full_disk_at=moment, size="small")
    cluster.start("worker0", sleep=0, size="small")
    output = cluster.output_of_failure("chief")
    assert "SearchError: The chief cannot continue. When started again, " in output
    assert "The error was OSError: [Errno 28] No space left on device" in output
    # The worker waits for another chief.
    assert cluster.poll("worker0") is None
    cluster.start("chief", size="small")
    cluster.wait("chief", "worker0")
    assert_survived(cluster, alone("small"))


@pytest.mark.nightly
def test_a_worker_without_a_chief(cluster):
    begun = time.monotonic()
    cluster.start("worker0", chief_timeout=2)
    output = cluster.output_of_failure("worker0")
    assert 2 <= time.monotonic() - begun < 10
    answer = f"No chief has answered at 127.0.0.1:{cluster.port} for 2 seconds"
    assert f"ConnectionError: {answer}" in output
    assert "Received: KERASTUNER_TUNER_ID='worker0', KERASTUNER_ORACLE_IP='127.0.0.1'" in output
    # One whose chief stays away.
    cluster.start("chief")
    cluster.start("worker0", chief_timeout=2, sleep=0.3)
    cluster.wait_for_trials(1)
    cluster.kill("chief")
    begun = time.monotonic()
    assert cluster.output_of_failure("worker0").count(answer) > 1
    assert time.monotonic() - begun < 15


@pytest.mark.nightly
def test_two_searches_in_one_folder(cluster):
    def second(**kwargs):
        place = {"directory": cluster.folder.parent, "project_name": "search"}
        return tuning.DepthSearch(lambda hp: None, start=(4, 4), **place, **kwargs)

    cluster.start("alone", sleep=30)
    cluster.wait_for_trials(1)
    in_use = rf"Another process is writing to this folder: process {cluster.pids['alone']} on .*"
    with pytest.raises(OSError, match=rf"{in_use}Received: project_name='/"):
        second().search(validation_data=([0], [0]))
    cluster.start("chief")
    assert re.search(rf"FolderInUseError: {in_use}", cluster.output_of_failure("chief"))
    with pytest.raises(OSError, match=in_use):
        second(overwrite=True)
    # The system frees the folder of a process that is killed.
    cluster.kill("alone")
    cluster.start("alone")
    cluster.wait("alone")


@pytest.mark.nightly
def test_overwriting_by_chief_and_workers(cluster, complete):
    cluster.start("alone", size="small")
    cluster.wait("alone")
    old = len(cluster.begun())
    cluster.start("chief", overwrite=True)
    cluster.start("worker0", overwrite=True)
    cluster.wait_for_trials(old + 4)
    cluster.start("worker1", overwrite=True)
    cluster.wait("chief", "worker0", "worker1")
    complete(cluster.begun()[old:])


@pytest.mark.nightly
def test_two_chiefs_on_one_port(cluster, tmp_path, launcher, alone):
    cluster.start("chief")
    cluster.start("worker0", sleep=30)
    cluster.wait_for_trials(1)
    second = Cluster(launcher, tmp_path / "second")
    second.port = cluster.port
    try:
        second.start("chief")
        output = second.output_of_failure("chief")
        assert "OSError: The chief cannot listen: is another one already running? " in output
        assert f"_IP and KERASTUNER_ORACLE_PORT of '127.0.0.1:{second.port}'" in output
        # It has let go of the folder.
        second.start("alone")
        second.wait("alone")
        assert_complete(second.folder, alone("large"))
    finally:
        second.close()


@pytest.mark.nightly
def test_trials_that_fail_at_a_worker(cluster):
    cluster.start("chief")
    cluster.start("worker0", all_fail=True)
    output = cluster.output_of_failure("chief")
    assert "SearchError: Number of consecutive failures exceeded the limit of 3" in output
    assert "The last: keras_tuner.src.errors.FailedTrialError: it could not be trained" in output
    cluster.wait("worker0")
    assert len(cluster.begun()) == 3


# The chief in this process


class Oracle:
    """One that raises an error in a method when it is called."""

    failure, watch, left = None, None, 3

    def __init__(self, fails="nothing"):
        self.fails = fails

    def call(self, name):
        if name == self.fails:
            raise OSError(errno.ENOSPC, "No space left")

    def create_trial(self, tuner_id):
        return self.call("create_trial")

    def release_silent(self):
        self.call("release_silent")

    def is_over(self):
        self.call("is_over")
        self.left -= self.fails == "nothing"
        return not self.left


@pytest.fixture
def chief(monkeypatch):
    """Makes this process a chief."""
    monkeypatch.setattr(workers, "POLL", 0.05)
    for name, value in (ENVIRONMENT | {"KERASTUNER_ORACLE_PORT": str(free_port())}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("KERASTUNER_TUNER_ID", "chief")
    return workers


@pytest.mark.parametrize("fails", ["create_trial", "release_silent", "is_over"])
def test_an_oracle_that_raises_an_error(chief, fails):
    oracle, told = Oracle(fails), []
    client = OracleClient(oracle)
    chief.wait_for_chief(client, 1.0)

    def ask():
        try:
            client.create_trial("worker0")
        except ConnectionError as error:
            told.append(str(error))

    worker = threading.Thread(target=ask, daemon=True)
    if fails == "create_trial":
        worker.start()
    with pytest.raises(chief.SearchError, match=r"The chief cannot continue.*OSError: .*No space"):
        chief.serve(oracle)
    if fails == "create_trial":
        worker.join(10)
        assert "No chief has answered" in str(*told)
    # The program may continue, and its watch is called.
    oracle.fails, oracle.watch = "nothing", lambda: told.append("seen")
    chief.serve(oracle)
    assert told.count("seen") == 2


ENVIRONMENT = {
    "KERASTUNER_TUNER_ID": "worker0",
    "KERASTUNER_ORACLE_IP": "127.0.0.1",
    "KERASTUNER_ORACLE_PORT": "8000",
}
WRONG_ENVIRONMENTS = [
    *((name, {name: None}) for name in ENVIRONMENT),
    *((None, {other: None for other in ENVIRONMENT if other != name}) for name in ENVIRONMENT),
    ("KERASTUNER_ORACLE_IP", {"KERASTUNER_ORACLE_IP": ""}),
    ("KERASTUNER_TUNER_ID", {"KERASTUNER_TUNER_ID": "chief2"}),
    *(
        ("KERASTUNER_ORACLE_PORT", {"KERASTUNER_ORACLE_PORT": port})
        for port in ("http", "0", "65536", "-1", "8000.0", "²")
    ),
]


@pytest.mark.parametrize(("culprit", "changes"), WRONG_ENVIRONMENTS, ids=str)
def test_wrong_environments(monkeypatch, culprit, changes):
    for variable, value in (ENVIRONMENT | changes).items():
        if value is not None:
            monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=r"^Environment variable `.*Received: KERAS") as raised:
        workers.check_environment()
    if culprit is not None:
        assert f"variable `{culprit}` must be" in str(raised.value)
        assert f"{culprit}={changes[culprit]!r}" in str(raised.value)


@pytest.mark.parametrize("name", [None, "chief", "worker0"])
def test_environments(monkeypatch, name):
    for variable, value in ENVIRONMENT.items() if name else ():
        monkeypatch.setenv(variable, value)
    if name:
        monkeypatch.setenv("KERASTUNER_TUNER_ID", name)
    workers.check_environment()
    assert workers.is_worker() == (name == "worker0")


# Processes that are supervised


class TooLate(Exception):
    pass


def patience(seconds):
    """A function for `watch` that does not watch for ever."""
    deadline = time.monotonic() + seconds

    def watch():
        if time.monotonic() > deadline:
            raise TooLate

    return watch


def program(chief, worker):
    """A program that begins something at once, without TensorFlow."""
    lines = [
        "import os, pathlib, signal, sys, time",
        "name = os.environ['KERASTUNER_TUNER_ID']",
        f"exec({chief!r} if name == 'chief' else {worker!r})",
    ]
    return [sys.executable, "-c", "\n".join(lines)]


def until_done(folder):
    return f"while not pathlib.Path({str(folder)!r}, 'done').exists():\n    time.sleep(0.05)"


def test_what_supervised_processes_are_told(tmp_path, monkeypatch):
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    looks = []
    tell = "print(sorted(os.environ.items()))"
    tuning.supervise(program(tell, tell), 2, tmp_path / "new" / "logs", lambda: looks.append(0))
    told = {
        path.stem: dict(ast.literal_eval(path.read_text()))
        for path in sorted((tmp_path / "new" / "logs").iterdir())
    }
    assert [*told] == ["chief", "worker0", "worker1"]
    assert [of["KERASTUNER_TUNER_ID"] for of in told.values()] == [*told]
    assert {of["KERASTUNER_ORACLE_IP"] for of in told.values()} == {"127.0.0.1"}
    assert len({of["KERASTUNER_ORACLE_PORT"] for of in told.values()}) == 1
    threads = str(max(1, os.cpu_count() // 2))
    assert told["worker1"]["TF_NUM_INTRAOP_THREADS"] == threads
    assert told["worker1"]["OMP_NUM_THREADS"] == "7"
    assert len(looks) >= 2


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("workers", workers) for workers in (0, True, 1.0, "2", None)),
        *(("command", command) for command in ([], "false", ["false", 1], None, [""])),
        *(("watch", watch) for watch in (1, "often")),
        *(("restarts", restarts) for restarts in (-1, 1.0, None)),
        *(("folder", folder) for folder in (None, 3)),
    ],
)
def test_wrong_arguments_of_a_supervisor(tmp_path, name, value):
    touch = program(f"open({str(tmp_path / 'begun')!r}, 'w')", "")
    with refused(name) as caught:
        given = {"command": touch, "workers": 1, "folder": tmp_path / "logs", name: value}
        tuning.supervise(**given)
    assert str(caught.value).endswith(f"{name}={value!r}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["file", "file/logs"])
def test_a_supervisor_whose_folder_is_a_file(tmp_path, folder):
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match=r"`folder` must .*Received: folder='.*file"):
        tuning.supervise(["false"], 1, tmp_path / folder)


NOISE = """WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795242765.048857    1616 port.cc:153] oneDNN custom operations are on.
2025-01-01 10:00:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow
To enable the following instructions: AVX2 AVX512F, rebuild TensorFlow.
"""
ERROR = "print('so it went', flush=True); print('ValueError: not this', file=sys.stderr)"


@pytest.mark.parametrize(
    ("crash", "told"),
    [
        (f"{ERROR}; raise OSError('it is full')", [":", "OSError: it is full"]),
        (f"print({NOISE!r} + 'so it went', flush=True); os._exit(3)", [":", "so it went"]),
        ("os._exit(3)", [", without any output"]),
    ],
    ids=["an error", "no error", "nothing"],
)
def test_the_end_of_a_log_is_what_is_said(tmp_path, crash, told):
    (tmp_path / "chief.log").write_text("ValueError: of a run that was long ago\n")
    with pytest.raises(tuning.SearchError) as raised:
        tuning.supervise(program(crash, "time.sleep(60)"), 1, tmp_path, patience(30), restarts=0)
    first, *lines = str(raised.value).splitlines()
    assert [first.partition("chief.log")[2], *lines] == told


def test_a_worker_that_crashes(tmp_path):
    """Always; and twice, which is not often enough to give up."""
    crash = "print('so it went'); sys.exit(3)"
    with pytest.raises(tuning.SearchError, match="worker0 of the search ended 3 times") as raised:
        tuning.supervise(program("time.sleep(60)", crash), 1, tmp_path, patience(10), restarts=2)
    assert "so it went" in str(raised.value)
    assert (tmp_path / "worker0.log").read_text() == "so it went\n" * 3
    times = f"pathlib.Path({str(tmp_path / 'worker0.log')!r}).read_text().count('begun')"
    worker = f"print('begun', flush=True)\nassert {times} == 3\n"
    worker += f"pathlib.Path({str(tmp_path)!r}, 'done').touch()"
    tuning.supervise(program(until_done(tmp_path), worker), 1, tmp_path, patience(10))
    assert (tmp_path / "worker0.log").read_text().count("begun\n") == 3


def noted(folder):
    """A program that notes its process, as `notes` reads it."""
    return f"open({f'{folder}-pids.txt'!r}, 'a').write(f'{{name}} {{os.getpid()}}\\n')\n"


def assert_all_ended(folder, count):
    assert len(notes(folder, "pids")) == count
    assert not any(is_alive(int(pid)) for _, pid in notes(folder, "pids"))


def test_an_interrupted_supervisor_ends_all(tmp_path, left_running):
    folder = tmp_path / "search"
    begin = f"{noted(folder)}time.sleep(60)"

    def interrupt():
        if len(notes(folder, "pids")) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuning.supervise(program(begin, begin), 2, tmp_path / "logs", interrupt)
    assert_all_ended(folder, 3)


def test_a_worker_that_does_not_want_to_end(tmp_path, monkeypatch, left_running):
    monkeypatch.setattr(supervision, "GRACE", 0.5)
    worker = f"signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{noted(tmp_path / 'search')}"
    worker += f"pathlib.Path({str(tmp_path)!r}, 'done').touch()\n"
    worker += "time.sleep(60)"
    begun = time.monotonic()
    tuning.supervise(program(until_done(tmp_path), worker), 1, tmp_path / "logs", patience(30))
    assert time.monotonic() - begun < 10
    assert_all_ended(tmp_path / "search", 1)


def supervised(tmp_path, watch=None, **order):
    """Supervises a search; returns its folder, and the trials with those who began them."""
    folder, bounded = tmp_path / "search", patience(PATIENCE)

    def look():
        bounded()
        if watch is not None:
            watch(folder)

    tuning.supervise(command(folder=str(folder), **order), 2, tmp_path / "logs", look)
    return folder, notes(folder, "begun")


@pytest.mark.nightly
def test_supervised_search(tmp_path, alone, left_running):
    folder, begun = supervised(tmp_path)
    assert_complete(folder, alone("large"), [trial for _, trial in begun])
    assert {by for by, _ in begun} == {"worker0", "worker1"}
    assert_all_ended(folder, 3)


@pytest.mark.nightly
# A trial is long enough for the watch to see who has begun it.
@pytest.mark.parametrize(("name", "sleep"), [("worker0", 2.0), ("chief", 0.5)])
def test_a_supervised_process_that_is_killed(tmp_path, alone, left_running, name, sleep):
    killed = []

    def kill(folder):
        begun = notes(folder, "begun")
        if not killed and len(begun) >= 4 and name in ("chief", begun[-1][0]):
            killed.append(begun[-1][1])
            (pid,) = (int(pid) for by, pid in notes(folder, "pids") if by == name)
            os.kill(pid, signal.SIGKILL)

    folder, begun = supervised(tmp_path, kill, sleep=sleep)
    assert_all_ended(folder, 4)
    lost = killed if name == "worker0" else []
    assert_complete(folder, alone("large"), [trial for _, trial in begun], but=lost)
    assert [by for by, trial in begun if trial in lost] == ["worker0", "worker0"][: 2 * len(lost)]


@pytest.mark.nightly
def test_a_search_ends_with_its_supervisor(cluster, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    hold = "import sys, time; file = open(sys.argv[1], 'w'); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-S", "-c", hold, pipe]) as supervisor:
        cluster.start("alone", stdin=str(pipe), sleep=60)
        cluster.wait_for_trials(1)
        supervisor.kill()
    assert cluster.output_of_failure("alone") == ""


@pytest.mark.nightly
@pytest.mark.parametrize("moment", ["loading", "training", "without TensorFlow"])
def test_a_killed_supervisor(cluster, left_running, moment):
    """Members end when their input does, those that load TensorFlow when they have."""
    members = command(folder=str(cluster.folder), sleep=60)
    if moment == "without TensorFlow":
        waits = f"{noted(cluster.folder)}os.read(0, 1)"
        members = program(waits, waits)
    cluster.start("supervisor", supervised=members)

    def alive():
        found = [int(pid) for by, pid in notes(cluster.folder, "pids") if by != "alone"]
        return [pid for pid in found if is_alive(pid)]

    wait_until(lambda: len(alive()) == 3, cluster.logs)
    if moment == "training":
        cluster.wait_for_trials(2)
    cluster.kill("supervisor")
    wait_until(lambda: not alive())
    assert len(cluster.begun()) == (2 if moment == "training" else 0)
