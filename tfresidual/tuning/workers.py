"""Searches by several processes: a chief gives trials to workers, which train them.

Chief and workers are those of keras-tuner: the same program, with the environment variables
`KERASTUNER_TUNER_ID` (`chief`, or the name of a worker), `KERASTUNER_ORACLE_IP` and
`KERASTUNER_ORACLE_PORT`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tfresidual.definitions.arguments import ArgumentError, check_int

if TYPE_CHECKING:
    from collections.abc import Sequence

# Seconds between two looks at processes, and between two requests of a worker without a trial.
POLL = 0.5
# Seconds that a process is given to end when asked to.
GRACE = 10.0
# Environment variables that determine the role of a process; all of them are set, or none.
ID, IP, PORT = "KERASTUNER_TUNER_ID", "KERASTUNER_ORACLE_IP", "KERASTUNER_ORACLE_PORT"
# The process of `run_workers`, and the request to Linux to be ended with one's parent.
PARENT, PR_SET_PDEATHSIG = "TFRESIDUAL_WORKERS_OF", 1


class SearchError(RuntimeError):
    """Error of a search that cannot continue: its trials fail, or its processes die."""


def is_worker():
    """Returns whether this process is a worker, according to the environment."""
    return is_served() and os.environ.get(ID) != "chief"


def is_served():
    """Returns whether this process is a chief or a worker."""
    return IP in os.environ


def end_with_parent() -> None:
    """Ends this process with that of `run_workers`, even if that is killed; on Linux."""
    if PARENT not in os.environ:
        return
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        os.kill(int(os.environ[PARENT]), 0)
    except ProcessLookupError:
        sys.exit("The process that ran this worker has ended")


def run_workers(command: Sequence[str], workers: int) -> None:
    """Runs a chief and workers of one program on this machine until all of them have ended.

    Their output is that of this process. If one of them ends with an error, the others are ended,
    too; finished trials stay on the disk, and the same call resumes the search.

    Args:
        command: list of str, the program and its arguments; it must call `DepthSearch.search`.
        workers: int, the number of workers that train at once.

    Raises:
        ValueError: if an argument is invalid.
        SearchError: if a process ended with an error.
    """
    is_list = isinstance(command, (list, tuple)) and all(isinstance(c, str) for c in command)
    if not is_list or not command:
        raise ArgumentError("command", "be a list of str, the program and its arguments", command)
    check_int("workers", workers, at_least=1)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        shared = {**os.environ, IP: "127.0.0.1", PORT: str(probe.getsockname()[1])}
    shared[PARENT] = str(os.getpid())
    # The cores are divided among the workers, unless the environment sets the variables.
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    names = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")
    of_worker = {name: os.environ.get(name, threads) for name in names}
    none: dict[str, str] = {}
    roles = {"chief": none} | {f"worker{number}": of_worker for number in range(workers)}
    processes = {}
    try:
        for name, own in roles.items():
            processes[name] = subprocess.Popen(command, env={**shared, **own, ID: name})
        while any(process.poll() is None for process in processes.values()):
            for name, process in processes.items():
                if process.poll():
                    raise SearchError(
                        f"The {name} of the search ended with exit code {process.returncode}. "
                        "Finished trials are kept, and the same command resumes the search"
                    )
            time.sleep(POLL)
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            process.kill()
            process.wait()
