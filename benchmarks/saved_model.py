"""What a SavedModel for probing costs, and a probe on it against one on the live network.

    python benchmarks/saved_model.py [--blocks 54] [--rounds 6]

Images of 32x32x3, widths 16, 32 and 64. The seconds to export the network and to load it in the
same process, the size on disk compared with that of the weights, and the time of a whole call of a
probe on the loaded chain over the time on the live chain. Both are compiled beforehand and run on
the same 128 images. What exporting and loading take in processes of their own is in
`first_step.py`.
"""

import functools
import os
import pathlib
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from results import Row, compared, run, timed
from timing import in_turn, seconds_of

import tfresidual as tfr
from tfresidual import networks, probes

IMAGES = 128


def measure(arguments):
    network = networks.resnet(2 * arguments.blocks + 2)
    network.compile("sgd", "sparse_categorical_crossentropy")
    rng = np.random.default_rng(0)
    images = rng.normal(size=(IMAGES, 32, 32, 3)).astype("float32")
    labels = rng.integers(0, 10, IMAGES)
    setting = f"{arguments.blocks} blocks"
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "net"
        _, seconds = seconds_of(lambda: tfr.export(network, path))
        yield timed("export", setting, [seconds])
        loaded, seconds = seconds_of(lambda: tfr.chain(path))
        yield timed("load", setting, [seconds])
        stored = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        weights = 4 * sum(int(np.prod(weight.shape)) for weight in network.weights)
        note = f"{stored / 1e6:.1f} MB / {weights / 1e6:.1f} MB"
        yield Row("stored / weights, bytes", setting, ratio=stored / weights, note=note)
        live = tfr.chain(network)
        for name in ("block_metrics", "readout"):
            probe = getattr(probes, name)
            calls = {
                "loaded": functools.partial(probe, loaded, (images, labels)),
                "live": functools.partial(probe, live, (images, labels)),
            }
            seconds = in_turn(calls, arguments.rounds, calls=1)
            what = f"{name}, loaded / live"
            yield compared(what, setting, seconds["loaded"], seconds["live"])


def add_arguments(parser):
    parser.add_argument("--blocks", type=int, default=54)
    parser.add_argument("--rounds", type=int, default=6)


if __name__ == "__main__":
    run(measure, add_arguments)
