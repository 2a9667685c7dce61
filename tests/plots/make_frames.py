"""Frames as probes, training and experiments would give them, from a seed."""

import itertools

import numpy as np
import pandas as pd

ROLES = {
    f"{kind}{number}/{name}": count
    for number, (kind, parts) in itertools.product(
        (1, 2),
        (
            ("normalization", {"gamma": 16, "beta": 16}),
            ("convolution", {"kernel": 2304, "bias": 16}),
        ),
    )
    for name, count in parts.items()
}


def keys(stages=3, splits=None, epochs=None, **others):
    """A frame of keys: a row per split, epoch, stage and what else is named."""
    columns = {
        "split": splits or (None,),
        "epoch": range(epochs or 1),
        "stage": range(1, stages + 1),
        **others,
    }
    frame = pd.MultiIndex.from_product(columns.values(), names=columns).to_frame(index=False)
    unused = [name for name, used in (("split", splits), ("epoch", epochs)) if not used]
    return frame.drop(columns=unused)


def progress(frame):
    """How far the training is, from over 0 to 1, and the place of the split."""
    epochs = frame["epoch"] + 1 if "epoch" in frame else pd.Series(1, frame.index)
    places = pd.factorize(frame["split"])[0] if "split" in frame else 0
    return epochs / epochs.max(), places


def block_frame(blocks=3, stages=3, splits=None, epochs=None, gap=True, seed=0):
    """A block metrics frame: later blocks more negative in cosine, smaller in size.

    With `gap`, the first block of every stage but the first changes the shape and has no values.
    """
    frame = keys(stages, splits, epochs, block=range(blocks))
    time, _ = progress(frame)
    noise = np.random.default_rng(seed).normal(size=(4, len(frame)))
    depth = ((frame["stage"] - 1) * blocks + frame["block"]) / (stages * blocks)
    size = 1.6 * np.exp(-frame["block"] / (0.4 * blocks)) / frame["stage"] + 0.05
    last = (-0.3 * (frame["block"] + 1) / blocks * time + 0.015 * noise[1]).where(
        frame["stage"] == stages
    )
    values = {
        "cosine_loss": -0.25 * depth * time + 0.01 * noise[0],
        "readout_cosine_loss": last,
        "l2_ratio": size * np.exp(0.08 * noise[2]),
        "gradient_norm": 0.4 * np.exp(-4 * depth + 0.1 * noise[3]) * (1.1 - time),
        "perturbation": 12 * size * frame["stage"],
        "scaled_perturbation": size * (0.5 + 0.5 * time),
    }
    is_gap = gap & (frame["stage"] > 1) & (frame["block"] == 0)
    return frame.assign(**{name: value.mask(is_gap) for name, value in values.items()})


def distance_frame(blocks=3, stages=3, splits=None):
    """A distance frame with a row per stage and one for all of them."""
    frame = keys(stages, splits).assign(blocks=blocks)
    _, place = progress(frame)
    frame["distance"] = 130.0 + 35 * (frame["stage"] - 1) + 9 * place
    frame["scaled_distance"] = 3.69 + 0.3 * (frame["stage"] - 1) + 0.1 * place
    columns = ["blocks", "distance", "scaled_distance"]
    by = frame["split"] if splits else pd.Series("", frame.index, name="split")
    sums = frame.groupby(by, sort=False)[columns].sum().reset_index().assign(stage="all")
    return pd.concat([frame, sums[list(frame)]], ignore_index=True)


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


def final_error(frame):
    """The error of the unperturbed network, which falls during the training."""
    time, place = progress(frame)
    return 0.02 + 0.05 * place + 0.5 * (1 - time)


def with_metrics(frame, error, distance):
    """A frame with this error and distance, and a cross-entropy that goes with them."""
    error = error.clip(0.0, 1.0)
    noise = 0.02 * np.random.default_rng(0).random(len(frame))
    loss = 0.02 + 2.3 * error + 0.001 * distance**2 + noise
    return frame.assign(error=error, cross_entropy=loss, distance=distance)


def readout_frame(blocks=3, stages=3, splits=None, epochs=None):
    """A read-out frame: the error falls from chance to the final one, earliest in stage 1."""
    frame = keys(stages, splits, epochs, block=range(blocks))
    left = (blocks - 1 - frame["block"]) / blocks
    final = final_error(frame)
    error = final + (0.9 - final) * left ** (1 + 1 / frame["stage"])
    return with_metrics(frame, error, 4.0 * frame["stage"] * left)


def drop_frame(blocks=3, stages=3, splits=None, epochs=None, gap=True):
    """A dropped blocks frame: the first blocks matter most; `gap` is that of `block_frame`."""
    frame = keys(stages, splits, epochs, block=range(blocks))
    final = final_error(frame)
    noise = 0.01 * np.random.default_rng(1).random(len(frame))
    error = final + 0.5 * np.exp(-1.5 * frame["block"]) / frame["stage"] + noise
    is_gap = gap & (frame["stage"] > 1) & (frame["block"] == 0)
    return frame.assign(error=error.mask(is_gap), unperturbed_error=final)


def rounding_frame(blocks=3, stages=3, splits=None):
    """A rounded blocks frame: few bits and first blocks matter most, noise half as much."""
    frame = keys(stages, splits, block=range(blocks), bits=(8, 3))
    kl = np.exp(-frame["block"] - frame["bits"])
    columns = {"kl": kl, "noise_kl": kl / 2, "error_rise": kl / 3, "noise_error_rise": kl / 4}
    return frame.assign(bytes_saved=900, **columns, kl_se=kl / 9)


def head_frame(blocks=3, stages=3, splits=None):
    """A dropped heads frame: the first head matters most, and the network is surer without one."""
    frame = keys(stages, splits, block=range(blocks), head=range(4))
    rise = 0.1 * np.exp(-frame["head"]) * (frame["block"] + 1) - 0.02
    return frame.assign(cross_entropy_rise=rise, error_rise=rise / 2)


def repeat_frame(repetitions=16, stages=3, splits=None, first_stage=1):
    """A repetitions frame: errors rise, the state of the last stage explodes."""
    frame = keys(stages, splits, repetition=range(repetitions + 1))
    frame = frame[frame["stage"] >= first_stage].reset_index(drop=True)
    final, course = final_error(frame), frame["stage"] * frame["repetition"]
    error = final + (0.9 - final) * (1 - np.exp(-0.08 * course))
    frame = with_metrics(frame.assign(scale=1.0), error, (np.exp(0.25 * course) - 1) * 0.8)
    noise = 0.01 * np.random.default_rng(1).normal(size=len(frame))
    return frame.assign(
        cosine_loss=-0.12 / frame["stage"] + 0.015 * frame["repetition"] + noise,
        l2_ratio=0.1 * frame["stage"] * np.exp(0.05 * course),
    )


def shuffle_frame(stages=3, splits=None, draws=5):
    """A shuffled blocks frame: the error rises as the order is lost."""
    frame = keys(stages, splits, swaps=(1, 2, 4, 8), draw=range(draws))
    rng = np.random.default_rng(0)
    tau = 1 - 0.1 * frame["swaps"] * rng.uniform(0.5, 1.5, len(frame))
    final = final_error(frame)
    error = final + 0.4 * (1 - tau) / frame["stage"] * rng.uniform(0.8, 1.2, len(frame))
    return frame.assign(kendall_tau=tau, error=error, unperturbed_error=final)


def index_frame(stages=3, splits=None, bases=("labels", "agreement")):
    """A convergence indices frame with a row per stage and one for their mean."""
    frame = keys(stages, splits, basis=bases)
    noise = 0.02 * np.random.default_rng(0).normal(size=(3, len(frame)))
    place = (frame["stage"] - 1) % 3
    frame["convergence_index"] = 0.8 - 0.1 * place + noise[0]
    frame["recurrence_index"] = 0.99 - 0.02 * place + noise[1]
    frame["divergence_index"] = 0.3 + 0.2 * place + noise[2]
    by = ["split", "basis"] if splits else ["basis"]
    means = frame.groupby(by, sort=False).mean().reset_index().assign(stage="mean")
    frame = pd.concat([frame, means], ignore_index=True)
    return frame.assign(error=final_error(frame), chance=0.9)


def borderline_frame(splits=None, blocks=(13, 14, 15, 16, 17), repetitions=20):
    """A borderline frame along the blocks and the repetitions, with 310 borderline images."""
    groups = {"borderline": (310, 0.5, 1.0), "correct": (9000, 0.99, 0.1), "all": (10000, 0.9, 0.3)}
    courses = {"blocks": list(blocks), "repetitions": [blocks[-1] + k for k in range(repetitions)]}
    rng = np.random.default_rng(0)
    rows = [
        {
            "split": split,
            "along": along,
            "block": block,
            "group": group,
            "images": images,
            "accuracy": accuracy - 0.05 * i + (-1) ** (group != "borderline") * 0.01 * place,
            "cross_entropy": loss + 0.05 * i + 0.02 * place + 0.005 * rng.random(),
            "entropy": 0.5 * loss + 0.05 * i - 0.002 * place,
        }
        for i, split in enumerate(splits or (None,))
        for along, places in courses.items()
        for place, block in enumerate(places)
        for group, (images, accuracy, loss) in groups.items()
    ]
    frame = pd.DataFrame(rows)
    return frame if splits else frame.drop(columns="split")


def state_frame(columns, stages=1, blocks=3, splits=None, first=-1, seed=0):
    """A frame with a row for every state, from the one before the first block of a stage."""
    frame = keys(stages, splits, block=range(first, blocks))
    rng = np.random.default_rng(seed)
    frame = frame.assign(**{name: rng.random(len(frame)) for name in columns})
    if "attribution" in columns:
        parts = {-1: "first state", blocks - 1: "head"}
        frame["part"] = [parts.get(block, "block") for block in frame["block"]]
    return frame


def first_order_frame(blocks=4, stages=3, splits=None, first=1.0):
    """Every block lowers the loss; the first one by `first` times as much."""
    frame = keys(stages, splits, block=range(blocks))
    _, place = progress(frame)
    is_first = (frame["stage"] == 1) & (frame["block"] == 0)
    change = -0.1 / frame["stage"] * np.where(is_first, first, 1)
    return frame.assign(
        loss_change=change,
        first_order=(1.2 + place / 10) * change,
        first_order_after=0.9 * change,
        rank_correlation=0.5 + frame["block"] / 10,
        rank_correlation_after=0.9,
    )


def importance_frame(blocks=4, stages=3, splits=None):
    """Every criterion says that the first blocks matter most."""
    frame = keys(stages, splits, block=range(blocks))
    value = 0.1 / (1 + frame["stage"] + frame["block"])
    names = ("error_rise", "cross_entropy_rise", "predicted_rise")
    names += ("influence", "angular_distance", "l2_ratio")
    return frame.assign(**dict.fromkeys(names, value))


def plan_frame(blocks=4):
    """Plans by two criteria, of which the second costs twice as much."""
    rows = [
        {"by": by, "blocks_left": blocks - gone, "error": 0.1 + factor * gone / 100}
        for factor, by in enumerate(("loss", "influence"), start=1)
        for gone in range(blocks)
    ]
    frame = pd.DataFrame(rows)
    return frame.assign(cross_entropy=3 * frame["error"])


def exit_frame(blocks=4):
    """Thresholds, of which the last is never reached; images that leave later cost more."""
    share = np.linspace(1 / blocks, 1, blocks + 1)
    frame = pd.DataFrame({"threshold": [*np.linspace(0, 1, blocks), np.inf]})
    return frame.assign(
        error=0.5 - 0.4 * share,
        random_error=0.6 - 0.5 * share,
        flops_share=share,
        milliseconds=3 * share + 1,
    )


def line_element_frame(blocks=3, stages=2, splits=None, growth=1.0):
    """A line element frame: the spatial part grows."""
    frame = keys(stages, splits, block=range(blocks))
    _, place = progress(frame)
    layer = 4.0 + place + 0 * frame["block"]
    spatial = 9.0 * growth ** (3.0 * frame["stage"] + frame["block"])
    return frame.assign(layer_part=layer, spatial_part=spatial, length=np.sqrt(layer + spatial))


def linear_probe_frame(blocks=3, stages=2, splits=None):
    """The classifier reads more from every block, its controls as much from each."""
    frame = keys(stages, splits, block=range(blocks))
    accuracy = 1 - 1 / (2 + frame["stage"] + frame["block"])
    return frame.assign(accuracy=accuracy, untrained=0.3, control=0.1, head=0.9 * accuracy)


def similarity_frame(blocks=3, stages=2, splits=None):
    """The farther apart two blocks are, the less they have in common; nothing if untrained."""
    frame = keys(stages, splits, block=range(blocks))
    other = keys(stages, None, block=range(blocks)).add_prefix("other_")
    frame = frame.merge(other, how="cross")
    apart = (frame["stage"] - frame["other_stage"]).abs() * blocks
    apart += (frame["block"] - frame["other_block"]).abs()
    return frame.assign(cka=1 / (1 + apart), untrained=0.0)


def network_frame(networks=("ResNet-110", "ResNet-38", "naive sharing"), epochs=30, seeds=2):
    """A history frame of networks, of which those with "naive" in their name overfit."""
    index = pd.MultiIndex.from_product(
        [networks, range(seeds), range(epochs)], names=["network", "seed", "epoch"]
    )
    frame = index.to_frame(index=False)
    noise = np.random.default_rng(0).random((4, len(frame)))
    time = (frame["epoch"] + 1) / epochs
    naive = frame["network"].str.contains("naive")
    train = 0.6 * np.exp(-4 * time) + 0.01 * frame["network"].map(list(networks).index)
    return frame.assign(
        train_error=train + 0.005 * noise[0],
        error=train + 0.06 + 0.1 * naive * time + 0.03 * noise[1],
    )


def propagation_frame(blocks=3, stages=3, splits=None, epochs=None, growth=1.0, **named):
    """A signal propagation frame: the state grows along the blocks, the gradient shrinks."""
    frame = keys(stages, splits, epochs, block=range(blocks))
    _, place = progress(frame)
    epoch = frame["epoch"] if epochs else 0
    depth = ((frame["stage"] - 1) * blocks + frame["block"]) / (stages * blocks)
    return frame.assign(
        state_norm=20 * np.exp(3 * growth * depth) * (1 + 0.1 * place),
        state_gradient_norm=0.1 * np.exp(-4 * depth) / (1 + 0.2 * epoch),
        shortcut_share=0.4 + 0.5 * depth + 0.02 * epoch,
        **named,
    )


def fixed_point_frame(steps=32, stages=3, splits=None):
    """A fixed point frame: each stage contracts by a factor of its own, the last one at 0.9."""
    frame = keys(stages, splits, repetition=range(steps + 1))
    _, place = progress(frame)
    step, rate = frame["repetition"], 0.9 - 0.15 * (stages - frame["stage"])
    change = (10 + place) * frame["stage"] * rate**step
    return frame.assign(
        change=change,
        contraction=rate.where(step > 0),
        largest_contraction=rate.where(step > 0) + 0.04,
        distance=change * rate * (1 - rate ** (steps - step)) / (1 - rate),
    )


def lipschitz_frame(blocks=3, stages=3, mu=0.95):
    """A Lipschitz frame: some branches under `mu`, the certified bound 5 % over the estimate."""
    frame = keys(stages, block=range(blocks))
    noise = np.random.default_rng(0).random(len(frame))
    estimate = 0.7 + 2.5 * np.exp(-frame["block"] / blocks) * noise
    divisor = (estimate / mu).clip(1.0)
    return frame.assign(estimate=estimate, certified=1.05 * estimate, divisor=divisor)


def deviation_frame(blocks=3, stages=3, roles=ROLES):
    """A weight deviations frame: the first and last blocks differ most from the mean."""
    frame = keys(stages, block=range(blocks), role=list(roles))
    noise = np.random.default_rng(0).random(len(frame))
    deviation = 0.4 + 0.3 * (2 * frame["block"] / max(blocks - 1, 1) - 1).abs() * noise
    parameters = frame["role"].map(roles) * frame["stage"] ** 2
    return frame.assign(parameters=parameters, deviation=deviation, l1=deviation * parameters)


def inference_frame(blocks=3, stages=3, splits=None, epochs=20, shape_changes=True):
    """A block metrics frame over epochs, as callbacks log it; later blocks refine more."""
    frame = keys(stages, splits, epochs, block=range(blocks))
    time, _ = progress(frame)
    depth = (frame["block"] + 1) / blocks
    gone = shape_changes & (frame["stage"] > 1) & (frame["block"] == 0)
    noise = 0.005 * np.random.default_rng(0).normal(size=len(frame))
    return frame.assign(
        cosine_loss=(-0.1 * depth * time + noise).mask(gone),
        l2_ratio=(0.05 + np.exp(-4 * depth) / (1 + time)).mask(gone),
        readout_error=0.9 - 0.8 * depth * time,
    )
