"""A training of seconds, to be interrupted by tests, in this process or in a killed one.

    python small_training.py DATA_DIR FOLDER MOMENT

trains into FOLDER/0, in a process that kills itself at that moment: `rename:log.csv:2` is just
before a file is moved to log.csv for the second time, `open:log.csv:2` just before it is opened
for the second time, and `never` lets it end. It trains without compiling, as the tests do.
Only real file operations are watched, by Python's audit events.
"""

import os
import pathlib
import signal
import sys

import keras
import tensorflow as tf

from tfresidual import callbacks, datasets, training
from tfresidual.networks import ResidualNetwork

EPOCHS = 3
EVENTS = {"open": "open", "rename": "os.rename", "remove": "os.remove"}


def train(folder, data_dir, dtype="float32", further=()):
    """Momentum, a rate that changes inside an epoch, dropout, an order that follows the epoch."""
    data, validation, _ = datasets.load(
        "digitclutter", 16, train_size=48, validation=20, test_size=20, data_dir=data_dir
    )
    # After the data: drawing them uses random numbers, too.
    keras.utils.set_random_seed(7)
    network = ResidualNetwork(
        (32, 32, 1),
        10,
        blocks=1,
        widths=(3,),
        shortcut="dropout",
        classifier_activation="sigmoid",
        dtype=dtype,
    )
    metric = training.compile_network(
        network, "digitclutter", epochs=EPOCHS, steps_per_epoch=3, multi_label=True
    )
    return training.train(
        network,
        data,
        validation,
        folder=folder,
        epochs=EPOCHS,
        metric=metric,
        callbacks=[callbacks.BlockMetrics(validation), *further],
    )


def kill_at(moment, folder):
    kind, beginning, count = moment.split(":")
    left = int(count)

    def watch(event, arguments):
        nonlocal left
        if event != EVENTS[kind]:
            return
        # The target of a move, the file of everything else.
        path = pathlib.Path(os.fsdecode(arguments[1 if kind == "rename" else 0]))
        if path.is_relative_to(folder) and path.name.startswith(beginning):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def main(data_dir, folder, moment):
    # TensorFlow is loaded, but has not begun anything: it can be forked.
    child = os.fork()
    if not child:
        path = pathlib.Path(folder, "0")
        tf.config.run_functions_eagerly(True)
        if moment != "never":
            kill_at(moment, path)
        train(path, data_dir)
        os._exit(0)
    print(moment, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
