"""Figure 1 of the convergence paper: an algorithm and three networks on the inverse problem.

    python experiments/inverse_problem.py --size smoke
    python experiments/inverse_problem.py --size small
    python experiments/inverse_problem.py --size paper

Given x = (3/2 z1, 3/4 z2), a plain feed-forward network, a residual one and a recurrent one learn
to find z. They are compared with the error-correcting algorithm, written as a network. Each network
is read out after every block, evaluated without each block, and with 16 more applications of its
last block. Writes the trajectories as CSV, figures of seed 0, and a table that summarizes them (the
columns of `probes.trajectory_summary`, on 500 points). `small` and `paper` differ in the number of
seeds.
"""

import argparse
import itertools
from pathlib import Path

import keras
import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tfresidual import datasets, networks, plots, probes
from tfresidual.machine.console import terminal
from tfresidual.routing import routes

NAMES = {
    "algorithm": None,
    "feed-forward": "feedforward",
    "ResNet": "residual",
    "recurrent ResNet": "recurrent",
}
# Seeds and epochs. The paper does not say how its networks were trained.
SIZES = {"smoke": (1, 2), "small": (3, 20), "paper": (6, 20)}
EXTRA = 16
# The solutions that are drawn: the point that the axes of the paper's figure suggest, and two more.
SOLUTIONS = np.float32([[1.0, 1.0], [-1.2, 0.4], [0.6, -1.5]])
TEST_SEED = 10**6


def trained(kind, seed, epochs, branch_initializer=None):
    """Returns a network of a kind, trained on points drawn from a seed."""
    keras.utils.set_random_seed(seed)
    network = networks.InverseProblemNetwork(kind, branch_initializer=branch_initializer)
    x, z = datasets.inverse_problem(2048, seed=seed)
    steps = epochs * len(x) // 64
    rate = keras.optimizers.schedules.CosineDecay(3e-3, steps)
    network.compile(keras.optimizers.Adam(rate), "mse", steps_per_execution=32)
    network.fit(x, z, batch_size=64, epochs=epochs, verbose=0)
    return network


def frames_of(network, inputs):
    """Returns the frames of a network: read-outs, dropped blocks and extra applications."""
    chain = probes.inverse_problem_chain(network)
    blocks = [(block.stage, block.index) for block in chain.blocks]
    asked = {
        "readout": None,
        "dropped": [routes.drop(chain, block) for block in blocks],
        "repeated": [routes.repeat_last_block(chain, 1, EXTRA)],
    }
    return {name: probes.trajectories(chain, inputs, routes=asked[name]) for name in asked}


def shown(summary):
    """Returns the table for the terminal: means and ranges over the seeds."""
    seeds = summary["seed"].nunique()
    table = Table(title=f"Mean of {seeds} seed{'s' * (seeds > 1)}, lowest to highest")
    table.add_column("")
    by_network = dict(list(summary.groupby("network", sort=False)))
    for name in by_network:
        table.add_column(name, justify="right")
    for column in summary.columns[2:]:
        cells = (_spread(rows[column]) for rows in by_network.values())
        table.add_row(column.replace("_", " "), *cells)
    return table


def _spread(values):
    mean, least, most = (f"{value:.2g}" for value in (values.mean(), values.min(), values.max()))
    return mean if len(values) == 1 else f"{mean}\n{least} to {most}"


def run(folder, size, branch_initializer=None):
    """Trains all networks, runs routes; returns the summary, one row per network and seed."""
    seeds, epochs = SIZES[size]
    x, z = datasets.inverse_problem(500, seed=TEST_SEED)
    drawn = SOLUTIONS * np.float32(networks.inverse_problem.SLOPES)
    summaries, frames = [], {"readout": [], "dropped": [], "repeated": []}
    pairs, console = list(itertools.product(NAMES.items(), range(seeds))), terminal()
    hidden = not console.is_terminal
    for (name, kind), seed in track(pairs, "Training", console=console, disable=hidden):
        if kind is None and seed:
            continue
        if kind is None:
            network = networks.error_correcting_network()
        else:
            network = trained(kind, seed, epochs, branch_initializer)
        place = {"network": name, "seed": seed}
        summary = probes.trajectory_summary(**frames_of(network, x), solutions=z)
        summaries.append(summary.assign(**place)[[*place, *summary.columns]])
        for key, frame in frames_of(network, drawn).items():
            frames[key].append(frame.assign(**place)[[*place, *frame.columns]])
    folder.mkdir(parents=True, exist_ok=True)
    frames = {key: pd.concat(parts, ignore_index=True) for key, parts in frames.items()}
    summary = pd.concat(summaries, ignore_index=True)
    for key, frame in (*frames.items(), ("summary", summary)):
        frame.to_csv(folder / f"{key}.csv", index=False)
    of_seed = {key: frame[frame["seed"] == 0] for key, frame in frames.items()}
    for name, count in (("trajectories", 1), ("trajectories_of_three", 3)):
        of_inputs = {key: frame[frame["input"] < count] for key, frame in of_seed.items()}
        figure = plots.trajectories(**of_inputs, solutions=SOLUTIONS[:count])
        figure.savefig(folder / f"{name}.png", dpi=160)
    return summary


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=list(SIZES), default="smoke")
    parser.add_argument(
        "--branch-initializer",
        help="initializer of the second layer of a block, such as he_normal; zeros by default, so "
        "that residual blocks start as the identity",
    )
    parser.add_argument("--out", type=Path, default=Path("runs/inverse_problem"))
    arguments = parser.parse_args()
    folder = arguments.out / arguments.size
    Console().print(shown(run(folder, arguments.size, arguments.branch_initializer)))
    print(folder)
