"""What happens once: the first step, the first metrics, the first routes, files.

    python benchmarks/first_step.py [--blocks 54 300] [--probed 54] [--rounds 3]

Most of it is tracing and compiling. Every measurement is made in a process of its own, those of a
round one after the other, on images of 32x32x3 with widths 16, 32 and 64. *First training step*:
`fit` with SGD with momentum and the accuracy on one batch of 64 images, after the network was built
and compiled; *first inference*: `predict_on_batch` on 256. Both are compared with the same of stock
Keras layers and, where it is installed, PyTorch (without the accuracy), which `torch.compile`
compiles in this step; that is left out for 300 blocks. The rest is compared with the first training
step of tfresidual in the same round: building the network, the first call of
`probes.block_metrics` on one batch, the first evaluation of the routes of `routes.py` on one batch,
`tfr.export`, and `tfr.chain` of what it wrote. *First epoch with probes*: `fit` with
`BlockMetrics`, `Readout`, `DropBlocks` and `Perturbation` on one batch of 64, from its call to the
end of the first epoch, over the second epoch and over the first of `fit` without them. Imports do
not count.
"""

import json
import os
import pathlib
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from results import Row, compared, run, without_bfloat16, without_torch
from timing import in_fresh_process, seconds_of

TRAINING, INFERENCE = "first training step", "first inference"
OURS, STOCK, TORCH, COMPILED = "tfresidual", "stock Keras", "PyTorch", "torch.compile"
# Measured for tfresidual alone. What is loaded has to be exported before.
ALONE = ("first block metrics", "first routes", "export", "load")
# Two epochs of a training, with probes and without.
PROBED, PLAIN = "first epoch with probes", "first epoch without probes"


def serve(kind, whose, blocks, dtype, path):
    """Measures one thing, and prints the seconds of building the network and of the thing."""
    import keras
    import numpy as np
    from routes import all_routes
    from training_step import batch, keras_inference, stock_network, torch_inference, torch_step

    import tfresidual as tfr
    from tfresidual import callbacks, networks, probes
    from tfresidual.routing import evaluate

    if whose in (TORCH, COMPILED):
        of_torch = torch_step if kind == TRAINING else torch_inference
        step, building = seconds_of(lambda: of_torch(blocks, dtype, whose == COMPILED))
        print(json.dumps([building, seconds_of(step)[1]]))
        return
    if kind == "load":
        print(json.dumps([0, seconds_of(lambda: tfr.chain(path))[1]]))
        return
    data = tuple(map(np.asarray, batch()))

    def build():
        if whose == STOCK:
            return stock_network(blocks, dtype)
        return networks.resnet(2 * blocks + 2, dtype=dtype)

    def routes():
        chain = tfr.chain(network)
        return evaluate(chain, data, all_routes(chain))

    network, building = seconds_of(build)
    optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
    network.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    if kind in (PROBED, PLAIN):
        chosen, ends = [], []
        if kind == PROBED:
            probing = (callbacks.BlockMetrics, callbacks.Readout, callbacks.DropBlocks)
            chosen = [one(data) for one in (*probing, callbacks.Perturbation)]
        clock = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: ends.append(time.perf_counter())
        )
        began = time.perf_counter()
        network.fit(*data, batch_size=64, epochs=2, verbose=0, callbacks=[*chosen, clock])
        print(json.dumps([ends[1] - ends[0], ends[0] - began]))
        return
    functions = {
        TRAINING: lambda: network.fit(*data, batch_size=64, verbose=0),
        INFERENCE: keras_inference(network),
        "first block metrics": lambda: probes.block_metrics(tfr.chain(network), data),
        "first routes": routes,
        "export": lambda: tfr.export(network, path),
    }
    print(json.dumps([building, seconds_of(functions[kind])[1]]))


def compare(blocks, dtype, is_probed, rounds):
    setting = f"{blocks} blocks, {dtype}"
    others = [STOCK, TORCH] + [COMPILED] * is_probed
    kinds = [TRAINING] + [INFERENCE] * is_probed
    reasons = {name: without_bfloat16(dtype) or without_torch(name) for name in others}
    measured = [] if without_bfloat16(dtype) else [OURS, *(n for n in others if not reasons[n])]
    jobs = [(kind, name) for kind in kinds for name in measured]
    is_alone = is_probed and dtype == "float32" and bool(measured)
    alone = (*ALONE, PROBED, PLAIN) if is_alone else ()
    jobs += [(kind, OURS) for kind in alone]
    seconds, building, second = {job: [] for job in jobs}, [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "net")
            for job in jobs:
                built, took = in_fresh_process(__file__, *job, blocks, dtype, path)
                seconds[job].append(took)
                if job == (TRAINING, OURS):
                    building.append(built)
                elif job == (PROBED, OURS):
                    second.append(built)
    for kind in kinds:
        for name in others:
            what = f"{kind}, {name} / {OURS}"
            if reasons[name]:
                yield Row(what, setting, note=reasons[name])
            else:
                yield compared(what, setting, seconds[kind, name], seconds[kind, OURS])
    if measured:
        step = seconds[TRAINING, OURS]
        yield compared(f"building the network / {TRAINING}", setting, building, step)
        for kind in ALONE if alone else ():
            yield compared(f"{kind} / {TRAINING}", setting, seconds[kind, OURS], step)
    if alone:
        for what, other in (("the second", second), (PLAIN, seconds[PLAIN, OURS])):
            yield compared(f"{PROBED} / {what}", setting, seconds[PROBED, OURS], other)


def measure(arguments):
    for dtype in arguments.dtypes:
        for blocks in arguments.blocks:
            is_probed = blocks in arguments.probed
            yield from compare(blocks, dtype, is_probed, arguments.rounds)


def add_arguments(parser):
    parser.add_argument("--blocks", type=int, nargs="+", default=[54, 300])
    parser.add_argument("--probed", type=int, nargs="*", default=[54])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "mixed_bfloat16"])
    parser.add_argument("--rounds", type=int, default=3)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:4], int(sys.argv[4]), *sys.argv[5:])
    else:
        run(measure, add_arguments)
