"""Branches without normalization, and branches that are dropped in training.

    python experiments/residual_branches.py --size smoke
    python experiments/residual_branches.py --size small --data-dir ~/tensorflow_datasets
    python experiments/residual_branches.py --size paper --data-dir ~/tensorflow_datasets

Which networks train without normalization: the branches as they are ("plain"), with SkipInit (De
and Smith 2020), and initialized by Fixup (Zhang et al. 2019), beside batch normalization. Each is
trained with several learning rates and one seed, and with further seeds at the rate that gave the
lowest training loss. And what a dropped block costs (Huang et al. 2016): networks trained with
stochastic depth and without, and untrained ones. Sizes: `smoke` shows that everything works, with
Digitclutter; `small` is a part of CIFAR-10, reduced to 16 x 16, with narrow networks, for two
cores; `paper` is all of CIFAR-10, for a GPU. A network that is trained is not trained again, and an
interrupted training resumes after its last complete epoch. With `--most N`, the script ends after
it has trained N networks; `--kept` draws the frames that are kept in the repository.
"""

import dataclasses
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import numpy as np
import pandas as pd
from drawing import in_a_row, kept_frames, panels, parser_of, show, table, write_frames

import tfresidual as tfr
from tfresidual import datasets, networks, probes
from tfresidual.machine.files import replacing
from tfresidual.machine.first_step import traced_once

KEPT = Path(__file__).parent / "frames" / "residual_branches"
IMAGES = Path(__file__).parents[1] / "docs" / "images"


@dataclasses.dataclass(frozen=True)
class Size:
    """What is trained."""

    data: str
    pixels: int
    blocks: int
    widths: tuple[int, ...]
    images: int
    probed: int
    epochs: int
    batch_size: int
    rates: tuple[float, ...]
    seeds: int


SIZES = {
    "smoke": Size("digitclutter", 8, 1, (4, 8, 16), 64, 64, 2, 32, (0.01, 0.001), 1),
    "small": Size("cifar10", 16, 18, (8, 16, 32), 8_000, 2_000, 10, 64, (0.1, 0.01), 2),
    "paper": Size("cifar10", 32, 18, (16, 32, 64), 50_000, 10_000, 164, 128, (0.1, 0.01, 0.001), 3),
}
BRANCHES = {
    "batch normalization": {},
    "plain": {"normalization": None},
    "SkipInit": {"normalization": None, "multiplier": "rezero"},
    "Fixup": {"normalization": "fixup"},
}
# The last of the blocks is dropped with this probability, as in the paper.
RATE = 0.5
WEIGHTS = "trained.weights.h5"
CONTROL, DROPPED, UNTRAINED = "batch normalization", "stochastic depth", "untrained"


@dataclasses.dataclass(frozen=True)
class Trial:
    """A network to be trained."""

    branches: str
    rate: float
    seed: int

    @property
    def name(self):
        return f"{self.branches}-{self.rate:g}-seed{self.seed}".replace(" ", "_")


def trials_of(size, out):
    """Returns the networks of a size, in the order of training, one after the other.

    Those of further seeds depend on the logs of those before.
    """
    first = [Trial(branches, rate, 0) for rate in size.rates for branches in BRANCHES]
    yield from first
    rates = best_rates(pd.concat([history_of(trial, out) for trial in first]))
    # It is batch normalization in both.
    rates = {CONTROL: rates[CONTROL], DROPPED: rates[CONTROL]} | rates
    yield Trial(DROPPED, rates[DROPPED], 0)
    for seed in range(1, size.seeds):
        yield from (Trial(branches, rate, seed) for branches, rate in rates.items())


def pictures(size, data_dir):
    """Returns images, reduced to fewer pixels, and classes, by split."""
    train, test = datasets.load(
        size.data,
        batch_size=200,
        train_size=size.images,
        test_size=size.probed,
        data_dir=data_dir,
    )
    found = {}
    for split, part in (("train", datasets.plain(train)), ("test", test)):
        images, labels = map(np.concatenate, zip(*part.as_numpy_iterator(), strict=True))
        factor = images.shape[1] // size.pixels
        count, *_, channels = images.shape
        tiles = images.reshape(count, size.pixels, factor, size.pixels, factor, channels)
        # One of the digits of Digitclutter.
        labels = labels if labels.ndim == 1 else labels.argmax(1)
        found[split] = tiles.mean((2, 4)).astype("float32"), labels
    return found


def built(trial, size, channels):
    keras.utils.set_random_seed(trial.seed)
    network = networks.ResidualNetwork(
        (size.pixels, size.pixels, channels),
        10,
        blocks=size.blocks,
        widths=size.widths,
        stochastic_depth=RATE if trial.branches == DROPPED else 0.0,
        **BRANCHES.get(trial.branches, {}),
    )
    optimizer = keras.optimizers.SGD(trial.rate, momentum=0.9)
    network.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return network


def is_trained(trial, out):
    return (out / trial.name / WEIGHTS).exists()


def trained(trial, size, data, out):
    """Returns a trained network; its training resumes after the last complete epoch."""
    folder = out / trial.name
    network = built(trial, size, data["train"][0].shape[-1])
    weights = folder / WEIGHTS
    if not is_trained(trial, out):
        folder.mkdir(parents=True, exist_ok=True)
        last_third = size.epochs - size.epochs // 3
        with traced_once(network):
            network.fit(
                *data["train"],
                validation_data=data["test"],
                batch_size=size.batch_size,
                epochs=size.epochs,
                verbose=0,
                callbacks=[
                    keras.callbacks.LearningRateScheduler(
                        lambda epoch: trial.rate / (10 if epoch >= last_third else 1)
                    ),
                    keras.callbacks.BackupAndRestore(folder / "backup"),
                    keras.callbacks.CSVLogger(folder / "log.csv", append=True),
                ],
            )
        with replacing(weights) as path:
            # Keras wants to know the kind of the file from its name.
            network.save_weights(named := path.with_name(f"{path.name}.weights.h5"))
            named.replace(path)
    network.load_weights(weights)
    return network


def history_of(trial, out):
    """Returns the log of a training, with one row per epoch."""
    log = pd.read_csv(out / trial.name / "log.csv").drop_duplicates("epoch", keep="last")
    return pd.DataFrame(
        {
            "branches": trial.branches,
            "rate": trial.rate,
            "seed": trial.seed,
            "epoch": log["epoch"] + 1,
            "train_loss": log["loss"],
            "train_error": 1 - log["accuracy"],
            "error": 1 - log["val_accuracy"],
        }
    )


def drops_of(network, data, branches, seed):
    """Returns the errors without single blocks."""
    frame = probes.drop_blocks(tfr.chain(network), data["test"])
    return in_a_row(frame.assign(network=branches, seed=seed))


def last_epochs(history):
    return history[history["epoch"] == history["epoch"].max()]


def best_rates(history):
    """Returns the learning rates with the lowest training loss of the first seed, by branches.

    A loss that is not finite is the highest.
    """
    last = last_epochs(history[history["seed"] == 0])
    losses = last["train_loss"].where(np.isfinite(last["train_loss"]), np.inf)
    ranked = last.assign(train_loss=losses).sort_values("train_loss", kind="stable")
    rates = ranked.groupby("branches")["rate"].first()
    return {branches: float(rates[branches]) for branches in dict.fromkeys(history["branches"])}


def drawn(frames):
    """Returns the figures by name."""
    history = frames["history"]
    compared = history[history["branches"] != DROPPED]
    compared = compared.sort_values(["rate", "seed"], ascending=[False, True], kind="stable")
    places = compared[["rate", "seed"]].itertuples(index=False)
    panel = [f"learning rate {rate:g}, seed {seed}" for rate, seed in places]
    losses = panels(
        compared.assign(panel=panel),
        "epoch",
        "train_loss",
        "Training loss, up to 3",
        panel="panel",
        line="branches",
        below="epoch",
        beside="cross-entropy",
    )
    # Networks that explode begin far above.
    losses.axes[0].set_ylim(0, 3)
    return {
        "residual_branches_loss": losses,
        "residual_branches_drops": panels(
            frames["drops"],
            "place",
            "error",
            "Error without one block",
            line="network",
            stages=True,
            percent=True,
            below="block",
            beside="test error",
        ),
    }


def tables(frames):
    """Returns what is printed: how the trainings ended, and what a dropped block costs."""
    last, percents = last_epochs(frames["history"]), ("train_error", "error")
    last = last.assign(**{name: (100 * last[name]).map("{:.1f} %".format) for name in percents})
    last["train_loss"] = last["train_loss"].map("{:.3f}".format)
    ended = last.groupby(["branches", "rate"], sort=False)[["train_loss", *percents]]
    drops = frames["drops"]
    costs = drops.groupby(["network", "seed"], sort=False).agg(
        error=("unperturbed_error", "first"), cost=("error", "mean"), worst=("error", "max")
    )
    for name in ("cost", "worst"):
        costs[name] -= costs["error"]
    return [
        # Of all seeds, in their order.
        ended.agg(", ".join),
        table(costs.reset_index(), ["error", "cost", "worst"], percent=("error", "cost", "worst")),
    ]


def measured(size, data, out, most=None):
    """Trains what is missing and returns the frames by name.

    Args:
        size: the `Size`.
        data: images and classes by split.
        out: folder of the networks.
        most: number of trainings after which it returns `None`, or `None` for no limit.
    """
    trials, count = [], 0
    for trial in trials_of(size, out):
        if not is_trained(trial, out):
            if count == most:
                return None
            trained(trial, size, data, out)
            keras.backend.clear_session()
            count += 1
        print(history_of(trial, out).tail(1).to_string(index=False, header=False), flush=True)
        trials.append(trial)
    history, drops = pd.concat([history_of(trial, out) for trial in trials]), []
    for trial in trials:
        if trial.branches in (CONTROL, DROPPED) and trial.rate == best_rates(history)[CONTROL]:
            network = trained(trial, size, data, out)
            drops.append(drops_of(network, data, trial.branches, trial.seed))
            if trial.branches == CONTROL:
                network = built(trial, size, data["train"][0].shape[-1])
                drops.append(drops_of(network, data, UNTRAINED, trial.seed))
            keras.backend.clear_session()
    return {"history": history, "drops": pd.concat(drops)}


def main():
    parser = parser_of(__doc__, SIZES, "runs/residual_branches")
    parser.add_argument("--most", type=int, help="number of trainings after which to end")
    arguments = parser.parse_args()
    size, out = SIZES[arguments.size], arguments.out / arguments.size
    if arguments.kept:
        frames = kept_frames(KEPT)
        out = IMAGES
    else:
        data = pictures(size, arguments.data_dir)
        frames = measured(size, data, out, arguments.most)
        if frames is None:
            return
        write_frames(frames, out / "frames")
    show(tables(frames), drawn(frames), out)


if __name__ == "__main__":
    main()
