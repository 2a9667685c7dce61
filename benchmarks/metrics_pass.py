"""One compiled pass of the block metrics against one training step on the same batch.

    python benchmarks/metrics_pass.py [--blocks 9 54] [--dtypes float32 mixed_bfloat16]

Batches of 64 images of 32x32x3, widths 16, 32 and 64. Below 1, measuring all blocks costs less than
training on the batch. *Floor*: one forward pass and one backward pass to the states, without any
metric or read-out, which is the least that the block metrics can take; *floor, each read once*:
with the mean of every state and gradient over its features. Before, the statistics of batch
normalization are those of the batch: with those that it begins with, the states of an untrained
network grow from block to block.
"""

import functools
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import tensorflow as tf
from results import Row, compared, run, without_bfloat16
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


def floor(chain, is_read=False):
    """Returns a compiled function of the gradients at all states, or of means of both."""

    @tf.function(autograph=False)
    def function(images, labels):
        state = chain.stem(images)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(state)
            pairs, last = chain.walk(state)
            losses = chain.loss(labels, chain.head(last))
        states = [before for before, _ in pairs]
        gradients = tape.gradient(losses, states)
        if is_read:
            return [tf.reduce_mean(tensor, axis=(1, 2, 3)) for tensor in (*states, *gradients)]
        return gradients

    return function


def measure(arguments):
    for dtype in arguments.dtypes:
        for blocks in arguments.blocks:
            setting = f"{blocks} blocks, {dtype}"
            if reason := without_bfloat16(dtype):
                yield Row("block metrics, plain / training step", setting, note=reason)
            else:
                yield from measured(blocks, dtype, setting, arguments.rounds)


def measured(blocks, dtype, setting, rounds):
    """Yields the rows of one network."""
    images, labels = batch()
    network = networks.resnet(2 * blocks + 2, dtype=dtype)
    settle(network, images)
    step = keras_step(network)
    step()
    chain = tfr.chain(network)
    # The probes compile their pass once and store it in the chain. Only the pass itself, which
    # is repeated for every batch, is timed.
    probes.block_metrics(chain, (images, labels))
    probes.perturbation(chain, (images, labels))
    compiled = {name: one for (name, *_), one in chain.compiled.items()}
    compiled |= {"floor": floor(chain), "floor, each read once": floor(chain, is_read=True)}
    passes = {name: functools.partial(one, images, labels) for name, one in compiled.items()}
    seconds = in_turn({"step": step, **passes}, rounds)
    for name in passes:
        yield compared(f"{name} / training step", setting, seconds[name], seconds["step"])


def add_arguments(parser):
    parser.add_argument("--blocks", type=int, nargs="+", default=[9, 54])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "mixed_bfloat16"])
    parser.add_argument("--rounds", type=int, default=10)


if __name__ == "__main__":
    run(measure, add_arguments)
