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
import json
import os
import threading
from concurrent import futures

import grpc
from keras_tuner import errors

from tfresidual.tuning.depth_oracle import HEARTBEAT


class SearchError(RuntimeError):
    """Error of a search that cannot continue: its trials fail, or its processes die."""


class ChiefConnectionError(errors.FatalError, ConnectionError):
    """Error if no chief answers. The worker ends, but its trial does not count as failed."""


POLL = 0.5
# Environment variables that determine the role of a process; all of them are set, or none.
ID, IP, PORT = "KERASTUNER_TUNER_ID", "KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT"
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
