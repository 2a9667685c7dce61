"""Frames of many runs, of histories and of convergence, as experiments would give them."""

import numpy as np
import pandas as pd

SETTINGS = (
    (0.0, "non-recurrent"),
    (0.0, "recurrent"),
    (0.5, "recurrent"),
    (0.9, "recurrent"),
    (1.0, "recurrent"),
)
NAMES = ["0 (non-rec.)", "0 (rec.)", "0.5 (rec.)", "0.9 (rec.)", "1 (rec.)"]
TICKS = [name.replace(" (", "\n(") for name in NAMES]


def run_frame(widths=(8, 16, 32, 64), settings=SETTINGS, seeds=3, seed=0, **varied):
    """A frame of runs: coupling raises convergence and error, width lowers the error.

    `varied` are settings other than the plain ones: `lipschitz`, `anchor`, `kernel`, `gamma`,
    `first_block`, or any further column.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for width in widths:
        for coupling, initialization in settings:
            for number in range(seeds):
                noise = rng.normal(size=4)
                bounded = "lipschitz" in varied
                error = 0.05 + 0.3 / width + 0.05 * coupling**2 + 0.02 * bounded + 0.003 * noise[0]
                raw = 7500.0 * width**2
                share = (1 - coupling) * (0.95 if initialization == "recurrent" else 1.0)
                rows.append(
                    {
                        "network": f"{width}-{coupling}-{initialization}",
                        "coupling": coupling,
                        "initialization": initialization,
                        "lipschitz": np.nan,
                        "anchor": "previous",
                        "kernel": "uniform",
                        "gamma": 1.0,
                        "first_block": 0,
                        "width": width,
                        "seed": number,
                        "error": error,
                        "train_error": error / 4,
                        "convergence": 0.6 + 0.2 * coupling + 0.001 * width + 0.02 * noise[1],
                        "recurrence": 0.99 + 0.01 * noise[2],
                        "divergence": (
                            0.01
                            if bounded
                            else 0.9 - 0.5 * coupling - 0.001 * width + 0.03 * noise[3]
                        ),
                        "raw_parameters": raw,
                        "effective_parameters": raw * (1 / 16 + 15 / 16 * share),
                        "deviation": 0.8 * share,
                        **varied,
                    }
                )
    return pd.DataFrame(rows)


def varied_frame(**settings):
    """Runs of the plain networks and of four variations of their training."""
    variations = (
        {},
        {"gamma": 0.1},
        {"kernel": "triangular"},
        {"first_block": 5},
        {"gamma": 0.1, "first_block": 5},
    )
    return pd.concat(
        [run_frame(seed=place, **settings, **varied) for place, varied in enumerate(variations)],
        ignore_index=True,
    )


def network_frame(networks=("ResNet-110", "ResNet-38", "naive sharing"), epochs=30, seeds=2):
    """A history frame of networks, of which those with "naive" in their name overfit."""
    rng = np.random.default_rng(0)
    rows = []
    for place, network in enumerate(networks):
        naive = "naive" in network
        for seed in range(seeds):
            for epoch in range(epochs):
                time = (epoch + 1) / epochs
                train = 0.6 * np.exp(-4 * time) + 0.01 * place
                rows.append(
                    {
                        "network": network,
                        "seed": seed,
                        "epoch": epoch,
                        "train_error": train + 0.005 * rng.random(),
                        "error": train + 0.06 + 0.1 * naive * time + 0.03 * rng.random(),
                        "gradient_ratio": (40 if naive else 2) * (1 + 0.3 * rng.random()),
                        "state_l1": 10 ** ((5 if naive else 3) + 0.5 * time) * (1 + rng.random()),
                    }
                )
    return pd.DataFrame(rows)


def propagation_frame(blocks=3, stages=3, splits=None, epochs=None, network=None, growth=1.0):
    """A signal propagation frame: the state grows along the blocks, the gradient shrinks."""
    rows = []
    for place, split in enumerate(splits or (None,)):
        for epoch in range(epochs or 1):
            for stage in range(1, stages + 1):
                for block in range(blocks):
                    depth = ((stage - 1) * blocks + block) / (stages * blocks)
                    row = {
                        "stage": stage,
                        "block": block,
                        "state_norm": 20 * np.exp(3 * growth * depth) * (1 + 0.1 * place),
                        "state_l1": 900 * np.exp(3 * growth * depth),
                        "state_gradient_norm": 0.1 * np.exp(-4 * depth) / (1 + 0.2 * epoch),
                        "gradient_ratio": np.exp(-4 * (depth - 0.67)),
                        "shortcut_share": 0.4 + 0.5 * depth + 0.02 * epoch,
                        "shortcut_norm": 0.04,
                    }
                    if split is not None:
                        row["split"] = split
                    if epochs is not None:
                        row["epoch"] = epoch
                    if network is not None:
                        row["network"] = network
                    rows.append(row)
    return pd.DataFrame(rows)


def fixed_point_frame(steps=32, stages=3, splits=None):
    """A fixed point frame: each stage contracts by a factor of its own, the last one at 0.9."""
    rows = []
    for place, split in enumerate(splits or (None,)):
        for stage in range(1, stages + 1):
            rate = 0.9 - 0.15 * (stages - stage)
            for step in range(steps + 1):
                change = (10 + place) * stage * rate**step
                row = {
                    "stage": stage,
                    "repetition": step,
                    "change": change,
                    "contraction": np.nan if step == 0 else rate,
                    "largest_contraction": np.nan if step == 0 else rate + 0.04,
                    "distance": change * rate * (1 - rate ** (steps - step)) / (1 - rate),
                }
                if split is not None:
                    row["split"] = split
                rows.append(row)
    return pd.DataFrame(rows)


def lipschitz_frame(blocks=3, stages=3, mu=0.95):
    """A Lipschitz frame: some branches under `mu`, the certified bound 5 % over the estimate."""
    rng = np.random.default_rng(0)
    rows = []
    for stage in range(1, stages + 1):
        for block in range(blocks):
            estimate = 0.7 + 2.5 * np.exp(-block / blocks) * rng.random()
            rows.append(
                {
                    "stage": stage,
                    "block": block,
                    "estimate": estimate,
                    "residual": 1e-4,
                    "certified": 1.05 * estimate,
                    "divisor": max(estimate / mu, 1.0),
                }
            )
    return pd.DataFrame(rows)


ROLES = {
    "normalization1/gamma": 16,
    "normalization1/beta": 16,
    "convolution1/kernel": 2304,
    "convolution1/bias": 16,
    "normalization2/gamma": 16,
    "normalization2/beta": 16,
    "convolution2/kernel": 2304,
    "convolution2/bias": 16,
}


def deviation_frame(blocks=3, stages=3, roles=ROLES):
    """A weight deviations frame: the first and last blocks differ most from the mean."""
    rng = np.random.default_rng(0)
    rows = []
    for stage in range(1, stages + 1):
        for block in range(blocks):
            for role, count in roles.items():
                deviation = 0.4 + 0.3 * abs(2 * block / max(blocks - 1, 1) - 1) * rng.random()
                rows.append(
                    {
                        "stage": stage,
                        "block": block,
                        "role": role,
                        "parameters": count * stage**2,
                        "deviation": deviation,
                        "l1": deviation * count * stage**2,
                    }
                )
    return pd.DataFrame(rows)


def inference_frame(blocks=3, stages=3, splits=None, epochs=20, shape_changes=True):
    """A block metrics frame over epochs, as callbacks log it; later blocks refine more."""
    rng = np.random.default_rng(0)
    rows = []
    for split in splits or (None,):
        for epoch in range(epochs):
            time = (epoch + 1) / epochs
            for stage in range(1, stages + 1):
                for block in range(blocks):
                    depth = (block + 1) / blocks
                    gone = shape_changes and stage > 1 and block == 0
                    row = {
                        "epoch": epoch,
                        "stage": stage,
                        "block": block,
                        "cosine_loss": np.nan
                        if gone
                        else -0.1 * depth * time + 0.005 * rng.normal(),
                        "l2_ratio": np.nan if gone else 0.05 + np.exp(-4 * depth) / (1 + time),
                        "readout_error": 0.9 - 0.8 * depth * time,
                    }
                    if split is not None:
                        row["split"] = split
                    rows.append(row)
    return pd.DataFrame(rows)
