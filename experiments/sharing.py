"""Figures 8, 9, 18 and 19 of Jastrzebski et al. 2018: what happens when blocks are shared.

    python experiments/sharing.py --size smoke
    python experiments/sharing.py --size small
    python experiments/sharing.py --size paper --data-dir ~/tensorflow_datasets

Compares networks without shared blocks, a network whose later blocks are one shared block, and the
remedies: a gamma of 0.1 and unshared batch normalization. Each network is trained in its own
folder; an interrupted run resumes. Sizes: `smoke` shows that everything works; `small` is
Digitclutter, for two cores; `paper` is the paper's networks on CIFAR-10 at full length, for a GPU.
"""

import argparse
import dataclasses
from pathlib import Path

import keras
import pandas as pd

from tfresidual import callbacks, plots, probes, training
from tfresidual.jobs import study
from tfresidual.jobs.settings import Settings, build, prepare
from tfresidual.machine.console import say, terminal
from tfresidual.metrics import norm

# Batch normalization and initial gamma of the shared later blocks of a stage.
STRATEGIES = {
    "naive": {"batch_norm": "shared", "gamma": 1.0},
    "gamma 0.1": {"batch_norm": "shared", "gamma": 0.1},
    "unshared statistics": {"batch_norm": "unshared_statistics", "gamma": 1.0},
    "unshared statistics, gamma 0.1": {"batch_norm": "unshared_statistics", "gamma": 0.1},
    "UBN": {"batch_norm": "unshared"},
}


def runs_of(size, data_dir):
    """Returns pairs of the name of a network and the settings of its training, for a size."""
    if size == "paper":
        recipe = training.recipe("resnet110")
        settings = Settings(
            data="cifar10",
            data_dir=data_dir,
            recipe=recipe.name,
            epochs=recipe.epochs,
            batch_size=128,
            validation=5000,
        )
        deep, shallow, first, seeds = 110, 38, 5, range(4)
    elif size == "small":
        settings = Settings(data_dir=data_dir)
        deep, shallow, first, seeds = 38, 20, 2, range(1)
    else:
        settings = Settings(
            data_dir=data_dir, width=4, epochs=2, train_size=256, validation=64, test_size=64
        )
        deep, shallow, first, seeds = 20, 14, 1, range(1)
    networks = {
        f"ResNet-{shallow}": {"depth": shallow},
        f"ResNet-{deep}": {"depth": deep},
    }
    for name, strategy in STRATEGIES.items():
        networks[f"ResNet-{deep} {name}"] = {"depth": deep, "share_from": first} | strategy
    return [
        (name, dataclasses.replace(settings, seed=seed, **changes))
        for seed in seeds
        for name, changes in networks.items()
    ]


def history_of(name, settings, log):
    """Returns the metrics of a training that the figures draw, with one row per epoch."""
    metric = next(column for column in ("accuracy", "exact_match") if column in log.columns)
    stages = [column for column in log.columns if column.endswith("/gradient_ratio")]
    last_stage = max(int(column.split("/")[0].removeprefix("stage")) for column in stages)
    blocks = [column for column in stages if column.startswith(f"stage{last_stage}/")]
    last = max(int(column.split("/")[1].removeprefix("block")) for column in blocks)
    return pd.DataFrame(
        {
            "network": name,
            "seed": settings.seed,
            "epoch": log["epoch"],
            "error": 1 - log[f"val_{metric}"],
            "train_error": 1 - log[metric],
            "gradient_ratio": log[f"stage{last_stage}/block0/gradient_ratio"],
            "state_l1": log[f"stage{last_stage}/block{last}/state_l1"],
        }
    )


def first_states_of(name, settings):
    """Returns the norms of the states before training, as in the first training step."""
    keras.utils.set_random_seed(settings.seed)
    stem, stages, _ = build(settings).sections()
    state, _ = next(iter(prepare(settings)[1]))
    for layer in stem:
        state = layer(state)
    rows = []
    for stage, (transition, units) in enumerate(stages, start=1):
        state = state if transition is None else transition(state)
        for block, unit in enumerate(units):
            # In training mode, every block normalizes with the statistics of its own inputs.
            state = unit(state, training=True)
            rows.append((name, settings.seed, stage, block, float(norm(state).numpy().mean())))
    return pd.DataFrame(rows, columns=["network", "seed", "stage", "block", "state_norm"])


def main(size, data_dir, out):
    console, out = terminal(), out / size
    histories, first_states, by_epoch = [], [], {}
    for name, settings in runs_of(size, data_dir):
        say(console, f"{name}, seed {settings.seed}")
        folder = out / f"{name.replace(', ', '-').replace(' ', '_')}-{settings.seed}"
        result = study.train(
            folder, settings, console, lambda images: [callbacks.SignalPropagation(images)]
        )
        histories.append(history_of(name, settings, result.log))
        first_states.append(first_states_of(name, settings))
        by_epoch[name] = probes.from_logs(result.log)
    histories, first_states = pd.concat(histories), pd.concat(first_states)
    histories.to_csv(out / "histories.csv", index=False)
    first_states.to_csv(out / "first_states.csv", index=False)
    names = list(by_epoch)
    compared = [*names[:2], *(name for name in names if name.endswith(("naive", "UBN")))]
    figures = {
        "figure8": plots.network_curves(
            histories[histories["network"].isin(compared)],
            propagation=first_states[first_states["network"].isin(compared)],
        ),
        "figure9": plots.network_curves(
            histories[histories["network"].isin(names[2:])], metrics=("error", "state_l1")
        ),
        "figure18": plots.iterative_inference(by_epoch[names[-1]]),
        "figure19": plots.iterative_inference(by_epoch[names[2]]),
    }
    for name, figure in figures.items():
        figure.savefig(out / f"{name}.png", dpi=160)
        print(out / f"{name}.png")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=["smoke", "small", "paper"], default="smoke")
    parser.add_argument("--data-dir", help="folder of tensorflow-datasets")
    parser.add_argument("--out", type=Path, default=Path("runs/sharing"))
    arguments = parser.parse_args()
    main(arguments.size, arguments.data_dir, arguments.out)
