"""A search by several processes: its chief, its workers, and who starts them again.

keras-tuner's chief holds the oracle and answers workers, which train. Every process runs the same
program; the environment tells it what it is:

- `KERASTUNER_TUNER_ID`: `chief`, or the name of a worker, `worker0` and so on, always the same for
  the same worker;
- `KERASTUNER_ORACLE_IP` and `KERASTUNER_ORACLE_PORT`: where the chief listens.

`directory` must be one that all of them see.
"""

import collections
import contextlib
import os
import pathlib
import socket
import subprocess
import threading
import time
from concurrent import futures

import grpc
from keras_tuner import errors

from tfresidual.tuning.depth_oracle import HEARTBEAT

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None


class SearchError(RuntimeError):
    """A search that cannot go on: its trials fail, or its processes die."""


class ChiefConnectionError(errors.FatalError, ConnectionError):
    """No chief answers. The worker ends, and its trial is not taken for one that failed."""


POLL = 0.5
# How long a process is given to end when it is asked to.
GRACE = 10.0
# A process that ends so often in a row without anything gained is not started again.
RESTARTS = 3
# Set for supervised processes, to how often they were started before: they end when their standard
# input does.
SUPERVISED = "TFRESIDUAL_SUPERVISED"
# Between two attempts to reach a chief.
PAUSE = 0.1


def chief_address():
    """Where the chief listens, from the environment, as `host:port`."""
    return f"{os.environ['KERASTUNER_ORACLE_IP']}:{os.environ['KERASTUNER_ORACLE_PORT']}"


def ask_patiently(client, timeout):
    """Lets a worker repeat what a chief did not answer: it may be started again.

    Args:
        client: the worker's client of the chief's oracle. From here on its requests raise a
            `ConnectionError` when no chief has answered for `timeout`.
        timeout: seconds.
    """
    from keras_tuner.src import protos

    often = {f"grpc.{which}_reconnect_backoff_ms": 200 for which in ("initial", "min", "max")}
    channel = grpc.insecure_channel(chief_address(), options=list(often.items()))
    channel = grpc.intercept_channel(channel, _Patient(timeout))
    client.stub = protos.get_service_grpc().OracleStub(channel)


class _Patient(grpc.UnaryUnaryClientInterceptor):
    """Sends a request until it is answered; a chief takes none twice."""

    def __init__(self, timeout):
        self.timeout = timeout

    def intercept_unary_unary(self, continuation, client_call_details, request):
        deadline = time.monotonic() + self.timeout
        while (left := deadline - time.monotonic()) > 0:
            call = continuation(_Within(client_call_details, left), request)
            if call.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                return call
            time.sleep(PAUSE)
        raise ChiefConnectionError(
            f"No chief answers at {chief_address()}, for {self.timeout:g} seconds. Start one: the "
            "same program with KERASTUNER_TUNER_ID=chief, where KERASTUNER_ORACLE_IP and "
            "KERASTUNER_ORACLE_PORT say. Received: KERASTUNER_TUNER_ID="
            f"{os.environ['KERASTUNER_TUNER_ID']!r}, KERASTUNER_ORACLE_IP="
            f"{os.environ['KERASTUNER_ORACLE_IP']!r}, KERASTUNER_ORACLE_PORT="
            f"{os.environ['KERASTUNER_ORACLE_PORT']!r}"
        )


class _Within(grpc.ClientCallDetails):
    """The details of a request, with another timeout."""

    def __init__(self, details, timeout):
        self.method = details.method
        self.timeout = timeout
        self.metadata = details.metadata
        self.credentials = details.credentials
        self.wait_for_ready = details.wait_for_ready
        self.compression = details.compression


def serve(oracle):
    """Answers workers until the search is over and all of them know.

    Args:
        oracle: a `DepthOracle`.

    Raises:
        OSError: if the address is taken.
        SearchError: if too many trials failed in a row.
    """
    from keras_tuner.src import protos
    from keras_tuner.src.distribute.oracle_chief import OracleServicer

    server = grpc.server(
        futures.ThreadPoolExecutor(max_workers=1),
        # Two chiefs at one address would each get some of the requests.
        options=[("grpc.so_reuseport", 0)],
    )
    protos.get_service_grpc().add_OracleServicer_to_server(OracleServicer(oracle), server)
    try:
        bound = server.add_insecure_port(chief_address())
    except RuntimeError:
        bound = 0
    if not bound:
        raise OSError(
            "The chief cannot listen: is another one there already? Received: "
            f"KERASTUNER_ORACLE_IP and KERASTUNER_ORACLE_PORT of {chief_address()!r}"
        )
    server.start()
    try:
        while not oracle.is_over():
            time.sleep(POLL)
            oracle.release_silent()
    finally:
        server.stop(grace=1).wait()
    if oracle.failure is not None:
        raise SearchError(oracle.failure)


@contextlib.contextmanager
def heartbeat(oracle, trial_id):
    """Lets the chief know, as long as the block runs, that this worker is alive.

    Args:
        oracle: the worker's client of the chief's oracle.
        trial_id: str, the trial that it runs.
    """
    ended = threading.Event()

    def beat():
        while not ended.wait(HEARTBEAT):
            with contextlib.suppress(grpc.RpcError, ChiefConnectionError):
                oracle.get_trial(trial_id)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()


@contextlib.contextmanager
def alone_in(folder):
    """Holds a folder for this process; the system frees it even when the process is killed.

    Args:
        folder: the folder of a search.

    Raises:
        OSError: if another process holds it.
    """
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "search.lock").open("w") as file:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OSError(
                    "Another process searches in this folder. Wait for it, or choose another "
                    f"`project_name`. Received: {str(folder)!r}"
                ) from None
        yield


def was_started_before():
    """Whether a supervisor starts this process again."""
    return os.environ.get(SUPERVISED, "0") != "0"


def end_with_supervisor():
    """In a supervised process: ends it when whoever started it is gone, however it went."""
    if SUPERVISED not in os.environ:
        return

    def wait():
        # The other end of the pipe is closed by the system, even behind a process that is killed.
        with contextlib.suppress(OSError, ValueError):
            os.read(0, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def supervise(command, workers, folder, watch=None, restarts=RESTARTS):
    """Runs a chief and workers of one program on this machine until the search is over.

    A process that dies is started again under the same name: a worker gets its trial back. All of
    them end with this one.

    Args:
        command: list of str, the program, which calls `DepthSearch.search`.
        workers: int, how many train at once.
        folder: where their output is written, `chief.log`, `worker0.log` and so on.
        watch: function that is called several times a second, or `None`.
        restarts: int, how often in a row a process may die within a minute.

    Raises:
        ValueError: if `workers` is not a positive int.
        SearchError: if a process died too often, with the end of its output.
    """
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ValueError(
            f"Argument `workers` must be a positive int. Received: workers={workers!r}"
        )
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    shared = {
        "KERASTUNER_ORACLE_IP": "127.0.0.1",
        "KERASTUNER_ORACLE_PORT": str(_free_port()),
    }
    # The cores are divided among the workers, unless the environment says otherwise.
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    of_worker = {
        name: os.environ.get(name, threads)
        for name in ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")
    }
    members = [_Member("chief", command, shared, folder, restarts)]
    for number in range(workers):
        name = f"worker{number}"
        members.append(_Member(name, command, {**shared, **of_worker}, folder, restarts))
    try:
        for member in members:
            member.start()
        # All are asked: asking is what starts them again.
        while any([member.is_running() for member in members]):
            time.sleep(POLL)
            if watch is not None:
                watch()
            if members[0].is_done:
                _await(members, GRACE)
                break
    finally:
        for member in members:
            member.stop()
    if watch is not None:
        watch()


class _Member:
    """One supervised process."""

    def __init__(self, name, command, environment, folder, restarts):
        self.name = name
        self.command = command
        self.environment = {**os.environ, **environment, "KERASTUNER_TUNER_ID": name}
        self.log = folder / f"{name}.log"
        self.restarts = restarts
        self.deaths = collections.deque()
        self.starts = 0
        self.process = None
        self.is_done = False

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                env={**self.environment, SUPERVISED: str(self.starts)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.starts += 1

    def is_running(self):
        """Whether it runs; one that died is started again."""
        if self.is_done:
            return False
        code = self.process.poll()
        if code is None:
            return True
        self.process.stdin.close()
        if code == 0:
            self.is_done = True
            return False
        now = time.monotonic()
        self.deaths.append(now)
        while now - self.deaths[0] > 60:
            self.deaths.popleft()
        if len(self.deaths) > self.restarts:
            raise SearchError(
                f"The {self.name} of the search ended {len(self.deaths)} times within a minute, "
                f"the last time with exit code {code}. Its output is in {self.log}:\n"
                f"{_last_lines(self.log)}"
            )
        self.start()
        return True

    def stop(self):
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(GRACE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process.stdin.close()


def _await(members, seconds):
    deadline = time.monotonic() + seconds
    for member in members:
        with contextlib.suppress(subprocess.TimeoutExpired):
            member.process.wait(max(0.0, deadline - time.monotonic()))


def _last_lines(path, count=20):
    text = path.read_text("utf-8", errors="replace")
    return "\n".join(text.splitlines()[-count:])


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
