"""A published architecture, built by Keras and not by this package, trained and probed.

    python experiments/published_architecture.py --size smoke
    python experiments/published_architecture.py --size small --data-dir ~/tensorflow_datasets
    python experiments/published_architecture.py --size paper --data-dir ~/tensorflow_datasets

The network is one of `keras.applications`, without pretrained weights, on images of 32 x 32. The
script writes `model.keras`, which can be probed from the command line without changes:

    tfresidual probe runs/published_architecture/small/ResNet50/model.keras --data cifar10

It also writes the frames of the probes beside the model. An interrupted training resumes after its
last complete epoch. Sizes: `smoke` shows that everything works, with Digitclutter; `small` is a
part of CIFAR-10, for two cores; `paper` is all of CIFAR-10 for 60 epochs, for a GPU.
"""

import argparse
from pathlib import Path

import keras
import pandas as pd

from tfresidual import datasets, training
from tfresidual.jobs.probing import probe
from tfresidual.machine.console import say, terminal
from tfresidual.machine.files import replacing
from tfresidual.machine.first_step import traced_once
from tfresidual.sources import chain

ARCHITECTURES = ("ResNet50", "ResNet50V2", "MobileNetV2", "EfficientNetB0", "ConvNeXtTiny")
BATCH_SIZE = 128
# Name of the data, training images, test images, epochs.
SIZES = {
    "smoke": ("digitclutter", 256, 64, 1),
    "small": ("cifar10", 20_000, 10_000, 8),
    "paper": ("cifar10", 50_000, 10_000, 60),
}


def build(architecture, data):
    """Returns the compiled architecture for a dataset."""
    several_labels = data == "digitclutter"
    network = getattr(keras.applications, architecture)(
        weights=None,
        input_shape=(32, 32, 1 if several_labels else 3),
        classes=10,
        classifier_activation="sigmoid" if several_labels else "softmax",
    )
    loss = (
        training.MultiLabelCrossentropy() if several_labels else "sparse_categorical_crossentropy"
    )
    metrics = [] if several_labels else ["accuracy"]
    network.compile(keras.optimizers.Adam(1e-3), loss, metrics=metrics)
    return network


def main(size, architecture, data_dir, out):
    data, train_size, test_size, epochs = SIZES[size]
    console, folder = terminal(), out / size / architecture
    folder.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(0)
    train, test = datasets.load(
        data, BATCH_SIZE, train_size=train_size, test_size=test_size, data_dir=data_dir
    )
    network = build(architecture, data)
    say(console, f"training {architecture}")
    rates = [1e-3] * (epochs * 5 // 8) + [1e-4] * epochs
    with traced_once(network):
        network.fit(
            train,
            validation_data=test,
            epochs=epochs,
            shuffle=False,
            verbose=2,
            callbacks=[
                keras.callbacks.LearningRateScheduler(lambda epoch: rates[epoch]),
                keras.callbacks.BackupAndRestore(folder / "backup"),
                keras.callbacks.CSVLogger(folder / "log.csv", append=True),
            ],
        )
    with replacing(folder / "model.keras") as path:
        network.save(path)
    print(chain(network))
    changes = {
        "data": data,
        "data_dir": data_dir,
        "batch_size": BATCH_SIZE,
        "train_size": train_size,
        "test_size": test_size,
    }
    frames, _ = probe(folder / "model.keras", images=2048, changes=changes, console=console)
    for name in ("block_metrics", "readout", "drop_blocks", "convergence_indices"):
        if name in frames:
            print(f"\n{name}")
            with pd.option_context("display.precision", 3, "display.width", 120):
                print(frames[name].to_string(index=False))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=list(SIZES), default="smoke")
    parser.add_argument("--architecture", choices=ARCHITECTURES, default="ResNet50")
    parser.add_argument("--data-dir", help="folder of tensorflow-datasets")
    parser.add_argument("--out", type=Path, default=Path("runs/published_architecture"))
    arguments = parser.parse_args()
    main(arguments.size, arguments.architecture, arguments.data_dir, arguments.out)
