"""What the states know: the network's own head, trained read-outs and linear probes, by block.

    python experiments/what_states_know.py --size smoke
    python experiments/what_states_know.py --size small --data-dir ~/tensorflow_datasets
    python experiments/what_states_know.py --kept

A ResNet-20 and a vision transformer of keras-hub, whose layers are opened, so that attention and
feed-forward layers are blocks. After every block, five readers name the class: the network itself
when the stage is left there ("own head"), an affine translator before the last head ("affine"), a
linear classifier trained by gradient descent ("head") and one by ridge regression ("probe"), and
the latter with permuted labels ("permuted"). The same network before its training, with statistics
of batch norm from images, is the control. With the heads, images leave early. Sizes: `smoke`
shows that it works, with Digitclutter; `small` is a part of CIFAR-10, for two cores. A network
that is measured is not measured again; `--kept` draws the frames that the repository keeps.
"""

import dataclasses
import itertools
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import pandas as pd
from drawing import in_a_row, kept_frames, panels, parser_of, show, write_frames

import tfresidual as tfr
from tfresidual import datasets, probes, surgery, training
from tfresidual.jobs.building import build
from tfresidual.jobs.data import prepare
from tfresidual.jobs.settings import Settings, describe

KEPT = Path(__file__).parent / "frames" / "what_states_know"
IMAGES = Path(__file__).parents[1] / "docs" / "images"
RESNET, TRANSFORMER = "ResNet-20", "vision transformer"
ERRORS = ("own head", "affine", "head", "probe", "permuted")
UNTRAINED = ("untrained head", "untrained probe")
DIVERGENCES = ("KL, own head", "KL, affine")


@dataclasses.dataclass(frozen=True)
class Size:
    """What is trained: the ResNet and its data, the transformer, epochs of read-outs, seeds."""

    settings: Settings
    layers: int
    width: int
    epochs: int
    readout_epochs: int
    seeds: int


SIZES = {
    "smoke": Size(
        Settings(depth=20, width=4, epochs=1, train_size=128, validation=64, test_size=64),
        *(1, 8, 1, 1, 2),
    ),
    "small": Size(
        Settings(
            data="cifar10",
            depth=20,
            width=8,
            epochs=6,
            batch_size=64,
            train_size=4_000,
            validation=2_000,
            test_size=2_000,
        ),
        *(3, 48, 8, 4, 3),
    ),
}


def built(network, size, settings, data):
    """Returns a compiled network, the number of its epochs and the name of its metric."""
    keras.utils.set_random_seed(settings.seed)
    several, images = describe(settings).multi_label, next(iter(data))[0]
    model, epochs = build(settings), settings.epochs
    if network == TRANSFORMER:
        import keras_hub

        backbone = keras_hub.models.ViTBackbone(
            image_shape=images.shape[1:],
            patch_size=4,
            num_layers=size.layers,
            num_heads=4,
            hidden_dim=size.width,
            mlp_dim=4 * size.width,
        )
        # The mean over positions, as the linear classifiers read it.
        activation = "sigmoid" if several else "softmax"
        model = keras_hub.models.ViTImageClassifier(
            backbone=backbone, num_classes=10, pooling="gap", activation=activation
        )
        epochs = size.epochs
    steps = {"epochs": epochs, "steps_per_epoch": len(data)}
    metric = training.compile_network(
        model, "one_cycle", multi_label=several, learning_rate=0.2, **steps
    )
    if network == TRANSFORMER:
        metrics = [training.ExactMatch() if several else metric]
        model.compile(keras.optimizers.AdamW(2e-3, clipnorm=1.0), model.loss, metrics=metrics)
    return model, epochs, metric


def measured(network, size, seed, out, data_dir):
    """Trains a network and returns its frames by name: readers by block, and early exits."""
    settings = dataclasses.replace(size.settings, seed=seed, data_dir=data_dir)
    train, validation, test = prepare(settings)
    plain = datasets.plain(train)
    model, epochs, metric = built(network, size, settings, train)
    control = built(network, size, settings, train)[0]
    surgery.update_statistics(control, (images for images, _ in plain))
    model = training.train(
        model, train, validation, folder=out / "training", epochs=epochs, metric=metric
    ).network
    chain, control = tfr.chain(model), tfr.chain(control)
    print(chain, flush=True)

    def fitted(chain, kind):
        keras.utils.set_random_seed(seed)
        return training.fit_readouts(chain, plain, kind=kind, epochs=size.readout_epochs)

    heads, affine = fitted(chain, "head"), fitted(chain, "affine")
    parts = {"train": plain, "test": test}
    probe = probes.linear_probe(chain, parts)
    untrained = probes.linear_probe(control, parts, control=False)
    frame = probe[["stage", "block"]].assign(name=[block.name for block in chain.blocks])
    frame["own head"] = 1 - probe["head"]
    frame["affine"] = probes.readout(chain, test, readouts=affine)["error"]
    frame["head"] = probes.readout(chain, test, readouts=heads)["error"]
    frame["probe"], frame["permuted"] = 1 - probe["accuracy"], 1 - probe["control"]
    frame["untrained own head"] = 1 - untrained["head"]
    frame["untrained head"] = probes.readout(control, test, readouts=fitted(control, "head"))[
        "error"
    ]
    frame["untrained probe"] = 1 - untrained["accuracy"]
    for name, readouts in zip(DIVERGENCES, (None, affine), strict=True):
        lens = probes.lens(chain, test, readouts=readouts)[["stage", "block", "kl"]]
        frame = frame.merge(lens.rename(columns={"kl": name}), on=["stage", "block"])
    exits = probes.early_exit(chain, heads, validation, test)
    frames = {"readers": frame, "exits": exits[exits["chosen"]].drop(columns="chosen")}
    return {name: one.assign(network=network, seed=seed) for name, one in frames.items()}


def tables(frames):
    """Returns means over the seeds with their standard errors: by block in percent, and exits."""

    def text(frame, factor, digits):
        values = frame.groupby(level=[*range(frame.index.nlevels)], sort=False)
        means, errors = factor * values.mean(), factor * values.sem()
        cells = means.map(f"{{:.{digits}f}}".format) + errors.map(f" ± {{:.{digits}f}}".format)
        return cells.where(means.notna(), "")

    readers = frames["readers"].set_index(["network", "stage", "block"])
    cells = text(readers[[*ERRORS, *UNTRAINED]], 100, 1)
    exits = frames["exits"].set_index("network")
    columns = ["validation_error", "error", "error_rise", "random_error", "flops_share"]
    return [cells.join(text(readers[[*DIVERGENCES]], 1, 2)), text(exits[columns], 100, 1)]


def drawn(frames):
    """Returns the figure: the error of every reader after every block."""
    frame = in_a_row(frames["readers"]).melt(
        ["network", "seed", "place"], [*ERRORS, *UNTRAINED], "reader", "error"
    )
    figure = panels(
        frame,
        "place",
        "error",
        "Error of what reads the state after a block",
        panel="network",
        line="reader",
        percent=True,
        below="block",
        beside="test error",
    )
    return {"what_states_know": figure}


def frames_of(description, sizes, name, networks, measured, frames):
    """Measures networks, each once for every seed, or takes the frames that the repository keeps.

    Args:
        description: that of the script.
        sizes: its sizes, by name.
        name: its name.
        networks: their names.
        measured: the function of a network, size, seed, folder for its training and folder of
            tensorflow-datasets that returns frames, by name.
        frames: these names, in the order in which they are written: the last one says that all are
            there.

    Returns:
        The frames by name, and the folder for figures.
    """
    arguments = parser_of(description, sizes, f"runs/{name}").parse_args()
    if arguments.kept:
        return kept_frames(KEPT.parent / name), IMAGES
    size, out, parts = sizes[arguments.size], arguments.out / arguments.size, []
    for network, seed in itertools.product(networks, range(size.seeds)):
        folder = out / f"{network}-seed{seed}".replace(" ", "_")
        if not (folder / "frames" / f"{frames[-1]}.csv").exists():
            found = measured(network, size, seed, folder, arguments.data_dir)
            write_frames({key: found[key] for key in frames}, folder / "frames")
            keras.backend.clear_session()
        parts.append(kept_frames(folder / "frames"))
    found = {key: pd.concat(part[key] for part in parts) for key in frames}
    write_frames(found, out / "frames")
    return found, out


def main():
    networks, names = (RESNET, TRANSFORMER), ("exits", "readers")
    frames, out = frames_of(__doc__, SIZES, KEPT.name, networks, measured, names)
    show(tables(frames), drawn(frames), out)


if __name__ == "__main__":
    main()
