"""Two processes of one thread each against one process of two threads.

    python benchmarks/processes.py [--widths 8 16] [--batch-size 64] [--rounds 10] [--steps 20]

Whether two cores train more images per second as two processes, each with a network of its own.
Each process trains a ResNet-20 as a study does: the network and the optimizer of its settings, and
batches from the pipeline that flips, crops and standardizes images, random ones of 32x32x3. In
every round the two processes train side by side, then the one process alone, the same number of
steps in all; who begins changes from round to round. Above 1, two processes are faster, and
`experiments/papers.py run` therefore trains two networks side by side by default.
"""

import os
import subprocess
import sys
import time

import numpy as np
from results import compared, run, timed

WARM_UP = 3
IMAGES = 2048
ONE, TWO = "one process of two threads", "two processes of one thread"


def serve(width, batch_size):
    """Makes the steps that every line on stdin asks for and prints the seconds they took."""
    from tfresidual.datasets.loading import pipelines
    from tfresidual.jobs.building import build, compile_for
    from tfresidual.jobs.settings import Settings

    settings = Settings(data="cifar10", depth=20, width=width, batch_size=batch_size)
    network = build(settings)
    compile_for(network, settings, steps=IMAGES // batch_size)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (IMAGES, 32, 32, 3), np.uint8), rng.integers(0, 10, IMAGES)
    (batches,) = pipelines(
        lambda split: images,
        settings.data,
        digits=settings.digits,
        batch_size=batch_size,
        augment=True,
        shuffle=True,
        seed=0,
        pixels="standardized",
        splits=("train",),
    )
    batches = iter(batches.repeat())
    for line in sys.stdin:
        begun = time.perf_counter()
        for _ in range(int(line)):
            network.train_on_batch(*next(batches))
        print(time.perf_counter() - begun, flush=True)


class Server:
    """A process that trains with a number of threads."""

    def __init__(self, threads, width, batch_size):
        names = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", str(width), str(batch_size)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | dict.fromkeys(names, str(threads)) | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        )

    def begin(self, steps):
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()

    def end(self):
        return float(self.process.stdout.readline())

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def side_by_side(servers, steps):
    """Returns the seconds in which all servers together have made so many steps."""
    for server in servers:
        server.begin(steps // len(servers))
    return max(server.end() for server in servers)


def compare(width, batch_size, rounds, steps):
    groups = {
        ONE: [Server(2, width, batch_size)],
        TWO: [Server(1, width, batch_size) for _ in range(2)],
    }
    seconds = {name: [] for name in groups}
    try:
        for servers in groups.values():
            side_by_side(servers, WARM_UP * len(servers))
        for turn in range(rounds):
            for name in list(groups)[:: -1 if turn % 2 else 1]:
                seconds[name].append(side_by_side(groups[name], steps))
    finally:
        for servers in groups.values():
            for server in servers:
                server.close()
    setting = f"ResNet-20, {width} channels, batches of {batch_size}"
    for name, values in seconds.items():
        yield timed(f"{steps} steps, {name}", setting, values, steps * batch_size)
    yield compared(f"{ONE} / {TWO}", setting, seconds[ONE], seconds[TWO])


def measure(arguments):
    if arguments.steps < 2 or arguments.steps % 2:
        raise SystemExit("--steps must be even: each of two processes makes half of them")
    for width in arguments.widths:
        yield from compare(width, arguments.batch_size, arguments.rounds, arguments.steps)


def add_arguments(parser):
    parser.add_argument("--widths", type=int, nargs="+", default=[8, 16])
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20, help="steps of a round, an even number")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(int(sys.argv[2]), int(sys.argv[3]))
    else:
        run(measure, add_arguments)
