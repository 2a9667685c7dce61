"""The training step with `callbacks.StepMetrics` against the same step without it, in one run.

    python benchmarks/step_metrics.py [--blocks 9 54] [--images 8] [--every 1] [--rounds 10]

Batches of 64 images of 32x32x3, widths 16, 32 and 64, SGD with momentum. Prints seconds per step
and their ratio: 1.03 means that a step takes 3 % longer with the metrics. Reading them at the end
of an epoch is not part of it.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from timing import in_turn, show

from tfresidual import callbacks, networks


def step_of(blocks, batch, **kwargs):
    """Returns a training step of a network, without metrics if no arguments are given."""
    network = networks.resnet(2 * blocks + 2)
    network.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy")
    rng = np.random.default_rng(0)
    images = tf.constant(rng.normal(size=(batch, 32, 32, 3)), tf.float32)
    labels = tf.constant(rng.integers(0, 10, batch), tf.int32)
    network.make_train_function()
    if kwargs:
        callback = callbacks.StepMetrics(**kwargs)
        callback.set_model(network)
        callback.on_train_begin()
    return lambda: network.train_on_batch(images, labels)


def compare(blocks, batch, images, every, rounds):
    steps = {
        "plain": step_of(blocks, batch),
        "with metrics": step_of(blocks, batch, images=images, every=every),
    }
    seconds = in_turn(steps, rounds)
    print(f"{blocks} blocks, batch {batch}, {images} images of one step in {every}:")
    for name, values in seconds.items():
        print(f"  {name}: {np.median(values):.3f} s per step")
    show("with metrics / plain", seconds["with metrics"], seconds["plain"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, nargs="+", default=[9, 54])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--images", type=int, nargs="+", default=[8])
    parser.add_argument("--every", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    for blocks in arguments.blocks:
        for images in arguments.images:
            for every in arguments.every:
                compare(blocks, arguments.batch, images, every, arguments.rounds)
