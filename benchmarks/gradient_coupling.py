"""The training step with gradient coupling against the inner optimizer alone.

    python benchmarks/gradient_coupling.py [--blocks 54] [--coupling 0.9] [--rounds 20]

Batches of 64 images of 32x32x3, widths 16, 32 and 64, SGD with momentum: 1.03 means that a step
takes 3 % longer with coupling.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
from results import compared, run
from timing import in_turn
from training_step import batch

from tfresidual import networks
from tfresidual.training import GradientCoupling


def step_of(blocks, coupling=None):
    """Returns a training step of a network, without coupling if `coupling` is `None`."""
    network = networks.resnet(2 * blocks + 2)
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    if coupling is not None:
        optimizer = GradientCoupling(optimizer, coupling)
    network.compile(optimizer, "sparse_categorical_crossentropy")
    images, labels = batch()
    return lambda: network.train_on_batch(images, labels)


def measure(arguments):
    for blocks in arguments.blocks:
        steps = {
            "inner": step_of(blocks),
            "coupled": step_of(blocks, arguments.coupling),
        }
        seconds = in_turn(steps, arguments.rounds)
        setting = f"{blocks} blocks, coupling {arguments.coupling:g}"
        yield compared("coupled / inner optimizer", setting, seconds["coupled"], seconds["inner"])


def add_arguments(parser):
    parser.add_argument("--blocks", type=int, nargs="+", default=[54])
    parser.add_argument("--coupling", type=float, default=0.9)
    parser.add_argument("--rounds", type=int, default=20)


if __name__ == "__main__":
    run(measure, add_arguments)
