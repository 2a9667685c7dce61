"""What taking a third of the blocks out saves, and what choosing them costs.

    python benchmarks/surgery.py [--blocks 9 54] [--batch-sizes 1 256] [--rounds 10]

Images of 32x32x3, widths 16, 32 and 64. *Whole / without*: the time of a batch at inference. The
note gives the share of the time that is saved over the share of the FLOPs: 1 if blocks cost what
their multiplications do; *less a call*: the same of the time above that of a compiled function that
computes nothing, which is 0.2 to 0.4 ms and counts at batch 1. Beside a third of the blocks, all
that can go: what then is left, the first convolution, the transitions and the classifier, is what a
network without blocks costs. At batch 1, it takes more time per FLOP than blocks do: of 9 blocks, a
third saves less than 80 % of its share of the FLOPs.
*Applied*: how many blocks `surgery.plan` applies to a batch to choose a third of them by the loss,
each route by itself over the routes with what they share computed once.
"""

import functools
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from results import Row, compared, run
from timing import in_turn

import tfresidual as tfr
from tfresidual import networks, routes, surgery
from tfresidual.routing import plan_of
from tfresidual.surgery.costs import flops_of


def measure(arguments):
    for blocks in arguments.blocks:
        network = networks.resnet(2 * blocks + 2)
        chain = tfr.chain(network)
        places = [(b.stage, b.index) for b in chain.blocks if b.keeps_shape]
        for gone in (places[1::2][: blocks // 3], places):
            yield from saved(network, gone, f"{len(gone)} of {blocks} blocks", arguments)
        yield applied(chain, places, blocks // 3, f"{blocks // 3} of {blocks} blocks")


def saved(network, gone, setting, arguments):
    """Yields the rows of a network without some blocks, by batch size."""
    smaller = surgery.without_blocks(network, gone)
    images = np.zeros((1, 32, 32, 3), "float32")
    flops = 1 - flops_of(smaller, images) / flops_of(network, images)
    for size in arguments.batch_sizes:
        batch = tf.random.stateless_normal((size, 32, 32, 3), (0, 1))
        computed = {
            "whole": functools.partial(network, training=False),
            "without": functools.partial(smaller, training=False),
            "nothing": lambda images: images[:, 0, 0, 0],
        }
        calls = {name: functools.partial(tf.function(one), batch) for name, one in computed.items()}
        seconds = in_turn(calls, arguments.rounds)
        row = compared(
            "whole / without", f"{setting}, batch {size}", seconds["whole"], seconds["without"]
        )
        share = 1 - 1 / row.ratio
        note = f"{share:.0%} of the time for {flops:.0%} of the FLOPs: {share / flops:.2f}"
        whole, without, nothing = (np.median(seconds[name]) for name in computed)
        note += f"; less a call: {(whole - without) / (whole - nothing) / flops:.2f}"
        yield Row(**vars(row) | {"note": note})


def applied(chain, places, count, setting):
    """Returns the row of the blocks that a plan by the loss applies, whichever it takes."""
    alone, together, gone = 0, 0, []
    for place in places[:count]:
        left = [one for one in places if one not in gone]
        asked = [routes.drop(chain, *gone, one) for one in left]
        if gone:
            asked.append(routes.drop(chain, *gone))
        plan = plan_of(chain, asked)
        alone, together = alone + plan.plain_applications, together + plan.applications
        gone.append(place)
    note = f"{alone:,} / {together:,} blocks applied"
    return Row("routes alone / together", setting, ratio=alone / together, note=note)


def add_arguments(parser):
    parser.add_argument("--blocks", type=int, nargs="+", default=[9, 54])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 256])
    parser.add_argument("--rounds", type=int, default=10)


if __name__ == "__main__":
    run(measure, add_arguments)
