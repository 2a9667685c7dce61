"""Frames as probes and training would give them, from a seed."""

import numpy as np
import pandas as pd


def block_frame(blocks=3, stages=3, splits=None, epochs=None, gap=True, seed=0):
    """A block metrics frame: later blocks more negative in cosine, smaller in size.

    With `gap`, the first block of every stage but the first changes the shape and has no values.
    """
    rng = np.random.default_rng(seed)
    rows = []
    for split in splits or (None,):
        for epoch in range(epochs or 1):
            progress = (epoch + 1) / (epochs or 1)
            for stage in range(1, stages + 1):
                for block in range(blocks):
                    depth = ((stage - 1) * blocks + block) / (stages * blocks)
                    noise = rng.normal(size=4)
                    size = 1.6 * np.exp(-block / (0.4 * blocks)) / stage + 0.05
                    missing = gap and stage > 1 and block == 0
                    row = {
                        "stage": stage,
                        "block": block,
                        "cosine_loss": -0.25 * depth * progress + 0.01 * noise[0],
                        "readout_cosine_loss": (
                            -0.3 * (block + 1) / blocks * progress + 0.015 * noise[1]
                            if stage == stages
                            else np.nan
                        ),
                        "l2_ratio": size * np.exp(0.08 * noise[2]),
                        "gradient_norm": 0.4
                        * np.exp(-4 * depth + 0.1 * noise[3])
                        * (1.1 - progress),
                        "perturbation": 12 * size * stage,
                        "scaled_perturbation": size * (0.5 + 0.5 * progress),
                    }
                    if missing:
                        row |= {key: np.nan for key in row if key not in ("stage", "block")}
                    if split is not None:
                        row["split"] = split
                    if epochs is not None:
                        row["epoch"] = epoch
                    rows.append(row)
    return pd.DataFrame(rows)


def distance_frame(blocks=3, stages=3, splits=None):
    """A distance frame with a row per stage and one for all of them."""
    rows = []
    for place, split in enumerate(splits or (None,)):
        absolute = [130.0 + 35 * stage + 9 * place for stage in range(stages)]
        scaled = [3.69 + 0.3 * stage + 0.1 * place for stage in range(stages)]
        names = [*range(1, stages + 1), "all"]
        counts = [blocks] * stages + [blocks * stages]
        for stage, count, distance, scaled_distance in zip(
            names, counts, [*absolute, sum(absolute)], [*scaled, sum(scaled)], strict=True
        ):
            row = {
                "stage": stage,
                "blocks": count,
                "distance": distance,
                "scaled_distance": scaled_distance,
                "mean_perturbation": distance / count,
                "mean_scaled_perturbation": scaled_distance / count,
            }
            if split is not None:
                row["split"] = split
            rows.append(row)
    return pd.DataFrame(rows)


def history_frame(epochs=40, metric="accuracy", drops=(0.5, 0.75), seed=0):
    """A history frame as `CSVLogger` writes it, with some keys per block."""
    rng = np.random.default_rng(seed)
    time = np.arange(epochs)
    rate = 0.1 * np.prod([np.where(time >= int(drop * epochs), 0.1, 1.0) for drop in drops], axis=0)
    loss = 2.0 * np.exp(-3 * time / epochs) * (0.6 + 0.4 * np.sqrt(rate / 0.1)) + 0.05
    noise = 0.04 * rng.random(epochs) * np.sqrt(rate / 0.1)
    return pd.DataFrame(
        {
            "epoch": time,
            "loss": loss,
            "val_loss": loss + 0.2 + noise,
            metric: 1 - 0.4 * loss,
            f"val_{metric}": 0.95 - 0.4 * (loss + noise),
            "learning_rate": rate,
            "stage1/block0/cosine_loss": rng.normal(size=epochs),
            "stage1/block1/l2_ratio": rng.random(epochs),
        }
    )
