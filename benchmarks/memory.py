"""The most memory that probes need, beside a training step on the same batch.

    python benchmarks/memory.py [--blocks 54 162] [--batch-size 256]

Images of 32x32x3, widths 16, 32 and 64, SGD with momentum. Everything is measured in a process of
its own, whose largest size counts, less that of one that only builds the network: two training
steps; the block metrics; all routes that drop a block; and those of routes.py, of which the three
indices are made. Below 1, a probe needs less than the training step.
"""

import json
import os
import resource
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from results import Row, run
from timing import in_fresh_process

NOTHING, STEP = "building the network", "training step"
METRICS, DROPS, ROUTES = PROBES = "block metrics", "dropped blocks", "all routes"


def serve(kind, blocks, size):
    """Runs one thing, and prints the largest size of the process in bytes."""
    import tensorflow as tf
    from metrics_pass import settle
    from routes import all_routes
    from training_step import batch, keras_step

    import tfresidual as tfr
    from tfresidual import networks, probes
    from tfresidual.routing import evaluate

    images, labels = batch(size)
    network = networks.resnet(2 * blocks + 2)
    step = keras_step(network, size)
    if kind == STEP:
        step()
        step()
    elif kind in PROBES:
        settle(network, images[:8])
        chain, data = tfr.chain(network), tf.data.Dataset.from_tensors((images, labels))
        if kind == ROUTES:
            evaluate(chain, data, all_routes(chain))
        else:
            {METRICS: probes.block_metrics, DROPS: probes.drop_blocks}[kind](chain, data)
    print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024))


def measure(arguments):
    for blocks in arguments.blocks:
        peaks = {
            kind: in_fresh_process(__file__, kind, blocks, arguments.batch_size)
            for kind in (NOTHING, STEP, *PROBES)
        }
        of_step = peaks[STEP] - peaks[NOTHING]
        for kind in PROBES:
            needed = peaks[kind] - peaks[NOTHING]
            yield Row(
                f"{kind} / {STEP}",
                f"{blocks} blocks, batch {arguments.batch_size}",
                ratio=needed / of_step,
                note=f"{needed / 1e9:.2f} / {of_step / 1e9:.2f} GB, beside "
                f"{peaks[NOTHING] / 1e9:.2f} GB",
            )


def add_arguments(parser):
    parser.add_argument("--blocks", type=int, nargs="+", default=[54, 162])
    parser.add_argument("--batch-size", type=int, default=256)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], *map(int, sys.argv[3:]))
    else:
        run(measure, add_arguments)
