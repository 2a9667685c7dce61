"""How long a pass over a `tf.data.Dataset` takes, with its end.

    python benchmarks/end_of_pass.py [--seconds 3] [--rounds 8]

Batches of 16 images are read for some seconds; then the pass ends. *tuned* is a dataset as
TensorFlow has it, whose end waits for the thread that tunes its parallel parts; *untuned* is the
same as the probes read it, and as `datasets.load` returns it. The process is kept on one processor,
where that thread most often misses the signal to stop; with two, it does so once in a while.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import time

from results import NOT_MEASURED, Row, compared, run
from timing import seconds_of


def measure(arguments):
    if not hasattr(os, "sched_setaffinity"):
        yield Row("tuned / untuned", note=f"{NOT_MEASURED}: processors cannot be chosen here")
        return
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    import tensorflow as tf

    from tfresidual.machine.passes import without_tuning

    images = tf.random.uniform((1024, 32, 32, 3))
    tuned = (
        tf.data.Dataset.from_tensor_slices(images)
        .repeat()
        .batch(16)
        .map(lambda batch: 2 * batch - 1, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .prefetch(tf.data.AUTOTUNE)
    )
    data = {"tuned": tuned, "untuned": without_tuning(tuned)}

    def whole_pass(dataset):
        end = time.perf_counter() + arguments.seconds
        for _ in dataset:
            if time.perf_counter() > end:
                return

    seconds = {name: [] for name in data}
    for _ in range(arguments.rounds):
        for name, dataset in data.items():
            seconds[name].append(seconds_of(lambda d=dataset: whole_pass(d))[1])
    setting = f"{arguments.seconds:g} seconds of reading"
    yield compared("tuned / untuned", setting, seconds["tuned"], seconds["untuned"])


def add_arguments(parser):
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--rounds", type=int, default=8)


if __name__ == "__main__":
    run(measure, add_arguments)
