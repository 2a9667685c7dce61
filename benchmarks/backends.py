"""The training step of ResNet-20 and ResNet-110 on every backend of Keras.

    python benchmarks/backends.py [--depths 20 110] [--batch-size 128] [--backends jax torch]

Images of 32x32x3, SGD with momentum, one batch that stays on the device. Every backend that is
installed runs in a process of its own, the processes in turn. The first step, in which the backend
compiles, is measured once. Above 1, TensorFlow (or the first of the backends) is faster.
"""

import importlib.util
import os
import subprocess
import sys
import time

import numpy as np
from results import NOT_MEASURED, Row, compared, run, timed, without_bfloat16

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
    setting = f"ResNet-{depth}, {dtype}"
    for name, values in seconds.items():
        yield timed(f"first step, {name}", setting, [first[name]])
        yield timed(f"later steps, {name}", setting, values, batch_size)
    reference, *others = backends
    for name in others:
        what = f"later steps, {name} / {reference}"
        yield compared(what, setting, seconds[name], seconds[reference])


def measure(arguments):
    installed = [name for name in arguments.backends if importlib.util.find_spec(name)]
    for dtype in arguments.dtypes:
        for depth in arguments.depths:
            reason = without_bfloat16(dtype)
            if not reason:
                yield from compare(installed, depth, dtype, arguments.batch_size, arguments.rounds)
            for name in arguments.backends[1:]:
                note = reason or f"{NOT_MEASURED}: {name} is not installed"
                if reason or name not in installed:
                    what = f"later steps, {name} / {arguments.backends[0]}"
                    yield Row(what, f"ResNet-{depth}, {dtype}", note=note)


def add_arguments(parser):
    parser.add_argument("--depths", type=int, nargs="+", default=[20, 110])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "mixed_bfloat16"])
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=BACKENDS)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    else:
        run(measure, add_arguments)
