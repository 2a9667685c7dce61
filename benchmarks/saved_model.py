"""What a SavedModel for probing costs, and a probe on it against one on the live network.

    python benchmarks/saved_model.py [--blocks 54] [--rounds 6]

Images of 32x32x3, widths 16, 32 and 64. Prints the seconds to export the network and to load it in
the same process, the size on disk compared with that of the weights, and the time of a whole call
of a probe on the loaded chain as a share of the time on the live chain. Both are compiled
beforehand and run on the same images.
"""

import argparse
import functools
import os
import pathlib
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from timing import in_turn, show

import tfresidual as tfr
from tfresidual import networks, probes

IMAGES = 128


def seconds_of(function):
    begun = time.perf_counter()
    return function(), time.perf_counter() - begun


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=54)
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    network = networks.resnet(2 * arguments.blocks + 2)
    network.compile("sgd", "sparse_categorical_crossentropy")
    rng = np.random.default_rng(0)
    images = rng.normal(size=(IMAGES, 32, 32, 3)).astype("float32")
    labels = rng.integers(0, 10, IMAGES)
    print(f"{arguments.blocks} blocks:")
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "net"
        _, seconds = seconds_of(lambda: tfr.export(network, path))
        print(f"  export: {seconds:.1f} s")
        loaded, seconds = seconds_of(lambda: tfr.chain(path))
        print(f"  load: {seconds:.1f} s")
        stored = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        weights = 4 * sum(int(np.prod(weight.shape)) for weight in network.weights)
        print(f"  stored: {stored / 1e6:.1f} MB, weights {weights / 1e6:.1f} MB")
        live = tfr.chain(network)
        for name in ("block_metrics", "readout"):
            probe = getattr(probes, name)
            calls = {
                "loaded": functools.partial(probe, loaded, (images, labels)),
                "live": functools.partial(probe, live, (images, labels)),
            }
            seconds = in_turn(calls, arguments.rounds, calls=1)
            show(f"{name}, loaded / live", seconds["loaded"], seconds["live"])
