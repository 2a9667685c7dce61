"""The convolutions of a training step, kernel by kernel, in TensorFlow and in PyTorch.

    python benchmarks/kernels.py [--blocks 9] [--dtypes float32 mixed_bfloat16] [--rounds 3]

What a package on top of TensorFlow cannot change. Both frameworks compute convolutions with oneDNN,
which prints what it runs and for how long; here these are the kernels of the steps of
training_step.py, in processes that take turns. TensorFlow runs one kernel at a time here, as
PyTorch does, so that none waits for another. The time is that of a step, of all kernels of a kind
and shape together, by the size of the images that come out of the forward pass; above 1,
TensorFlow's are faster. A 1x1 convolution with stride 2 is one on a quarter of the pixels in
tfresidual. *Everything else* is the rest of the step: batch normalization, ReLU, additions, the
optimizer, and what the printing takes.
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import re
import sys
import time

from results import Row, compared, run, without_bfloat16, without_torch
from timing import printed_in_fresh_process

STEPS = 8
KINDS = {
    "forward_training": "convolution",
    "backward_data": "gradient of its input",
    "backward_weights": "gradient of its kernel",
}
EVERY = "all convolutions and their gradients"


def serve(whose, dtype, blocks):
    """Runs steps, the last `STEPS` of which are between the lines "begin" and "end SECONDS"."""
    from training_step import keras_step, torch_step

    if whose == "PyTorch":
        step = torch_step(blocks, dtype, False)
    else:
        from tfresidual import networks

        step = keras_step(networks.resnet(2 * blocks + 2, dtype=dtype))
    for _ in range(5):
        step()
    print("begin", flush=True)
    begun = time.perf_counter()
    for _ in range(STEPS):
        step()
    print("end", (time.perf_counter() - begun) / STEPS, flush=True)


def kernels(whose, dtype, blocks):
    """Returns the seconds of a step by kind and shape of its convolutions, and of the whole."""
    given = {"ONEDNN_VERBOSE": "1", "TF_NUM_INTEROP_THREADS": "1"}
    printed = printed_in_fresh_process(__file__, whose, dtype, blocks, **given)
    printed = printed.partition("\nbegin\n")[2]
    found = {}
    for line in printed.splitlines():
        parts = line.split(",")
        if "exec" in parts and "convolution" in parts:
            kind = next(KINDS[part] for part in parts if part in KINDS)
            key = kind, shape_of(parts[-2])
            found[key] = found.get(key, 0) + float(parts[-1]) / STEPS / 1000
    return found, float(re.search(r"^end (.*)$", printed, re.M).group(1))


def shape_of(text):
    """Returns a shape as oneDNN prints it, such as mb64_ic16oc32_ih32oh16kh3..., in words."""
    channels, filters, size, kernel = (
        int(re.search(rf"{name}(\d+)", text).group(1)) for name in ("ic", "oc", "oh", "kh")
    )
    return f"{kernel}x{kernel}, {channels} to {filters} channels, {size}x{size}"


def measure(arguments):
    for dtype in arguments.dtypes:
        for blocks in arguments.blocks:
            reason = without_bfloat16(dtype) or without_torch("PyTorch")
            if reason:
                setting = f"{blocks} blocks, {dtype}"
                yield Row(f"{EVERY}, PyTorch / TensorFlow", setting, note=reason)
                continue
            yield from side_by_side(dtype, blocks, arguments.rounds)


def side_by_side(dtype, blocks, rounds):
    """Yields the rows of every kernel, of all together and of the rest of the step."""
    theirs, ours = [], []
    for _ in range(rounds):
        theirs.append(kernels("PyTorch", dtype, blocks))
        ours.append(kernels("tfresidual", dtype, blocks))

    def row(what, setting, seconds):
        slow, fast = ([seconds(*one) for one in side] for side in (theirs, ours))
        return compared(f"{what}, PyTorch / TensorFlow", setting, slow, fast)

    for kind, shape in sorted(ours[0][0]):
        setting = f"{shape}, {dtype}, {blocks} blocks"
        yield row(kind, setting, lambda found, whole, key=(kind, shape): found[key])
    setting = f"{blocks} blocks, {dtype}"
    yield row(EVERY, setting, lambda found, whole: sum(found.values()))
    yield row("everything else", setting, lambda found, whole: whole - sum(found.values()))
    yield row("the whole step", setting, lambda found, whole: whole)


def add_arguments(parser):
    parser.add_argument("--blocks", type=int, nargs="+", default=[9])
    parser.add_argument("--dtypes", nargs="+", default=["float32", "mixed_bfloat16"])
    parser.add_argument("--rounds", type=int, default=3)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        run(measure, add_arguments)
