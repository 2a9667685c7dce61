"""Chief, workers and supervisor as processes of their own, which are killed.

Run as a program, this file searches. Where a test starts processes itself, they are forked from
one that has loaded TensorFlow, which saves seconds each; `tuning.supervise` starts them afresh.

Not covered: several machines.
"""

import contextlib
import errno
import json
import math
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

pytestmark = pytest.mark.system

# How long a test waits for what must happen.
PATIENCE = 60.0
SLEEP = 0.05


# The program


def main(role, *arguments):
    if role == "launch":
        launch()
    else:
        run(json.loads(arguments[0]))


def launch():
    """Starts processes by order of the test, and says how they end."""
    search_class({})
    children = set()
    for line in sys.stdin:
        order = json.loads(line)
        if "poll" in order:
            pid, status = os.waitpid(order["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
            children -= {pid}
        else:
            answer = fork(order)
            children.add(answer)
        print(json.dumps(answer), flush=True)
    for pid in children:
        os.kill(pid, signal.SIGKILL)


def fork(order):
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        with open(order["log"], "a") as log, open(order.get("stdin", os.devnull)) as stdin:
            for number, file in enumerate((stdin, log, log)):
                os.dup2(file.fileno(), number)
        os.environ.update(order["environment"])
        if "stdin" in order:
            os.environ["TFRESIDUAL_SUPERVISED"] = "0"
        run(order)
        code = 0
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def run(order):
    """Searches, or supervises others that do."""
    note(order["folder"], "pids", os.environ.get("KERASTUNER_TUNER_ID", "alone"), os.getpid())
    if "supervised" in order:
        from tfresidual import tuning

        tuning.supervise(order["supervised"], 2, f"{order['folder']}-logs")
    else:
        search(order)


def search(order):
    from tfresidual.tuning import depth_oracle, depth_search, workers

    # Tests have no time to wait for what may take half a minute.
    depth_search.POLL = workers.POLL = 0.05
    depth_oracle.LEASE = order.get("lease", depth_oracle.LEASE)
    workers.HEARTBEAT = order.get("heartbeat", workers.HEARTBEAT)
    folder = pathlib.Path(order["folder"])
    if "kill_at_move" in order:
        kill_at_move(folder, order["kill_at_move"])
    if "full_disk_at" in order:
        fill_disk(depth_oracle, order["full_disk_at"])
    start, widths = {"large": ((4, 4), [4, 8]), "small": ((24, 38), [4])}[
        order.get("size", "large")
    ]
    tuner = search_class(order)(
        lambda hp: hp.Choice("width", widths),
        start=start,
        max_blocks=60,
        chief_timeout=order.get("chief_timeout", 20),
        overwrite=order.get("overwrite", False),
        directory=folder.parent,
        project_name=folder.name,
    )
    tuner.search(validation_data=([0], [0]), verbose=0)


def kill_at_move(folder, count):
    """Kills this process before it moves, for the `count`-th time, a file of the search."""
    left = count

    def watch(event, arguments):
        nonlocal left
        if event == "os.rename" and str(folder) in os.fsdecode(arguments[0]):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def fill_disk(depth_oracle, count):
    """Lets the oracle find no space for the `count`-th state that it saves, nor from then on."""
    saves, write_json = 0, depth_oracle.write_json

    def write(path, content):
        nonlocal saves
        saves += pathlib.Path(path).name == "oracle.json"
        if saves >= count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write_json(path, content)

    depth_oracle.write_json = write


def search_class(order):
    import keras_tuner

    from tfresidual import tuning

    class Search(tuning.DepthSearch):
        """Computes what a network would have measured."""

        def execute(self, trial, execution, *args, **kwargs):
            depths = tuning.blocks(trial.hyperparameters)
            width = trial.hyperparameters.get("width")
            note(order["folder"], "begun", self.tuner_id, trial.trial_id)
            time.sleep(order.get("sleep", SLEEP))
            if order.get("sleep_of_first") and trial.trial_id == "0000":
                time.sleep(order["sleep_of_first"])
            if order.get("all_fail"):
                raise keras_tuner.errors.FailedTrialError("it could not be trained")
            measured = {"blocks": float(sum(depths)), "seconds": 0.0}
            for stage, depth in enumerate(depths, start=1):
                distance = (2 + stage) * -math.expm1(-width * depth / 60)
                measured[f"stage{stage}/blocks"] = float(depth)
                measured[f"stage{stage}/distance"] = 3 * distance
                measured[f"stage{stage}/scaled_distance"] = distance
            return measured

        def on_trial_end(self, trial):
            if order.get("die_after_report"):
                os.kill(os.getpid(), signal.SIGKILL)
            super().on_trial_end(trial)

    return Search


def note(folder, kind, *values):
    with open(f"{folder}-{kind}.txt", "a") as file:
        file.write(" ".join(map(str, values)) + "\n")


def command(order):
    return [sys.executable, "-P", __file__, "search", json.dumps(order)]


# What the tests ask about


def notes(folder, kind):
    path = pathlib.Path(f"{folder}-{kind}.txt")
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def is_alive(pid):
    """Whether a process runs; one that has ended and that nobody asked about does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = pathlib.Path(f"/proc/{pid}/stat")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        if stat.parent.parent.joinpath("self").exists():
            return stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    return not stat.parent.parent.joinpath("self").exists()


def wait_until(condition, why=""):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, why() if callable(why) else why
        time.sleep(0.01)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Launcher:
    """The process from which others are forked."""

    def __init__(self, log):
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-P", __file__, "launch"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )
        self.log = log

    def order(self, **order):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, self.log.read_text()
        return json.loads(answer)

    def close(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(10)


class Cluster:
    """The processes of one search, by name."""

    def __init__(self, launcher, folder):
        self.launcher, self.folder = launcher, folder
        self.port = free_port()
        self.pids, self.codes = {}, {}

    def start(self, name, **order):
        environment = {
            "KERASTUNER_TUNER_ID": name,
            "KERASTUNER_ORACLE_IP": "127.0.0.1",
            "KERASTUNER_ORACLE_PORT": str(self.port),
        }
        if name == "alone":
            environment = {}
        order = {"folder": str(self.folder), **order}
        log = str(self.log(name))
        pid = self.launcher.order(environment=environment, log=log, **order)
        self.pids[name] = pid
        self.codes.pop(name, None)

    def log(self, name):
        return self.folder.with_name(f"{self.folder.name}-{name}.log")

    def logs(self):
        return "\n".join(
            f"{name} {self.poll(name)}:\n{self.log(name).read_text()}" for name in self.pids
        )

    def poll(self, name):
        """The exit code, or `None` as long as it runs."""
        if name not in self.codes:
            code = self.launcher.order(poll=self.pids[name])
            if code is None:
                return None
            self.codes[name] = code
        return self.codes[name]

    def kill(self, name):
        os.kill(self.pids[name], signal.SIGKILL)
        wait_until(lambda: self.poll(name) is not None)

    def wait(self, *names):
        """Until processes have ended well."""
        for name in names:
            wait_until(lambda name=name: self.poll(name) is not None, self.logs)
            assert self.poll(name) == 0, self.logs()

    def output_of_failure(self, name):
        """What a process wrote that had to end with an error."""
        wait_until(lambda: self.poll(name) is not None, self.logs)
        assert self.poll(name) == 1, self.logs()
        return self.log(name).read_text()

    def begun(self, name=None):
        """The trials that were begun, by anyone or by a worker, as often as they were."""
        return [trial for by, trial in notes(self.folder, "begun") if name in (None, by)]

    def close(self):
        for name, pid in self.pids.items():
            if self.poll(name) is None:
                os.kill(pid, signal.SIGKILL)
                wait_until(lambda name=name: self.poll(name) is not None)


@pytest.fixture(scope="module")
def launcher(tmp_path_factory):
    launcher = Launcher(tmp_path_factory.mktemp("launcher") / "log")
    yield launcher
    launcher.close()


@pytest.fixture
def cluster(tmp_path, launcher):
    cluster = Cluster(launcher, tmp_path / "search")
    yield cluster
    cluster.close()


@pytest.fixture
def left_running(tmp_path):
    """Ends what a supervisor may have left behind."""
    yield
    for _, pid in notes(tmp_path / "search", "pids"):
        if is_alive(int(pid)):
            os.kill(int(pid), signal.SIGKILL)


@pytest.fixture(scope="module")
def answers(tmp_path_factory, launcher):
    """What a single process finds, by the size of the search."""
    found = {}
    for size in ("small", "large"):
        cluster = Cluster(launcher, tmp_path_factory.mktemp("alone") / size)
        try:
            cluster.start("alone", size=size, sleep=0)
            cluster.wait("alone")
        finally:
            cluster.close()
        found[size] = outcomes_of(cluster.folder)
    assert [outcome[0] for outcome in found["large"]] == ["found", "found"]
    assert found["large"][0] == found["small"][0] != found["large"][1]
    return found


@pytest.fixture
def answer(answers):
    return answers["large"]


def outcomes_of(folder):
    from tfresidual import tuning

    found = tuning.outcomes_of(tuning.read_search(folder))
    return [(outcome.status, outcome.blocks, outcome.hyperparameters) for outcome in found]


def assert_complete(folder, answer):
    """The answer, and every setting trained once."""
    from tfresidual import tuning

    assert outcomes_of(folder) == answer
    trials = tuning.read_search(folder).in_order()
    assert {trial.status for trial in trials} == {"COMPLETED"}
    settings = [tuple(sorted(trial.hyperparameters.values.items())) for trial in trials]
    assert len(set(settings)) == len(settings)
    return [trial.trial_id for trial in trials]


def assert_each_ran_once(begun, trials, but=()):
    """Each trial was begun by one worker, once; `but` were begun twice."""
    assert sorted(begun) == sorted([*trials, *but])


# Chief and workers


@pytest.mark.nightly
def test_two_workers_that_wait_for_their_chief(cluster, answer):
    cluster.start("worker0")
    cluster.start("worker1")
    wait_until(lambda: len(notes(cluster.folder, "pids")) == 2)
    time.sleep(0.5)
    cluster.start("chief")
    cluster.wait("chief", "worker0", "worker1")
    assert_each_ran_once(cluster.begun(), assert_complete(cluster.folder, answer))
    assert len(cluster.begun("worker0")) >= 3
    assert len(cluster.begun("worker1")) >= 3


@pytest.mark.nightly
def test_a_search_that_is_over(cluster, answer):
    cluster.start("alone")
    cluster.wait("alone")
    begun = cluster.begun()
    # A chief has nothing to serve; a worker finds no chief, and that there is nothing to do.
    cluster.start("chief")
    cluster.start("worker0", chief_timeout=2)
    cluster.wait("chief", "worker0")
    assert cluster.begun() == begun
    assert_complete(cluster.folder, answer)


def test_a_killed_worker_gets_its_trial_back(cluster, answer):
    cluster.start("chief")
    cluster.start("worker0", sleep=30)
    cluster.start("worker1")
    wait_until(lambda: cluster.begun("worker0"), cluster.logs)
    cluster.kill("worker0")
    cluster.start("worker0")
    cluster.wait("chief", "worker0", "worker1")
    trials = assert_complete(cluster.folder, answer)
    (lost,) = set(cluster.begun("worker0")[:1])
    assert cluster.begun("worker0")[:2] == [lost, lost]
    assert_each_ran_once(cluster.begun(), trials, but=[lost])


@pytest.mark.nightly
def test_the_trial_of_a_worker_that_stays_away(cluster, answer):
    cluster.start("chief", lease=2)
    cluster.start("worker0", sleep=30)
    wait_until(lambda: cluster.begun("worker0"), cluster.logs)
    cluster.start("worker1", heartbeat=0.2)
    cluster.kill("worker0")
    cluster.wait("chief", "worker1")
    trials = assert_complete(cluster.folder, answer)
    (lost,) = cluster.begun("worker0")
    assert_each_ran_once(cluster.begun("worker1"), trials)
    assert_each_ran_once(cluster.begun(), trials, but=[lost])


@pytest.mark.nightly
def test_a_trial_that_takes_long(cluster, answer):
    # Five times as long as a worker may be silent.
    cluster.start("chief", lease=1)
    cluster.start("worker0", sleep_of_first=5, heartbeat=0.2)
    wait_until(lambda: cluster.begun("worker0"), cluster.logs)
    cluster.start("worker1", heartbeat=0.2)
    cluster.wait("chief", "worker0", "worker1")
    assert_each_ran_once(cluster.begun(), assert_complete(cluster.folder, answer))


@pytest.mark.nightly
def test_a_worker_killed_after_its_report(cluster, answer):
    cluster.start("chief")
    cluster.start("worker0", die_after_report=True)
    wait_until(lambda: cluster.poll("worker0") is not None, cluster.logs)
    cluster.start("worker0")
    cluster.wait("chief", "worker0")
    # What was reported is not measured again.
    assert_each_ran_once(cluster.begun(), assert_complete(cluster.folder, answer))


@pytest.mark.nightly
def test_a_killed_chief(cluster, answer):
    for name in ("chief", "worker0", "worker1"):
        cluster.start(name, sleep=0.2)
    for count in (2, 6):
        wait_until(lambda count=count: len(cluster.begun()) >= count, cluster.logs)
        time.sleep(0.1)
        # Both workers train.
        cluster.kill("chief")
        cluster.start("chief")
    cluster.wait("chief", "worker0", "worker1")
    assert_each_ran_once(cluster.begun(), assert_complete(cluster.folder, answer))


def survive(cluster, moment, size):
    """A search whose chief is killed at a move of a file; who dies of it is started again."""
    cluster.start("chief", kill_at_move=moment, size=size)
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


def assert_survived(cluster, answer):
    trials = assert_complete(cluster.folder, answer)
    begun = cluster.begun()
    assert {*begun} == {*trials}
    # What the chief did not have on the disk is done again.
    assert len(begun) <= len(trials) + 1


# The files of the search, a trial that begins, its measurements, and its end, each twice.
@pytest.mark.parametrize("moment", range(1, 8))
@pytest.mark.nightly
def test_a_chief_killed_at_a_move_of_a_file(cluster, answers, moment):
    assert survive(cluster, moment, "small")
    assert_survived(cluster, answers["small"])


@pytest.mark.nightly
def test_a_chief_killed_at_every_move_of_a_file(tmp_path, launcher, answers):
    moment = 8
    while True:
        cluster = Cluster(launcher, tmp_path / f"search{moment}")
        try:
            if not survive(cluster, moment, "large"):
                break
            assert_survived(cluster, answers["large"])
        finally:
            cluster.close()
        moment += 1
    assert moment >= 4 * 10


# A trial that begins, its measurements, its end, and the one that follows.
@pytest.mark.parametrize("moment", [2, 3, 4, 5])
@pytest.mark.nightly
def test_a_chief_without_space_on_the_disk(cluster, answers, moment):
    cluster.start("chief", full_disk_at=moment, size="small")
    cluster.start("worker0", sleep=0, size="small")
    output = cluster.output_of_failure("chief")
    assert "SearchError: The chief cannot continue. When started again, " in output
    assert "The error was OSError: [Errno 28] No space left on device" in output
    # The worker waits for another chief.
    assert cluster.poll("worker0") is None
    cluster.start("chief", size="small")
    cluster.wait("chief", "worker0")
    assert_survived(cluster, answers["small"])


@pytest.mark.nightly
def test_a_worker_without_a_chief(cluster):
    begun = time.monotonic()
    cluster.start("worker0", chief_timeout=2)
    output = cluster.output_of_failure("worker0")
    assert 2 <= time.monotonic() - begun < 10
    assert (
        f"ConnectionError: No chief has answered at 127.0.0.1:{cluster.port} for 2 seconds"
        in output
    )
    assert "Received: KERASTUNER_TUNER_ID='worker0', KERASTUNER_ORACLE_IP='127.0.0.1'" in output


@pytest.mark.nightly
def test_a_worker_whose_chief_stays_away(cluster):
    cluster.start("chief")
    cluster.start("worker0", chief_timeout=2, sleep=0.3)
    wait_until(lambda: cluster.begun(), cluster.logs)
    cluster.kill("chief")
    begun = time.monotonic()
    assert "Error" in cluster.output_of_failure("worker0")
    assert time.monotonic() - begun < 15


@pytest.mark.nightly
def test_two_searches_in_one_folder(cluster):
    from tfresidual import tuning

    cluster.start("alone", sleep=30)
    wait_until(lambda: cluster.begun(), cluster.logs)
    second = tuning.DepthSearch(
        lambda hp: None, start=(4, 4), directory=cluster.folder.parent, project_name="search"
    )
    in_use = rf"Another process is writing to this folder: process {cluster.pids['alone']} on .*"
    with pytest.raises(OSError, match=rf"{in_use}Received: project_name='/"):
        second.search(validation_data=([0], [0]))
    cluster.start("chief")
    assert re.search(rf"FolderInUseError: {in_use}", cluster.output_of_failure("chief"))
    with pytest.raises(OSError, match=in_use):
        tuning.DepthSearch(
            lambda hp: None,
            start=(4, 4),
            directory=cluster.folder.parent,
            project_name="search",
            overwrite=True,
        )
    # The system frees the folder of a process that is killed.
    cluster.kill("alone")
    cluster.start("alone")
    cluster.wait("alone")


@pytest.mark.nightly
def test_overwriting_by_chief_and_workers(cluster, answer):
    cluster.start("alone", size="small")
    cluster.wait("alone")
    old = cluster.begun()
    cluster.start("chief", overwrite=True)
    cluster.start("worker0", overwrite=True)
    wait_until(lambda: len(cluster.begun()) > len(old) + 3, cluster.logs)
    cluster.start("worker1", overwrite=True)
    cluster.wait("chief", "worker0", "worker1")
    trials = assert_complete(cluster.folder, answer)
    assert_each_ran_once(cluster.begun()[len(old) :], trials)


@pytest.mark.nightly
def test_two_chiefs_on_one_port(cluster, tmp_path, launcher, answer):
    cluster.start("chief")
    cluster.start("worker0", sleep=30)
    wait_until(lambda: cluster.begun(), cluster.logs)
    second = Cluster(launcher, tmp_path / "second")
    second.port = cluster.port
    try:
        second.start("chief")
        output = second.output_of_failure("chief")
        address = f"127.0.0.1:{cluster.port}"
        assert "OSError: The chief cannot listen: is another one already running? " in output
        assert f"Received: KERASTUNER_ORACLE_IP and KERASTUNER_ORACLE_PORT of '{address}'" in output
        # It has let go of the folder.
        second.start("alone")
        second.wait("alone")
        assert_complete(second.folder, answer)
    finally:
        second.close()


@pytest.mark.nightly
def test_trials_that_fail_at_a_worker(cluster):
    cluster.start("chief")
    cluster.start("worker0", all_fail=True)
    output = cluster.output_of_failure("chief")
    assert "SearchError: Number of consecutive failures exceeded the limit of 3" in output
    cluster.wait("worker0")
    assert len(cluster.begun()) == 3


# The chief in this process


class Oracle:
    """One that raises an error in a method, under keras-tuner's lock, when it is called."""

    failure, watch, left = None, None, 3

    def __init__(self, fails="nothing"):
        self.fails, self.trials = fails, {}

    def call(self, name):
        if name == self.fails:
            raise OSError(errno.ENOSPC, "No space left")

    def get_space(self):
        import keras_tuner

        return keras_tuner.HyperParameters()

    def of_lock(self, name):
        from keras_tuner import synchronized

        return synchronized(Oracle.call)(self, name)

    def create_trial(self, tuner_id):
        return self.of_lock("create_trial")

    def release_silent(self):
        self.of_lock("release_silent")

    def is_over(self):
        self.of_lock("is_over")
        self.left -= self.fails == "nothing"
        return not self.left


@pytest.fixture
def chief(monkeypatch):
    """Makes this process a chief."""
    from tfresidual.tuning import workers

    monkeypatch.setattr(workers, "POLL", 0.05)
    monkeypatch.setenv("KERASTUNER_TUNER_ID", "chief")
    monkeypatch.setenv("KERASTUNER_ORACLE_IP", "127.0.0.1")
    monkeypatch.setenv("KERASTUNER_ORACLE_PORT", str(free_port()))
    return workers


def in_time(function, seconds=10):
    """What a function returns or raises, called in a thread that may be left hanging."""
    ends = []

    def call():
        try:
            ends.append((function(), None))
        except Exception as error:
            ends.append((None, error))

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    assert ends, "it hangs"
    result, error = ends[0]
    if error is not None:
        raise error
    return result


def client_of(workers, oracle, timeout):
    from keras_tuner.src.distribute.oracle_client import OracleClient

    client = OracleClient(oracle)
    workers.wait_for_chief(client, timeout)
    return client


@pytest.mark.parametrize("fails", ["create_trial", "release_silent", "is_over"])
def test_an_oracle_that_raises_an_error(chief, fails):
    oracle, refused = Oracle(fails), []

    def ask():
        try:
            client_of(chief, oracle, 1.0).create_trial("worker0")
        except ConnectionError as error:
            refused.append(error)

    worker = threading.Thread(target=ask, daemon=True)
    if fails == "create_trial":
        worker.start()
    with pytest.raises(chief.SearchError, match=r"The chief cannot continue.*OSError: .*No space"):
        in_time(lambda: chief.serve(oracle))
    # Nobody holds keras-tuner's lock: the program may continue.
    oracle.fails, oracle.left = "nothing", 2
    in_time(lambda: chief.serve(oracle))
    if fails == "create_trial":
        worker.join(10)
        assert "No chief has answered" in str(*refused)


def test_a_worker_of_another_search_does_no_harm(chief):
    import grpc

    oracle, codes = Oracle(), []

    def watch():
        # What the chief does until then is nothing.
        oracle.left = 2 if not codes else 1

    oracle.watch = watch

    def ask():
        try:
            client_of(chief, oracle, 5.0).get_trial("0007")
        except grpc.RpcError as error:
            codes.append(error.code())

    threading.Thread(target=ask, daemon=True).start()
    in_time(lambda: chief.serve(oracle))
    assert codes == [grpc.StatusCode.NOT_FOUND]


def test_the_watch_of_a_chief(chief):
    oracle, looks = Oracle(), []
    oracle.watch = lambda: looks.append(0)
    in_time(lambda: chief.serve(oracle))
    assert len(looks) == 2


ENVIRONMENT = {
    "KERASTUNER_TUNER_ID": "worker0",
    "KERASTUNER_ORACLE_IP": "127.0.0.1",
    "KERASTUNER_ORACLE_PORT": "8000",
}
WRONG_ENVIRONMENTS = {
    **{f"without {name}": (name, {name: None}) for name in ENVIRONMENT},
    **{
        f"nothing but {name}": (None, {other: None for other in ENVIRONMENT if other != name})
        for name in ENVIRONMENT
    },
    "an empty address": ("KERASTUNER_ORACLE_IP", {"KERASTUNER_ORACLE_IP": ""}),
    "a worker named after the chief": ("KERASTUNER_TUNER_ID", {"KERASTUNER_TUNER_ID": "chief2"}),
    **{
        f"port {port}": ("KERASTUNER_ORACLE_PORT", {"KERASTUNER_ORACLE_PORT": port})
        for port in ("http", "0", "65536", "-1", "8000.0", " 8000", "²")
    },
}


@pytest.mark.parametrize("name", WRONG_ENVIRONMENTS)
def test_wrong_environments(monkeypatch, name):
    from tfresidual.tuning.workers import check_environment

    culprit, changes = WRONG_ENVIRONMENTS[name]
    for variable, value in (ENVIRONMENT | changes).items():
        if value is not None:
            monkeypatch.setenv(variable, value)
    with pytest.raises(ValueError, match=r"^Environment variable `.*Received: KERAS") as raised:
        check_environment()
    if culprit is not None:
        assert f"variable `{culprit}` must be" in str(raised.value)
        assert f"{culprit}={changes[culprit]!r}" in str(raised.value)


@pytest.mark.parametrize("name", [None, "chief", "worker0"])
def test_environments(monkeypatch, name):
    from tfresidual.tuning.workers import check_environment, is_worker

    for variable, value in ENVIRONMENT.items() if name else ():
        monkeypatch.setenv(variable, value)
    if name:
        monkeypatch.setenv("KERASTUNER_TUNER_ID", name)
    check_environment()
    assert is_worker() == (name == "worker0")


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
        "import os, pathlib, sys, time",
        "name = os.environ['KERASTUNER_TUNER_ID']",
        f"exec({chief!r} if name == 'chief' else {worker!r})",
    ]
    return [sys.executable, "-c", "\n".join(lines)]


UNTIL_DONE = """
while not pathlib.Path(FOLDER, 'done').exists():
    time.sleep(0.05)
"""


def until_done(folder):
    return UNTIL_DONE.replace("FOLDER", repr(str(folder)))


def test_what_supervised_processes_are_told(tmp_path, monkeypatch):
    from tfresidual import tuning

    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    looks = []
    tell = "print(sorted(os.environ.items()))"
    tuning.supervise(program(tell, tell), 2, tmp_path / "new" / "logs", lambda: looks.append(0))
    told = {}
    for path in (tmp_path / "new" / "logs").iterdir():
        told[path.name] = dict(eval(path.read_text()))
    assert {*told} == {"chief.log", "worker0.log", "worker1.log"}
    names = ("KERASTUNER_TUNER_ID", "KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT")
    ids, addresses, ports = ([told[file][name] for file in sorted(told)] for name in names)
    assert ids == ["chief", "worker0", "worker1"]
    assert {*addresses} == {"127.0.0.1"}
    assert len({*ports}) == 1
    threads = str(max(1, os.cpu_count() // 2))
    assert told["worker1.log"]["TF_NUM_INTRAOP_THREADS"] == threads
    assert told["worker1.log"]["OMP_NUM_THREADS"] == "7"
    assert len(looks) >= 2


@pytest.mark.parametrize("workers", [0, -1, True, 1.0, "2", None])
def test_number_of_workers(tmp_path, workers):
    from tfresidual import tuning

    with pytest.raises(ValueError, match=r"`workers` must be an int, 1 or more\. Received: work"):
        tuning.supervise(["false"], workers, tmp_path)


@pytest.mark.parametrize(
    "argument",
    [
        *({"command": command} for command in ([], "false", ["false", 1], None, [""])),
        *({"watch": watch} for watch in (1, "often")),
        *({"restarts": restarts} for restarts in (-1, 1.0, True, None)),
        {"folder": None},
        {"folder": 3},
    ],
)
def test_wrong_arguments_of_a_supervisor(tmp_path, argument):
    from tfresidual import tuning

    ((name, value),) = argument.items()
    touch = program(f"open({str(tmp_path / 'begun')!r}, 'w')", "")
    given = {"command": touch, "workers": 1, "folder": tmp_path / "logs", **argument}
    with pytest.raises(ValueError, match=rf"Argument `{name}` must .*Received: {name}=") as raised:
        tuning.supervise(**given)
    assert str(raised.value).endswith(f"{name}={value!r}")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["file", "file/logs"])
def test_a_supervisor_whose_folder_is_a_file(tmp_path, folder):
    from tfresidual import tuning

    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match=r"`folder` must .*Received: folder='.*file"):
        tuning.supervise(["false"], 1, tmp_path / folder)


NOISE = """WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795242765.048857    1616 port.cc:153] oneDNN custom operations are on.
2025-01-01 10:00:00.123456: I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow
E0000 00:00:1795242765.048857    1616 cuda_dnn.cc:8310] Unable to register cuDNN factory
To enable the following instructions: AVX2 AVX512F, rebuild TensorFlow.
"""


@pytest.mark.parametrize(
    ("crash", "told"),
    [
        (
            "print('so it went'); sys.stdout.flush(); print('ValueError: not this', "
            "file=sys.stderr); raise OSError('it is full')",
            [":", "OSError: it is full"],
        ),
        (f"print({NOISE!r} + 'so it went', flush=True); os._exit(3)", [":", "so it went"]),
        ("os._exit(3)", [", without any output"]),
    ],
    ids=["an error", "no error", "nothing"],
)
def test_the_end_of_a_log_is_what_is_said(tmp_path, crash, told):
    from tfresidual import tuning

    (tmp_path / "chief.log").write_text("ValueError: of a run that was long ago\n")
    with pytest.raises(tuning.SearchError) as raised:
        tuning.supervise(program(crash, "time.sleep(60)"), 1, tmp_path, patience(30), restarts=0)
    first, *lines = str(raised.value).splitlines()
    assert [first.partition("chief.log")[2], *lines] == told


def test_a_worker_that_always_crashes(tmp_path):
    from tfresidual import tuning

    crash = "print('so it went'); sys.exit(3)"
    with pytest.raises(tuning.SearchError, match="worker0 of the search ended 3 times") as raised:
        tuning.supervise(program("time.sleep(60)", crash), 1, tmp_path, patience(10), restarts=2)
    assert "so it went" in str(raised.value)
    assert (tmp_path / "worker0.log").read_text() == "so it went\n" * 3


def test_a_worker_that_crashes_twice(tmp_path):
    from tfresidual import tuning

    worker = "print('begun', flush=True)\n"
    worker += f"path = pathlib.Path({str(tmp_path)!r}, name)\n"
    worker += "count = path.read_text() if path.exists() else ''\n"
    worker += "path.write_text(count + 'x')\n"
    worker += "assert len(count) == 2\n"
    worker += f"pathlib.Path({str(tmp_path)!r}, 'done').touch()"
    tuning.supervise(program(until_done(tmp_path), worker), 1, tmp_path, patience(10))
    assert (tmp_path / "worker0").read_text() == "xxx"
    assert (tmp_path / "worker0.log").read_text().count("begun\n") == 3


def test_an_interrupted_supervisor_ends_all(tmp_path, left_running):
    from tfresidual import tuning

    begin = (
        f"open({str(tmp_path / 'search-pids.txt')!r}, 'a').write(f'{{name}} {{os.getpid()}}\\n')"
    )
    begin += "; time.sleep(60)"

    def interrupt():
        if len(notes(tmp_path / "search", "pids")) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuning.supervise(program(begin, begin), 2, tmp_path / "logs", interrupt)
    assert not any(is_alive(int(pid)) for _, pid in notes(tmp_path / "search", "pids"))


def test_a_worker_that_does_not_want_to_end(tmp_path, monkeypatch, left_running):
    from tfresidual import tuning
    from tfresidual.tuning import supervision

    monkeypatch.setattr(supervision, "GRACE", 0.5)
    pids = str(tmp_path / "search-pids.txt")
    worker = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    worker += f"open({pids!r}, 'w').write(f'{{name}} {{os.getpid()}}\\n')\n"
    worker += f"pathlib.Path({str(tmp_path)!r}, 'done').touch()\n"
    worker += "time.sleep(60)"
    begun = time.monotonic()
    tuning.supervise(program(until_done(tmp_path), worker), 1, tmp_path / "logs", patience(30))
    assert time.monotonic() - begun < 10
    ((_, pid),) = notes(tmp_path / "search", "pids")
    assert not is_alive(int(pid))


def pids_of(folder, name):
    return [int(pid) for by, pid in notes(folder, "pids") if by == name]


def test_supervised_search(tmp_path, answer, left_running):
    from tfresidual import tuning

    folder = tmp_path / "search"
    tuning.supervise(command({"folder": str(folder)}), 2, tmp_path / "logs", patience(PATIENCE))
    trials = assert_complete(folder, answer)
    begun = notes(folder, "begun")
    assert_each_ran_once([trial for _, trial in begun], trials)
    assert {by for by, _ in begun} == {"worker0", "worker1"}
    assert not any(is_alive(int(pid)) for _, pid in notes(folder, "pids"))


def supervise_and_kill(tmp_path, name, sleep):
    """Supervises a search and kills one of its processes once, early in the search."""
    from tfresidual import tuning

    folder, killed, bounded = tmp_path / "search", [], patience(PATIENCE)

    def kill():
        bounded()
        begun = notes(folder, "begun")
        if not killed and len(begun) >= 4 and name in ("chief", begun[-1][0]):
            killed.append(begun[-1][1])
            os.kill(pids_of(folder, name)[0], signal.SIGKILL)

    order = {"folder": str(folder), "sleep": sleep}
    tuning.supervise(command(order), 2, tmp_path / "logs", kill)
    assert killed
    assert len(pids_of(folder, name)) == 2
    assert not any(is_alive(int(pid)) for _, pid in notes(folder, "pids"))
    return folder, killed[0]


@pytest.mark.nightly
def test_a_supervised_worker_that_is_killed(tmp_path, answer, left_running):
    # A trial is long enough for the watch to see who has begun it.
    folder, lost = supervise_and_kill(tmp_path, "worker0", 2.0)
    trials = assert_complete(folder, answer)
    begun = notes(folder, "begun")
    assert_each_ran_once([trial for _, trial in begun], trials, but=[lost])
    assert [by for by, trial in begun if trial == lost] == ["worker0", "worker0"]


@pytest.mark.nightly
def test_a_supervised_chief_that_is_killed(tmp_path, answer, left_running):
    folder, _ = supervise_and_kill(tmp_path, "chief", 0.5)
    assert_each_ran_once(
        [trial for _, trial in notes(folder, "begun")], assert_complete(folder, answer)
    )


@pytest.mark.nightly
def test_a_search_ends_with_its_supervisor(cluster, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    hold = "import sys, time; file = open(sys.argv[1], 'w'); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-S", "-c", hold, pipe]) as supervisor:
        cluster.start("alone", stdin=str(pipe), sleep=60)
        wait_until(lambda: cluster.begun(), cluster.logs)
        supervisor.kill()
    assert cluster.output_of_failure("alone") == ""


MEMBER = """
import os, sys
with open(sys.argv[1] + "-pids.txt", "a") as file:
    file.write(f"{os.environ['KERASTUNER_TUNER_ID']} {os.getpid()}\\n")
os.read(0, 1)
"""


@pytest.mark.nightly
def test_the_input_of_a_member_ends_with_its_supervisor(cluster, left_running):
    """What `end_with_supervisor` waits for. The members are programs without TensorFlow."""
    member = [sys.executable, "-S", "-c", MEMBER, str(cluster.folder)]
    cluster.start("supervisor", supervised=member)

    def members():
        return [int(pid) for by, pid in notes(cluster.folder, "pids") if by != "supervisor"]

    wait_until(lambda: len(members()) == 3, cluster.logs)
    assert all(map(is_alive, members()))
    cluster.kill("supervisor")
    wait_until(lambda: not any(map(is_alive, members())))


@pytest.mark.nightly
@pytest.mark.parametrize("moment", ["training", "loading"])
def test_a_killed_supervisor(cluster, left_running, moment):
    supervised = {"folder": str(cluster.folder), "sleep": 60}
    cluster.start("supervisor", supervised=command(supervised))

    def members():
        return [int(pid) for by, pid in notes(cluster.folder, "pids") if by != "supervisor"]

    wait_until(lambda: len(members()) == 3, cluster.logs)
    if moment == "training":
        wait_until(lambda: len(cluster.begun()) == 2, cluster.logs)
    cluster.kill("supervisor")
    # Those that load TensorFlow end when they have.
    wait_until(lambda: not any(map(is_alive, members())))
    assert len(cluster.begun()) == (2 if moment == "training" else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
