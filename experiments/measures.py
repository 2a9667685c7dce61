"""What is measured on trained networks: functions from a `Trained` to a frame.

Each of them says on how many images it is measured (`on`), which the page repeats.

Errors of a trained network, `error` and `train_error`, are those at inference on images that are
not augmented: all test images, and the first `IMAGES` training images. The training error over the
epochs is that of the first `IMAGES_PER_EPOCH` of them.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pandas as pd
from catalogue import Untrained
from judging import share

import tfresidual
from tfresidual import probes
from tfresidual.jobs.building import compile_for
from tfresidual.jobs.training import IMAGES_PER_EPOCH
from tfresidual.probes import from_logs
from tfresidual.probes.convergence_indices import (
    INDICES,
    convergence_index,
    divergence_index,
    recurrence_index,
)
from tfresidual.routing import routes
from tfresidual.surgery.statistics import UPDATES, update_statistics

# Images of each split on which trained networks are measured, if not on all.
IMAGES = 2000
# Scales of the branch of a repeated block. Jastrzebski et al. 2018 do not say which one they use.
SCALES = (0.02, 0.05, 0.1, 0.3)
# Repetitions of the last block.
TIMES = 20
# Images whose statistics batch normalization has in a network that is measured before training.
WARMUP = 512
# Images whose paths are measured, a pass per block.
LINES = 256


def on(**counts):
    """Decorator: a function `(trained, images) -> frame` is a measure, which takes the images.

    Args:
        **counts: about how many images, by split; `None` for all.
    """

    def decorate(function):
        @functools.wraps(function)
        def measure(trained):
            return function(trained, trained.images(counts))

        measure.images = counts
        return measure

    return decorate


def logged_on(**counts):
    """Decorator: a measure reads the log of the training, which was made on so many images."""

    def decorate(measure):
        measure.images, measure.of_training = counts, True
        return measure

    return decorate


def _error(chain, data):
    frame = probes.evaluate_routes(chain, data, [routes.unperturbed(chain)])
    return frame["error"].item(), frame["cross_entropy"].item()


@on(train=IMAGES, test=None)
def summary(trained, images):
    """The errors of the network, its parameters, and the time its training took."""
    error, loss = _error(trained.chain, images["test"])
    train_error, train_loss = _error(trained.chain, images["train"])
    network = trained.untrained()
    found = {
        "error": [error],
        "train_error": train_error,
        "loss": loss,
        "train_loss": train_loss,
        "parameters": network.count_params(),
    }
    if not isinstance(trained.network, Untrained):
        log = trained.log
        best = len(log) - 1 if trained.network.is_last else log[f"val_{trained.metric}"].idxmax()
        found |= {"best_epoch": best, "epochs": len(log)}
        found |= {"seconds": log["seconds"].sum(min_count=1)}
    return pd.DataFrame(found)


@logged_on(train=IMAGES_PER_EPOCH, validation=None)
def history(trained):
    """Errors and losses on training and validation images after every epoch."""
    log, metric = trained.log, trained.metric
    return pd.DataFrame(
        {
            "epoch": log["epoch"],
            "error": 1 - log[f"val_{metric}"],
            "train_error": 1 - log["plain_accuracy"],
            "loss": log["val_loss"],
            "train_loss": log["plain_loss"],
        }
    )


@logged_on(train=IMAGES_PER_EPOCH, validation=IMAGES_PER_EPOCH)
def by_epoch(trained):
    """What the callbacks of the training published for every block and epoch.

    Of a network that was trained elsewhere, of the epochs whose weights came back.
    """
    found = from_logs(trained.log)
    return found[found.groupby("epoch")["l2_ratio"].transform(lambda of: of.notna().any())]


PLACE = ["split", "stage", "block"]


def with_errors(means, each, keys=PLACE):
    """Returns means with the standard errors over images of columns that have none, as `..._se`.

    Args:
        means: a frame of means.
        each: the same of every image.
        keys: columns that tell the rows of `means` apart.
    """
    numbers = [
        name for name in means if name in each and name not in keys and f"{name}_se" not in means
    ]
    errors = each.groupby(keys)[numbers].sem().add_suffix("_se")
    return means.merge(errors.reset_index(), on=keys, how="left")


@on(train=IMAGES, test=IMAGES)
def block_metrics(trained, images):
    """Cosine loss, l2 ratio, gradient norm and perturbations of every block, of two splits."""
    each = probes.block_metrics(trained.chain, images, per_image=True)
    return with_errors(probes.block_metrics(trained.chain, images), each)


def _first_orders(trained, images):
    """Returns the first-order terms of every image, which are measured once."""
    return trained.once(
        "first_order", lambda: probes.first_order(trained.chain, images, per_image=True)
    )


@on(train=IMAGES, test=IMAGES)
def first_order(trained, images):
    """The first-order term of every block against what it does to the loss."""
    each = _first_orders(trained, images)
    return with_errors(probes.first_order(trained.chain, images), each)


@on(train=IMAGES, test=IMAGES)
def stage_sums(trained, images):
    """The head's first-order terms, summed along the last stage, and the change of its loss."""
    each = _first_orders(trained, images)
    each = each[each["stage"] == each["stage"].max()].dropna(subset=["first_order_readout"])
    sums = each.groupby(["split", "image"])[["first_order_readout", "readout_change"]].sum()
    parts = sums.groupby("split")
    found = parts.mean().join(parts.sem().add_suffix("_se"))
    # Both are measured on the same images: the noise of a quotient is that of what it leaves over.
    ratio = found["first_order_readout"] / found["readout_change"]
    left = sums["first_order_readout"] - sums["readout_change"].mul(ratio, level="split")
    noise = left.groupby("split").sem() / found["readout_change"].abs()
    return found.assign(ratio=ratio, ratio_se=noise).reset_index()


@on(test=IMAGES)
def drop_blocks(trained, images):
    """The predictions without each of the blocks."""
    return probes.drop_blocks(trained.chain, images)


@on(test=IMAGES)
def perturbation(trained, images):
    """How far every block moves the state."""
    each = probes.perturbation(trained.chain, images, per_image=True)
    return with_errors(probes.perturbation(trained.chain, images), each)


SCORES = ["accuracy", "cross_entropy", "entropy"]


def with_steps(each, keys):
    """Returns means of `SCORES` along blocks, with steps and changes and their standard errors.

    A step is the change from the row before to this one, a change that from the first row, both of
    the same images.

    Args:
        each: frame of every image, with the columns `block`, `image` and `SCORES`.
        keys: columns that tell curves apart.
    """
    found = []
    for key, rows in each.groupby(keys, sort=False):
        tables = rows.pivot(index="image", columns="block", values=SCORES)
        parts = {"block": rows["block"].unique(), "images": len(tables)}
        for name in SCORES:
            table = tables[name]
            compared = {"step": table.diff(axis=1), "change": table.sub(table.iloc[:, 0], axis=0)}
            parts |= {name: table.mean().to_numpy()}
            for kind, values in compared.items():
                parts |= {f"{name}_{kind}": values.mean().to_numpy()}
                parts |= {f"{name}_{kind}_se": values.sem().to_numpy()}
        found.append(pd.DataFrame(dict(zip(keys, key, strict=True)) | parts))
    return pd.concat(found, ignore_index=True)


@on(test=IMAGES)
def readouts(trained, images):
    """The predictions of the head after every block of the last stage, from block to block."""
    stage = trained.chain.stages[-1]
    names = {
        (route := routes.readout(trained.chain, stage.index, block)).name: (block, route)
        for block in stage.exits
    }
    each = probes.evaluate_routes(
        trained.chain, images, [route for _, route in names.values()], per_image=True
    )
    each["block"] = each["route"].map({name: block for name, (block, _) in names.items()})
    return with_steps(each.assign(accuracy=1 - each["error"]), ["split"])


@on(train=IMAGES, test=IMAGES)
def borderline(trained, images):
    """Groups of images after each of the last blocks and as the last one is repeated."""
    return trained.once("borderline", lambda: _borderline(trained, images))


def chosen_scales(frame):
    """Returns the scale of the repeated branch with the lowest training loss at the end, by name.

    Args:
        frame: a frame of `borderline` with the names of networks.
    """
    rows = frame[(frame["along"] == "repetitions") & (frame["scale"] != 1)]
    rows = rows[(rows["split"] == "train") & (rows["group"] == "all")]
    last = rows[rows["block"] == rows.groupby("name")["block"].transform("max")]
    best = last.sort_values("cross_entropy", kind="stable").drop_duplicates("name")
    return best.set_index("name")["scale"]


def _borderline(trained, images):
    found = []
    for scale in (1.0, *SCALES):
        each = probes.borderline(trained.chain, images, times=TIMES, scale=scale, per_image=True)
        if scale != 1:
            # The blocks as they are trained are the same for all scales.
            each = each[each["along"] == "repetitions"].assign(scale=scale)
        # Groups are those at the start of a curve.
        first = each["block"] == each.groupby("along")["block"].transform("min")
        start = each[first].set_index(["split", "along", "image"])
        members = {"borderline": start["borderline"], "correct": start["correct"]}
        members["all"] = start["correct"] | True
        place = pd.MultiIndex.from_frame(each[["split", "along", "image"]])
        for group, of in members.items():
            chosen = each[of.reindex(place).to_numpy(bool)].assign(group=group, scale=scale)
            found.append(with_steps(chosen, ["split", "along", "scale", "group"]))
    return pd.concat(found, ignore_index=True)


@on(test=IMAGES)
def next_block(trained, images):
    """Groups of images by the read-out before each of the last blocks, which the block changes."""
    return probes.borderline(trained.chain, images, times=0, groups="next block")


@on(train=IMAGES, test=IMAGES)
def repetitions(trained, images):
    """The last block of the last stage repeated, as it is and with its branch scaled as chosen."""
    name, last = trained.network.name, trained.chain.stages[-1].index
    scale = chosen_scales(borderline(trained).assign(name=name))[name]
    found = pd.concat(
        probes.repeat_last_block(trained.chain, images, times=TIMES, scale=one, stages=[last])
        for one in (1.0, float(scale))
    )
    return found.merge(_growth(trained, images), on=["split", "stage"], how="left")


def _growth(trained, images):
    """Returns how much further the last of the repetitions leads than the first."""
    stage = trained.chain.stages[-1].index
    asked = [routes.repeat_last_block(trained.chain, stage, times) for times in (1, TIMES)]
    each = probes.evaluate_routes(trained.chain, images, asked, per_image=True)
    found, column = [], f"stage{stage}_distance"
    for split, rows in each.groupby("split"):
        by_route = rows.groupby("route", sort=False)
        one, other = (by_route.get_group(route.name)[column].to_numpy() for route in asked)
        with np.errstate(over="ignore", invalid="ignore"):
            growth = other.mean() / one.mean()
            noise = np.std(other - growth * one, ddof=1) / len(one) ** 0.5 / one.mean()
        found.append((split, stage, growth, noise))
    return pd.DataFrame(found, columns=["split", "stage", "growth", "growth_se"])


@on(train=WARMUP, validation=WARMUP)
def initial_signal(trained, images):
    """State and gradient at every block of the network as it is built.

    Batch normalization has the statistics with which it begins, means of 0 and variances of 1, so
    that it changes nothing.
    """
    return signal_of(trained.untrained(), trained.settings, images)


def signal_of(network, settings, images):
    """Returns the state and the gradient at every block of an untrained network."""
    compile_for(network, settings, 1)
    chain = tfresidual.chain(network)
    each = probes.signal_propagation(chain, images, per_image=True)
    return with_errors(probes.signal_propagation(chain, images), each)


@on(train=WARMUP, validation=WARMUP)
def first_signal(trained, images):
    """State and gradient at every block before the training, with the statistics of images."""
    network = trained.untrained()
    batch, _ = next(iter(images["train"].unbatch().batch(WARMUP)))
    update_statistics(network, [batch] * UPDATES)
    return signal_of(network, trained.settings, images)


def _convergence(trained, images):
    """Returns the frames of three kinds of routes, and of the indices, which are measured once."""
    return trained.once(
        "convergence", lambda: probes.convergence_frames(trained.chain, images, at_chance="nan")
    )


@on(test=IMAGES)
def route_errors(trained, images):
    """Every stage left early, every block dropped, every last block repeated 16 times."""
    frames, _ = _convergence(trained, images)
    renamed = {"repetition": "block"}
    return pd.concat(
        frame.rename(columns=renamed).assign(route=name) for name, frame in frames.items()
    )


@on(test=IMAGES)
def indices(trained, images):
    """The convergence, recurrence and divergence index of every stage, with standard errors."""
    routes, found = _convergence(trained, images)
    parts = []
    for basis, rows in found.groupby("basis", sort=False):
        moved = [_moved_indices(routes, basis, rows, *by) for by in ((0, 0), (1, 0), (0, 1))]
        errors = np.hypot(moved[1] - moved[0], moved[2] - moved[0])
        parts.append(rows.assign(**{f"{name}_se": errors[:, i] for i, name in enumerate(INDICES)}))
    return pd.concat(parts)


def _moved_indices(routes, basis, rows, of_routes, of_whole):
    """Returns the indices of every stage, and their means, with errors moved by their noise.

    All routes are measured on the same images. Their errors are taken to rise and fall together, so
    that none of their noise averages out, and that with which they are compared apart from them.

    Args:
        routes: the frames of three kinds of routes, by name.
        basis: that of the indices.
        rows: the rows of the indices, with the error of the network and that of guessing.
        of_routes: by how many standard errors the errors on the routes are moved.
        of_whole: by how many those with which they are compared are moved: that of the whole
            network, or that without the last block.
    """

    def moved(errors, by):
        return np.array([one + by * share(one, IMAGES).se for one in errors])

    def of(name, stage):
        part = routes[name][routes[name]["stage"] == stage]
        return (part["error"] if basis == "labels" else 1 - part["agreement"]).to_numpy()

    (error,), chance = moved(rows["error"].iloc[:1], of_whole), rows["chance"].iloc[0]
    found = []
    for stage in rows["stage"].iloc[:-1]:
        dropped = of("drop_blocks", stage)
        without = [*moved(dropped[:-1], of_routes), *moved(dropped[-1:], of_whole)]
        # Without the row of no repetition.
        repeated = moved(of("repeat_last_block", stage)[1:], of_routes)
        read = moved(of("readout", stage), of_routes)
        found.append(
            [
                convergence_index(read, error, chance),
                recurrence_index(without, chance),
                divergence_index(repeated, error, chance),
            ]
        )
    return np.array([*found, np.mean(found, axis=0)])


def weights(trained):
    """Raw and effective number of parameters, and the mean deviation of the weights."""
    first = trained.settings.coupling_from
    count = probes.effective_parameters(trained.chain, first_block=first).iloc[-1]
    deviations = probes.weight_deviations(trained.chain, first_block=first)
    return pd.DataFrame(
        {
            "raw_parameters": [count["raw"]],
            "recurrent_parameters": count["recurrent"],
            "effective_parameters": count["effective"],
            "deviation": deviations["l1"].sum() / deviations["parameters"].sum(),
        }
    )


def lines(trained, pairs=64):
    """Straight lines between the first states of two images, of one class and of two.

    The pairs are among the first test images, as the entry says.
    """
    images = trained.images({"test": IMAGES})["test"]
    images, labels = next(iter(images.unbatch().batch(IMAGES)))
    images, labels = images.numpy(), labels.numpy()
    if labels.ndim > 1:
        # The lowest of the digits on the image.
        labels = labels.argmax(axis=-1)
    order = np.argsort(labels, kind="stable")
    same = [(i, j) for i, j in itertools.pairwise(order) if labels[i] == labels[j]]
    rng = np.random.default_rng(0)
    same = rng.permutation(same)[:pairs]
    other = [
        (i, j) for i, j in rng.integers(0, len(labels), (8 * pairs, 2)) if labels[i] != labels[j]
    ]
    chosen = {"one class": same, "two classes": np.array(other[:pairs])}
    return pd.concat(
        probes.line_between(trained.chain, images[of[:, 0]], images[of[:, 1]], stage=stage)
        .mean()
        .to_frame()
        .T.assign(classes=classes, stage=stage)
        for classes, of in chosen.items()
        for stage in range(1, 1 + len(trained.chain.stages))
    ).drop(columns=["pair", "block"])


@on(test=LINES)
def path_lengths(trained, images):
    """The lengths of the paths of images through the stages, by the line element with the step."""
    frame = probes.path_lengths(trained.chain, images)
    return frame.rename(columns={"blocks": "measured"})
