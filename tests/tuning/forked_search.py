"""Searches in processes of their own, forked from one that has loaded TensorFlow.

Their networks are not trained: what they would measure is computed. Run as a program, this file
forks them, or searches.
"""

import contextlib
import json
import math
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import traceback

# How long a test waits for what must happen.
PATIENCE = 60.0
SLEEP = 0.05
# By size: the first depths, the widths, what a stage measures at most, and its noise. A search of
# "many" has more trials than `TRIALS`.
SIZES = {
    "large": ((4, 4), (4, 8), 2, 0.0),
    "small": ((24, 38), (4,), 2, 0.0),
    "many": ((4, 4), (4, 8, 12, 16, 20, 24, 28, 32), 3, 0.03),
    "few": ((37,), (4,), 3, 0.03),
    "some": ((30,), (4,), 3, 0.03),
}
TRIALS = 44


# The program


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
        with open(order["log"], "a") as log, open(os.devnull) as stdin:
            for number, file in enumerate((stdin, log, log)):
                os.dup2(file.fileno(), number)
        os.environ.update(order["environment"])
        run(order)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def run(order):
    """Searches."""
    folder = pathlib.Path(order["folder"])
    note(folder, "pids", os.environ.get("KERASTUNER_TUNER_ID", "alone"), os.getpid())
    from tfresidual.tuning import depth_search

    # Tests have no time to wait.
    depth_search.POLL = 0.05
    if "kill_at" in order:
        kill_at_file(folder, order.get("events", ["os.rename"]), order["kill_at"])
    start, widths, *_ = SIZES[order.get("size", "large")]
    tuner = search_class(order)(
        lambda hp: hp.Choice("width", list(widths)),
        start=start,
        max_blocks=60,
        directory=folder.parent,
        project_name=folder.name,
    )
    tuner.search(validation_data=([0], [0]), verbose=0)


def kill_at_file(folder, events, count):
    """Kills this process just before its `count`-th operation on a file of the search."""
    left = count

    def watch(event, arguments):
        nonlocal left
        if event in events and str(folder) in os.fsdecode(arguments[0]):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def search_class(order):
    import keras_tuner
    import numpy as np

    from tfresidual import tuning

    class Search(tuning.DepthSearch):
        """Computes what a network would have measured."""

        def execute(self, trial, execution, *args, **kwargs):
            depths = tuning.blocks(trial.hyperparameters)
            width = trial.hyperparameters.get("width")
            note(order["folder"], "begun", self.tuner_id, trial.trial_id)
            time.sleep(order.get("sleep", SLEEP))
            *_, most, noise = SIZES[order.get("size", "large")]
            if order.get("all_fail") or (noise and width == 8 and depths[0] > 40):
                raise keras_tuner.errors.FailedTrialError("it could not be trained")
            rng = np.random.default_rng([width, *depths])
            measured = {"blocks": float(sum(depths)), "seconds": 0.0}
            for stage, depth in enumerate(depths, start=1):
                distance = (most + stage) * -math.expm1(-width * depth / 60)
                distance *= rng.uniform(1 - noise, 1 + noise)
                measured[f"stage{stage}/blocks"] = float(depth)
                measured[f"stage{stage}/distance"] = 3 * distance
                measured[f"stage{stage}/scaled_distance"] = distance
            return measured

    return Search


def note(folder, kind, *values):
    with open(f"{folder}-{kind}.txt", "a") as file:
        file.write(" ".join(map(str, values)) + "\n")


# What the tests ask about


def notes(folder, kind):
    path = pathlib.Path(f"{folder}-{kind}.txt")
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def is_alive(pid):
    """Whether a process runs; one that has ended and that nobody asked about does not."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return (
            pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        )
    return False


def wait_until(condition, why=str):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, why()
        time.sleep(0.005)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Launcher:
    """The process from which others are forked."""

    def __init__(self, log):
        self.log = log
        with log.open("w") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-P", __file__, "launch"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
            )

    def order(self, **order):
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, self.log.read_text()
        return json.loads(answer)

    def close(self):
        self.process.communicate(timeout=10)


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
        environment = {} if name == "alone" else environment
        order = {"folder": str(self.folder), **order}
        log = str(self.log(name))
        self.pids[name] = self.launcher.order(environment=environment, log=log, **order)
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
        if self.poll(name) is None:
            os.kill(self.pids[name], signal.SIGKILL)
        return self.ended(name)

    def ended(self, name):
        """The exit code, when it has ended."""
        wait_until(lambda: self.poll(name) is not None, self.logs)
        return self.poll(name)

    def wait(self, *names):
        """Until processes have ended well."""
        for name in names:
            assert self.ended(name) == 0, self.logs()

    def output_of_failure(self, name):
        """What a process wrote that had to end with an error."""
        assert self.ended(name) == 1, self.logs()
        return self.log(name).read_text()

    def begun(self, name=None):
        """The trials that were begun, by anyone or by a worker, as often as they were."""
        return [trial for by, trial in notes(self.folder, "begun") if name in (None, by)]

    def wait_for_trials(self, count, name=None):
        wait_until(lambda: len(self.begun(name)) >= count, self.logs)

    def close(self):
        for name in self.pids:
            self.kill(name)


if __name__ == "__main__":
    launch() if sys.argv[1] == "launch" else run(json.loads(sys.argv[1]))
