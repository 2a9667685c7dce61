"""What the stopping rule of Hauser 2019 (section 2.3) measures of networks that are not trained.

    python experiments/untrained_depth.py --size smoke
    python experiments/untrained_depth.py --size small

As built, the branch of every block has the same size and is independent of the state. So the square
of the size of the states grows by as much with every block, and the mean scaled perturbation falls,
in the end as one over the square root of the number of blocks: at some depth it meets any epsilon,
without training. The networks have one stage, drawn images, and the moving statistics of one pass
over these. Sizes: `smoke` shows that it works, `small` takes minutes on two cores.
"""

import argparse
import pathlib

import keras
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from tfresidual import networks, tuning
from tfresidual.machine.files import replacing

SIZES = {
    "smoke": {"depths": (2, 4), "seeds": 1, "width": 4, "images": 16},
    "small": {"depths": (4, 8, 16, 32, 64), "seeds": 3, "width": 16, "images": 128},
}
EPSILONS = (0.5, 0.3, 0.2)
# The variance of the first state: the stem is initialized by `he_normal`, and pixels have variance
# 1. That of a branch, which ends in a normalization or in such a convolution, is 1 in this unit.
FIRST = 2.0


def measured(depth, width, images, seed):
    """Returns the mean scaled perturbation of a network as built."""
    keras.utils.set_random_seed(seed)
    net = networks.ResidualNetwork(images.shape[1:], 10, blocks=depth, widths=(width,))
    frame = tuning.distances_as_built(net, images)
    keras.backend.clear_session()
    return float(frame["mean_scaled_perturbation"].iloc[0])


def table_of(depths, seeds, width, images):
    """Returns the means over seeds per depth, with what the law predicts of them."""
    rng = np.random.default_rng(0)
    images = rng.normal(size=(images, 16, 16, 3)).astype("float32")
    rows = []
    for depth in depths:
        values = [measured(depth, width, images, seed) for seed in range(seeds)]
        error = np.std(values, ddof=1) / np.sqrt(seeds) if seeds > 1 else np.nan
        rows.append({"blocks": depth, "mean": np.mean(values), "standard_error": error})
    table = pd.DataFrame(rows)
    table["law"] = [predicted(depth) for depth in depths]
    return table


def predicted(depth):
    """Returns the mean of |F| / |h| over blocks, if |h|^2 grows by |F|^2 with each of them."""
    return float(np.mean(1 / np.sqrt(FIRST + np.arange(depth))))


def depths_that_meet(table):
    """Returns for each epsilon the fewest of the measured blocks whose mean is epsilon or less."""
    met = {epsilon: table.loc[table["mean"] <= epsilon, "blocks"] for epsilon in EPSILONS}
    return {epsilon: int(blocks.min()) if len(blocks) else None for epsilon, blocks in met.items()}


def drawn(table):
    """Returns a figure of the means over the blocks, with what is predicted."""
    figure, axes = plt.subplots(figsize=(5.2, 3.4), layout="constrained")
    axes.errorbar(
        table["blocks"],
        table["mean"],
        2 * table["standard_error"].fillna(0),
        fmt="o",
        color="#0b5394",
        label="as built, two standard errors",
    )
    axes.plot(table["blocks"], table["law"], "--", color="#666666", label="predicted")
    axes.set(xscale="log", yscale="log", xlabel="blocks L", ylabel="mean scaled perturbation")
    axes.set_xticks(table["blocks"], labels=table["blocks"].astype(str))
    axes.minorticks_off()
    ticks = [tick for tick in (0.1, 0.2, 0.3, 0.5, 0.8) if tick > 0.8 * table["mean"].min()]
    axes.set_yticks(ticks, labels=map(str, ticks))
    axes.legend(frameon=False)
    return figure


def main(size, out):
    table = table_of(**SIZES[size])
    folder = out / size
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(folder / "as_built.csv") as path:
        table.to_csv(path, index=False)
    drawn(table).savefig(folder / "as_built.png", dpi=150)
    print(table.to_string(index=False, float_format="{:.3f}".format))
    for epsilon, blocks in depths_that_meet(table).items():
        met = "none of these depths" if blocks is None else f"{blocks} blocks"
        print(f"epsilon {epsilon}: met untrained by {met}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", choices=SIZES, default="smoke")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/untrained_depth"))
    arguments = parser.parse_args()
    main(arguments.size, arguments.out)
