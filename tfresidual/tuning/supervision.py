"""Starts a chief and workers on one machine, and restarts those that die."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import threading
import time
from typing import TYPE_CHECKING

from tfresidual.definitions.arguments import ArgumentError, check_int, checked_path
from tfresidual.machine.files import check_folder
from tfresidual.tuning.workers import ID, IP, POLL, PORT, SearchError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tfresidual.definitions.types import StrPath


# Seconds that a process is given to end when asked to.
GRACE = 10.0
# A process may die RESTARTS times in a row within SHORT_LIFE seconds of its start. A trial that
# kills its worker uses up a few of these, until it counts as one that cannot be trained.
RESTARTS, SHORT_LIFE = 8, 300.0
# Set for supervised processes to the number of times they were started before. These processes end
# when their standard input is closed.
SUPERVISED = "TFRESIDUAL_SUPERVISED"
# Number of lines of a log that are shown when a process has died.
LAST_LINES = 20
# Messages of TensorFlow while it loads, some of which cannot be turned off; none is an error.
NOISE = re.compile(
    r"[IWE]\d{4} |\d{4}-\d\d-\d\d .*: [IWE] |WARNING: All log messages|To enable the following"
)
# The last line of a traceback.
ERROR = re.compile(r"[A-Za-z_][\w.]*(Error|Exception|Interrupt|Exit)(: |$)")


def was_started_before():
    """Returns whether a supervisor has restarted this process."""
    return os.environ.get(SUPERVISED, "0") != "0"


def end_with_supervisor():
    """Ends a supervised process when its supervisor is gone, for whatever reason."""

    def wait():
        # The system closes the other end of the pipe, even if the supervisor is killed.
        with contextlib.suppress(OSError, ValueError):
            os.read(0, 1)
        os._exit(1)

    if SUPERVISED in os.environ:
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
        restarts: int, how often in a row a process may die within five minutes of its start.

    Raises:
        ValueError: if an argument is invalid.
        NotADirectoryError: if `folder` is not a folder and cannot be created as one.
        SearchError: if a process died too often; the message ends with the error in its output.
    """
    is_list = isinstance(command, (list, tuple)) and all(isinstance(c, str) for c in command)
    if not is_list or not command or not command[0]:
        raise ArgumentError("command", "be a list of str, the program and its arguments", command)
    check_int("workers", workers, at_least=1)
    check_int("restarts", restarts, at_least=0)
    if watch is not None and not callable(watch):
        raise ArgumentError("watch", "be a function without arguments, or None", watch)
    folder = checked_path("folder", folder)
    check_folder("folder", folder)
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        shared = {IP: "127.0.0.1", PORT: str(probe.getsockname()[1])}
    # The cores are divided among the workers, unless the environment sets the variables.
    threads = str(max(1, (os.cpu_count() or 1) // workers))
    names = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS")
    of_worker = shared | {name: os.environ.get(name, threads) for name in names}
    roles = {"chief": shared} | {f"worker{number}": of_worker for number in range(workers)}
    members = [_Member(name, command, given, folder, restarts) for name, given in roles.items()]
    try:
        for member in members:
            member.start()
        # A list, so that all members are checked: `is_running` also restarts them.
        while any([member.is_running() for member in members]):
            time.sleep(POLL)
            if watch is not None:
                watch()
            if members[0].is_done:
                deadline = time.monotonic() + GRACE
                for member in members:
                    member.wait(max(0.0, deadline - time.monotonic()))
                break
    finally:
        for member in members:
            member.stop()
    if watch is not None:
        watch()


class _Member:
    """One supervised process."""

    def __init__(self, name, command, environment, folder, restarts):
        self.name, self.command, self.restarts = name, command, restarts
        self.environment = {**os.environ, **environment, ID: name}
        self.log = folder / f"{name}.log"
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
        self.is_done = code == 0
        if self.is_done:
            return False
        is_short = time.monotonic() - self.started < SHORT_LIFE
        self.deaths = self.deaths + 1 if is_short else 1
        if self.deaths > self.restarts:
            raise SearchError(
                f"The {self.name} of the search ended {self.deaths} times in a row, "
                f"the last time with exit code {code}. Its output is in {self.log}{self._end()}"
            )
        self.start()
        return True

    def wait(self, seconds):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)

    def stop(self):
        if self.process is None:
            return
        if self.process.poll() is None:
            self.process.terminate()
            self.wait(GRACE)
            self.process.kill()
            self.process.wait()
        self.process.stdin.close()

    def _end(self):
        """Returns what the log shows of the end of the process, after a colon: the last error."""
        text = self.log.read_bytes()[self.begin :].decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip() and not NOISE.match(line)]
        errors = [place for place, line in enumerate(lines) if ERROR.match(line)]
        end = lines[errors[-1] :][:LAST_LINES] if errors else lines[-LAST_LINES:]
        return "\n".join([":", *end]) if end else ", without any output"
