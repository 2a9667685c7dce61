"""II: Jastrzebski et al. 2018, "Residual connections encourage iterative inference"."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pandas as pd
from catalogue import (
    WELL,
    Case,
    Network,
    cases_of,
    entry,
    over_seeds,
    per_seed,
    small_batches,
    spearman,
    statement,
    those,
)
from drawing import in_a_row, panels, table
from measures import (
    SCALE,
    block_metrics,
    borderline,
    by_epoch,
    clocked,
    drop_blocks,
    first_order,
    first_signal,
    history,
    initial_signal,
    repetitions,
    summary,
)

from tfresidual import callbacks, training
from tfresidual.jobs.settings import Settings

# The networks of section 4 besides ResNet-110, by the name that figures show.
DEEP = {
    "single representation": "single_representation",
    "average pooling": "avg_pooling",
    "wide": "wide",
}
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
    "longer": ({110: 9}, 3),
    "trained": ({38: 6, 56: 9, 110: 18}, 5),
    "paper": ({32: 5, 38: 6, 56: 9, 110: 18, 146: 24, 182: 30}, 5),
}
SEEDS = {"smoke": 1, "small": 2, "paper": 4}
# Of the networks that exist at the sizes `longer` and `trained`, too.
LONGER = SEEDS | {"longer": 1, "trained": 1}
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
COMMON["longer"] = COMMON["small"] | {"epochs": 10, "train_size": 16_000}
# One network of ResNet-56 that has learnt says more than many that have begun to.
COMMON["trained"] = WELL | {"width": 8, "epochs": 4}
LEARNT = {"width": 16, "epochs": 15}
# Few images, as they are, until their loss is next to nothing.
OVERFITTED = {"width": 16, "epochs": 40, "train_size": 8000, "augment": False}
# Channels of the published networks at the smaller sizes, instead of their own.
WIDTHS = {"smoke": 4, "small": 16, "trained": 24, "paper": None}


def watched(images):
    """Callbacks for networks whose blocks are followed over the epochs."""
    return [
        *clocked(images),
        callbacks.BlockMetrics(images),
        callbacks.Readout(images),
        callbacks.SignalPropagation(images),
    ]


def network(size, label, seed, is_watched=True, **changes):
    """A network of the paper; `changes` are those of the settings of its size."""
    common = dict(COMMON[size])
    if size == "paper":
        # The recipe of the network; those of the table and of sharing have that of ResNet-110.
        recipe = training.recipe(changes.get("network", "resnet110"))
        common |= {"recipe": recipe.name, "epochs": recipe.epochs}
        changes = {"width": 16} | changes
    settings = Settings(seed=seed, **common | changes)
    name = f"{DEEP.get(label, label).replace(', ', '-').replace(' ', '_')}-seed{seed}"
    labels = {"network": label, "seed": seed}
    return Network(name, settings, labels, watched if is_watched else clocked)


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


@over_seeds(LONGER)
def deep(size, seed):
    """The network that stands for ResNet-110."""
    if size == "trained":
        return [learnt(seed), overfitted(seed)]
    return [resnet(size, 110, seed)]


@over_seeds(LONGER)
def published(size, seed):
    """The four networks of section 4; ResNet-110 alone at the size `longer`, three at `trained`."""
    if size == "longer":
        return [resnet(size, 110, seed)]
    if size == "trained":
        first, more = learnt(seed), {"epochs": 10}
        labels = ("single representation", "average pooling")
    else:
        first, more, labels = resnet(size, 110, seed), {}, DEEP
    others = (
        network(size, label, seed, network=DEEP[label], width=WIDTHS[size], **more)
        for label in labels
    )
    return [first, *others]


@over_seeds(SEEDS | {"trained": 1})
def shared(size, seed):
    """Unshared networks of two depths, and the strategies of sharing."""
    return [
        resnet(size, 38, seed),
        resnet(size, 110, seed),
        *(resnet(size, 110, seed, strategy) for strategy in STRATEGIES),
    ]


@over_seeds(SEEDS)
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
    average = {"network": "avg_pooling", "width": WIDTHS[size]}
    return [
        resnet(size, 110, seed),
        network(size, "average pooling", seed, **average),
        network(size, "max pooling", seed, is_watched=False, transition="max_pooling", **average),
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


def cases(frame, function):
    """Returns the cases of a function `(rows of a network and seed) -> (holds, effect)`."""
    found = []
    for (label, seed), rows in frame.groupby(["network", "seed"], sort=False):
        holds, effect = function(rows)
        found.append(Case(bool(holds), float(effect), f"{label}, seed {seed}"))
    return found


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
    [first_order, summary],
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
    [by_epoch, summary],
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


@entry("II-6", "Which images do the last blocks put right?", deep, [borderline, summary])
def last_blocks(frames):
    return of_groups(frames["borderline"], "blocks", "Groups of images after the last blocks")


@entry(
    "II-7",
    "What if the last block is repeated twenty times, its branch scaled?",
    deep,
    [borderline, repetitions, summary],
)
def repeated(frames):
    frame = frames["borderline"]
    return of_groups(
        frame[frame["scale"] == SCALE],
        "repetitions",
        f"Images as the last block is repeated, its branch times {SCALE:g}",
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
    both = pd.concat(
        [
            pd.concat([trained, again[again["scale"] == scale]]).assign(
                branch="as it is" if scale == 1 else f"branch times {scale:g}"
            )
            for scale in (1.0, SCALE)
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
    lambda size: those(network=SHARED)(shared(size)),
    [history, by_epoch, summary],
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


for _figure, _asks, _measure, _draw in (
    (10, "does every block lower the loss, to first order?", block_metrics, cosine_loss),
    (11, "how far does every block move the state, relative to its size?", block_metrics, l2_ratio),
    (12, "what does the network lose with one block less?", drop_blocks, dropped),
    (
        15,
        "how does the cosine of the last blocks change in training?",
        by_epoch,
        cosine_over_epochs,
    ),
    (16, "how does their l2 ratio change in training?", by_epoch, l2_ratio_over_epochs),
    (17, "how does the accuracy of the head rise?", by_epoch, readout_over_epochs),
):
    entry(f"II-{_figure}", f"On CIFAR-100: {_asks}", on_cifar100, [_measure, summary])(
        functools.partial(_draw, data=", CIFAR-100")
    )


# Statements


@statement(
    "II-2a",
    "II-2",
    "4.2, fig. 2",
    "Single representation and average pooling: the first block has by far the largest l2 "
    "ratio, and the ratio falls monotonically with the block",
    "largest l2 ratio of the first block over the largest of the others; holds if over 1.5 "
    "and the rank correlation of block and ratio is under -0.7",
    "The first block has the largest ratio in all four networks, but that of the second "
    "is not much smaller.",
    about=those(network=("single representation", "average pooling")),
)
def _(frames):
    frame = in_a_row(frames["block_metrics"].query("split == 'test'"))

    def judged(rows):
        first = rows.loc[rows["place"] == 0, "l2_ratio"].item()
        ratio = first / rows.loc[rows["place"] > 0, "l2_ratio"].max()
        return ratio > 1.5 and spearman(rows, "place", "l2_ratio") < -0.7, ratio

    return cases(frame, judged)


@statement(
    "II-2b",
    "II-2",
    "4.2, fig. 2",
    "This is less drastic in ResNet-110 and the wide network",
    "l2 ratio of the first block that keeps the shape, mean of the two networks, over that "
    "of the two others; holds if under 1",
)
def _(frames):
    frame = frames["block_metrics"].query("split == 'test'").dropna(subset=["l2_ratio"])
    first = in_a_row(frame).sort_values("place").groupby(["network", "seed"], sort=False)
    first = first["l2_ratio"].first().reset_index()

    def judged(rows):
        is_drastic = rows["network"].isin(["single representation", "average pooling"])
        ratio = rows.loc[~is_drastic, "l2_ratio"].mean() / rows.loc[is_drastic, "l2_ratio"].mean()
        return ratio < 1, ratio

    return per_seed(first, judged)


@statement(
    "II-2c",
    "II-2",
    "fig. 2",
    "Curves of training and validation images lie on one another",
    "mean difference of the l2 ratios of training and test images, relative; holds if under 0.05",
)
def _(frames):
    def judged(rows):
        pair = rows.pivot(index=["stage", "block"], columns="split", values="l2_ratio")
        difference = ((pair["train"] - pair["test"]).abs() / pair["test"]).mean()
        return difference < 0.05, difference

    return cases(frames["block_metrics"], judged)


def way_to_chance(rows, error):
    """Returns how far errors are from that of the whole network to chance, as a share."""
    whole = rows["unperturbed_error"]
    return (rows[error] - whole) / (0.9 - whole)


@statement(
    "II-3a",
    "II-3",
    "4.2, fig. 3",
    "Single representation and average pooling: dropping the first block is catastrophic, "
    "dropping most later ones costs little",
    "share of the way from the network's error to chance, first block dropped; holds if "
    "over 0.5, and the median over the other blocks is under 0.1",
    "With average pooling, blocks of the first stage other than the first cost most.",
    about=those(network=("single representation", "average pooling")),
)
def _(frames):
    frame = in_a_row(frames["drop_blocks"])

    def judged(rows):
        way = way_to_chance(rows, "error")
        first = way[rows["place"] == 0].item()
        return first > 0.5 and way[rows["place"] > 0].median() < 0.1, first

    return cases(frame, judged)


@statement(
    "II-3b",
    "II-3",
    "fig. 3",
    "ResNet-110 and the wide network: no single drop is drastic",
    "largest share of the way from the network's error to chance by one dropped block; "
    "holds if under 0.5",
    "After 6 epochs, the first blocks are needed, those of the last stage are not. Trained for "
    "longer, ResNet-110 loses less, and the statement holds of it.",
    about=those(network=("ResNet-110", "wide")),
)
def _(frames):
    def judged(rows):
        way = way_to_chance(rows, "error").max()
        return way < 0.5, way

    return cases(frames["drop_blocks"], judged)


def falling_cosines(frames):
    """Returns the cases of cosines that are negative, and the more so the higher the block."""
    frame = in_a_row(frames["block_metrics"].query("split == 'test'"))

    def judged(rows):
        correlation = spearman(rows, "place", "cosine_loss")
        return correlation < 0 and (rows["cosine_loss"].dropna() < 0).all(), correlation

    return cases(frame, judged)


@statement(
    "II-4a",
    "II-4",
    "4.1, fig. 4",
    "The cosine is negative for all blocks, most of all for the higher ones",
    "rank correlation of block and cosine; holds if it is negative and all cosines are",
    "Single blocks of the first two stages have cosines between 0 and 0.005; those of ResNet-110 "
    "trained for longer, up to 0.006, while its last stage falls to -0.06.",
)
def _(frames):
    return falling_cosines(frames)


@statement(
    "II-4b",
    "II-4",
    "4.1, fig. 4",
    "The higher blocks of the deeper networks (ResNet-110, average pooling) reach the most "
    "negative cosine",
    "lowest cosine of the deeper network in which it is highest, minus that of the other two "
    "networks; holds if negative, and the cosine is",
    "It is lowest with average pooling; that of ResNet-110 is lower than with a single "
    "representation, and not lower than that of the wide network.",
)
def _(frames):
    frame = in_a_row(frames["block_metrics"].query("split == 'test'"))
    is_high = frame["place"] >= frame.groupby("network")["place"].transform("max") / 2
    lowest = frame[is_high].groupby(["network", "seed"])["cosine_loss"].min().reset_index()

    def judged(rows):
        is_deep = rows["network"].isin(["ResNet-110", "average pooling"])
        deep = rows.loc[is_deep, "cosine_loss"].max()
        others = rows.loc[~is_deep, "cosine_loss"].min()
        return deep < np.min([others, 0]), deep - others

    return per_seed(lowest, judged)


@statement(
    "II-E",
    "II-E",
    "eq. 2-4, 4.1",
    "Where the l2 ratio is small, the first-order term predicts what a block does to the loss",
    "mean rank correlation over images, of blocks with an l2 ratio under 0.2; holds if over 0.5, "
    "and the ratio of means is between a half and 2 for most of them",
    "Images are in the right order. In the mean, first-order terms of both signs nearly cancel "
    "and what the curvature of the loss adds does not, so that the ratio is mostly under a half, "
    "and often negative. No block of the single representation has such an l2 ratio.",
)
def _(frames):
    frame = frames["first_order"].query("split == 'test'")

    def judged(rows):
        rows = rows[rows["l2_ratio"] < 0.2]
        correlation = rows["rank_correlation"].mean()
        is_near = rows["ratio"].between(0.5, 2).mean() > 0.5
        return correlation > 0.5 and is_near, correlation

    return cases(frame, judged)


@statement(
    "II-5",
    "II-5",
    "4.2, fig. 5",
    "The accuracy of the head after each block of the last stage rises gradually, block by "
    "block, in every epoch",
    "share of changes from a block to the next, over all epochs, that do not lower the accuracy; "
    "holds if over 0.9, the stage gains over 2 points, and half of that by no single block",
    "The accuracy rises from block to block in the last epochs; in the first three, while the "
    "rate is high, the blocks of the deeper networks are not in order yet. Trained for longer, it "
    "holds of ResNet-110.",
)
def _(frames):
    frame = last_stage(frames["by_epoch"]).query("split == 'validation'")

    def judged(rows):
        errors = rows.pivot(index="epoch", columns="block", values="readout_error").dropna(axis=1)
        changes = errors.diff(axis=1).iloc[:, 1:]
        rising = (changes <= 0).to_numpy().mean()
        drop = errors.iloc[:, 0] - errors.iloc[:, -1]
        largest = (-changes.min(axis=1) / drop)[drop > 0.02].median()
        return rising > 0.9 and drop.iloc[-1] > 0.02 and largest < 0.5, rising

    return cases(frame, judged)


def of_group(rows, group, column, split="test"):
    """Returns the values of a group of images, in the order of the blocks."""
    rows = rows[(rows["group"] == group) & (rows["split"] == split)]
    return rows.sort_values("block")[column].to_numpy()


@statement(
    "II-6a",
    "II-6",
    "4.3, fig. 6",
    "Over the last five blocks the accuracy of borderline images rises while that of all "
    "images hardly moves, and the entropy falls in all groups",
    "rise of the accuracy of borderline test images over that of all test images; holds if "
    "over 3, and all entropies fall",
    "With an error of 50 %, and of 35 % when trained for longer, the last five blocks put images "
    "of all kinds right.",
)
def _(frames):
    def judged(rows):
        rises = {
            name: np.subtract(*of_group(rows, name, "accuracy")[[-1, 0]])
            for name in ("borderline", "all")
        }
        falls = all(
            of_group(rows, name, "entropy")[-1] < of_group(rows, name, "entropy")[0]
            for name in ("borderline", "correct", "all")
        )
        ratio = rises["borderline"] / np.maximum(abs(rises["all"]), 1e-3)
        return ratio > 3 and falls, ratio

    return cases(frames["borderline"].query("along == 'blocks'"), judged)


@statement(
    "II-6b",
    "II-6",
    "4.3, fig. 6",
    "The training loss falls with every block, the test loss rises after the last one",
    "change of the test loss by the last block, in nats; holds if it is positive and the "
    "training loss falls with every block",
    "The loss falls with every block, on test images too: networks of 6 epochs, or of 10 when "
    "trained for longer, do not overfit.",
)
def _(frames):
    def judged(rows):
        training = of_group(rows, "all", "cross_entropy", "train")
        change = np.diff(of_group(rows, "all", "cross_entropy"))[-1]
        return change > 0 and (np.diff(training) < 0).all(), change

    return cases(frames["borderline"].query("along == 'blocks'"), judged)


@statement(
    "II-7a",
    "II-7",
    "4.4",
    "Repeating the last block as it is makes the states explode",
    "distance from the trained last state after 20 repetitions over that after one; holds "
    "if over 20",
)
def _(frames):
    frame = last_stage(frames["repetitions"]).query("split == 'test' and scale == 1")

    def judged(rows):
        distance = rows.set_index("repetition")["distance"]
        growth = distance[20] / distance[1]
        return growth > 20, growth

    return cases(frame, judged)


@statement(
    "II-7b",
    "II-7",
    "4.4, fig. 7",
    "Repeated 20 times with a scaled branch: the training loss falls, the test loss rises, "
    "the accuracy of borderline images rises",
    "change of the accuracy of borderline test images; holds if it is positive, the "
    "training loss falls and the test loss rises",
    "The first three or four repetitions do next to nothing to the loss; with more of them it "
    "rises, on training images too.",
)
def _(frames):
    frame = frames["borderline"]
    frame = frame[(frame["along"] == "repetitions") & (frame["scale"] == SCALE)]

    def judged(rows):
        change = {
            split: np.subtract(*of_group(rows, "all", "cross_entropy", split)[[-1, 0]])
            for split in ("train", "test")
        }
        rise = np.subtract(*of_group(rows, "borderline", "accuracy")[[-1, 0]])
        return rise > 0 and change["train"] < 0 < change["test"], rise

    return cases(frame, judged)


@statement(
    "II-7c",
    "II-20",
    "4.4, fig. 20",
    "The cosine stays negative for the first two repetitions as they are, and for all scaled ones",
    "largest cosine of these, of training and test images; holds if negative",
    "It turns positive within the first three repetitions as it is, and between the third and the "
    "eighth of the scaled ones, on training images as early as on test images, or earlier.",
)
def _(frames):
    frame = last_stage(frames["repetitions"]).query("repetition > 0")

    def judged(rows):
        asked = (rows["scale"] == SCALE) | (rows["repetition"] <= 2)
        largest = rows.loc[asked, "cosine_loss"].max()
        return largest < 0, largest

    return cases(frame, judged)


def by_network(frame, column):
    """Returns a table of a column, with a row per seed and a column per network."""
    return frame.pivot_table(index="seed", columns="network", values=column, aggfunc="last")


@statement(
    "II-8a",
    "II-8",
    "4.5, fig. 8",
    "Shared naively, ResNet-110 has a higher training error than unshared and a higher "
    "validation error than ResNet-38 of as many parameters",
    "validation error of the shared network after the last epoch minus that of ResNet-38, in "
    "points; holds if positive, and so is the difference of training errors to ResNet-110",
    about=those(network=("ResNet-38", "ResNet-110", "110 naive")),
)
def _(frames):
    train = by_network(frames["history"], "train_error")
    test = by_network(frames["history"], "error")
    return cases_of(
        test,
        lambda row: (
            row["110 naive"] > row["ResNet-38"]
            and train.loc[row.name, "110 naive"] > train.loc[row.name, "ResNet-110"],
            100 * (row["110 naive"] - row["ResNet-38"]),
        ),
    )


@statement(
    "II-8b",
    "II-8",
    "fig. 8",
    "r, the gradient norm at the first block of the first stage over that at the last "
    "stage's, is far larger in the naively shared network, on training and validation "
    "images, from initialization on",
    "smallest quotient of r of the naively shared and the unshared network, over splits and "
    "epochs with initialization; holds if over 2",
    "It is larger by a factor of 1.3 to 2 after every epoch. As the networks are built, that is 10 "
    "and 17; with statistics of images in batch normalization, 1.1 and 1.8.",
    about=those(network=("ResNet-110", "110 naive")),
)
def _(frames):
    def judged(rows):
        ratios = rows.pivot(index=["split", "epoch"], columns="network", values="gradient_ratio")
        quotient = (ratios["110 naive"] / ratios["ResNet-110"]).min()
        return quotient > 2, quotient

    return per_seed(gradient_ratios(frames, ["110 naive", "ResNet-110"]), judged)


@statement(
    "II-8c",
    "II-8",
    "fig. 8",
    "Its states explode at initialization",
    "growth of the norm of the state from the first to the last block, naively shared over "
    "unshared, as the networks are built; holds if over 10",
    "As they are built, batch normalization has means of 0 and variances of 1. With the statistics "
    "of images, as in training, the states grow by half as much again, and do not explode.",
    about=those(network=("ResNet-110", "110 naive")),
)
def _(frames):
    frame = in_a_row(frames["initial_signal"].query("split == 'train'")).sort_values("place")
    growth = frame.groupby(["seed", "network"])["state_norm"].agg(lambda x: x.iloc[-1] / x.iloc[0])
    table = growth.unstack()
    return cases_of(
        table,
        lambda row: (
            row["110 naive"] / row["ResNet-110"] > 10,
            row["110 naive"] / row["ResNet-110"],
        ),
    )


@statement(
    "II-9a",
    "II-9",
    "fig. 9",
    "Every part of unshared batch norm helps; statistics of their own matter most",
    "lowest validation error over the epochs of naive sharing minus that with statistics of their "
    "own, in points; holds if that is the largest single gain and every added part lowers the "
    "error",
    "Statistics of their own are a gain with both seeds, every other part with one of the two: "
    "seeds of a network differ by up to 5 points.",
    about=those(network=SHARED),
)
def _(frames):
    best = frames["history"].groupby(["seed", "network"])["error"].min().unstack()

    def judged(row):
        naive, gamma, statistics, both, ubn = row[SHARED]
        gain = naive - statistics
        return gain > naive - gamma > 0 and statistics > both > ubn, 100 * gain

    return cases_of(best, judged)


@statement(
    "II-9b",
    "II-9",
    "fig. 9",
    "The L1 norm of the last state falls with each part",
    "L1 norm of naive sharing over that of UBN, last epoch; holds if each part lowers it",
    "A gamma that begins at 0.1 lowers it, and so does normalization that is not shared; "
    "statistics of their own alone do not.",
    about=those(network=SHARED),
)
def _(frames):
    last = by_network(last_states(frames["by_epoch"]), "state_l1")

    def judged(row):
        naive, gamma, statistics, both, ubn = row[SHARED]
        return naive > gamma > both > ubn and naive > statistics > both, naive / ubn

    return cases_of(last, judged)


@statement(
    "II-T1",
    "II-T1",
    "table 1",
    "Test error: 110 < 56 < 110-UBN < 38 < 32; UBN with more steps does not gain more",
    "error of ResNet-38 minus that of 110-UBN, in points; holds if the order is the paper's and "
    "neither 146-UBN nor 182-UBN is better than 110-UBN by more than 0.5 points",
    "After 6 epochs, ResNet-32 has the lowest mean error; the means of all seven are within 4 "
    "points, the two seeds of one network up to 5 points apart.",
)
def _(frames):
    test = by_network(frames["summary"], "error")

    def judged(row):
        order = [
            row[name] for name in ("ResNet-110", "ResNet-56", "110 UBN", "ResNet-38", "ResNet-32")
        ]
        gain = row["110 UBN"] - np.min([row["146 UBN"], row["182 UBN"]])
        is_so = (np.diff(order) >= 0).all() and gain < 0.005
        return is_so, 100 * (row["ResNet-38"] - row["110 UBN"])

    return cases_of(test, judged)


@statement(
    "II-18",
    "II-18",
    "app. D, fig. 18, 19",
    "Shared networks show the same trends of cosine, read-out and l2 ratio over the epochs "
    "as unshared ones",
    "smallest rank correlation, over the three metrics and two shared networks, with the "
    "unshared network's values by block and epoch; holds if over 0.5",
    "Read-outs do (0.57 to 0.88), cosines now and then (0.08 to 0.68), l2 ratios do not: in shared "
    "networks the first blocks of the stage have the lowest, in the unshared one the highest.",
    about=those(network=("ResNet-110", "110 naive", "110 UBN")),
)
def _(frames):
    frame = last_stage(frames["by_epoch"]).query("split == 'validation'")
    metrics = ["cosine_loss", "readout_error", "l2_ratio"]

    def judged(rows):
        found = []
        for metric in metrics:
            table = rows.pivot(index=["epoch", "block"], columns="network", values=metric)
            ranks = table.corr("spearman")["ResNet-110"]
            found += [ranks["110 naive"], ranks["110 UBN"]]
        return np.min(found) > 0.5, np.min(found)

    return per_seed(frame, judged)


@statement(
    "II-C",
    "II-10",
    "fig. 10-12, 15-17",
    "The same figures on CIFAR-100",
    "rank correlation of block and cosine, as in II-4a; holds if it is negative and all cosines "
    "are; the other figures are to be looked at",
    cannot="CIFAR-100 has to be downloaded, and 100 classes are not learnt at this size",
)
def _(frames):
    return falling_cosines(frames)
