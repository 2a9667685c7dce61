"""The training step of ResNet-20 and ResNet-110 on every backend of Keras, in one run.

    python benchmarks/backends.py [--depths 20 110] [--batch-size 128] [--backends jax torch]

Images of 32x32x3, SGD with momentum, one batch that stays on the device. Every backend that is
installed runs in a process of its own, the processes in turn. Prints the seconds of the first step,
in which the backend compiles, images per second after it, and ratios: above 1, TensorFlow (or the
first of the backends) is faster.
"""

import argparse
import importlib.util
import os
import subprocess
import sys
import time

import numpy as np
from timing import show

BACKENDS = ("tensorflow", "jax", "torch")
WARM_UP, STEPS = 3, 5


def serve(depth, dtype, batch_size):
    """Makes a step for every line on stdin and prints the seconds it took."""
    import keras

    from tfresidual import networks

    network = networks.resnet(depth, dtype=dtype)
    network.compile(keras.optimizers.SGD(0.01, momentum=0.9), "sparse_categorical_crossentropy")
    rng = np.random.default_rng(0)
    images = keras.ops.convert_to_tensor(rng.normal(size=(batch_size, 32, 32, 3)), "float32")
    labels = keras.ops.convert_to_tensor(rng.integers(0, 10, batch_size), "int32")
    for line in sys.stdin:
        begun = time.perf_counter()
        for _ in range(int(line)):
            # Its loss is a number, for which the device has to be done.
            network.train_on_batch(images, labels)
        print(time.perf_counter() - begun, flush=True)


class Server:
    """A process that makes steps on one backend."""

    def __init__(self, backend, depth, dtype, batch_size):
        command = [sys.executable, __file__, "--serve", str(depth), dtype, str(batch_size)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )

    def __call__(self, steps):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def compare(backends, depth, dtype, batch_size, rounds):
    servers = {name: Server(name, depth, dtype, batch_size) for name in backends}
    try:
        first = {name: server(1) for name, server in servers.items()}
        for server in servers.values():
            server(WARM_UP)
        seconds = {name: [] for name in servers}
        for _ in range(rounds):
            for name, server in servers.items():
                seconds[name].append(server(STEPS) / STEPS)
    finally:
        for server in servers.values():
            server.close()
    print(f"ResNet-{depth}, {dtype}, batches of {batch_size}:")
    for name, values in seconds.items():
        speed = batch_size / np.median(values)
        print(f"  {name}: first step {first[name]:.1f} s, then {speed:.0f} images/s", flush=True)
    reference, *others = backends
    for name in others:
        show(f"{name} / {reference}", seconds[name], seconds[reference])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
        sys.exit()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depths", type=int, nargs="+", default=[20, 110])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "mixed_bfloat16"])
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)
    arguments = parser.parse_args()
    installed = [name for name in arguments.backends if importlib.util.find_spec(name)]
    for dtype in arguments.dtypes:
        for depth in arguments.depths:
            compare(installed, depth, dtype, arguments.batch_size, arguments.rounds)
