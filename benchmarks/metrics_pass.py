"""One compiled pass of the block metrics against one training step on the same batch.

    python benchmarks/metrics_pass.py [--blocks 9 54]

Batches of 64 images of 32x32x3, widths 16, 32 and 64. Below 1, measuring all blocks costs less than
training on the batch. Before, the statistics of batch normalization are those of the batch: with
those that it begins with, the states of an untrained network grow from block to block.
"""

import functools
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from results import compared, run
from timing import in_turn
from training_step import batch, keras_step

import tfresidual as tfr
from tfresidual import networks, probes
from tfresidual.layers import BatchNormalization


def settle(network, images):
    """Sets the statistics of all batch normalizations to those of a batch."""
    inside = [part for layer in network.layers for part in (layer, *vars(layer).values())]
    layers = [part for part in inside if isinstance(part, BatchNormalization)]
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
    network(images, training=True)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum


def measure(arguments):
    images, labels = batch()
    for blocks in arguments.blocks:
        network = networks.resnet(2 * blocks + 2)
        settle(network, images)
        step = keras_step(network)
        step()
        chain = tfr.chain(network)
        # The probes compile their pass once and store it in the chain. Only the pass itself, which
        # is repeated for every batch, is timed.
        probes.block_metrics(chain, (images, labels))
        probes.perturbation(chain, (images, labels))
        passes = {
            name: functools.partial(compiled, images, labels)
            for (name, *_), compiled in chain.compiled.items()
        }
        seconds = in_turn({"step": step, **passes}, arguments.rounds)
        for name in passes:
            what = f"{name} / training step"
            yield compared(what, f"{blocks} blocks, float32", seconds[name], seconds["step"])


def add_arguments(parser):
    parser.add_argument("--blocks", type=int, nargs="+", default=[9, 54])
    parser.add_argument("--rounds", type=int, default=10)


if __name__ == "__main__":
    run(measure, add_arguments)
