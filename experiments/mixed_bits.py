"""Few bits where they do least harm: a network of mixed precision beside one of 4 bits throughout.

    python experiments/mixed_bits.py --size smoke
    python experiments/mixed_bits.py --size small --data-dir ~/tensorflow_datasets
    python experiments/mixed_bits.py --kept

The networks of `what_states_know.py`, trained again. From 6 bits on, one block after the other
loses one, whichever raises the cross-entropy on validation images least per byte, measured anew
after each step, down to 2 bits, until the blocks have as many bytes as with 4 bits throughout
("mixed"). Beside it, as controls: blocks that lose bits at random until then ("random"), 8 and 4
bits throughout, and the whole network. All are judged on the test images, as the models that
`surgery.quantized` returns.
"""

import dataclasses
import os
import zipfile
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pandas as pd
from drawing import in_a_row, kept_frames, panels, parser_of, show, write_frames
from what_states_know import RESNET, SIZES, TRANSFORMER, built

import tfresidual as tfr
from tfresidual import surgery, training
from tfresidual.definitions.averages import rise_over, weighted_mean
from tfresidual.jobs.data import prepare
from tfresidual.probes.round_blocks import rounding
from tfresidual.routing import evaluate, routes
from tfresidual.routing.rounding import bytes_of, kernels_by_block

KEPT = Path(__file__).parent / "frames" / "mixed_bits"
IMAGES = Path(__file__).parents[1] / "docs" / "images"
BITS = (6, 5, 4, 3, 2)
# The batches of validation images that bits are chosen on.
BATCHES = 16
WHOLE, MIXED, RANDOM, UNIFORM = "32 bits", "mixed", "random", "4 bits"


def bytes_by_block(kernels):
    """Returns the bytes of the kernels of every block with each number of bits, nested dicts."""
    return {
        place: {
            bits: sum(bytes_of(one, bits, axes=axes) for one, axes in own) for bits in (8, *BITS)
        }
        for place, own in kernels.items()
    }


def lowered(chain, data, rng=None):
    """Returns the bits of every block, lowered one by one to the bytes of 4 bits throughout.

    Args:
        chain: the chain.
        data: the images on which cross-entropies are measured.
        rng: if it is given, the blocks are drawn from it instead.
    """
    kernels, whole = kernels_by_block(chain), routes.unperturbed(chain)
    sizes = bytes_by_block(kernels)
    most, bits = sum(size[4] for size in sizes.values()), dict.fromkeys(kernels, BITS[0])
    replaced = {
        (place, count): rounding(own, count, "channel")
        for place, own in kernels.items()
        for count in BITS
    }
    while sum(sizes[place][count] for place, count in bits.items()) > most:
        lower = {
            place: BITS[BITS.index(count) + 1] for place, count in bits.items() if count > BITS[-1]
        }
        places = list(lower)
        if rng is not None:
            place = places[rng.integers(len(places))]
        else:
            tried = [bits, *(bits | {place: lower[place]} for place in places)]
            asked = [
                routes.with_weights(
                    whole, {one: replaced[one, count] for one, count in each.items()}, str(each)
                )
                for each in tried
            ]
            values = evaluate(chain, data, asked)
            now, *after = weighted_mean(values.cross_entropy.T, values.weights)
            saved = [sizes[place][bits[place]] - sizes[place][lower[place]] for place in places]
            place = places[int(np.argmin((np.array(after) - now) / saved))]
        bits = bits | {place: lower[place]}
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
    places, selection = list(kernels_by_block(chain)), validation.take(BATCHES)
    choices = {
        WHOLE: {},
        "8 bits": dict.fromkeys(places, 8),
        UNIFORM: dict.fromkeys(places, 4),
        MIXED: lowered(chain, selection),
        RANDOM: lowered(chain, selection, np.random.default_rng(seed)),
    }
    sizes, rows, found = bytes_by_block(kernels_by_block(chain)), [], {}
    whole_bytes = sum(bytes_of(one) for own in kernels_by_block(chain).values() for one, _ in own)
    for name, bits in choices.items():
        made = surgery.quantized(chain, bits)
        small = tfr.chain(made)
        found[name] = evaluate(small, test, [routes.unperturbed(small)])
        own = sum(sizes[place][count] for place, count in bits.items()) if bits else whole_bytes
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
    arguments = parser_of(__doc__, SIZES, "runs/mixed_bits").parse_args()
    size, out, parts = SIZES[arguments.size], arguments.out / arguments.size, []
    for network, seed in np.ndindex(2, 0 if arguments.kept else size.seeds):
        name = (RESNET, TRANSFORMER)[network]
        folder = out / f"{name}-seed{seed}".replace(" ", "_")
        if not (folder / "frames" / "networks.csv").exists():
            found = measured(name, size, seed, folder, arguments.data_dir)
            # In this order: the last one says that all are there.
            write_frames({key: found[key] for key in ("bits", "networks")}, folder / "frames")
            keras.backend.clear_session()
        parts.append(kept_frames(folder / "frames"))
    if arguments.kept:
        frames, out = kept_frames(KEPT), IMAGES
    else:
        frames = {name: pd.concat(part[name] for part in parts) for name in parts[0]}
        write_frames(frames, out / "frames")
    show(tables(frames), drawn(frames), out)


if __name__ == "__main__":
    main()
