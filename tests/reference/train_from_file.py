"""Trains on the images of a file, in a process of a backend of its own; may kill itself.

    KERAS_BACKEND=jax python train_from_file.py DATA_FILE FOLDER[:EPOCH] [FOLDER[:EPOCH] ...]

trains once per folder. With an epoch, the process kills itself when that epoch begins.
"""

import os
import signal
import sys

import keras

from tfresidual.jobs import training
from tfresidual.jobs.settings import Settings, with_data_of_file

# Dropout, and a learning rate that changes within the training.
SETTINGS = {"depth": 8, "width": 2, "shortcut": "dropout", "epochs": 3, "batch_size": 20}


class Kill(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if str(epoch) == self.epoch:
            os.kill(os.getpid(), signal.SIGKILL)


def main(data_file, *folders):
    settings = Settings(**with_data_of_file({"data_file": data_file, **SETTINGS}))
    for text in folders:
        folder, _, epoch = text.partition(":")
        result = training.train(folder, settings, callbacks=lambda data, at=epoch: [Kill(at)])
        print(folder, result.best_epoch, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
