"""Search by several processes: the chief and the workers.

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
import os
import threading
import time
from concurrent import futures

import grpc
from keras_tuner import errors

from tfresidual.tuning.keras_tuner_internals import add_servicer, replace_stub


class SearchError(RuntimeError):
    """Error of a search that cannot continue: its trials fail, or its processes die."""


class ChiefConnectionError(errors.FatalError, ConnectionError):
    """Error if no chief answers. The worker ends, but its trial does not count as failed."""


POLL = 0.5
# A worker that sends no message for LEASE seconds is considered dead, and its trial is given to
# another worker. Workers report that they are alive every HEARTBEAT seconds.
LEASE, HEARTBEAT = 60.0, 5.0
# Environment variables that determine the role of a process; all of them are set, or none.
ID, IP, PORT = "KERASTUNER_TUNER_ID", "KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT"
NO_ANSWER = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


def check_environment():
    """Raises a `ValueError` unless the environment variables are consistent, or all unset."""
    given = {name: os.environ.get(name) for name in (ID, IP, PORT)}
    if all(value is None for value in given.values()):
        return
    missing = next((name for name, value in given.items() if not value), None)
    port = given[PORT] or ""
    if missing is not None:
        others = " and ".join(other for other in given if other != missing)
        raise _wrong_variable(
            missing,
            f"set if {others} are, for a search by a chief and workers; for a search by a single "
            "process, set none of them",
        )
    if "chief" in given[ID] and given[ID] != "chief":
        raise _wrong_variable(
            ID,
            "'chief', or the name of a worker that does not contain this word, such as 'worker0'",
        )
    if not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise _wrong_variable(PORT, "a number from 1 to 65535")


def _wrong_variable(name, must):
    return ValueError(f"Environment variable `{name}` must be {must}. Received: {_environment()}")


def is_worker():
    """Returns whether this process is a worker, according to the environment."""
    return IP in os.environ and os.environ.get(ID) != "chief"


def is_served():
    """Returns whether this process is a chief, which gives trials to workers."""
    return IP in os.environ


def _environment():
    return ", ".join(f"{name}={os.environ.get(name)!r}" for name in (ID, IP, PORT))


def wait_for_chief(client, timeout):
    """Lets a worker repeat unanswered requests, since the chief may be restarted.

    After `timeout` seconds without an answer, requests raise a `ConnectionError`.
    """
    options = [(f"grpc.{which}_reconnect_backoff_ms", 200) for which in ("initial", "min", "max")]
    address = f"{os.environ[IP]}:{os.environ[PORT]}"
    channel = grpc.insecure_channel(address, options=options)
    error = ChiefConnectionError(
        f"No chief has answered at {address} for {timeout:g} seconds. Start one: the same program "
        f"with {ID}=chief, at the address given by {IP} and {PORT}. Received: {_environment()}"
    )
    replace_stub(client, channel, lambda stub: _PatientStub(stub, timeout, error))


class _PatientStub:
    """Sends requests, and repeats them until a chief has answered or the time is over."""

    def __init__(self, stub, timeout, no_answer):
        self.stub, self.timeout, self.no_answer = stub, timeout, no_answer

    def __getattr__(self, name):
        return functools.partial(self._ask, getattr(self.stub, name))

    def _ask(self, method, request, **_):
        deadline = time.monotonic() + self.timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            try:
                return method(request, wait_for_ready=True, timeout=left)
            except grpc.RpcError as error:
                if error.code() not in NO_ANSWER:
                    raise
                if time.monotonic() >= deadline:
                    raise self.no_answer from error
            time.sleep(min(0.2, self.timeout))


def serve(oracle):
    """Answers workers until the search is over and all of them have been told.

    The attribute `watch` of the oracle is called several times per second unless it is `None`. An
    `OSError` is raised if the address is in use, a `SearchError` if too many trials failed in a
    row, or the oracle raised an error. The files on disk are kept, as if the process had been
    killed.
    """
    # A single thread does all work on the oracle.
    thread = futures.ThreadPoolExecutor(max_workers=1)
    # Two chiefs at one address would each get some of the requests.
    server = grpc.server(thread, options=[("grpc.so_reuseport", 0)])
    answers = _Answers(thread)
    add_servicer(oracle, server, answers.of)
    address = f"{os.environ[IP]}:{os.environ[PORT]}"
    try:
        bound = server.add_insecure_port(address)
    except RuntimeError:
        bound = 0
    if not bound:
        raise OSError(
            f"The chief cannot listen: is another one already running? Received: {IP} and {PORT} "
            f"of {address!r}"
        )
    server.start()
    try:
        while not answers.ask(oracle.is_over):
            answers.failed.wait(POLL)
            answers.ask(oracle.release_silent)
            if oracle.watch is not None:
                oracle.watch()
    finally:
        server.stop(grace=1).wait()
        thread.shutdown(wait=False)
    if oracle.failure is not None:
        raise SearchError(oracle.failure)


class _Answers:
    """Answers requests until the oracle raises an error; then the chief is unavailable."""

    def __init__(self, thread):
        self.thread = thread
        self.failed = threading.Event()
        self.error = None

    def of(self, servicer):
        """Returns this object, which forwards requests to the servicer of keras-tuner."""
        self.servicer = servicer
        return self

    def ask(self, question):
        """Calls a function in the request thread and returns its result."""
        answer = self.thread.submit(self._guarded, question).result()
        if self.failed.is_set():
            raise SearchError(
                "The chief cannot continue. When started again, it has all trials that are on "
                f"disk. The error was {type(self.error).__name__}: {self.error}"
            ) from self.error
        return answer

    def __getattr__(self, name):
        return functools.partial(self._answer, getattr(self.servicer, name))

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
            self.error = error
            self.failed.set()


@contextlib.contextmanager
def heartbeat(oracle, trial_id):
    """Reports to the chief that this worker runs a trial, as long as the block does."""
    ended = threading.Event()

    def beat():
        while not ended.wait(HEARTBEAT):
            with contextlib.suppress(grpc.RpcError, ChiefConnectionError):
                oracle.get_trial(trial_id)

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
