"""The training step with learned factors and with stochastic depth against one without.

    python benchmarks/residual_branches.py [--blocks 9] [--layouts full_preactivation]
        [--widths 16 32 64] [--rounds 20]

Batches of 64 images of 32x32x3, SGD with momentum: 1.03 means that a step takes 3 % longer.
Stochastic depth multiplies every branch once more, which takes its time from the memory: the wider
the network, the less it counts. SkipInit is compared with branches without normalization, all
others with the network as it is. *CPU* is the time that the processors spent on the step, on which
other work on the machine has less effect than on the time that passed.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import time

import keras
import numpy as np
from results import compared, run
from timing import in_turn
from training_step import batch

from tfresidual import networks

# What is compared, with what: options of the network.
WITHOUT = {"normalization": None}
PAIRS = {
    "stochastic depth": ({"stochastic_depth": 0.5}, {}),
    "LayerScale": ({"multiplier": "layer_scale"}, {}),
    "ReZero": ({"multiplier": "rezero"}, {}),
    "SkipInit": (WITHOUT | {"multiplier": "rezero"}, WITHOUT),
}


def step_of(arguments, layout, options):
    """Returns a training step of a network."""
    options = {"widths": tuple(arguments.widths), "layout": layout, **options}
    network = networks.resnet(2 * arguments.blocks + 2, **options)
    network.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy")
    images, labels = batch()
    return lambda: network.train_on_batch(images, labels)


def both_clocks():
    """Returns the time that has passed, and that which the processors spent, in seconds."""
    return np.array([time.perf_counter(), time.process_time()])


def measure(arguments):
    for layout in arguments.layouts:
        for name, (options, other) in PAIRS.items():
            steps = {
                "with": step_of(arguments, layout, options),
                "without": step_of(arguments, layout, other),
            }
            pairs = in_turn(steps, arguments.rounds, clock=both_clocks)
            widths = "-".join(map(str, arguments.widths))
            setting = f"{arguments.blocks} blocks, widths {widths}, {layout}"
            for place, which in enumerate(("", ", CPU")):
                seconds = [[pair[place] for pair in pairs[key]] for key in steps]
                yield compared(f"{name}: with / without{which}", setting, *seconds)
            keras.backend.clear_session()


def add_arguments(parser):
    parser.add_argument("--blocks", type=int, default=9)
    parser.add_argument("--layouts", nargs="+", default=["full_preactivation"])
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--rounds", type=int, default=20)


if __name__ == "__main__":
    run(measure, add_arguments)
