"""Trains every network of a folder for ten steps, on the backend that KERAS_BACKEND names.

For each `NAME.keras` it writes `BACKEND/NAME.keras`, the network after training, and
`BACKEND/NAME.npz`: the loss of the steps, the outputs before and after training, and all weights.
"""

import os
import pathlib
import sys

import keras
import numpy as np

import tfresidual

BATCH = 8


def train_files(folder):
    folder = pathlib.Path(folder)
    target = folder / keras.config.backend()
    target.mkdir()
    with np.load(folder / "data.npz") as data:
        images, classes, sets = data["images"], data["classes"], data["sets"]
    for path in sorted(folder.glob("*.keras")):
        network = keras.saving.load_model(path)
        has_sets = isinstance(network.loss, tfresidual.training.MultiLabelCrossentropy)
        before = network.predict(images, BATCH, verbose=0)
        log = network.fit(
            images, sets if has_sets else classes, BATCH, shuffle=False, verbose=0
        ).history
        network.save(target / path.name)
        np.savez(
            target / path.with_suffix(".npz").name,
            *network.get_weights(),
            loss=log["loss"],
            before=before,
            after=network.predict(images, BATCH, verbose=0),
        )


if __name__ == "__main__":
    assert keras.config.backend() == os.environ["KERAS_BACKEND"]
    # Keras itself imports TensorFlow later, if it is installed.
    assert keras.config.backend() == "tensorflow" or "tensorflow" not in sys.modules
    train_files(sys.argv[1])
