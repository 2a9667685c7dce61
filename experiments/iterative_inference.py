"""II: Jastrzebski et al. 2018, "Residual connections encourage iterative inference"."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math

import numpy as np
import pandas as pd
from algebra import Algebra, Setting, moves
from catalogue import (
    WELL,
    Network,
    cases_by,
    entry,
    errors_of,
    fits_under,
    has_seeds,
    over_seeds,
    small_batches,
    statement,
    table_by,
    those,
)
from clock import clocked
from drawing import in_a_row, panels, ranged, table
from judging import Case, Measured, every, mean_of, paired, ranks, sampled, share
from measures import (
    IMAGES,
    TIMES,
    block_metrics,
    borderline,
    by_epoch,
    chosen_scales,
    drop_blocks,
    first_order,
    first_signal,
    history,
    initial_signal,
    next_block,
    readouts,
    repetitions,
    stage_sums,
    summary,
)

from tfresidual import callbacks, training
from tfresidual.jobs.settings import Settings

# The recipes of the networks of section 4 besides ResNet-110, by the name that figures show.
DEEP = {
    "single representation": "single_representation",
    "average pooling": "avg_pooling",
    "wide": "wide",
}
# The presets of these recipes, where they have another name.
PRESETS = {"avg_pooling": "average_pooling_resnet", "wide": "wide_resnet"}
# Batch normalization and initial gamma of the shared later blocks of a stage.
STRATEGIES = {
    "naive": {"batch_norm": "shared", "gamma": 1.0},
    "gamma 0.1": {"batch_norm": "shared", "gamma": 0.1},
    "statistics": {"batch_norm": "unshared_statistics", "gamma": 1.0},
    "statistics, gamma 0.1": {"batch_norm": "unshared_statistics", "gamma": 0.1},
    "UBN": {"batch_norm": "unshared"},
}
SHARED = [f"110 {strategy}" for strategy in STRATEGIES]
# Blocks per stage that stand for the paper's ResNets, by the paper's number of layers, and the
# number of blocks after which they are shared. With UBN, 146 and 182 layers have the parameters
# of 38.
BLOCKS = {
    "smoke": ({32: 2, 38: 3, 56: 3, 110: 4, 146: 5, 182: 6}, 2),
    "small": ({32: 3, 38: 4, 56: 6, 110: 9, 146: 12, 182: 15}, 3),
    "trained": ({38: 6, 56: 9, 110: 18}, 5),
    "paper": ({32: 5, 38: 6, 56: 9, 110: 18, 146: 24, 182: 30}, 5),
}
SEEDS = {"smoke": 1, "small": 2, "paper": 4}
# Of the networks that exist at the size `trained`, too.
TRAINED = SEEDS | {"trained": 1}
COMMON = {
    "smoke": {"width": 4, "epochs": 2, "train_size": 256, "validation": 64, "test_size": 64},
    "small": {
        "data": "cifar10",
        "recipe": "cifar10",
        "width": 8,
        "epochs": 6,
        **small_batches(training.recipe("cifar10")),
        "train_size": 8000,
        "test_size": 5000,
    },
    "paper": {"data": "cifar10", "batch_size": 128, "validation": 5000},
}
# One network that has learnt says more than many that have begun to.
COMMON["trained"] = WELL | {"width": 8, "epochs": 4}
LEARNT = {"width": 16, "epochs": 15}
# Few images, as they are, until their loss is next to nothing.
OVERFITTED = {"width": 16, "epochs": 40, "train_size": 8000, "augment": False}
# Channels of the published networks at the smaller sizes, instead of their own. Of 24 channels, an
# epoch in bfloat16 takes 13 minutes of one core with AMX: all states have 32x32 pixels.
WIDTHS = {"smoke": 4, "small": 16, "trained": 16, "paper": None}


def watched(images):
    """Callbacks for networks whose blocks are followed over the epochs."""
    return [
        *clocked(images),
        callbacks.BlockMetrics(images),
        callbacks.Readout(images),
        callbacks.SignalPropagation(images),
    ]


def network(size, label, seed, is_watched=True, recipe="resnet110", **changes):
    """A network of the paper; `changes` are those of the settings of its size."""
    common = dict(COMMON[size])
    if size == "paper":
        # The recipe of the network; those of the table and of sharing have that of ResNet-110.
        common |= {"recipe": recipe, "epochs": training.recipe(recipe).epochs}
        changes = {"width": 16} | changes
    settings = Settings(seed=seed, **common | changes)
    name = f"{DEEP.get(label, label).replace(', ', '-').replace(' ', '_')}-seed{seed}"
    labels = {"network": label, "seed": seed}
    return Network(name, settings, labels, watched if is_watched else clocked)


def published_network(size, label, seed, recipe, **changes):
    """A network that the paper describes, with its own recipe."""
    changes |= {"network": PRESETS.get(recipe, recipe), "width": WIDTHS[size]}
    return network(size, label, seed, recipe=recipe, **changes)


def resnet(size, layers, seed, strategy=None, label=None, **kwargs):
    """The network that stands for a ResNet of the paper, with or without shared blocks."""
    blocks, first = BLOCKS[size]
    shared = {} if strategy is None else {"share_from": first} | STRATEGIES[strategy]
    label = label or (f"ResNet-{layers}" if strategy is None else f"{layers} {strategy}")
    return network(size, label, seed, depth=6 * blocks[layers] + 2, **shared, **kwargs)


def learnt(seed):
    """ResNet-56 at the size `trained`."""
    return resnet("trained", 56, seed, **LEARNT)


def overfitted(seed):
    """The same on few images."""
    return resnet("trained", 56, seed, label="ResNet-56, few images", **OVERFITTED)


@over_seeds(TRAINED)
def deep(size, seed):
    """The network that stands for ResNet-110."""
    if size == "trained":
        return [learnt(seed), overfitted(seed)]
    return [resnet(size, 110, seed)]


@over_seeds(TRAINED)
def published(size, seed):
    """The four networks of section 4; three at the size `trained`."""
    if size == "trained":
        first, more = learnt(seed), {"epochs": 10}
        labels = ("single representation", "average pooling")
    else:
        first, more, labels = resnet(size, 110, seed), {}, DEEP
    others = (published_network(size, label, seed, DEEP[label], **more) for label in labels)
    return [first, *others]


@over_seeds(TRAINED)
def shared(size, seed):
    """Unshared networks of two depths, and the strategies of sharing."""
    return [resnet(size, 38, seed), resnet(size, 110, seed), *strategies(size, seed)]


def strategies(size, seed):
    """The strategies of sharing."""
    return [resnet(size, 110, seed, strategy) for strategy in STRATEGIES]


@over_seeds(SEEDS | {"small": 4})
def of_table(size, seed):
    """The networks of table 1."""
    return [
        resnet(size, 32, seed, is_watched=False),
        resnet(size, 38, seed),
        resnet(size, 56, seed, is_watched=False),
        resnet(size, 110, seed),
        resnet(size, 110, seed, "UBN"),
        resnet(size, 146, seed, "UBN", is_watched=False),
        resnet(size, 182, seed, "UBN", is_watched=False),
    ]


@over_seeds(SEEDS)
def pooled(size, seed):
    """Pooling between the stages by the mean and by the maximum, and ResNet-110.

    The paper trained the network with max pooling without showing it (section 3): it is more like
    the ResNet.
    """
    changes = {"is_watched": False, "transition": "max_pooling"}
    return [
        resnet(size, 110, seed),
        published_network(size, "average pooling", seed, "avg_pooling"),
        published_network(size, "max pooling", seed, "avg_pooling", **changes),
    ]


def on_cifar100(size):
    """The four networks of section 4 on CIFAR-100; Digitclutter stands for it at size `smoke`."""
    if size not in ("smoke", "paper"):
        return []
    found = published(size)
    if size == "smoke":
        return found
    return [
        dataclasses.replace(
            one,
            name=one.name.replace("-seed", "-cifar100-seed"),
            settings=dataclasses.replace(one.settings, data="cifar100"),
        )
        for one in found
    ]


def of_networks(frame, names):
    """Returns the rows of networks, by label."""
    return frame[frame["network"].isin(names)]


# Figures


@entry(
    "II-2",
    "How far does every block move the state, relative to its size?",
    published,
    [block_metrics, summary],
)
def l2_ratio(frames, data=""):
    return panels(
        in_a_row(frames["block_metrics"]),
        "place",
        "l2_ratio",
        "l2 ratio of every block" + data,
        panel="network",
        dash="split",
        stages=True,
        below="block",
        beside="|F| / |h|",
        share_y=False,
    )


@entry("II-3", "What does the network lose with one block less?", published, [drop_blocks, summary])
def dropped(frames, data=""):
    return panels(
        in_a_row(frames["drop_blocks"]),
        "place",
        "error",
        "Error without one block" + data,
        panel="network",
        stages=True,
        below="block dropped",
        beside="test error",
        percent=True,
    )


@entry(
    "II-4", "Does every block lower the loss, to first order?", published, [block_metrics, summary]
)
def cosine_loss(frames, data=""):
    return panels(
        in_a_row(frames["block_metrics"]),
        "place",
        "cosine_loss",
        "Cosine between what a block adds and the gradient of the loss" + data,
        panel="network",
        dash="split",
        stages=True,
        zero=True,
        below="block",
        beside="cosine loss",
    )


@entry(
    "II-E",
    "Does the first-order term predict what a block does to the loss?",
    published,
    [first_order, stage_sums, summary],
)
def first_order_share(frames):
    frame = in_a_row(frames["first_order"])
    draw = functools.partial(
        panels, frame, "place", panel="network", stages=True, dash="split", below="block", zero=True
    )
    return {
        "correlation": draw(
            y="rank_correlation",
            beside="rank correlation over images",
            title="First-order term and actual change of the loss",
        ),
        "ratio": draw(
            y="ratio",
            beside="first-order term / change",
            share_y=False,
            title="First-order term over actual change of the loss, ratio of means",
        ),
    }


def last_stage(frame):
    """Returns the rows of the last stage of every network."""
    last = frame.groupby("network")["stage"].transform("max")
    return frame[frame["stage"] == last]


def by_block(frame):
    """Returns the rows in the order of the blocks, with their names and epochs counted from 1."""
    frame = frame.sort_values("block", kind="stable")
    return frame.assign(
        block="block " + frame["block"].astype(int).astype(str), epoch=frame["epoch"] + 1
    )


@entry(
    "II-5",
    "How does the accuracy of the head rise from block to block, and over training?",
    published,
    [by_epoch, readouts, summary],
)
def readout_over_epochs(frames, data=""):
    return over_epochs(
        frames["by_epoch"],
        "accuracy",
        "Accuracy of the head after each block of the last stage" + data,
        percent=True,
        beside="validation accuracy",
    )


def over_epochs(frame, column, title, **kwargs):
    """Draws a metric of the blocks of the last stage over the epochs, on validation images."""
    frame = last_stage(frame)
    frame = frame[frame["split"] == "validation"].assign(accuracy=1 - frame["readout_error"])
    return panels(
        by_block(frame),
        "epoch",
        column,
        title,
        panel="network",
        line="block",
        coloured=True,
        below="epoch",
        **kwargs,
    )


GROUPS = {"accuracy": "accuracy", "cross_entropy": "loss", "entropy": "entropy"}


def of_groups(frame, along, title, below="block"):
    """Draws accuracy, loss and entropy of the groups of images."""
    frame = frame[frame["along"] == along]
    long = frame.melt(["network", "seed", "split", "block", "group"], [*GROUPS], "metric", "value")
    long["metric"] = long["metric"].map(GROUPS) + ", " + long["split"] + " images"
    return panels(
        long,
        "block",
        "value",
        title,
        panel="metric",
        line="group",
        below=below,
        columns=2,
        share_y=False,
    )


@entry(
    "II-6", "Which images do the last blocks put right?", deep, [borderline, next_block, summary]
)
def last_blocks(frames):
    return of_groups(frames["borderline"], "blocks", "Groups of images after the last blocks")


@entry(
    "II-7",
    "What if the last block is repeated twenty times, its branch scaled? Of the scales "
    "0.02, 0.05, 0.1 and 0.3, the one with the lowest training loss at the end is shown.",
    deep,
    [borderline, repetitions, summary],
)
def repeated(frames):
    return of_groups(
        along(frames, "repetitions"),
        "repetitions",
        "Images as the last block is repeated, its branch scaled",
        "block, then its repetitions",
    )


@entry(
    "II-20",
    "Do repetitions of the last block go on lowering the loss?",
    deep,
    [block_metrics, repetitions, summary],
)
def repeated_cosine(frames):
    trained = last_stage(frames["block_metrics"])
    trained = trained.assign(step=trained["block"] - trained["block"].max())
    again = last_stage(frames["repetitions"]).assign(step=lambda rows: rows["repetition"])
    is_plain = again["scale"] == 1
    both = pd.concat(
        [
            pd.concat([trained, again[is_plain]]).assign(branch="as it is"),
            pd.concat([trained, again[~is_plain]]).assign(branch="scaled"),
        ]
    )
    long = both.melt(
        ["network", "seed", "split", "step", "branch"],
        ["cosine_loss", "l2_ratio"],
        "metric",
        "value",
    )
    long["metric"] = long["metric"].str.replace("_", " ")
    return panels(
        long,
        "step",
        "value",
        "Last stage, then repetitions of its last block",
        panel="metric",
        line="branch",
        dash="split",
        zero=True,
        share_y=False,
        below="applications after the trained last one",
    )


def error_curves(frames, names):
    """Draws the errors of networks on training and validation images over the epochs."""
    history = of_networks(frames["history"], names)
    long = history.melt(["network", "seed", "epoch"], ["error", "train_error"], "split", "value")
    long["split"] = long["split"].map({"error": "validation", "train_error": "train"})
    return panels(
        long.assign(epoch=long["epoch"] + 1),
        "epoch",
        "value",
        "Error over the epochs",
        line="network",
        dash="split",
        percent=True,
        below="epoch",
        beside="error",
    )


NAIVE = ["ResNet-38", "ResNet-110", "110 naive"]
# How batch normalization normalizes the untrained network.
STATISTICS = {
    "initial_signal": "as it begins: means 0, variances 1",
    "first_signal": "statistics of images",
}


@entry(
    "II-8",
    "What happens to errors, gradients and states when blocks are shared naively? Before training, "
    "batch normalization has the statistics of training images in the figure of r, and in that of "
    "the states those with which it begins, too.",
    lambda size: those(network=NAIVE)(shared(size)),
    [history, by_epoch, first_signal, initial_signal, summary],
)
def naive_sharing(frames):
    signal = [frames[name].assign(statistics=text) for name, text in STATISTICS.items()]
    return {
        "errors": error_curves(frames, NAIVE),
        "gradients": panels(
            gradient_ratios(frames, NAIVE),
            "epoch",
            "gradient_ratio",
            "Gradient norm, first block of the first stage over that of the last",
            line="network",
            dash="split",
            log=True,
            below="epoch (0: before training)",
            beside="r",
        ),
        "states": panels(
            in_a_row(pd.concat(signal).query("split == 'train'")),
            "place",
            "state_norm",
            "Norm of the states before training",
            panel="statistics",
            line="network",
            share_y=False,
            log=True,
            below="block",
            beside="norm of the state",
        ),
    }


def gradient_ratios(frames, names):
    """Returns r before training and after every epoch, at the first block of the last stage."""
    rows = [frames["first_signal"].assign(epoch=-1), frames["by_epoch"]]
    ratios = last_stage(of_networks(pd.concat(rows), names)).query("block == 0")
    return ratios.assign(epoch=ratios["epoch"] + 1)


@entry(
    "II-9",
    "Which part of unshared batch norm helps?",
    over_seeds(TRAINED | {"small": 3})(strategies),
    [history, by_epoch, first_signal, summary],
)
def ablation(frames):
    last = last_states(of_networks(frames["by_epoch"], SHARED))
    return {
        "errors": error_curves(frames, SHARED),
        "states": panels(
            last,
            "epoch",
            "state_l1",
            "L1 norm of the last state",
            line="network",
            log=True,
            below="epoch",
            beside="sum of absolute values",
        ),
    }


def last_states(frame, split="validation"):
    """Returns the L1 norm of the last state of a network after every epoch."""
    frame = last_stage(frame)
    frame = frame[(frame["split"] == split) & frame["state_l1"].notna()]
    last = frame.groupby("network")["block"].transform("max")
    return frame[frame["block"] == last].assign(epoch=lambda rows: rows["epoch"] + 1)


@entry("II-T1", "What errors do deep, shallow and shared networks have?", of_table, [summary])
def errors(frames):
    return table(frames["summary"], ["parameters", "train_error", "error"])


@entry(
    "II-18",
    "Do shared networks show the same trends over training?",
    shared,
    [by_epoch, summary],
    also=["II-19"],
)
def trends(frames):
    frame = of_networks(frames["by_epoch"], ["ResNet-110", "110 naive", "110 UBN"])
    return {
        "cosine": cosine_over_epochs({"by_epoch": frame}),
        "l2_ratio": l2_ratio_over_epochs({"by_epoch": frame}),
        "readout": over_epochs(
            frame,
            "accuracy",
            "Accuracy after each block of the last stage",
            percent=True,
            beside="accuracy",
        ),
    }


def cosine_over_epochs(frames, data=""):
    """Draws the cosine loss of the last stage over the epochs."""
    title = "Cosine loss of the last stage over the epochs" + data
    return over_epochs(frames["by_epoch"], "cosine_loss", title, beside="cosine loss", zero=True)


def l2_ratio_over_epochs(frames, data=""):
    """Draws the l2 ratio of the last stage over the epochs."""
    title = "l2 ratio of the last stage over the epochs" + data
    return over_epochs(frames["by_epoch"], "l2_ratio", title, beside="|F| / |h|")


@entry(
    "II-M",
    "Is a network with max pooling between its stages more like a ResNet?",
    pooled,
    [block_metrics, drop_blocks, summary],
)
def max_pooling(frames):
    return {
        "l2_ratio": l2_ratio(frames),
        "cosine": cosine_loss(frames),
        "dropped": dropped(frames),
    }


def readout_cosine_over_epochs(frames, data=""):
    """Draws the cosine with the gradient of the head's loss at the state, over the epochs."""
    title = "Cosine with the gradient of the head's loss, last stage" + data
    return over_epochs(frames["by_epoch"], "readout_cosine_loss", title, beside="cosine", zero=True)


entry(
    "II-13",
    "The classifier put after each block of the last stage: is the cosine of what the block adds "
    "with the gradient of its loss negative throughout the training?",
    published,
    [by_epoch, block_metrics, summary],
)(readout_cosine_over_epochs)
entry(
    "II-14",
    "Does the l2 ratio of the last blocks rise in training?",
    published,
    [by_epoch, summary],
)(l2_ratio_over_epochs)


def linear_layers(size):
    """A dense layer and a convolution."""
    return [
        Algebra(f"{layer}-seed0", Setting(layer, 0), {"layer": layer, "seed": 0})
        for layer in ("dense", "convolution")
        if size in ("smoke", "small", "paper")
    ]


@entry(
    "II-A1",
    "Is a step of h = Wx + b down the gradient the same as a step of gradient descent on W and b? "
    "One image, a layer with random weights, a rate of 0.1. *deviation* is the distance of the "
    "move of h from -rate (|x|^2 + 1) dL/dh, over its length. A convolution has the same weights "
    "at all places, so that the gradient of one moves h at the others, too.",
    linear_layers,
    [moves],
)
def algebra_of_a_step(frames):
    rows = frames["moves"].set_index("layer")[["deviation", "cosine"]]
    return rows.map(lambda value: ranged([value])).rename_axis("layer")


for _figure, _asks, _measure, _draw in (
    (10, "does every block lower the loss, to first order?", block_metrics, cosine_loss),
    (11, "how far does every block move the state, relative to its size?", block_metrics, l2_ratio),
    (12, "what does the network lose with one block less?", drop_blocks, dropped),
    (
        15,
        "how does the cosine of the last blocks change in training?",
        by_epoch,
        readout_cosine_over_epochs,
    ),
    (16, "how does their l2 ratio change in training?", by_epoch, l2_ratio_over_epochs),
    (17, "how does the accuracy of the head rise?", by_epoch, readout_over_epochs),
):
    entry(f"II-{_figure}", f"On CIFAR-100: {_asks}", on_cifar100, [_measure, summary])(
        functools.partial(_draw, data=", CIFAR-100")
    )


# Statements

PUBLISHED = ("network", "seed")
# Networks whose first block is to stand out; the others are those of which it is less true.
DRASTIC = ("single representation", "average pooling")
FEW = "ResNet-56, few images"
CHANCE = 0.9


def of_few_images(networks):
    """Returns the networks that were trained on few images until they fit them, if there are."""
    return [one for one in networks if one.labels["network"] == FEW] or networks


def of_all_images(networks):
    """Returns the networks that were trained on all images."""
    return [one for one in networks if one.labels["network"] != FEW]


def drastic(networks):
    return those(network=DRASTIC)(networks)


def mild(networks):
    return [one for one in networks if one.labels["network"] not in DRASTIC]


def and_wide(cases, frame):
    """Returns cases, with one without a value if the wide network has no rows in a frame."""
    is_there = "wide" in set(frame["network"])
    return cases if is_there else [*cases, Case("wide, not trained", Measured(math.nan), None)]


def in_order(frame, split="test"):
    """Returns the rows of blocks with a number, in the order of the network."""
    if split is not None:
        frame = frame[frame["split"] == split]
    return in_a_row(frame).sort_values(["network", "seed", "place"])


def number(rows, column):
    """Returns the number of a column in the one row there is."""
    return Measured(rows[column].item(), errors_of(rows, column).item())


def first_over_median(rows):
    """Returns the l2 ratio of the first block that has one over the median of the others."""
    rows = rows.dropna(subset=["l2_ratio"])
    return sampled(
        lambda values: values[0] / np.median(values[1:]),
        (rows["l2_ratio"], errors_of(rows, "l2_ratio")),
    )


@statement(
    "II-2a1",
    "II-2",
    "4.2, fig. 2",
    "The l2 ratio of the first block is the largest by far",
    "l2 ratio of the first block over the median of the others; holds if over 2",
    paper_says="l2 ratio up to 2",
    about=drastic,
)
def _(frames):
    def judged(rows):
        ratio = first_over_median(rows)
        return ratio, ratio.over(2)

    return cases_by(in_order(frames["block_metrics"]), PUBLISHED, judged)


@statement(
    "II-2a2",
    "II-2",
    "4.2, fig. 2",
    "The l2 ratio falls with the block",
    "rank correlation of block and l2 ratio; holds if under -0.7",
    about=drastic,
)
def _(frames):
    def judged(rows):
        place = rows["place"].to_numpy()
        found = sampled(
            lambda values: ranks(place, values), (rows["l2_ratio"], errors_of(rows, "l2_ratio"))
        )
        return found, found.under(-0.7)

    return cases_by(in_order(frames["block_metrics"]), PUBLISHED, judged)


@statement(
    "II-2b",
    "II-2",
    "4.2, fig. 2",
    "In ResNet-110 and the wide network, the first block stands out less",
    "l2 ratio of the first block over the median of the others, largest of these networks, over "
    "the smallest of single representation and average pooling; holds if under 1",
)
def _(frames):
    found = []
    for seed, rows in in_order(frames["block_metrics"]).groupby("seed"):
        ratios = {name: first_over_median(of) for name, of in rows.groupby("network")}
        groups = [
            [one for name, one in ratios.items() if (name in DRASTIC) == is_drastic]
            for is_drastic in (False, True)
        ]
        if all(groups):
            largest = max(groups[0], key=lambda one: one.value)
            quotient = largest / min(groups[1], key=lambda one: one.value)
            found.append(Case(f"seed {seed}", quotient, quotient.under(1)))
    return and_wide(found, frames["block_metrics"])


@statement(
    "II-2c",
    "II-2",
    "fig. 2",
    "The l2 ratios of training and validation images are the same",
    "mean difference of the l2 ratios of training and test images, relative; holds if under 0.05",
)
def _(frames):
    def judged(rows):
        rows = rows.assign(se=errors_of(rows, "l2_ratio"))
        pair = rows.pivot(index=["stage", "block"], columns="split", values=["l2_ratio", "se"])
        found = sampled(
            lambda train, test: np.nanmean(np.abs(train - test) / test),
            *((pair["l2_ratio", split], pair["se", split]) for split in ("train", "test")),
        )
        return found, found.under(0.05)

    return cases_by(frames["block_metrics"], PUBLISHED, judged)


def ways(rows):
    """Returns how far an error is, without each block, from the network's to chance, as shares."""
    found = []
    for row in rows.dropna(subset=["error"]).itertuples():
        change = paired(row.error, row.unperturbed_error, row.agreement, IMAGES)
        left = CHANCE - row.unperturbed_error
        # A network at chance has nothing to lose.
        found.append((row.place, change / left if left > 0.1 else Measured(math.nan)))
    return found


def costliest(found):
    return max((way for _, way in found), key=lambda way: way.value)


@statement(
    "II-3a1",
    "II-3",
    "4.2, fig. 3",
    "Dropping one of the first blocks is catastrophic",
    "share of the way from the network's error to chance, costliest of the first three blocks; "
    "holds if over 0.3, and over that of every other block",
    paper_says="accuracy under 0.3",
    about=drastic,
)
def _(frames):
    def judged(rows):
        found = ways(rows)
        first = costliest([one for one in found if one[0] < 3])
        later = costliest([one for one in found if one[0] >= 3])
        holds = every(first.over(0.3), (first - later).over(0))
        return first, holds, f"later blocks up to {later.value:.3f}"

    return cases_by(in_order(frames["drop_blocks"]), PUBLISHED, judged)


@statement(
    "II-3a2",
    "II-3",
    "4.2, fig. 3",
    "Dropping most of the later blocks costs little",
    "share of the way from the network's error to chance, median of the upper half of the blocks; "
    "holds if under 0.1",
    about=drastic,
)
def _(frames):
    def judged(rows):
        found = [way for _, way in ways(rows)]
        upper = found[len(found) // 2 :]
        median = sampled(np.median, ([way.value for way in upper], [way.se for way in upper]))
        return median, median.under(0.1)

    return cases_by(in_order(frames["drop_blocks"]), PUBLISHED, judged)


@statement(
    "II-3b",
    "II-3",
    "fig. 3",
    "In ResNet-110 and the wide network, no single drop is drastic",
    "share of the way from the network's error to chance by the costliest drop; holds if under 0.5",
    about=mild,
)
def _(frames):
    def judged(rows):
        way = costliest(ways(rows))
        return way, way.under(0.5)

    found = cases_by(in_order(frames["drop_blocks"]), PUBLISHED, judged)
    return and_wide(found, frames["drop_blocks"])


def all_negative(rows, column):
    """Returns the largest of some cosines, and whether none is over 0 and their mean is under 0.

    A cosine is over 0 if it is by more than noise.
    """
    rows = rows.dropna(subset=[column])
    values, noise = rows[column].to_numpy(), errors_of(rows, column)
    found = [Measured(*of) for of in zip(values, noise, strict=True)]
    mean = sampled(np.mean, (values, noise))
    largest = max(found, key=lambda one: one.value)
    return largest, every(*(one.not_over(0) for one in found), mean.under(0))


def all_cosines_negative(frames):
    frame = in_order(frames["block_metrics"])
    return cases_by(frame, PUBLISHED, lambda rows: all_negative(rows, "cosine_loss"))


statement(
    "II-4a1",
    "II-4",
    "4.1, fig. 4",
    "The cosine is negative for all blocks",
    "largest cosine; holds if their mean is under 0 by more than noise, and none is over it by "
    "more",
    paper_says="0 to -0.12",
)(all_cosines_negative)


def last_minus_first(rows, column):
    """Returns the mean of the last third of the blocks minus that of the first."""
    rows = rows.dropna(subset=[column])
    third = len(rows) // 3
    return sampled(
        lambda values: values[-third:].mean() - values[:third].mean(),
        (rows[column], errors_of(rows, column)),
    )


@statement(
    "II-4a2",
    "II-4",
    "4.1, fig. 4",
    "The cosine is most negative for the higher blocks",
    "mean cosine of the last third of the blocks minus that of the first; holds if under 0",
)
def _(frames):
    def judged(rows):
        difference = last_minus_first(rows, "cosine_loss")
        return difference, difference.under(0)

    return cases_by(in_order(frames["block_metrics"]), PUBLISHED, judged)


@statement(
    "II-4b",
    "II-4",
    "4.1, fig. 4",
    "Higher blocks of the deeper networks (ResNet-110, average pooling) reach the most negative "
    "cosine",
    "lowest cosine of the upper half of the blocks: that of the deeper network in which it is "
    "highest, minus the lowest of the others; holds if under 0",
    paper_says="lowest cosine about -0.1",
)
def _(frames):
    found = []
    for seed, rows in in_order(frames["block_metrics"]).groupby("seed"):
        lowest = {True: [], False: []}
        for name, of in rows.groupby("network"):
            upper = of[of["place"] >= of["place"].max() / 2]
            row = upper.loc[[upper["cosine_loss"].idxmin()]]
            is_deep = name not in ("single representation", "wide")
            lowest[is_deep].append(number(row, "cosine_loss"))
        if all(lowest.values()):
            deep = max(lowest[True], key=lambda one: one.value)
            difference = deep - min(lowest[False], key=lambda one: one.value)
            found.append(Case(f"seed {seed}", difference, difference.under(0)))
    return found


@statement(
    "II-E1",
    "II-E",
    "eq. 2 to 4",
    "Along the last stage, first-order terms add up to the change of the head's loss",
    "sum over the blocks of the product of what each adds and the gradient of the loss of the head "
    "at its state, over the change of that loss along the stage; holds if between 0.5 and 2",
    paper_says="1, to first order",
)
def _(frames):
    def judged(rows):
        ratio = number(rows, "ratio")
        return ratio, ratio.within(0.5, 2)

    return cases_by(frames["stage_sums"].query("split == 'test'"), PUBLISHED, judged)


def of_small_steps(frames):
    """Returns the rows of blocks that add less than a fifth of their state."""
    return frames["first_order"].query("split == 'test' and l2_ratio < 0.2")


@statement(
    "II-E2",
    "II-E",
    "4.1",
    "Where the l2 ratio is small, the first-order term tells which images gain more",
    "mean rank correlation over images with what the block does to the loss, of blocks with an l2 "
    "ratio under 0.2; holds if over 0.5",
)
def _(frames):
    def judged(rows):
        noise = (1 - rows["rank_correlation"] ** 2) / math.sqrt(IMAGES)
        mean = sampled(np.mean, (rows["rank_correlation"], noise))
        return mean, mean.over(0.5)

    return cases_by(of_small_steps(frames), PUBLISHED, judged)


@statement(
    "II-E3",
    "II-E",
    "ours",
    "Where the l2 ratio is small, mean first-order terms are near the mean change",
    "share of the blocks with an l2 ratio under 0.2 whose mean first-order term is between a half "
    "and twice the mean change of the loss; holds if over a half",
    note="The paper does not claim it: it is a question of our own.",
)
def _(frames):
    def judged(rows):
        answers = []
        for term, change, of_term, of_change in zip(
            *(rows[name] for name in ("first_order", "loss_change")),
            *(errors_of(rows, name) for name in ("first_order", "loss_change")),
            strict=True,
        ):
            ratio = Measured(term, of_term) / Measured(change, of_change)
            answers.append(ratio.within(0.5, 2))
        true, false = (sum(one is of for one in answers) / len(answers) for of in (True, False))
        part = share(true, len(answers))
        return part, True if true > 0.5 else False if false > 0.5 else None

    return cases_by(of_small_steps(frames), PUBLISHED, judged)


@statement(
    "II-5",
    "II-5",
    "4.2, fig. 5",
    "Read out after each block of the last stage, accuracy rises gradually",
    "largest rise of the accuracy by one block over that of the whole stage; holds if under 0.5, "
    "the stage gains over 2 points, and no block loses any beyond noise",
    note="In the last epochs, on test images, of the network of the best epoch.",
)
def _(frames):
    def judged(rows):
        steps = [
            Measured(*of)
            for of in zip(rows["accuracy_step"], errors_of(rows, "accuracy_step"), strict=True)
        ][1:]
        whole = number(rows.tail(1), "accuracy_change")
        largest = max(steps, key=lambda one: one.value) / whole
        rises = every(*(None if not one.known else one.under(0) is not True for one in steps))
        return largest, every(rises, whole.over(0.02), largest.under(0.5))

    return cases_by(frames["readouts"].sort_values("block"), PUBLISHED, judged)


def group_of(rows, group, split="test"):
    """Returns the rows of a group of images, in the order of the blocks."""
    return rows[(rows["group"] == group) & (rows["split"] == split)].sort_values("block")


def has_few_borderline(frames):
    """The gate of borderline images: with many of them, the bar cannot be reached."""
    rows = frames["next_block"].query("split == 'test'")
    images = rows.groupby("group")["images"].sum()
    part = images["borderline"] / images["all"]
    is_met = part < 0.15
    return "" if is_met else f"under 15 % of borderline images; here it is {100 * part:.0f} %"


@statement(
    "II-6a1",
    "II-6",
    "4.3, fig. 6",
    "The next block puts borderline images right; the accuracy of all images hardly moves",
    "rise of the accuracy of borderline images over the last blocks minus three times that of all "
    "images, in points; holds if over 0",
    about=of_all_images,
    gate=has_few_borderline,
    note="Groups are made anew before each block.",
)
def _(frames):
    def rise(rows):
        change = rows["put_right"] - rows["put_wrong"]
        noise = (rows["put_right"] + rows["put_wrong"] - change**2) / rows["images"]
        return Measured(100 * change.sum(), 100 * math.sqrt(noise.sum()))

    def judged(rows):
        difference = rise(group_of(rows, "borderline")) - rise(group_of(rows, "all")) * 3
        return difference, difference.over(0)

    return cases_by(frames["next_block"], PUBLISHED, judged)


@statement(
    "II-6a2",
    "II-6",
    "4.3, fig. 6",
    "Over the last five blocks, the entropy falls in all groups",
    "largest change of the entropy, in nats, of borderline, correct and all images; holds if under "
    "0",
    about=of_all_images,
    gate=has_few_borderline,
)
def _(frames):
    def judged(rows):
        changes = [
            number(group_of(rows, group).tail(1), "entropy_change")
            for group in ("borderline", "correct", "all")
        ]
        largest = max(changes, key=lambda one: one.value)
        return largest, every(*(one.under(0) for one in changes))

    return cases_by(along(frames, "blocks"), PUBLISHED, judged)


def along(frames, curve):
    """Returns the rows of one of the curves, the repetitions with the chosen scale alone."""
    frame = frames["borderline"]
    rows = frame[frame["along"] == curve]
    if curve == "blocks":
        return rows
    return rows[rows["scale"] == rows["name"].map(chosen_scales(frame))]


@statement(
    "II-6b1",
    "II-6",
    "4.3, fig. 6",
    "The training loss falls with every one of the last five blocks",
    "largest change of the training loss by one block, in nats; holds if their sum is under 0 by "
    "more than noise, and none is over it by more",
    paper_says="to 0.0012 nats",
    about=of_few_images,
    gate=fits_under(0.05),
)
def _(frames):
    def judged(rows):
        rows = group_of(rows, "all", "train")
        columns = rows["cross_entropy_step"], errors_of(rows, "cross_entropy_step")
        steps = [Measured(*of) for of in zip(*columns, strict=True)][1:]
        whole = number(rows.tail(1), "cross_entropy_change")
        largest = max(steps, key=lambda one: one.value)
        return largest, every(*(one.not_over(0) for one in steps), whole.under(0))

    return cases_by(along(frames, "blocks"), PUBLISHED, judged)


def change_at_the_end(column, group, split, holds):
    """Returns a function that judges the last value of a column of a group of images."""

    def judged(rows):
        change = number(group_of(rows, group, split).tail(1), column)
        return change, holds(change)

    return judged


for _id, _entry, _place, _curve, _says, _column, _group, _split, _sign, _number in (
    (
        *("II-6b2", "II-6", "4.3, fig. 6", "blocks"),
        "The test loss rises after the last block",
        *("cross_entropy_step", "all", "test", 1, ""),
    ),
    (
        *("II-7b1", "II-7", "4.4, fig. 7", "repetitions"),
        "Repeated 20 times with a scaled branch, the last block lowers the training loss",
        *("cross_entropy_change", "all", "train", -1, "0.0012 to 0.001"),
    ),
    (
        *("II-7b2", "II-7", "4.4, fig. 7", "repetitions"),
        "Repeated 20 times with a scaled branch, the last block raises the test loss",
        *("cross_entropy_change", "all", "test", 1, ""),
    ),
    (
        *("II-7b3", "II-7", "4.4, fig. 7", "repetitions"),
        "Repeated 20 times with a scaled branch, it raises the accuracy of borderline images",
        *("accuracy_change", "borderline", "test", 1, "43 to 53 %"),
    ),
):
    _unit = "as a share" if _group == "borderline" else "in nats"
    statement(
        _id,
        _entry,
        _place,
        _says,
        f"change of the {_column.rpartition('_')[0].replace('_', '-')} of {_group} images "
        f"({_split}), {_unit}; holds if {'over' if _sign > 0 else 'under'} 0",
        paper_says=_number,
        about=of_few_images,
        gate=fits_under(0.05),
        note=""
        if _curve == "blocks"
        else "The paper does not print its scale: of 0.02, 0.05, 0.1 and 0.3, the one with the "
        "lowest training loss at the end.",
    )(
        functools.partial(
            lambda frames, curve, judged: cases_by(along(frames, curve), PUBLISHED, judged),
            curve=_curve,
            judged=change_at_the_end(
                _column,
                _group,
                _split,
                (lambda change: change.over(0)) if _sign > 0 else (lambda change: change.under(0)),
            ),
        )
    )


@statement(
    "II-7a",
    "II-7",
    "4.4",
    "Repeated as it is, the last block makes the states explode",
    "distance from the trained last state after 20 repetitions over that after one; holds if over "
    "20",
    note="Equal steps in one direction give 20.",
)
def _(frames):
    frame = last_stage(frames["repetitions"]).query("split == 'test' and scale == 1")

    def judged(rows):
        growth = number(rows.head(1), "growth")
        return growth, growth.over(TIMES)

    return cases_by(frame, PUBLISHED, judged)


def repeated_cosines(frames, is_scaled):
    """Returns the cases of the cosines of repetitions: the first two as they are, or all scaled."""
    frame = last_stage(frames["repetitions"]).query("repetition > 0")
    if is_scaled:
        frame = frame[frame["scale"] != 1]
    else:
        frame = frame[(frame["scale"] == 1) & (frame["repetition"] <= 2)]
    return cases_by(frame, PUBLISHED, lambda rows: all_negative(rows, "cosine_loss"))


for _id, _says, _is_scaled in (
    ("II-7c1", "The cosine stays negative for the first two repetitions of the last block", False),
    ("II-7c2", "The cosine stays negative for all 20 repetitions with a scaled branch", True),
):
    statement(
        _id,
        "II-20",
        "4.4, fig. 20",
        _says,
        "largest of their cosines, training and test images; holds if their mean is under 0 by "
        "more than noise, and none is over it by more",
        about=of_few_images,
        gate=fits_under(0.05),
    )(functools.partial(repeated_cosines, is_scaled=_is_scaled))


def rise_of_error(frames, column, images, one, other):
    """Returns the cases of an error of one network minus that of another, in points, over 0."""
    found = []
    for seed, rows in frames["summary"].groupby("seed"):
        errors = rows.set_index("network")[column]
        rise = (share(errors[one], images) - share(errors[other], images)) * 100
        found.append(Case(f"seed {seed}", rise, rise.over(0)))
    return found


# Test images of the smallest test set, and training images, on which errors are measured.
TEST_IMAGES = 5000

for _id, _says, _column, _images, _other in (
    ("II-8a1", "Naive sharing raises the training error", "train_error", IMAGES, "ResNet-110"),
    (
        *("II-8a2", "Naively shared, ResNet-110 errs more than ResNet-38 of as many parameters"),
        *("error", TEST_IMAGES, "ResNet-38"),
    ),
):
    statement(
        _id,
        "II-8",
        "4.5, fig. 8",
        _says,
        f"{'training' if _images == IMAGES else 'test'} error of the shared network minus that of "
        f"{_other}, in points; holds if over 0",
        about=those(network=(_other, "110 naive")),
        is_learnt=False,
    )(
        functools.partial(
            rise_of_error, column=_column, images=_images, one="110 naive", other=_other
        )
    )


@statement(
    "II-8b",
    "II-8",
    "fig. 8",
    "Naively shared, gradients at the first stage are larger against those at the last, always",
    "smallest quotient of r of the shared and the unshared network, after every epoch and before "
    "the first; holds if over 1. r is the norm of the gradient at the first block of the first "
    "stage over that at the first block of the last",
    about=those(network=("ResNet-110", "110 naive")),
    is_learnt=False,
    note="Noise is taken from the difference of training and validation images. Before training, "
    "batch normalization has the statistics of images.",
)
def _(frames):
    frame = gradient_ratios(frames, ["110 naive", "ResNet-110"])
    found = []
    for seed, rows in frame.groupby("seed"):
        ratios = rows.pivot(index=["epoch", "split"], columns="network", values="gradient_ratio")
        logs = np.log(ratios["110 naive"] / ratios["ResNet-110"]).unstack("split")
        noise = np.sqrt(((logs["train"] - logs["validation"]) ** 2).mean()) / 2
        smallest = np.exp(logs.mean(axis=1).min())
        quotient = Measured(float(smallest), float(smallest * noise))
        found.append(Case(f"seed {seed}", quotient, quotient.over(1)))
    return found


def growth_of_states(frames, frame):
    """Returns the cases of how much more states grow in the naively shared network."""
    rows = in_a_row(frames[frame].query("split == 'train'")).sort_values("place")
    found = []
    for seed, of in rows.groupby("seed"):
        growths = {}
        for name, blocks in of.groupby("network"):
            ends = blocks.head(1), blocks.tail(1)
            first, last = (number(end, "state_norm") for end in ends)
            growths[name] = last / first
        more = growths["110 naive"] / growths["ResNet-110"]
        found.append(Case(f"seed {seed}", more, more.over(10)))
    return found


for _id, _says, _frame in (
    ("II-8c1", "Naively shared, states explode in the network as it is built", "initial_signal"),
    ("II-8c2", "Naively shared, states explode at initialization, as in training", "first_signal"),
):
    statement(
        _id,
        "II-8",
        "fig. 8",
        _says,
        "growth of the norm of the state from the first block to the last, naively shared over "
        "unshared; holds if over 10",
        about=those(network=("ResNet-110", "110 naive")),
        is_learnt=False,
        as_built=True,
        note=f"Batch normalization has {STATISTICS[_frame]}.",
    )(functools.partial(growth_of_states, frame=_frame))


def gains(frames, one, other):
    """Returns by how many points the error of a network is lower than that of another, by seed."""
    best = 100 * table_by(frames["history"], ["seed"], ["network", "epoch"], "error")
    lowest = best.T.groupby(level="network").min().T
    return lowest[one] - lowest[other]


def mean_gain(frames, *pairs):
    """Returns the case of a mean gain over seeds, or of how much one gain is over another."""
    first, *others = (gains(frames, *pair) for pair in pairs)
    mean = mean_of(first.sub(*others) if others else first)
    return [Case("mean", mean, mean.over(0))]


for _id, _says, *_pairs in (
    ("II-9a1", "A gamma that begins at 0.1 helps a shared network", ("110 naive", "110 gamma 0.1")),
    (
        *("II-9a2", "Statistics of batch norm of their own help a shared network"),
        ("110 naive", "110 statistics"),
    ),
    (
        *("II-9a3", "Beyond statistics and a small gamma, gamma and beta of their own help"),
        ("110 statistics, gamma 0.1", "110 UBN"),
    ),
    (
        *("II-9a4", "Statistics of their own matter more than a small gamma"),
        ("110 naive", "110 statistics"),
        ("110 naive", "110 gamma 0.1"),
    ),
):
    statement(
        _id,
        "II-9",
        "fig. 9",
        _says,
        "fall of the lowest validation error over the epochs"
        + (" by the one minus that by the other" if len(_pairs) > 1 else "")
        + ", in points, mean over the seeds; holds if over 0",
        about=those(network=[name for pair in _pairs for name in pair]),
        gate=has_seeds(3),
        is_learnt=False,
    )(functools.partial(lambda frames, pairs: mean_gain(frames, *pairs), pairs=_pairs))


def smaller_states(frames, pairs):
    """Returns the cases of the L1 norm of the last state without over with a part, before training.

    With several pairs, the smallest quotient.
    """
    rows = in_a_row(frames["first_signal"].query("split == 'train'"))
    rows = rows[rows["place"] == rows.groupby("network")["place"].transform("max")]
    found = []
    for seed, of in rows.groupby("seed"):
        norms = {name: number(one, "state_l1") for name, one in of.groupby("network")}
        quotients = [norms[one] / norms[other] for one, other in pairs]
        smallest = min(quotients, key=lambda one: one.value)
        found.append(Case(f"seed {seed}", smallest, smallest.over(1)))
    return found


for _id, _says, _pairs in (
    (
        *("II-9b1", "A gamma that begins at 0.1 reduces the first states of a shared network"),
        [("110 naive", "110 gamma 0.1"), ("110 statistics", "110 statistics, gamma 0.1")],
    ),
    (
        *("II-9b2", "Statistics of their own reduce the first states of a shared network"),
        [("110 naive", "110 statistics"), ("110 gamma 0.1", "110 statistics, gamma 0.1")],
    ),
):
    statement(
        _id,
        "II-9",
        "4.5, fig. 9",
        _says,
        "L1 norm of the last state before training, without over with this part, the smaller of "
        "the quotients with and without the other part; holds if over 1",
        about=those(network=SHARED[:-1]),
        is_learnt=False,
        as_built=True,
        note="Batch normalization has statistics of images. Gamma and beta of their own begin "
        "equal, so that the third part changes nothing before training.",
    )(functools.partial(smaller_states, pairs=_pairs))


# The paper's errors of table 1, in percent, in its order.
TABLE = {
    "ResNet-110": 6.13,
    "ResNet-56": 6.53,
    "110 UBN": 6.62,
    "ResNet-38": 6.99,
    "ResNet-32": 7.14,
}


def lower_errors(frames, pairs):
    """Returns the case of how much lower errors are than others, the least of several pairs."""
    errors = 100 * table_by(frames["summary"], ["seed"], ["network"], "error")
    differences = [mean_of(errors[other] - errors[one]) for one, other in pairs]
    least = min(differences, key=lambda one: one.value)
    return [Case("mean", least, every(*(one.over(0) for one in differences)))]


for _id, _says, _paper_says, _pairs in (
    (
        *("II-T1a", "Deeper networks err less: 110, 56, 110-UBN, 38, 32 layers in this order"),
        ", ".join(f"{error:.2f}" for error in TABLE.values()) + " %",
        [*itertools.pairwise(TABLE)],
    ),
    (
        *("II-T1b", "UBN gains over ResNet-38 with as many parameters", "0.37 points"),
        [("110 UBN", "ResNet-38")],
    ),
    (
        *("II-T1c", "UBN with 146 and 182 steps does not err less than with 110"),
        "6.82, 6.97 against 6.62 %",
        [("110 UBN", "146 UBN"), ("110 UBN", "182 UBN")],
    ),
):
    statement(
        _id,
        "II-T1",
        "table 1",
        _says,
        "least difference of the test errors, in points, means over the seeds; holds if over 0",
        paper_says=_paper_says,
        about=those(network=[name for pair in _pairs for name in pair]),
        gate=has_seeds(4),
        is_learnt=False,
    )(functools.partial(lower_errors, pairs=_pairs))


def trends_of(frames, metric):
    """Returns the cases of the rank correlation of a metric with the unshared network's."""
    frame = last_stage(frames["by_epoch"]).query("split == 'validation'")
    found = []
    for seed, rows in frame.groupby("seed"):
        table = rows.pivot(index=["epoch", "block"], columns="network", values=metric).dropna()
        for name in ("110 naive", "110 UBN"):
            value = ranks(table["ResNet-110"], table[name])
            noise = (1 - value**2) / math.sqrt(len(table) - 1)
            correlation = Measured(value, noise)
            found.append(Case(f"{name}, seed {seed}", correlation, correlation.over(0.5)))
    return found


for _id, _name, _metric in (
    ("II-18a", "cosines", "cosine_loss"),
    ("II-18b", "read-outs", "readout_error"),
    ("II-18c", "l2 ratios", "l2_ratio"),
):
    statement(
        _id,
        "II-18",
        "app. D, fig. 18, 19",
        f"The {_name} of shared networks have the trends of the unshared one",
        "rank correlation with the unshared network's values, over epochs and blocks of the last "
        "stage; holds if over 0.5",
        about=those(network=("ResNet-110", "110 naive", "110 UBN")),
        is_learnt=False,
        note="How much two seeds of the unshared network have in common was not measured.",
    )(functools.partial(trends_of, metric=_metric))


@statement(
    "II-13",
    "II-13",
    "app. C, fig. 13",
    "The cosine with the gradient of the head put after each block is negative",
    "largest of these cosines, last stage, of the trained network; holds if their mean is under 0 "
    "by more than noise, and none is over it by more",
    paper_says="0 to -0.1",
)
def _(frames):
    frame = last_stage(frames["block_metrics"]).query("split == 'test'")
    return cases_by(frame, PUBLISHED, lambda rows: all_negative(rows, "readout_cosine_loss"))


@statement(
    "II-14",
    "II-14",
    "app. C, fig. 14",
    "The l2 ratio of the last blocks tends to rise in training",
    "rank correlation of epoch and l2 ratio, mean over the blocks of the last stage; holds if over "
    "0",
    is_learnt=False,
    note="The noise is that over the blocks. In a shuffled order of the epochs the mean is 0.",
)
def _(frames):
    frame = last_stage(frames["by_epoch"]).query("split == 'validation'")

    def judged(rows):
        table = rows.pivot(index="epoch", columns="block", values="l2_ratio").dropna(axis=1)
        mean = mean_of([ranks(table.index, table[block]) for block in table])
        return mean, mean.over(0)

    return cases_by(frame, PUBLISHED, judged)


def moved_down(frames):
    """Returns the case of a layer, in float64, whose rounding is far under the bound."""
    deviation = Measured(frames["moves"]["deviation"].item(), 1e-9)
    return [Case("one example", deviation, deviation.under(1e-6))]


for _id, _layer, _says in (
    (
        "II-A1a",
        "dense",
        "One step of descent on a dense layer moves Wx + b down the gradient",
    ),
    ("II-A1b", "convolution", "One step of descent on a convolution does the same"),
):
    statement(
        _id,
        "II-A1",
        "app. A.1, eq. 5 to 8",
        _says,
        "distance of the move from -rate (|x|^2 + 1) dL/dh over its length; holds if under 1e-6",
        paper_says="0",
        about=those(layer=(_layer,)),
        is_learnt=False,
        note="Of one example. The paper does not build on it.",
    )(moved_down)


statement(
    "II-C",
    "II-10",
    "fig. 10-12, 15-17",
    "On CIFAR-100, the cosine is negative for all blocks",
    "largest cosine, as in II-4a1; the other figures are to be looked at",
    cannot="CIFAR-100 has to be downloaded, and 100 classes are not learnt at this size",
)(all_cosines_negative)
