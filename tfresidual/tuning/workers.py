"""Search by several processes: the chief, the workers, and a supervisor that restarts them.

The chief of keras-tuner holds the oracle and answers the workers, which train. Every process runs
the same program; environment variables determine its role:

- `KERASTUNER_TUNER_ID`: `chief`, or the name of a worker, `worker0` and so on, always the same for
  the same worker;
- `KERASTUNER_ORACLE_IP` and `KERASTUNER_ORACLE_PORT`: where the chief listens.

Set all three variables, or none. `directory` must be accessible to all processes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import socket
import subprocess
import threading
import time
from concurrent import futures
from typing import TYPE_CHECKING

import grpc
from keras_tuner import errors

from tfresidual.arguments import check_int, checked_path
from tfresidual.machine.files import check_folder
from tfresidual.tuning.depth_oracle import HEARTBEAT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tfresidual.types import StrPath


class SearchError(RuntimeError):
    """Error of a search that cannot continue: its trials fail, or its processes die."""


class ChiefConnectionError(errors.FatalError, ConnectionError):
    """Error if no chief answers. The worker ends, but its trial does not count as failed."""


POLL = 0.5
# Seconds that a process is given to end when asked to.
GRACE = 10.0
# A process may die RESTARTS times in a row within SHORT_LIFE seconds of its start; after one more
# such death it is not restarted. A trial that kills its worker uses up a few of these, until it
# counts as one that cannot be trained.
RESTARTS, SHORT_LIFE = 8, 300.0
# Set for supervised processes to the number of times they were started before. These processes end
# when their standard input is closed.
SUPERVISED = "TFRESIDUAL_SUPERVISED"
# Environment variables that determine the role of a process; all of them are set, or none.
ID, IP, PORT = "KERASTUNER_TUNER_ID", "KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT"
# Number of lines of a log that are shown when a process has died.
LAST_LINES = 20
# Messages of TensorFlow while it loads, some of which cannot be turned off; none is an error.
NOISE = re.compile(
    r"[IWE]\d{4} |\d{4}-\d\d-\d\d .*: [IWE] |WARNING: All log messages|To enable the following"
)
# The last line of a traceback.
ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)(: |$)")
# Retry policy of a worker when the chief has died and may be restarted: gRPC waits for a connection
# and repeats unanswered requests.
RETRY_POLICY = {
    "maxAttempts": 5,
    "initialBackoff": "0.2s",
    "maxBackoff": "2s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}


def check_environment():
    """Checks that the environment variables of a search are consistent, or all unset.

    Raises:
        ValueError: if some of the variables are set and others are not, or one of them is invalid.
    """
    given = {name: os.environ.get(name) for name in (ID, IP, PORT)}
    if all(value is None for value in given.values()):
        return
    received = f"Received: {_environment()}"
    for name, value in given.items():
        if not value:
            others = " and ".join(other for other in given if other != name)
            raise ValueError(
                f"Environment variable `{name}` must be set if {others} are, for a search by a "
                "chief and workers; for a search by a single process, set none of them. "
                f"{received}"
            )
    if "chief" in given[ID] and given[ID] != "chief":
        raise ValueError(
            f"Environment variable `{ID}` must be 'chief', or the name of a worker that does not "
            f"contain this word, such as 'worker0'. {received}"
        )
    port = given[PORT]
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise ValueError(
            f"Environment variable `{PORT}` must be a number from 1 to 65535. {received}"
        )


def is_worker():
    """Returns whether this process is a worker, according to the environment."""
    return IP in os.environ and os.environ.get(ID) != "chief"


def chief_address():
    """Returns the address of the chief from the environment, as `host:port`."""
    return f"{os.environ[IP]}:{os.environ[PORT]}"


def _environment():
    """Returns the environment variables of this process, for error messages."""
    return ", ".join(f"{name}={os.environ.get(name)!r}" for name in (ID, IP, PORT))


def wait_for_chief(client, timeout):
    """Lets a worker repeat unanswered requests, since the chief may be restarted.

    Args:
        client: the worker's client of the chief's oracle. From now on, its requests raise a
            `ConnectionError` if no chief has answered within `timeout`.
        timeout: number of seconds.
    """
    from keras_tuner.src import protos

    options = {f"grpc.{which}_reconnect_backoff_ms": 200 for which in ("initial", "min", "max")}
    every_method = {"name": [{}], "retryPolicy": RETRY_POLICY}
    options["grpc.service_config"] = json.dumps({"methodConfig": [every_method]})
    channel = grpc.insecure_channel(chief_address(), options=list(options.items()))
    channel = grpc.intercept_channel(channel, _Deadline(timeout))
    client.stub = protos.get_service_grpc().OracleStub(channel)


class _Deadline(grpc.UnaryUnaryClientInterceptor):
    """Raises an error that ends the worker if no chief has answered a request in time."""

    def __init__(self, timeout):
        self.timeout = timeout

    def intercept_unary_unary(self, continuation, client_call_details, request):
        # Replaces the timeout of keras-tuner, which is an hour.
        details = client_call_details._replace(timeout=self.timeout)
        call = continuation(details, request)
        if call.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            raise ChiefConnectionError(
                f"No chief has answered at {chief_address()} for {self.timeout:g} seconds. Start "
                f"one: the same program with {ID}=chief, at the address given by {IP} and {PORT}. "
                f"Received: {_environment()}"
            )
        return call


def serve(oracle):
    """Answers workers until the search is over and all of them have been told.

    Args:
        oracle: a `DepthOracle`. Its attribute `watch`, if it is not `None`, is called several times
            per second.

    Raises:
        OSError: if the address is in use.
        SearchError: if too many trials failed in a row, or the oracle raised an error. The files on
            disk are kept, as if the process had been killed.
    """
    from keras_tuner.src import protos
    from keras_tuner.src.distribute.oracle_chief import OracleServicer

    # A single thread does all work on the oracle: after an error, the lock of keras-tuner remains
    # held by the thread that raised it, and any other thread would wait for it forever.
    thread = futures.ThreadPoolExecutor(max_workers=1)
    answers = _Answers(oracle, OracleServicer(oracle))
    # Two chiefs at one address would each get some of the requests.
    server = grpc.server(thread, options=[("grpc.so_reuseport", 0)])
    protos.get_service_grpc().add_OracleServicer_to_server(answers, server)
    try:
        bound = server.add_insecure_port(chief_address())
    except RuntimeError:
        bound = 0
    if not bound:
        raise OSError(
            f"The chief cannot listen: is another one already running? Received: {IP} and {PORT} "
            f"of {chief_address()!r}"
        )
    server.start()
    try:
        while not answers.ask(thread, oracle.is_over):
            answers.failed.wait(POLL)
            answers.ask(thread, oracle.release_silent)
            if oracle.watch is not None:
                oracle.watch()
    finally:
        server.stop(grace=1).wait()
        thread.shutdown(wait=False)
    if oracle.failure is not None:
        raise SearchError(oracle.failure)


class _Answers:
    """Answers requests until the oracle raises an error, after which its state is unknown.

    After the error, workers find the chief unavailable, as if it had been killed, and repeat their
    requests for a while.

    Args:
        oracle: a `DepthOracle`.
        servicer: the servicer of keras-tuner, to which requests are forwarded.
    """

    def __init__(self, oracle, servicer):
        self.oracle, self.servicer = oracle, servicer
        self.failed = threading.Event()
        self.error = None

    def ask(self, thread, question):
        """Calls a function in the request thread and returns its result."""
        future = thread.submit(self._guarded, question)
        # An earlier request may fail.
        while not self.failed.is_set() and not futures.wait([future], POLL).done:
            pass
        if self.failed.is_set():
            raise SearchError(
                "The chief cannot continue. When started again, it has all trials that are on "
                f"disk. The error was {type(self.error).__name__}: {self.error}"
            ) from self.error
        return future.result()

    def __getattr__(self, name):
        return functools.partial(self._answer, getattr(self.servicer, name))

    def GetTrial(self, request, context):
        if request.trial_id not in self.oracle.trials:
            # The worker belongs to an earlier search that no longer exists.
            context.abort(grpc.StatusCode.NOT_FOUND, f"There is no trial {request.trial_id!r}.")
        return self._answer(self.servicer.GetTrial, request, context)

    def _answer(self, method, request, context):
        answer = self._guarded(method, request, context)
        if self.failed.is_set():
            context.abort(grpc.StatusCode.UNAVAILABLE, "The chief cannot continue.")
        return answer

    def _guarded(self, function, *args):
        if self.failed.is_set():
            return None
        try:
            return function(*args)
        except Exception as error:
            _unlock(self.oracle)
            self.error = error
            self.failed.set()


def _unlock(oracle):
    """Releases the oracle's lock if this thread still holds it after raising an error."""
    from keras_tuner.src.engine import oracle as of_tuner

    if of_tuner.THREADS[oracle] == threading.current_thread().name:
        of_tuner.THREADS[oracle] = None
        of_tuner.LOCKS[oracle].release()


@contextlib.contextmanager
def heartbeat(oracle, trial_id):
    """Reports to the chief that this worker is alive, as long as the block runs.

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


def was_started_before():
    """Returns whether a supervisor has restarted this process."""
    return os.environ.get(SUPERVISED, "0") != "0"


def end_with_supervisor():
    """Ends a supervised process when its supervisor is gone, for whatever reason."""
    if SUPERVISED not in os.environ:
        return

    def wait():
        # The system closes the other end of the pipe, even if the supervisor is killed.
        with contextlib.suppress(OSError, ValueError):
            os.read(0, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def supervise(
    command: Sequence[str],
    workers: int,
    folder: StrPath,
    watch: Callable[[], object] | None = None,
    restarts: int = RESTARTS,
) -> None:
    """Runs a chief and workers of one program on this machine until the search is over.

    A process that dies is restarted under the same name; a worker gets its trial back. All
    processes end with this one.

    Args:
        command: list of str, the program and its arguments; it must call `DepthSearch.search`.
        workers: int, the number of workers that train at once.
        folder: where the output of the processes is written, `chief.log`, `worker0.log` and so on.
        watch: function that is called several times per second, or `None`.
        restarts: int, the number of times in a row that a process may die within five minutes of
            its start.

    Raises:
        ValueError: if an argument is invalid.
        NotADirectoryError: if `folder` is not a folder and cannot be created as one.
        SearchError: if a process died too often; the message includes the error at the end of its
            output.
    """
    is_list = isinstance(command, (list, tuple)) and all(isinstance(c, str) for c in command)
    if not is_list or not command or not command[0]:
        raise ValueError(
            "Argument `command` must be a list of str, the program and its arguments. "
            f"Received: command={command!r}"
        )
    check_int("workers", workers, at_least=1)
    check_int("restarts", restarts, at_least=0)
    if watch is not None and not callable(watch):
        raise ValueError(
            f"Argument `watch` must be a function without arguments, or None. "
            f"Received: watch={watch!r}"
        )
    folder = checked_path("folder", folder)
    check_folder("folder", folder)
    folder.mkdir(parents=True, exist_ok=True)
    shared = {IP: "127.0.0.1", PORT: str(_free_port())}
    # The cores are divided among the workers, unless the environment sets the variables.
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    of_worker = {
        name: os.environ.get(name, threads)
        for name in ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")
    }
    members = [_SupervisedProcess("chief", command, shared, folder, restarts)]
    for number in range(workers):
        name = f"worker{number}"
        members.append(_SupervisedProcess(name, command, {**shared, **of_worker}, folder, restarts))
    try:
        for member in members:
            member.start()
        # A list, so that all members are checked: `is_running` also restarts them.
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


class _SupervisedProcess:
    """One supervised process."""

    def __init__(self, name, command, environment, folder, restarts):
        self.name = name
        self.command = command
        self.environment = {**os.environ, **environment, ID: name}
        self.log = folder / f"{name}.log"
        self.restarts = restarts
        # Consecutive deaths, each soon after the start.
        self.deaths = 0
        self.starts = 0
        self.process = None
        self.is_done = False

    def start(self):
        with self.log.open("ab") as log:
            self.begin = log.tell()
            self.process = subprocess.Popen(
                self.command,
                env={**self.environment, SUPERVISED: str(self.starts)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.starts += 1
        self.started = time.monotonic()

    def is_running(self):
        """Returns whether the process is running; restarts it if it has died."""
        if self.is_done:
            return False
        code = self.process.poll()
        if code is None:
            return True
        self.process.stdin.close()
        if code == 0:
            self.is_done = True
            return False
        is_short = time.monotonic() - self.started < SHORT_LIFE
        self.deaths = self.deaths + 1 if is_short else 1
        if self.deaths > self.restarts:
            raise SearchError(
                f"The {self.name} of the search ended {self.deaths} times in a row, "
                f"the last time with exit code {code}. Its output is in {self.log}"
                f"{_end_of(self.log, self.begin)}"
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


def _end_of(log, begin):
    """Returns what a log shows of the end of a process, after a colon: the last error, if any.

    Args:
        log: path of the log.
        begin: int, byte offset at which the output of the process begins.
    """
    text = log.read_bytes()[begin:].decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip() and not NOISE.match(line)]
    errors_in = [place for place, line in enumerate(lines) if ERROR.match(line)]
    end = lines[errors_in[-1] :][:LAST_LINES] if errors_in else lines[-LAST_LINES:]
    return "\n".join([":", *end]) if end else ", without any output"


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
