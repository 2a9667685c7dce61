"""A series of exports that is killed again and again: each export is whole, and none is lost.

Not covered: a machine that loses its power.
"""

import json
import random
import signal

import numpy as np
import processes
import pytest
import tensorflow as tf

from tfresidual.machine.files import remove_unfinished

pytestmark = [pytest.mark.system, pytest.mark.nightly]

KILLS = 10
IMAGES = np.random.default_rng(5).normal(size=(6, 4, 4, 1)).astype("float32")
EPOCHS = {f"epoch{number:04d}" for number in (1, 2, 3)}

# Arguments: the folder, at which of its operations on files there it is killed, and a seed.
PROGRAM = """
import json, os, pathlib, signal, sys

import keras
import numpy as np
from keras import layers
from tfresidual.callbacks import ExportForProbing

folder, left = pathlib.Path(sys.argv[1]), int(sys.argv[2])
images = np.random.default_rng(5).normal(size=(6, 4, 4, 1)).astype("float32")

def watch(event, arguments):
    global left
    events = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")
    if event in events and isinstance(arguments[0], (str, bytes, os.PathLike)):
        if str(folder) + os.sep in os.fsdecode(arguments[0]):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

def log(epoch, logs):
    outputs = np.asarray(model(images, training=False)).ravel().tolist()
    with folder.with_suffix(".outputs").open("a") as file:
        file.write(json.dumps([f"epoch{epoch + 1:04d}", outputs]) + "\\n")

keras.utils.set_random_seed(int(sys.argv[3]))
inputs = keras.Input((4, 4, 1))
state = layers.Conv2D(2, 1)(inputs)
state = layers.Flatten()(state + layers.Conv2D(2, 1, activation="relu")(state))
model = keras.Model(inputs, layers.Dense(3, activation="softmax")(state), name="small")
model.compile(keras.optimizers.SGD(0.05), "sparse_categorical_crossentropy")
sys.addaudithook(watch)
logs = keras.callbacks.LambdaCallback(on_epoch_end=log)
chosen = [logs, ExportForProbing(folder, overwrite=True)]
model.fit(images, np.arange(6) % 3, 3, 3, verbose=0, callbacks=chosen)
"""


def check_whole(folder):
    """Compares every export in a folder with what processes were about to write."""
    lines = folder.with_suffix(".outputs").read_text().splitlines()
    logged = [json.loads(line) for line in lines]
    for path in folder.glob("[!.]*"):
        serve = tf.saved_model.load(str(path)).signatures["serving_default"]
        outputs = np.ravel(serve(images=tf.constant(IMAGES))["outputs"])
        assert any(name == path.name and np.allclose(outputs, of) for name, of in logged), path


def names_in(folder):
    return {path.name for path in folder.iterdir()}


def test_a_series_of_exports_that_is_killed(tmp_path):
    folder, rng, kills = tmp_path / "series", random.Random(0), 0
    assert processes.run(PROGRAM, folder, 0, 0).returncode == 0
    for seed in range(1, KILLS + 1):
        result = processes.run(PROGRAM, folder, rng.randrange(1, 30), seed)
        assert result.returncode in (0, -signal.SIGKILL), result.stderr
        kills += result.returncode != 0
        check_whole(folder)
        if seed % 2:
            # Otherwise the next process does the same.
            remove_unfinished(folder)
            assert names_in(folder) - {".lock"} >= EPOCHS
    assert kills >= KILLS / 2
    result = processes.run(PROGRAM, folder, 0, 0)
    assert result.returncode == 0, result.stderr
    check_whole(folder)
    assert {name for name in names_in(folder) if not name.endswith(".lock")} == EPOCHS
