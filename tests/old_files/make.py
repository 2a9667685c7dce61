"""Writes files as a version of the package does, which later versions must open.

    python tests/old_files/make.py FOLDER

writes, with the package that this Python has installed, what `test_old_files.py` opens: networks
and layers as `.keras` files with what they predict, an export with a frame of it, a run and a
search that were finished, and the same interrupted. `written.tar.xz` is what 1f740c5 wrote.
"""

import os
import pathlib
import signal
import subprocess
import sys
import time

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np

import tfresidual as tfr
from tfresidual import layers, networks, probes, training

SIZES = ["--train-size", "64", "--validation", "40", "--test-size", "40", "--batch-size", "32"]
TRAIN = ["train", *SIZES, "--width", "4", "--depth", "14", "--epochs", "3", "--coupling", "0.5"]
# Two depths are tried: no step is small enough.
TUNE = ["tune", *SIZES, "--width", "2", "--epochs", "1", "--start", "1", "--max-trials", "2"]
TUNE += ["--epsilon", "0.000001", "--max-blocks", "2"]
# The networks, and what differs from the usual one.
OPTIONS = {
    "plain": {},
    "original": {"layout": "original", "shortcut": "conv1x1"},
    "gates": {"shortcut": "exclusive_gate", "transition": "convolution"},
    "scaled": {"shortcut": "scaled", "bottleneck": True},
    "bounded": {"lipschitz": 0.9, "anchor": "input"},
    "shared": {"share_from": 0, "batch_norm": "unshared", "gamma_initializer": "ones"},
    "today": {"normalization": None, "multiplier": "rezero", "stochastic_depth": 0.2},
    "fixup": {"normalization": "fixup", "recurrent_initialization": True},
}


def images():
    return np.random.default_rng(0).normal(size=(3, 8, 8, 1)).astype("float32")


def models():
    """The networks, and a model of every layer that stands alone."""
    for name, changes in OPTIONS.items():
        usual = {"blocks": 2, "widths": (4, 8)}
        yield name, networks.ResidualNetwork((8, 8, 1), 3, **usual | changes)
    inputs = keras.Input((8, 8, 1))
    state = layers.SpectralNormalization(keras.layers.Conv2D(4, 3, padding="same"), bound=0.5)(
        inputs
    )
    block = keras.Sequential([keras.layers.Conv2D(4, 3, padding="same"), keras.layers.ReLU()])
    state = layers.Repeated(block, times=2)(state)
    branch = [keras.layers.Conv2D(4, 1), keras.layers.ReLU(), keras.layers.Conv2D(4, 1)]
    branch = layers.Bounded(branch, bound=0.8)(state)
    branch = layers.StochasticDepth(0.3)(layers.LayerScale()(branch))
    state = keras.layers.Add()([state, layers.ReZero()(branch)])
    norm = layers.UnsharedBatchNormalization(applications=2, share=("gamma",))
    state = norm(layers.BatchNormalization()(state), application=0)
    state = norm(state, application=1)
    outputs = keras.layers.Dense(3, "softmax")(keras.layers.GlobalAveragePooling2D()(state))
    yield "layers", keras.Model(inputs, outputs)


def make(folder):
    keras.utils.set_random_seed(0)
    labels = np.array([0, 1, 2])
    for name, model in models():
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        if name == "plain":
            optimizer = training.GradientCoupling(optimizer, coupling=0.5)
        model.compile(optimizer, "sparse_categorical_crossentropy")
        model.fit(images(), labels, epochs=2, verbose=0)
        model.save(folder / f"{name}.keras")
        np.save(folder / f"{name}.npy", model.predict(images(), verbose=0))
        if name == "plain":
            tfr.export(model, folder / "exported")
            frame = probes.drop_blocks(model, (images(), labels))
            frame.to_csv(folder / "exported.csv", index=False)
    for name, command in (("run", TRAIN), ("search", TUNE)):
        command = [*command, "--data-dir", str(folder / "data"), "--out"]
        subprocess.run([*CLI, *command, str(folder / name)], check=name == "run")
        interrupt([*CLI, *command], folder / f"interrupted_{name}")


CLI = [sys.executable, "-c", "import tfresidual_cli; tfresidual_cli.main()"]


def interrupt(command, folder):
    """Runs a command until a part of it is done, and interrupts it."""
    process = subprocess.Popen([*command, str(folder)])
    while process.poll() is None:
        time.sleep(0.02)
        log = folder / "log.csv"
        epochs = len(log.read_text().splitlines()) - 1 if log.exists() else 0
        trials = [*folder.glob("**/trial_*/trial.json")]
        if epochs >= 2 or len(trials) >= 2:
            process.send_signal(signal.SIGINT)
            break
    assert process.wait() == 130


if __name__ == "__main__":
    where = pathlib.Path(sys.argv[1]).absolute()
    where.mkdir(parents=True)
    make(where)
