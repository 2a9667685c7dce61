"""One compiled pass of the block metrics against one training step on the same batch.

    python benchmarks/metrics_pass.py [--blocks 9 54]

Batches of 64 images of 32x32x3, widths 16, 32 and 64. Prints the time of the pass as a share of the
time of the step: below 1, measuring all blocks costs less than training on the batch.
"""

import argparse
import functools
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from timing import in_turn, show
from training_step import BATCH, keras_step

import tfresidual as tfr
from tfresidual import networks, probes

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, nargs="+", default=[9, 54])
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    images = tf.constant(rng.normal(size=(BATCH, 32, 32, 3)), tf.float32)
    labels = tf.constant(rng.integers(0, 10, BATCH), tf.int32)
    for blocks in arguments.blocks:
        network = networks.resnet(2 * blocks + 2)
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
        print(f"{blocks} blocks:")
        for name, values in seconds.items():
            print(f"  {name}: {np.median(values):.3f} s")
        for name in passes:
            show(f"{name} / training step", seconds[name], seconds["step"])
