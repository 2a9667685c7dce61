"""IM: He et al. 2016, "Identity mappings in deep residual networks"."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
from catalogue import (
    WELL,
    Network,
    Untrained,
    cases_of,
    entry,
    per_seed,
    small_batches,
    spearman,
    statement,
    table_by,
    those,
)
from drawing import in_a_row, panels, table
from measures import clocked, first_signal, history, summary

from tfresidual import training
from tfresidual.jobs.settings import Settings


def shortcuts_of(size):
    """Returns the shortcuts of table 1, changes of the settings by name."""
    # The paper tries exclusive gates of all these biases, and shortcut-only gates of two.
    biases = range(0, -11, -1) if size == "paper" else (0, -6, -10)
    if size == "trained":
        return {
            "identity": {},
            "scaled 0.5, branch 1": {"shortcut": "scaled"},
            "1x1 convolution": {"shortcut": "conv1x1"},
        }
    return {
        "identity": {},
        "scaled 0.5, branch 1": {"shortcut": "scaled"},
        "scaled 0.5, branch 0.5": {"shortcut": "scaled", "branch_scale": 0.5},
        **gates("exclusive gate", biases),
        **gates("shortcut-only gate", (0, -6)),
        "1x1 convolution": {"shortcut": "conv1x1"},
        "dropout": {"shortcut": "dropout"},
    }


def gates(name, biases):
    """Returns gated shortcuts of a kind."""
    kind = name.replace(" ", "_").replace("-", "_")
    return {f"{name}, bias {b}": {"shortcut": kind, "gate_bias": float(b)} for b in biases}


# The layouts of table 2, by the name that figures show.
LAYOUTS = {
    "original": "original",
    "BN after addition": "bn_after_addition",
    "ReLU before addition": "relu_before_addition",
    "ReLU-only pre-activation": "relu_only_preactivation",
    "full pre-activation": "full_preactivation",
}
# What folders are called after, if not after the name that figures show. The network of original
# units is that of identity shortcuts.
FOLDERS = LAYOUTS | {"original": "identity", "1x1 convolution": "conv1x1"}
# Layers of the networks of the tables, of which all but table 2 take the first, and of figure 1.
TABLES = {"smoke": (14,), "small": (38,), "longer": (38,), "trained": (38,), "paper": (110, 164)}
DEPTHS = {"smoke": (14, 20), "small": (38, 74), "paper": (110, 164, 1001)}
# Networks of the paper whose units are bottlenecks; others have pairs of 3x3 convolutions.
BOTTLENECKS = (164, 1001)
SEEDS = {"smoke": 1, "small": 2, "paper": 5}
TRAINED = SEEDS | {"trained": 1}
# Of the layouts, which exist at the size `longer`, too.
LONGER = TRAINED | {"longer": 1}
COMMON = {
    "smoke": {"width": 4, "epochs": 1, "train_size": 256, "validation": 64, "test_size": 64},
    "small": {
        "data": "cifar10",
        "recipe": "cifar10",
        "width": 8,
        "epochs": 6,
        **small_batches(training.recipe("cifar10")),
        "train_size": 8000,
        "test_size": 5000,
    },
    "paper": {
        "data": "cifar10",
        # Divided by 10 after one half and three quarters, as 32,000 and 48,000 of 64,000 steps.
        "recipe": "cifar10",
        "epochs": 182,
        "batch_size": 128,
        "validation": 5000,
    },
}
COMMON["trained"] = WELL | {"width": 8, "epochs": 6}
COMMON["longer"] = COMMON["small"] | {"epochs": 8, "train_size": 16_000}


def network(size, seed, depth, label, **changes):
    """A network with units of a layout and a shortcut."""
    has_bottlenecks = size == "paper" and depth in BOTTLENECKS
    built = {"network": f"resnet{depth}"} if has_bottlenecks else {"depth": depth}
    settings = Settings(seed=seed, **COMMON[size] | built | {"layout": "original"} | changes)
    name = f"{depth}_layers-{FOLDERS.get(label, label)}-seed{seed}"
    name = name.replace(", ", "_").replace(" ", "_")
    return Network(name, settings, {"network": label, "layers": depth, "seed": seed}, clocked)


def of_shortcuts(size, **more):
    """The networks of table 1."""
    return [
        network(size, seed, TABLES[size][0], label, **changes, **more)
        for seed in range(TRAINED.get(size, 0))
        for label, changes in shortcuts_of(size).items()
    ]


def before_training(size):
    """Untrained networks of all shortcuts, with nothing after their additions."""
    if size == "trained":
        return []
    return [
        Untrained(f"untrained-{one.name}", one.settings, one.labels)
        for one in of_shortcuts(size, layout="full_preactivation")
    ]


def of_layouts(size):
    """The networks of table 2; the one of original units is that of table 1 with identity."""
    return [
        network(size, seed, depth, label, layout=layout)
        for seed in range(LONGER.get(size, 0))
        for depth in TABLES[size]
        for label, layout in LAYOUTS.items()
        if size != "trained" or label in ("original", "ReLU before addition", "full pre-activation")
    ]


def of_depths(size):
    """Original units and full pre-activation at all depths."""
    return [
        network(size, seed, depth, label, layout=LAYOUTS[label])
        for seed in range(SEEDS.get(size, 0))
        for depth in DEPTHS[size]
        for label in ("original", "full pre-activation")
    ]


COLUMNS = ["train_error", "error"]


@entry("IM-T1", "Which shortcut can be trained, and to what error?", of_shortcuts, [summary])
def shortcuts(frames):
    return table(frames["summary"], COLUMNS)


def by_kind(frame):
    """Returns the frame with the column `kind`, and the rows of identity with every kind."""
    kinds = {"scaled": "scaled", "exclusive": "exclusive gates", "shortcut-only": "shortcut gates"}
    kind = frame["network"].str.split().str[0].map(kinds).fillna("other")
    is_identity = frame["network"] == "identity"
    others = dict.fromkeys(kind[~is_identity])
    identity = [frame[is_identity].assign(kind=name) for name in others]
    return pd.concat([*identity, frame[~is_identity].assign(kind=kind[~is_identity])])


@entry(
    "IM-3", "How does the training error fall with each shortcut?", of_shortcuts, [history, summary]
)
def curves(frames):
    return panels(
        by_kind(frames["history"]).assign(epoch=lambda rows: rows["epoch"] + 1),
        "epoch",
        "train_error",
        "Training error over the epochs",
        panel="kind",
        line="network",
        own_lines=True,
        columns=2,
        percent=True,
        below="epoch",
        beside="error on training images",
    )


@entry("IM-T2", "Which order of the operations in a unit is best?", of_layouts, [summary])
def layouts(frames):
    layers = frames["summary"]["layers"].astype(str)
    named = frames["summary"]["network"] + ", " + layers + " layers"
    return table(frames["summary"].assign(network=named), COLUMNS)


@entry(
    "IM-1",
    "Does full pre-activation ease training more, the deeper the network?",
    of_depths,
    [history, summary],
    also=["IM-6"],
)
def depths(frames):
    frame = frames["history"].assign(panel=lambda rows: rows["layers"].map("{} layers".format))
    return {
        "curves": panels(
            frame.assign(epoch=frame["epoch"] + 1),
            "epoch",
            "train_loss",
            "Training loss over the epochs",
            panel="panel",
            line="network",
            below="epoch",
            beside="loss on training images",
        ),
        "errors": layouts(frames),
    }


@entry(
    "IM-E",
    "Before training, with nothing after the additions: what do the shortcuts pass on, and is a "
    "state the sum of the branches? The first blocks of stages 2 and 3 change the shape. Both "
    "kinds of scaling have the same factors.",
    before_training,
    [first_signal],
)
def first_products(frames):
    frame = by_kind(in_a_row(frames["first_signal"].query("split == 'train'")))
    draw = functools.partial(
        panels,
        frame,
        "place",
        panel="kind",
        line="network",
        own_lines=True,
        columns=2,
        stages=True,
        log=True,
        below="block",
    )
    return {
        "products": draw(
            y="shortcut_product",
            title="The gradient through the shortcuts, to the end of the stage",
            beside="factor",
        ),
        "sums": draw(
            y="sum_deviation",
            title="States, and the first of their stage plus the branches",
            beside="distance / norm of the state\n(0 is not drawn: identity)",
        ),
    }


# Statements


def pivot(frame, column, keys=("seed",)):
    """Returns a table of a column, with a row per seed and a column per network."""
    return table_by(frame, keys, ["network"], column)


@statement(
    "IM-T1",
    "IM-T1",
    "table 1",
    "With original units, identity shortcuts beat all others; with shortcuts scaled by 0.5 the "
    "network fails, and with the branches scaled as well it is far worse than with identity",
    "test error of the best other shortcut minus that of identity, in points; holds if positive, "
    "and both kinds of scaling cost over 5 points",
    "Only the shortcut-only gate of bias -6, which begins almost as an identity, is as close to it "
    "as two seeds are to each other. It is the closest in the paper, too. Scaled shortcuts "
    "with the branch as it is cost 8 points and do not fail.",
)
def _(frames):
    errors = pivot(frames["summary"], "error")

    def judged(row):
        least = row.drop("identity").min() - row["identity"]
        scaled = row[["scaled 0.5, branch 1", "scaled 0.5, branch 0.5"]].min() - row["identity"]
        return least > 0 and scaled > 0.05, 100 * least

    return cases_of(errors, judged)


@statement(
    "IM-T1g",
    "IM-T1",
    "text, table 1",
    "The gate's first bias decides: exclusive gates converge for few values only, "
    "shortcut-only gates are poor at 0 and close to identity at -6",
    "error of the shortcut-only gate at bias 0 minus that at -6, in points; holds if that is over "
    "2, -6 is at most 1 point worse than identity, and exclusive gates are best at -6, by over 2 "
    "points over the worst of 0 and -10",
    "In the paper, exclusive gates are best at -6 and fail where the bias is badly chosen. With "
    "5,000 test images, differences of about one point can arise by chance.",
    about=those(network=["identity", *(name for name in shortcuts_of("paper") if "gate" in name)]),
)
def _(frames):
    errors = 100 * pivot(frames["summary"], "error")

    def judged(row):
        gain = row["shortcut-only gate, bias 0"] - row["shortcut-only gate, bias -6"]
        near = row["shortcut-only gate, bias -6"] - row["identity"]
        best = row["exclusive gate, bias -6"]
        others = [row[f"exclusive gate, bias {bias}"] for bias in (0, -10)]
        is_best = best < np.min(others) and np.max(others) - best > 2
        return gain > 2 and near <= 1 and is_best, gain

    return cases_of(errors, judged)


@statement(
    "IM-3",
    "IM-3",
    "fig. 3",
    "The worse shortcuts have the higher training error, from early on",
    "rank correlation, over the shortcuts, of the training error after a quarter of the epochs and "
    "the last validation error; holds if over 0.7",
    "Here, that is after the second of six epochs, on 512 training images. The training errors are "
    "nearly in their last order from the fourth on, when the rate has fallen for the first time.",
)
def _(frames):
    def judged(rows):
        early = rows[rows["epoch"] == rows["epoch"].max() // 4]
        last = rows[rows["epoch"] == rows["epoch"].max()]
        both = early.set_index("network")["train_error"].to_frame("early")
        both["last"] = last.set_index("network")["error"]
        correlation = spearman(both, "early", "last")
        return correlation > 0.7, correlation

    return per_seed(frames["history"], judged)


@statement(
    "IM-T2",
    "IM-T2",
    "table 2",
    "Full pre-activation is best, BN after addition worst",
    "error of full pre-activation minus that of the best other layout, in points; holds if "
    "negative and BN after addition is worst",
    "BN after addition is the worst here, too. After six epochs, ReLU before addition is ahead; "
    "full pre-activation is far ahead of original units only in the deeper network (IM-1).",
)
def _(frames):
    errors = 100 * pivot(frames["summary"], "error", ["layers", "seed"])

    def judged(row):
        others = row.drop("full pre-activation")
        difference = row["full pre-activation"] - others.min()
        return difference < 0 and row.idxmax() == "BN after addition", difference

    return cases_of(errors, judged)


@statement(
    "IM-1",
    "IM-1",
    "fig. 1, 6",
    "The deeper the network, the more full pre-activation eases training",
    "mean training loss over the epochs of original units over that of full pre-activation, in the "
    "deeper network over the same in the shallower one; holds if over 1",
)
def _(frames):
    def judged(rows):
        means = rows.groupby(["layers", "network"])["train_loss"].mean()
        ratios = [
            means[layers, "original"] / means[layers, "full pre-activation"]
            for layers in sorted(set(rows["layers"]))
        ]
        return ratios[-1] / ratios[0] > 1, ratios[-1] / ratios[0]

    return per_seed(frames["history"], judged)


@statement(
    "IM-E",
    "IM-E",
    "eq. 4-8",
    "At initialization the gradient that reaches a block through the shortcuts is the product of "
    "their scales, 1 for identity and 0.5^k for scaled; a state is the first one plus the sum of "
    "the branches",
    "factor per block of the gradient through scaled shortcuts, mean over the blocks of the last "
    "stage that keep the shape; holds if within 0.01 of 0.5, that of identity within 0.01 of 1, "
    "and its states are the sums to 0.001",
    "This follows from how the units are built, so that it is a test of this package, too.",
    about=those(network=["identity", "scaled 0.5, branch 1"]),
)
def _(frames):
    frame = frames["first_signal"].query("split == 'train'")
    frame = frame[frame["stage"] == frame["stage"].max()]

    def judged(rows):
        scales = {}
        for name in ("identity", "scaled 0.5, branch 1"):
            # Through all blocks but the first, which has a projection.
            here = rows[(rows["network"] == name) & (rows["block"] == 1)]
            scales[name] = here["shortcut_product"].item() ** (1 / rows["block"].max())
        identity, scaled = scales.values()
        sums = rows.loc[rows["network"] == "identity", "sum_deviation"].max()
        return abs(identity - 1) < 0.01 and abs(scaled - 0.5) < 0.01 and sums < 1e-3, scaled

    return per_seed(frame, judged)
