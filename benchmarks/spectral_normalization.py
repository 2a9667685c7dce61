"""The training step with the norms of all convolutions bounded against that of the bare layers.

    python benchmarks/spectral_normalization.py [--blocks 9] [--rounds 20]

Batches of 64 images of 32x32x3, widths 16, 32 and 64, SGD with momentum, two 3x3 convolutions per
block, each wrapped in `layers.SpectralNormalization`, or none: 1.10 means that a step takes 10 %
longer with bounds. Below that, the same of the branches of residual units with `lipschitz`.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
from results import compared, run
from timing import in_turn
from training_step import batch

from tfresidual import layers, networks


def network_of(blocks, is_bounded):
    """Returns a network of preactivation blocks, with every convolution bounded or none."""

    def convolution(filters, strides=1):
        layer = keras.layers.Conv2D(filters, 3, strides, padding="same")
        return layers.SpectralNormalization(layer) if is_bounded else layer

    inputs = keras.Input((32, 32, 3))
    state = convolution(16)(inputs)
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(blocks // 3):
            strides = 2 if stage and not block else 1
            branch = keras.layers.ReLU()(layers.BatchNormalization()(state))
            branch = convolution(filters, strides)(branch)
            branch = keras.layers.ReLU()(layers.BatchNormalization()(branch))
            branch = convolution(filters)(branch)
            if strides > 1:
                state = layers.Subsampling(filters)(state)
            state = state + branch
    outputs = keras.layers.Dense(10, "softmax")(keras.layers.GlobalAveragePooling2D()(state))
    return keras.Model(inputs, outputs)


def step_of(network):
    """Returns a training step of a network."""
    network.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        "sparse_categorical_crossentropy",
        jit_compile=False,
    )
    images, labels = batch()
    return lambda: network.train_on_batch(images, labels)


def measure(arguments):
    for blocks in arguments.blocks:
        steps = {
            "bare": step_of(network_of(blocks, is_bounded=False)),
            "bounded": step_of(network_of(blocks, is_bounded=True)),
        }
        seconds = in_turn(steps, arguments.rounds)
        setting = f"{blocks} blocks, bound 0.95"
        yield compared("wrapped / bare layers", setting, seconds["bounded"], seconds["bare"])
        steps = {
            "bare": step_of(networks.resnet(2 * blocks + 2)),
            "bounded": step_of(networks.resnet(2 * blocks + 2, lipschitz=0.95)),
        }
        seconds = in_turn(steps, arguments.rounds)
        yield compared("units with / without lipschitz", setting, *reversed(seconds.values()))


def add_arguments(parser):
    parser.add_argument("--blocks", type=int, nargs="+", default=[9])
    parser.add_argument("--rounds", type=int, default=20)


if __name__ == "__main__":
    run(measure, add_arguments)
