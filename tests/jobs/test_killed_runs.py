"""Commands that are killed again and again at random moments, and end as if nothing had happened.

    python test_killed_runs.py

is the process that the tests start: it loads TensorFlow once, and forks for every command, so that
most of the time goes into what is killed. In some lives a second process runs the same command in
the same folder.

Exports that are killed stand in callbacks/test_killed_exports.py, searches on synthetic laws in
tuning/test_killed_search.py. Not covered: a machine that loses its power.
"""

import contextlib
import io
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
import zipfile

import pytest

pytestmark = pytest.mark.system

KILLS = {"train": 40, "tune": 16}
SIZES = ["--train-size", "64", "--validation", "40", "--test-size", "40", "--batch-size", "32"]
TRAIN = ["train", *SIZES, "--width", "4", "--depth", "8", "--epochs", "4"]
# Two depths are tried: no step is small enough.
TUNE = ["tune", *SIZES, "--width", "2", "--epochs", "1", "--start", "1", "--max-trials", "2"]
TUNE += ["--epsilon", "0.000001", "--workers", "2"]
# The exit codes, and what is said with them: without a depth, a search has failed.
ENDS = {"train": (0, ""), "tune": (1, "2 trials were allowed")}


def serve():
    """Reads orders from stdin, a line of JSON each, and answers with the exit codes.

    An order has a folder and a list of processes: the arguments of the command, where its output
    goes, how many seconds after the order it is started, and after how many it is killed, or
    `None`.
    """
    from tfresidual.sources import exporting  # noqa: F401

    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        begun, children, codes = time.monotonic(), {}, {}
        while len(codes) < len(order["processes"]):
            now = time.monotonic() - begun
            for number, process in enumerate(order["processes"]):
                if number not in children and now >= process["start"]:
                    children[number] = start(order["folder"], process)
                if number in codes or number not in children:
                    continue
                if process["kill"] is not None and now >= process["kill"]:
                    os.kill(children[number], signal.SIGKILL)
                ended, status = os.waitpid(children[number], os.WNOHANG)
                if ended:
                    codes[number] = os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        print(json.dumps([codes[number] for number in sorted(codes)]), flush=True)


def start(folder, process):
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        log = os.open(process["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.chdir(folder)
        import tfresidual_cli

        tfresidual_cli.main(process["arguments"])
        code = 0
    except SystemExit as stopped:
        code = stopped.code or 0
    except BaseException:
        import traceback

        traceback.print_exc()
    sys.stdout.flush()
    os._exit(code)


@pytest.fixture(scope="module")
def server():
    """A function that gives the server an order, and returns the exit codes."""
    with subprocess.Popen(
        [sys.executable, "-P", __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # A command of its own as for a user, whose output has nothing of TensorFlow's.
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    ) as process:
        assert process.stdout.readline() == "ready\n"

        def order(folder, *processes):
            line = json.dumps({"folder": str(folder), "processes": processes})
            process.stdin.write(line + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield order
        process.stdin.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory, server):
    """A folder with the data, and what every command ends with when nobody kills it."""
    home = tmp_path_factory.mktemp("home")
    for name, command in (("train", TRAIN), ("tune", TUNE)):
        begun = time.monotonic()
        (code,) = server(home, life(home, command, name))
        said = (home / f"{name}.log").read_text()
        assert code == ENDS[name][0] and ENDS[name][1] in said, said
        (home / f"{name}.seconds").write_text(str(time.monotonic() - begun))
    return home


def life(home, command, out, start=0.0, kill=None):
    """What the server is told of one process."""
    return {
        "arguments": [*command, "--data-dir", str(home / "data"), "--out", out],
        "log": str(home / f"{out}.log"),
        "start": start,
        "kill": kill,
    }


def killed_until_done(server, home, command, name, seed):
    """Runs a command until it ends by itself, killing it; the number of kills."""
    rng, (end, words) = random.Random(seed), ENDS[command[0]]
    seconds = float((home / f"{command[0]}.seconds").read_text())
    log = home / f"{name}.log"
    count, length = 0, seconds
    while True:
        lives = [life(home, command, name, kill=rng.uniform(0, length))]
        # On a busy machine nothing may come to its end in the time of a quiet one.
        length *= 1.1
        if rng.random() < 0.3:
            # It begins before the other is killed, or when nothing but its folder is left.
            begin = rng.uniform(0, seconds)
            lives.append(life(home, command, name, begin, begin + rng.uniform(0, length)))
        before = log.read_text() if log.exists() else ""
        codes = server(home, *lives)
        said = log.read_text()[len(before) :]
        assert "Traceback" not in said
        # The second one may have been refused, with one line.
        refused = said.count("Another process is writing")
        others = [code for code in codes if code != -signal.SIGKILL]
        assert len(others) <= refused + min(others.count(end), said.count(words)), said
        count += codes.count(-signal.SIGKILL)
        if end in others and words in said:
            return count


def tree(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def values_of(path):
    """Everything that a network holds, by its name in the file."""
    import h5py
    import numpy as np

    found = {}

    def note(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = np.asarray(item).tobytes()

    with zipfile.ZipFile(path) as archive:
        weights = io.BytesIO(archive.read("model.weights.h5"))
    with h5py.File(weights) as file:
        file.visititems(note)
    return found


@pytest.mark.nightly
def test_trainings(server, home):
    kills, runs = 0, 0
    while kills < KILLS["train"]:
        folder = home / f"train{runs}"
        kills += killed_until_done(server, home, TRAIN, folder.name, seed=runs)
        runs += 1
        # The next start takes away what a kill left.
        (code,) = server(home, life(home, TRAIN, folder.name))
        assert code == 0
        assert tree(folder) == tree(home / "train")
        assert (folder / "log.csv").read_text() == (home / "train/log.csv").read_text()
        for file in ("model.keras", "checkpoints/epoch-0003.keras"):
            assert values_of(folder / file) == values_of(home / "train" / file)
    print(f"{kills} kills of {runs} trainings")


@pytest.mark.nightly
def test_searches_with_workers(server, home):
    import pandas as pd

    kills, runs = 0, 0
    outcome = json.loads((home / "tune/outcome.json").read_text())
    trace = pd.read_csv(home / "tune/frames/trace.csv")
    tried = sorted(zip(*(trace[c] for c in trace if c.startswith("blocks")), strict=True))
    while kills < KILLS["tune"]:
        folder = home / f"tune{runs}"
        kills += killed_until_done(server, home, TUNE, folder.name, seed=1000 + runs)
        runs += 1
        (code,) = server(home, life(home, TUNE, folder.name))
        assert code == ENDS["tune"][0]
        found = json.loads((folder / "outcome.json").read_text())
        assert found["status"] == outcome["status"]
        frame = pd.read_csv(folder / "frames/trace.csv")
        ours = sorted(zip(*(frame[c] for c in frame if c.startswith("blocks")), strict=True))
        assert ours == tried
        assert len(set(frame["trial"])) == len(set(trace["trial"]))
        hidden = [path for path in folder.rglob(".*") if path.name != ".lock"]
        assert hidden == []
        # Nothing runs on in a folder whose command is dead.
        assert not any(str(folder) in line for line in running())
    print(f"{kills} kills of {runs} searches")


def running():
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            yield path.read_bytes().replace(b"\0", b" ").decode(errors="replace")


if __name__ == "__main__":
    serve()
