"""The training step with gradient coupling against the inner optimizer alone, in one run.

    python benchmarks/gradient_coupling.py [--blocks 54] [--coupling 0.9] [--rounds 10]

Batches of 64 images of 32x32x3, widths 16, 32 and 64, SGD with momentum. Prints seconds per step
and their ratio: 1.03 means that a step takes 3 % longer with coupling.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from timing import in_turn, show

from tfresidual import networks
from tfresidual.training import GradientCoupling


def step_of(blocks, batch, coupling=None):
    """Returns a training step of a network, without coupling if `coupling` is `None`."""
    network = networks.resnet(2 * blocks + 2)
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    if coupling is not None:
        optimizer = GradientCoupling(optimizer, coupling)
    network.compile(optimizer, "sparse_categorical_crossentropy")
    rng = np.random.default_rng(0)
    images = tf.constant(rng.normal(size=(batch, 32, 32, 3)), tf.float32)
    labels = tf.constant(rng.integers(0, 10, batch), tf.int32)
    return lambda: network.train_on_batch(images, labels)


def compare(blocks, batch, coupling, rounds):
    steps = {
        "inner optimizer": step_of(blocks, batch),
        "coupled": step_of(blocks, batch, coupling),
    }
    seconds = in_turn(steps, rounds)
    print(f"{blocks} blocks, batch {batch}, coupling {coupling}:")
    for name, values in seconds.items():
        print(f"  {name}: {np.median(values):.3f} s per step")
    show("coupled / inner optimizer", seconds["coupled"], seconds["inner optimizer"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, nargs="+", default=[54])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--coupling", type=float, default=0.9)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    for blocks in arguments.blocks:
        compare(blocks, arguments.batch, arguments.coupling, arguments.rounds)
