"""Exports that are killed again and again, alone and with a second process in the same folder.

Run as a program, this file exports. TensorFlow is loaded once, and every life is a process forked
from there before TensorFlow has computed anything, which saves seconds each.

Not covered: a machine that loses its power.
"""

import contextlib
import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

pytestmark = pytest.mark.system

KILLS = 15
EPOCHS = 3
IMAGES = np.random.default_rng(5).normal(size=(6, 4, 4, 1)).astype("float32")
LABELS = np.arange(6) % 3
# The points at which a process may be killed, in addition to random moments.
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")
# What processes that were killed leave until the next export, and no longer.
LOCKS = {".lock", ".net.lock", *(f".epoch{n:04d}.lock" for n in range(1, EPOCHS + 1))}
# Seconds that a life may take on a busy machine.
LONGEST_RUN = 300


# The program


def main():
    import keras
    import tensorflow

    import tfresidual
    from tfresidual.sources import exporting  # noqa: F401

    del keras, tensorflow, tfresidual
    for line in sys.stdin:
        print(json.dumps(lives(**json.loads(line))), flush=True)


def lives(kind, folder, workers, kill_after=None, word="begun", kill_at=None, times=None):
    """Lets `workers` processes export into a folder, and kills the first one.

    It is killed `kill_after` seconds after it has said a word, `"begun"` or (after its first export
    or series) `"done"`, or at its `kill_at`-th operation on a file. If it is not, the processes end
    after so many `times`. What they say is next to the folder. Returns how each of them ended.
    """
    folder = pathlib.Path(folder)
    told = [folder.with_suffix(f".{number}") for number in range(workers)]
    for file in told:
        file.unlink(missing_ok=True)
    children = []
    for number, file in enumerate(told):
        # The second one comes when the first one has looked at what it found.
        wait_for("begun" if number else None, told[0], children)
        child = os.fork()
        if not child:
            one_life(kind, folder, file, kill_at if not number else None, times or 10**6)
        children.append(child)
    begun = time.monotonic()
    if kill_after is not None:
        wait_for(word, told[0], children)
        time.sleep(kill_after)
        os.kill(children[0], signal.SIGKILL)
    codes = []
    for number, child in enumerate(children):
        if number and times is None:
            # It continues for a while after the first one is gone.
            wait_for("done", file, [child], more=1)
            os.kill(child, signal.SIGTERM)
        while os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() - begun > LONGEST_RUN:
                os.kill(child, signal.SIGABRT)
            time.sleep(0.01)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return codes


def wait_for(word, file, children, more=0):
    """Until a process has said something once more than now (or at all), or has ended."""
    if word is None:
        return
    wanted = max(1, said(file, word) + more)
    begun = time.monotonic()
    while said(file, word) < wanted and time.monotonic() - begun < LONGEST_RUN:
        if os.waitid(os.P_PID, children[0], os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.002)


def said(file, word):
    lines = file.read_text().splitlines() if file.exists() else []
    return sum(line.split(" ")[0] == word for line in lines)


def one_life(kind, folder, file, kill_at, times):
    """Exports, and ends the process; one that fails says why in a file."""
    code = 1
    with folder.with_suffix(".log").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            export(kind, folder, file, kill_at, times)
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(code)


def export(kind, folder, file, kill_at, times):
    import keras

    import tfresidual
    from tfresidual.callbacks import ExportForProbing
    from tfresidual.machine.files import remove_unfinished
    from tfresidual.machine.locks import FolderInUseError

    def tell(*words):
        with file.open("a") as opened:
            opened.write(" ".join(map(str, words)) + "\n")

    def log(name, key):
        """What an export will return, before it is begun."""
        outputs = np.asarray(model(IMAGES, training=False)).ravel().tolist()
        with folder.with_suffix(".outputs").open("a") as opened:
            opened.write(json.dumps([name, key, outputs]) + "\n")

    model, keys = network(), itertools.count()
    for path in sorted(folder.glob("[!.]*")):
        tell("found", path.name, key_of(folder, path))
    remove_unfinished(folder)
    tell("restored", json.dumps(sorted(os.listdir(folder))))
    if kill_at is not None:
        kill_at_file(folder, kill_at)
    tell("begun")
    chain = tfresidual.chain(model)
    weights = model.get_weights()
    for _ in range(times):
        key = f"{os.getpid()}-{next(keys)}"
        try:
            if kind == "export":
                # All weights are others than before.
                factor = 0.5 + np.random.default_rng(list(key.encode())).random()
                model.set_weights([factor * part for part in weights])
                log("net", key)
                tfresidual.export(chain, folder / "net", overwrite=True)
            else:
                write = keras.callbacks.LambdaCallback(
                    on_epoch_end=lambda epoch, logs, key=key: log(f"epoch{epoch + 1:04d}", key)
                )
                chosen = [write, ExportForProbing(folder, overwrite=True)]
                model.fit(IMAGES, LABELS, 3, EPOCHS, verbose=0, callbacks=chosen)
        except FolderInUseError:
            tell("refused", key)
            continue
        tell("done", json.dumps(sorted(os.listdir(folder))))


def network():
    import keras
    from keras import layers

    keras.utils.set_random_seed(os.getpid())
    inputs = keras.Input((4, 4, 1))
    state = layers.Conv2D(2, 1)(inputs)
    state = state + layers.Conv2D(2, 1, activation="relu")(state)
    state = layers.Flatten()(state)
    model = keras.Model(inputs, layers.Dense(3, activation="softmax")(state), name="small")
    model.compile(keras.optimizers.SGD(0.05), "sparse_categorical_crossentropy")
    return model


def key_of(folder, path):
    """Which of the exports lies at a path: opens it, and compares what it returns."""
    import tensorflow as tf

    loaded = tf.saved_model.load(str(path))
    outputs = loaded.signatures["serving_default"](images=tf.constant(IMAGES))["outputs"]
    # It holds what probes read, too.
    readout = loaded.signatures["readout"]
    arguments = {"stage": tf.constant(1), "block": tf.constant(0)}
    left = readout(images=tf.constant(IMAGES), **arguments)["outputs"]
    for name, key, expected in logged(folder):
        if name == path.name and all(
            np.allclose(np.ravel(found), expected, atol=1e-5) for found in (outputs, left)
        ):
            return key
    return "unknown"


def logged(folder):
    """All that processes were about to export, the latest first."""
    lines = folder.with_suffix(".outputs").read_text().splitlines()
    return [json.loads(line) for line in reversed(lines)]


def kill_at_file(folder, count):
    """Kills this process just before its `count`-th operation on a file in a folder."""
    left = count

    def watch(event, arguments):
        nonlocal left
        if event in EVENTS and isinstance(arguments[0], (str, bytes, os.PathLike)):
            if str(folder) + os.sep not in os.fsdecode(arguments[0]):
                return
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


# The tests


@pytest.fixture(scope="module")
def program():
    with subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:

        def order(**settings):
            process.stdin.write(json.dumps(settings) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        yield order
        process.stdin.close()


def lines_of(folder, number=0):
    """What a process said, as lists of words."""
    path = folder.with_suffix(f".{number}")
    return [line.split(" ", 1) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["export", "series"])
def test_killed_exports(program, kind, tmp_path):
    """Each of them opens and is right, none is lost, and nothing else is left by the next one."""
    rng = random.Random(kind)
    folder = tmp_path / kind
    folder.mkdir()
    whole = {"net"} if kind == "export" else {f"epoch{n:04d}" for n in range(1, EPOCHS + 1)}
    log = folder.with_suffix(".log")
    # How long the first export, or series, takes, and another one.
    seconds = []
    for times in (1, 3):
        begun = time.monotonic()
        codes = program(kind=kind, folder=str(folder), workers=1, times=times)
        assert codes == [0], log.read_text()
        seconds.append(time.monotonic() - begun)
    seconds = {"begun": seconds[0], "done": max(0.1, seconds[1] - seconds[0]) / 2}
    kills, with_second, refused = 0, 0, 0
    for number in range(KILLS):
        workers = 2 if number % 4 == 3 else 1
        if number % 3:
            how = {"kill_at": rng.randrange(1, 40)}
        else:
            word = rng.choice(["begun", "done", "done"])
            how = {"kill_after": rng.uniform(0, seconds[word]), "word": word}
        codes = program(kind=kind, folder=str(folder), workers=workers, **how)
        assert codes[0] == -signal.SIGKILL, (how, codes, log.read_text())
        kills += 1
        if workers == 2:
            with_second += 1
            assert codes[1] in (-signal.SIGTERM, 143), (codes, log.read_text())
            refused += sum(words[0] == "refused" for words in lines_of(folder, 1))
            check(lines_of(folder, 1), whole, is_alone=False)
        check(lines_of(folder), whole)
    # The next one, which nobody kills.
    assert program(kind=kind, folder=str(folder), workers=1, times=1) == [0], log.read_text()
    lines = lines_of(folder)
    check(lines, whole)
    assert json.loads(lines[-1][1]) == sorted(whole)
    assert sorted(os.listdir(folder)) == sorted(whole)
    print(f"{kind}: {kills} kills, {with_second} beside a second process, {refused} refusals")


def check(lines, whole, is_alone=True):
    """Looks at what a process found, what it made of what the one before had left, and its own."""
    found = dict(words[1].split(" ") for words in lines if words[0] == "found")
    assert set(found) <= whole and "unknown" not in found.values(), found
    for word, *rest in lines:
        if word == "done" or (word == "restored" and is_alone):
            there = json.loads(rest[0])
            assert {name for name in there if name[0] != "."} == whole, (word, there)
            # Between two exports nothing is left but the file that was locked.
            assert {name for name in there if name[0] == "."} <= LOCKS or not is_alone, there


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
