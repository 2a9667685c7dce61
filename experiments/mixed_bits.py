"""Few bits where they do least harm: a network of mixed precision beside one of 4 bits throughout.

    python experiments/mixed_bits.py --size smoke
    python experiments/mixed_bits.py --size small --data-dir ~/tensorflow_datasets
    python experiments/mixed_bits.py --kept

The networks of `what_states_know.py`, trained again. `surgery.plan` gives blocks 6 to 2 bits, or
takes them out, on validation images, until the weights have as many bytes as with blocks of 4 bits
throughout ("mixed"). Beside it, as controls: blocks that lose bits at random from 6 on until then
("random"), 8 and 4 bits throughout, and the whole network. All are judged on the test images, as
the models that `surgery.quantized` returns.
"""

import dataclasses
import os
import zipfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pandas as pd
from drawing import in_a_row, panels, show
from what_states_know import RESNET, SIZES, TRANSFORMER, built, frames_of

import tfresidual as tfr
from tfresidual import surgery, training
from tfresidual.definitions.averages import rise_over, weighted_mean
from tfresidual.jobs.data import prepare
from tfresidual.routing import evaluate, routes
from tfresidual.routing.rounding import bytes_of, kernels_by_block

KEPT = Path(__file__).parent / "frames" / "mixed_bits"
BITS = (6, 4, 3, 2)
# The batches of validation images that bits are chosen on.
BATCHES = 16
WHOLE, MIXED, RANDOM, UNIFORM = "32 bits", "mixed", "random", "4 bits"


def bytes_by_block(kernels):
    """Returns the bytes of the kernels of every block with each number of bits, nested dicts."""
    return {
        place: {0: 0}
        | {
            bits: sum(bytes_of(one, bits, axes=axes) for one, axes in own)
            for bits in (32, 8, *BITS)
        }
        for place, own in kernels.items()
    }


def planned(model, selection, test, most):
    """Returns the bits of every block by the plan that ends at so many bytes of kernels of blocks.

    The plan counts the bytes of all weights, so those of the others come on top.
    """
    kernels = kernels_by_block(tfr.chain(model))
    of_blocks = sum(size[32] for size in bytes_by_block(kernels).values())
    others = sum(map(bytes_of, model.weights)) - of_blocks
    plan = surgery.plan(
        model, selection, bits=BITS, most_bytes=others + most, test=test, batch_sizes=()
    )
    rows = plan.iloc[1:][["stage", "block", "blocks", "bits"]].astype(int).to_numpy()
    chosen = {(row[0], row[1] + more): int(row[3]) for row in rows for more in range(row[2])}
    return dict.fromkeys(kernels, 32) | chosen


def drawn_bits(sizes, most, rng):
    """Returns bits of every block that are lowered at random, to at most so many bytes."""
    bits = dict.fromkeys(sizes, BITS[0])
    while sum(sizes[place][count] for place, count in bits.items()) > most:
        place = list(bits)[rng.integers(len(bits))]
        bits[place] = max((one for one in BITS if one < bits[place]), default=bits[place])
    return bits


def on_disk(model, folder):
    """Returns the bytes of the file of a model, and of the same file compressed, which opens."""
    path, small = folder / "model.keras", folder / "small.keras"
    model.save(path)
    with zipfile.ZipFile(path) as file, zipfile.ZipFile(small, "w", zipfile.ZIP_LZMA) as other:
        for name in file.namelist():
            other.writestr(name, file.read(name))
    keras.saving.load_model(small)
    return path.stat().st_size, small.stat().st_size


def measured(network, size, seed, out, data_dir):
    """Trains a network and returns its frames: the networks of fewer bits, and the bits chosen."""
    settings = dataclasses.replace(size.settings, seed=seed, data_dir=data_dir)
    train, validation, test = prepare(settings)
    model, epochs, metric = built(network, size, settings, train)
    model = training.train(
        model, train, validation, folder=out / "training", epochs=epochs, metric=metric
    ).network
    chain = tfr.chain(model)
    print(chain, flush=True)
    sizes = bytes_by_block(kernels_by_block(chain))
    most = sum(size[4] for size in sizes.values())
    choices = {
        WHOLE: {},
        "8 bits": dict.fromkeys(sizes, 8),
        UNIFORM: dict.fromkeys(sizes, 4),
        MIXED: planned(model, validation.take(BATCHES), test, most),
        RANDOM: drawn_bits(sizes, most, np.random.default_rng(seed)),
    }
    print(choices[MIXED], flush=True)
    rows, found = [], {}
    for name, bits in choices.items():
        made = surgery.quantized(chain, bits)
        small = tfr.chain(made)
        found[name] = evaluate(small, test, [routes.unperturbed(small)])
        own = sum(sizes[place][bits.get(place, 32)] for place in sizes)
        rows.append({"what": name, "bytes": own})
        rows[-1] |= dict(zip(("file", "compressed"), on_disk(made, out), strict=True))
    frame = pd.DataFrame(rows)
    weights = found[WHOLE].weights
    wrong = np.stack([found[name].wrong[0] for name in choices], axis=1)
    losses = np.stack([found[name].cross_entropy[0] for name in choices], axis=1)
    frame["error"], frame["cross_entropy"] = (
        weighted_mean(values, weights) for values in (wrong, losses)
    )
    # Over 4 bits throughout, on the same images.
    uniform = wrong[:, list(choices).index(UNIFORM)]
    frame["over_4_bits"], frame["over_4_bits_se"] = rise_over(wrong, uniform, weights)
    chosen = pd.DataFrame(
        [
            {"what": name, "stage": stage, "block": block, "bits": count}
            for name in (MIXED, RANDOM)
            for (stage, block), count in choices[name].items()
        ]
    )
    frames = {"networks": frame, "bits": chosen}
    return {name: one.assign(network=network, seed=seed) for name, one in frames.items()}


def tables(frames):
    """Returns means over the seeds with their standard errors: errors in percent, and KiB."""
    frame = frames["networks"].assign(
        **{name: frames["networks"][name] / 1024 for name in ("bytes", "file", "compressed")},
        **{name: 100 * frames["networks"][name] for name in ("error", "over_4_bits")},
    )
    columns = ["bytes", "file", "compressed", "error", "over_4_bits", "cross_entropy"]
    values = frame.groupby(["network", "what"], sort=False)[columns]
    digits = dict.fromkeys(columns, 1) | {"cross_entropy": 3}
    means, errors = values.mean(), values.sem()
    cells = {
        name: [
            f"{mean:.{count}f}" + (f" ± {error:.{count}f}" if name in columns[3:] else "")
            for mean, error in zip(means[name], errors[name], strict=True)
        ]
        for name, count in digits.items()
    }
    return [pd.DataFrame(cells, index=means.index)]


def drawn(frames):
    """Returns the figure: the bits that every block is left with."""
    frame = frames["bits"][frames["bits"]["what"] == MIXED]
    figure = panels(
        in_a_row(frame),
        "place",
        "bits",
        "Bits of the weights of every block, in as many bytes as 4 bits throughout",
        panel="network",
        below="block",
        beside="bits",
        from_zero=True,
    )
    return {"mixed_bits": figure}


def main():
    networks, names = (RESNET, TRANSFORMER), ("bits", "networks")
    frames, out = frames_of(__doc__, SIZES, KEPT.name, networks, measured, names)
    show(tables(frames), drawn(frames), out)


if __name__ == "__main__":
    main()
