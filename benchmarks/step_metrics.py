"""The training step with `callbacks.StepMetrics` against the same step without it.

    python benchmarks/step_metrics.py [--blocks 9 54] [--images 8] [--every 1] [--rounds 10]

Batches of 64 images of 32x32x3, widths 16, 32 and 64, SGD with momentum: 1.03 means that a step
takes 3 % longer with the metrics. Reading them at the end of an epoch is not part of it.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
from results import compared, run
from timing import in_turn
from training_step import batch

from tfresidual import callbacks, networks


def step_of(blocks, **kwargs):
    """Returns a training step of a network, without metrics if no arguments are given."""
    network = networks.resnet(2 * blocks + 2)
    network.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy")
    network.make_train_function()
    if kwargs:
        callback = callbacks.StepMetrics(**kwargs)
        callback.set_model(network)
        callback.on_train_begin()
    images, labels = batch()
    return lambda: network.train_on_batch(images, labels)


def measure(arguments):
    for blocks in arguments.blocks:
        for images in arguments.images:
            for every in arguments.every:
                steps = {
                    "plain": step_of(blocks),
                    "metrics": step_of(blocks, images=images, every=every),
                }
                seconds = in_turn(steps, arguments.rounds)
                setting = f"{blocks} blocks, {images} images of one step in {every}"
                yield compared(
                    "with metrics / without", setting, seconds["metrics"], seconds["plain"]
                )


def add_arguments(parser):
    parser.add_argument("--blocks", type=int, nargs="+", default=[9, 54])
    parser.add_argument("--images", type=int, nargs="+", default=[8])
    parser.add_argument("--every", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=10)


if __name__ == "__main__":
    run(measure, add_arguments)
