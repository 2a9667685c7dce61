"""What taking a third of the blocks out saves, and what choosing them costs.

    python benchmarks/surgery.py [--blocks 9 54] [--batch-sizes 1 256] [--rounds 10]

Images of 32x32x3, widths 16, 32 and 64. *Whole / without*: the time of a batch at inference, called
from Python on all cores; *served on one core*: of one image, by the exported model in a session, as
a server calls it. The note gives the share of the time that is saved over the share of the FLOPs,
from the fastest tenth of the rounds (whatever interrupts a call only adds): 1 if blocks cost what
their multiplications do; *less a call*: the same of the time above that of a model that computes
nothing, which is 0.1 to 0.4 ms and counts at batch 1. Beside a third of the blocks, all that can
go: what then is left, the first convolution, the transitions and the classifier, is what a network
without blocks costs, and at batch 1 more time per FLOP than blocks.
*Applied*: how many blocks `surgery.plan` applies to a batch to choose a third of them by the loss,
each route by itself over the routes with what they share computed once.
"""

import functools
import os
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import tensorflow as tf
from results import Row, compared, run
from timing import in_turn

import tfresidual as tfr
from tfresidual import networks, routes, surgery
from tfresidual.routing import plan_of
from tfresidual.routing.costs import flops_of


def measure(arguments):
    for blocks in arguments.blocks:
        network = networks.resnet(2 * blocks + 2)
        chain = tfr.chain(network)
        places = [(b.stage, b.index) for b in chain.blocks if b.keeps_shape]
        for gone in (places[1::2][: blocks // 3], places):
            yield from saved(network, gone, f"{len(gone)} of {blocks} blocks", arguments)
        yield applied(chain, places, blocks // 3, f"{blocks // 3} of {blocks} blocks")


def saved(network, gone, setting, arguments):
    """Yields the rows of a network without some blocks: by batch size, and served on one core."""
    smaller = surgery.without_blocks(network, gone)
    images = np.zeros((1, 32, 32, 3), "float32")
    flops = 1 - flops_of(smaller, images) / flops_of(network, images)
    given = keras.Input((32, 32, 3))
    models = {
        "whole": network,
        "without": smaller,
        "nothing": keras.Model(given, given[:, 0, 0, 0]),
    }
    for size in arguments.batch_sizes:
        batch = tf.random.stateless_normal((size, 32, 32, 3), (0, 1))
        calls = {
            name: functools.partial(tf.function(functools.partial(one, training=False)), batch)
            for name, one in models.items()
        }
        yield share(calls, f"{setting}, batch {size}", flops, arguments.rounds)
    # A call is short, and one that is interrupted says nothing: many rounds of few calls.
    calls = {name: served(one, images) for name, one in models.items()}
    yield share(calls, f"{setting}, batch 1, served on one core", flops, 20 * arguments.rounds, 5)


def share(functions, setting, flops, *timing):
    """Returns the row of two networks: the share of the time that is saved over that of FLOPs."""
    seconds = in_turn(functions, *timing)
    row = compared("whole / without", setting, seconds["whole"], seconds["without"])
    whole, without, nothing = (np.quantile(seconds[name], 0.1) for name in functions)
    saved_time = 1 - without / whole
    note = f"{saved_time:.0%} of the time for {flops:.0%} of the FLOPs: {saved_time / flops:.2f}"
    note += f"; less a call: {(whole - without) / (whole - nothing) / flops:.2f}"
    return Row(**vars(row) | {"note": note})


def served(model, images):
    """Returns a call of the exported model as a server makes it: no Python, one core a request."""
    one_core = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=1, use_per_session_threads=True
    )
    graph = tf.Graph()
    session = tf.compat.v1.Session(graph=graph, config=one_core)
    with tempfile.TemporaryDirectory() as folder:
        model.export(folder, verbose=False)
        with graph.as_default():
            loaded = tf.compat.v1.saved_model.load(session, ["serve"], folder)
    signature = loaded.signature_def["serving_default"]
    (given,), (result,) = signature.inputs.values(), signature.outputs.values()
    return functools.partial(session.make_callable(result.name, [given.name]), images)


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
