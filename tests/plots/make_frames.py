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


def route_metrics(error, distance, rng):
    """The metrics of a route with this error, with some noise on the others."""
    error = float(np.clip(error, 0.0, 1.0))
    return {
        "error": error,
        "cross_entropy": 0.02 + 2.3 * error + 0.001 * distance**2 + 0.02 * rng.random(),
        "entropy": 0.05 + 1.5 * error,
        "agreement": 1.0 - 0.95 * max(error - 0.05, 0.0) if distance else 1.0,
        "distance": float(distance),
    }


def _route_frame(rows_of_split, splits, epochs=None, seed=0):
    """Rows of every split and epoch; `rows_of_split` gets the final error and a generator."""
    rng = np.random.default_rng(seed)
    rows = []
    for place, split in enumerate(splits or (None,)):
        for epoch in range(epochs or 1):
            final = 0.02 + 0.05 * place + 0.5 * (1 - (epoch + 1) / (epochs or 1))
            for row in rows_of_split(final, rng):
                if split is not None:
                    row = {"split": split, **row}
                if epochs is not None:
                    row["epoch"] = epoch
                rows.append(row)
    return pd.DataFrame(rows)


def readout_frame(blocks=3, stages=3, splits=None, epochs=None):
    """A read-out frame: the error falls from chance to the final one, earliest in stage 1."""

    def rows(final, rng):
        for stage in range(1, stages + 1):
            for block in range(blocks):
                left = (blocks - 1 - block) / blocks
                error = final + (0.9 - final) * left ** (1 + 1 / stage)
                metrics = route_metrics(error, 4.0 * stage * left, rng)
                yield {"stage": stage, "block": block, **metrics}

    return _route_frame(rows, splits, epochs)


def drop_frame(blocks=3, stages=3, splits=None, epochs=None, gap=True):
    """A dropped blocks frame: the first blocks matter most.

    With `gap`, the first block of every stage but the first changes the shape and has no values.
    """

    def rows(final, rng):
        for stage in range(1, stages + 1):
            for block in range(blocks):
                error = final + 0.5 * np.exp(-1.5 * block) / stage + 0.01 * rng.random()
                metrics = route_metrics(error, 1.0 / (1 + block), rng)
                if gap and stage > 1 and block == 0:
                    metrics = dict.fromkeys(metrics, np.nan)
                yield {"stage": stage, "block": block, **metrics, "unperturbed_error": final}

    return _route_frame(rows, splits, epochs)


def repeat_frame(repetitions=16, stages=3, splits=None, first_stage=1):
    """A repetitions frame: errors rise, the state of the last stage explodes."""

    def rows(final, rng):
        for stage in range(first_stage, stages + 1):
            for repetition in range(repetitions + 1):
                error = final + (0.9 - final) * (1 - np.exp(-0.08 * stage * repetition))
                distance = (np.exp(0.25 * stage * repetition) - 1) * 0.8
                yield {
                    "stage": stage,
                    "repetition": repetition,
                    "scale": 1.0,
                    **route_metrics(error, distance, rng),
                    "cosine_loss": -0.12 / stage + 0.015 * repetition + 0.01 * rng.normal(),
                    "l2_ratio": 0.1 * stage * np.exp(0.05 * stage * repetition),
                }

    return _route_frame(rows, splits)


def shuffle_frame(stages=3, splits=None, draws=5):
    """A shuffled blocks frame: the error rises as the order is lost."""

    def rows(final, rng):
        for stage in range(1, stages + 1):
            for swaps in (1, 2, 4, 8):
                for draw in range(draws):
                    tau = 1 - 0.1 * swaps * rng.uniform(0.5, 1.5)
                    error = final + 0.4 * (1 - tau) / stage * rng.uniform(0.8, 1.2)
                    yield {
                        "stage": stage,
                        "swaps": swaps,
                        "draw": draw,
                        "kendall_tau": tau,
                        **route_metrics(error, 2.0 * (1 - tau), rng),
                        "unperturbed_error": final,
                    }

    return _route_frame(rows, splits)


def index_frame(stages=3, splits=None, bases=("labels", "agreement")):
    """A convergence indices frame with a row per stage and one for their mean."""
    columns = ["convergence_index", "recurrence_index", "divergence_index"]

    def rows(final, rng):
        for basis in bases:
            values = np.array([[0.8 - 0.1 * s, 0.99 - 0.02 * s, 0.3 + 0.2 * s] for s in range(3)])
            values = np.resize(values, (stages, 3)) + 0.02 * rng.normal(size=(stages, 3))
            for stage, of_stage in zip(
                [*range(1, stages + 1), "mean"], [*values, values.mean(axis=0)], strict=True
            ):
                yield {
                    "basis": basis,
                    "stage": stage,
                    **dict(zip(columns, of_stage, strict=True)),
                    "error": final,
                    "chance": 0.9,
                }

    return _route_frame(rows, splits)


def borderline_frame(splits=None, blocks=(13, 14, 15, 16, 17), repetitions=20):
    """A borderline frame along the blocks and the repetitions, with 310 borderline images."""
    groups = {"borderline": (310, 0.5, 1.0), "correct": (9000, 0.99, 0.1), "all": (10000, 0.9, 0.3)}
    courses = {"blocks": list(blocks), "repetitions": [blocks[-1] + k for k in range(repetitions)]}

    def rows(final, rng):
        for along, places in courses.items():
            for place, block in enumerate(places):
                for group, (images, accuracy, loss) in groups.items():
                    sign = 1 if group == "borderline" else -0.3
                    yield {
                        "along": along,
                        "block": block,
                        "group": group,
                        "images": images,
                        "accuracy": accuracy - final + 0.02 * sign * place / (1 + 0.2 * place),
                        "cross_entropy": loss + final + 0.02 * place + 0.005 * rng.random(),
                        "entropy": 0.5 * loss + final - 0.003 * place,
                    }

    return _route_frame(rows, splits)
