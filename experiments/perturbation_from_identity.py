"""PI: Hauser 2019, "On residual networks learning a perturbation from identity"."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
from catalogue import WELL, Case, Network, entry, spearman, statement, table_by
from drawing import panels, ranged
from measures import clocked, lines, path_lengths, perturbation, summary

from tfresidual.jobs.settings import Settings
from tfresidual.probes.perturbation import distances_of
from tfresidual.probes.stopping_rule import depth_for
from tfresidual.training import hauser_batch_size

BLOCKS = {
    "smoke": (2, 3),
    "small": (2, 4, 8, 16, 24),
    "longer": (4, 8, 16),
    "trained": (4, 8, 16, 32),
    "paper": (*range(2, 72, 2), 80, 90, 100),
}
# Data sets by the name that figures show. Digitclutter is drawn and not downloaded.
DATA = {
    "smoke": {"CIFAR-10": "digitclutter", "MNIST": "digitclutter"},
    "small": {"CIFAR-10": "cifar10", "MNIST": "mnist"},
    "longer": {"MNIST": "mnist"},
    "trained": {"CIFAR-10": "cifar10", "MNIST": "mnist"},
    "paper": {"CIFAR-10": "cifar10", "MNIST": "mnist"},
}
SEEDS = {"smoke": 1, "small": 2, "longer": 1, "trained": 1, "paper": 1}
COMMON = {
    "smoke": {"width": 4, "epochs": 1, "train_size": 256, "validation": 64, "test_size": 64},
    "small": {"width": 8, "epochs": 5, "train_size": 12_000, "test_size": 5000},
    "paper": {"recipe": "hauser", "epochs": 200, "validation": 5000},
}
COMMON["trained"] = WELL | {"width": 8, "epochs": 4, "train_size": 48_000}
# Over six times the steps.
COMMON["longer"] = COMMON["small"] | {"epochs": 8, "batch_size": 16, "learning_rate": 0.025}
# The largest mean scaled perturbation of the rule. The paper takes 0.1, which is met at 34 blocks
# and more; in shallower networks it is larger.
EPSILON = {2: 0.5, 3: 0.5, 16: 0.2, 24: 0.2, 100: 0.1}


def networks(size):
    """A network for every depth, data set and seed."""
    found = []
    for data, images in DATA.get(size, {}).items():
        for blocks in BLOCKS[size]:
            for seed in range(SEEDS[size]):
                common = dict(COMMON[size])
                if size == "paper":
                    common["batch_size"] = hauser_batch_size(blocks, images)
                settings = Settings(
                    network="hauser_resnet", depth=blocks, seed=seed, **common | {"data": images}
                )
                labels = {"data": data, "blocks": blocks, "seed": seed}
                name = f"{data.lower().replace('-', '')}-{blocks}_blocks-seed{seed}"
                found.append(Network(name, settings, labels, clocked))
    return found


def of_stages(frame):
    """Returns the distances of the stages of every network, and of all stages."""
    found = []
    for labels, rows in frame.groupby(["name", "data", "blocks", "seed"], sort=False):
        named = dict(zip(["name", "data", "of", "seed"], labels, strict=True))
        found.append(distances_of(rows).assign(**named))
    distances = pd.concat(found, ignore_index=True)
    stages = distances["stage"].astype(str)
    distances["section"] = np.where(stages == "all", "all sections", "section " + stages)
    return distances.rename(columns={"of": "blocks", "blocks": "measured"})


def over_blocks(frames, column, title, beside, below="blocks per section", **kwargs):
    """Draws a distance over the number of blocks, for every section."""
    return panels(
        of_stages(frames["perturbation"]),
        "blocks",
        column,
        title,
        panel="data",
        line="section",
        beside=beside,
        below=below,
        share_y=False,
        **kwargs,
    )


# How distances are drawn over the depth: a power is a straight line.
GROWTH = {
    "log": True,
    "log_x": True,
    "slope": 1,
    "below": "blocks per section (dotted: slope 1)",
}


def along_sections(frames, column, title, beside):
    """Draws a perturbation of every block over its place in the section, a line per network."""
    frame = frames["perturbation"]
    last = frame.groupby(["name", "stage"])["block"].transform("max")
    frame = frame.assign(
        along=frame["block"] / last,
        section=frame["data"] + ", section " + frame["stage"].astype(str),
    ).sort_values(["data", "stage", "blocks"], kind="stable")
    frame["L"] = frame["blocks"].map("L = {}".format)
    return panels(
        frame,
        "along",
        column,
        title,
        panel="section",
        line="L",
        coloured=True,
        columns=3,
        share_y=False,
        below="place in the section (0: first block, 1: last)",
        beside=beside,
    )


@entry("PI-1", "What is the test error of networks of every depth?", networks, [summary])
def test_error(frames):
    return panels(
        frames["summary"],
        "blocks",
        "error",
        "Test error over depth",
        panel="data",
        percent=True,
        log_x=True,
        from_zero=True,
        share_y=False,
        below="blocks per section",
        beside="test error",
    )


@entry("PI-2", "How far does every block move the state?", networks, [perturbation, summary])
def perturbations(frames):
    return along_sections(
        frames, "perturbation", "Perturbation of every block, |F|", "perturbation"
    )


@entry("PI-3", "How far does the state travel?", networks, [perturbation, summary])
def distance(frames):
    return over_blocks(
        frames,
        "distance",
        "Computational distance",
        "distance",
        **GROWTH,
    )


@entry("PI-4", "How large is the mean perturbation?", networks, [perturbation, summary])
def mean_perturbation(frames):
    return over_blocks(
        frames,
        "mean_perturbation",
        "Mean perturbation, |F|",
        "mean perturbation",
        log_x=True,
        from_zero=True,
    )


@entry(
    "PI-5",
    "How far does every block move the state, relative to its size?",
    networks,
    [perturbation, summary],
)
def scaled_perturbations(frames):
    return along_sections(
        frames,
        "scaled_perturbation",
        "Scaled perturbation of every block, |F| / |h|",
        "scaled perturbation",
    )


@entry(
    "PI-6",
    "How far does the state travel, relative to its size?",
    networks,
    [perturbation, summary],
)
def scaled_distance(frames):
    return over_blocks(
        frames,
        "scaled_distance",
        "Scaled computational distance",
        "scaled distance",
        **GROWTH,
    )


@entry(
    "PI-7",
    "At what depth does the mean scaled perturbation fall under epsilon?",
    networks,
    [perturbation, summary],
)
def mean_scaled_perturbation(frames):
    epsilon = EPSILON[frames["perturbation"]["blocks"].max()]
    return over_blocks(
        frames,
        "mean_scaled_perturbation",
        "Mean scaled perturbation",
        "mean scaled perturbation",
        log=True,
        log_x=True,
        reference=epsilon,
        slope=-1,
        below=f"blocks per section (dotted: 1/L, dashed: {epsilon:g})",
    )


def crossing(rows, epsilon):
    """Returns the depth at which the mean scaled perturbation falls under epsilon.

    Between two depths it is taken to be a line in logarithms. NaN if it is under epsilon at all
    depths or at none.
    """
    rows = rows.sort_values("blocks")
    depth = np.log(rows["blocks"].to_numpy(float))
    over = np.log(rows["mean_scaled_perturbation"].to_numpy() / epsilon)
    under = np.flatnonzero(over <= 0)
    if not len(under) or under[0] == 0:
        return math.nan
    i = under[0]
    share = over[i - 1] / (over[i - 1] - over[i])
    return float(np.exp(depth[i - 1] + share * (depth[i] - depth[i - 1])))


def deepest_over(rows, epsilon):
    """Returns the largest depth if the mean scaled perturbation is over epsilon at all of them."""
    is_over = (rows["mean_scaled_perturbation"] > epsilon).all()
    return float(rows["blocks"].max()) if is_over else math.nan


def rule_of(frame):
    """Returns what the rule says, taken at half the largest depth, and the depth by experiment."""
    epsilon = EPSILON[frame["blocks"].max()]
    rows = []
    keys = ["data", "section", "seed"]
    for (data, section, seed), here in of_stages(frame).groupby(keys, sort=False):
        if section == "all sections":
            continue
        middle = (here["blocks"] - here["blocks"].max() / 2).abs().idxmin()
        measured = here.loc[middle]
        rows.append(
            {
                "data": data,
                "section": section,
                "seed": seed,
                "measured_at": measured["blocks"],
                "scaled_distance": measured["scaled_distance"],
                "rule": depth_for(measured["scaled_distance"], epsilon),
                "experiment": crossing(here, epsilon),
                # The depth by experiment is over this one, if there is none.
                "at_least": deepest_over(here, epsilon),
            }
        )
    return pd.DataFrame(rows)


@entry(
    "PI-R",
    "Does the rule, taken at one depth L, name the depth at which the mean scaled perturbation "
    "falls under epsilon? The depth by experiment is interpolated between those that were trained.",
    networks,
    [perturbation, summary],
)
def rule(frames):
    found = rule_of(frames["perturbation"]).rename(columns={"measured_at": "L"})
    rows = []
    for (data, section, blocks), here in found.groupby(["data", "section", "L"], sort=False):
        by_experiment = here["experiment"].dropna()
        over = f"over {here['at_least'].max():g}" if len(by_experiment) < len(here) else ""
        crossed = ranged(by_experiment) if len(by_experiment) else ""
        rows.append(
            {
                "data": data,
                "section": section,
                "L": blocks,
                "scaled distance": ranged(here["scaled_distance"]),
                "depth by the rule": ranged(here["rule"]),
                "depth by experiment": ", ".join(filter(None, (crossed, over))),
            }
        )
    return pd.DataFrame(rows)


def of_lines(size):
    """The networks of one depth between the extremes."""
    depths = BLOCKS.get(size, ())
    return [one for one in networks(size) if one.labels["blocks"] == depths[len(depths) // 2]]


@entry(
    "PI-M",
    "How long, under the metric that is pulled back through the network, are straight lines "
    "between the states of two images at the start of a section, and the paths of images? "
    "*Euclidean* is the length of the line in the space of these states, *last distance* that of "
    "the two last states, *detour* the length over it. Lines join 64 pairs of images of one class, "
    "and 64 of two, among the first 2,000 test images.",
    of_lines,
    [lines, path_lengths, summary],
)
def lengths(frames):
    frame = frames["lines"].rename(columns={"stage": "section", "last_distance": "last distance"})
    frame["detour"] = frame["length"] / frame["last distance"]
    frame["Euclidean"] = frame["euclidean_length"]
    groups = frame.groupby(["data", "classes", "section"], sort=False)
    columns = ["Euclidean", "length", "last distance", "detour"]
    paths = frames["path_lengths"].rename(columns={"stage": "section"})
    paths = paths.groupby(["data", "section"], sort=False)
    return {
        "lines": groups[columns].agg(ranged).reset_index(),
        "paths": paths[["path_length"]].agg(ranged).reset_index(),
    }


# Statements


def cases(frame, function, by=("data", "seed")):
    """Returns the cases of a function `(rows of a data set and seed) -> (holds, effect)`."""
    found = []
    for (data, seed), rows in frame.groupby([*by], sort=False):
        holds, effect = function(rows)
        found.append(Case(bool(holds), float(effect), f"{data}, seed {seed}"))
    return found


def of_many_blocks(networks):
    """Returns the networks of 8 blocks per section and more, or else the deepest ones."""
    least = min([8, *(one.labels["blocks"] for one in deepest(networks))])
    return [one for one in networks if one.labels["blocks"] >= least]


def deepest(networks):
    """Returns the networks of the most blocks."""
    most = max((one.labels["blocks"] for one in networks), default=0)
    return [one for one in networks if one.labels["blocks"] == most]


@statement(
    "PI-1",
    "PI-1",
    "fig. 1",
    "The test error over L is in line with published networks",
    "lowest test error over the published one of a ResNet-20 (8.75 % on CIFAR-10, 0.5 % on MNIST); "
    "holds if under 1.25",
    "The published networks were trained for some 200 epochs on all images.",
)
def _(frames):
    published = {"CIFAR-10": 0.0875, "MNIST": 0.005}

    def judged(rows):
        ratio = rows["error"].min() / published[rows["data"].iloc[0]]
        return ratio < 1.25, ratio

    return cases(frames["summary"], judged)


@statement(
    "PI-2",
    "PI-2",
    "3.1, fig. 2, 5",
    "Sections 1 and 2: earlier blocks move the state more than later ones; section 3: both ends "
    "more than the middle",
    "share of networks of 8 blocks or more for which the mean of the first half of the "
    "perturbations is larger in sections 1 and 2, and the means of the first and the last third "
    "are larger than that of the middle one in section 3; holds if over 0.8",
    "In section 3, the perturbations rise to its end. Sections 1 and 2 are so in most networks.",
    about=of_many_blocks,
)
def _(frames):
    frame = frames["perturbation"]

    def is_so(rows):
        halves = []
        for stage in (1, 2, 3):
            steps = rows[rows["stage"] == stage].sort_values("block")["perturbation"].dropna()
            values, half = steps.to_numpy(), len(steps) // 2
            thirds = [part.mean() for part in np.array_split(values, 3)]
            halves.append(
                values[:half].mean() > values[-half:].mean()
                if stage < 3
                else np.min([thirds[0], thirds[2]]) > thirds[1]
            )
        return all(halves)

    def judged(rows):
        share = np.mean([is_so(here) for _, here in rows.groupby("name")])
        return share > 0.8, share

    return cases(frame, judged)


def total(frame):
    """Returns the distances of all sections together."""
    return of_stages(frame).query("section == 'all sections'").sort_values("blocks")


def growths(rows, column):
    """Returns by what a distance grows as the depth doubles, among the least and the most deep."""
    depth, height = np.log2(rows["blocks"]), np.log2(rows[column])
    count = max(2, len(rows) // 3)
    ends = (slice(None, count), slice(-count, None))
    return [2 ** np.polyfit(depth.iloc[end], height.iloc[end], 1)[0] for end in ends]


def levels_off(frames, column):
    """Returns the cases of a distance that grows with the depth at first, and hardly in the end."""

    def judged(rows):
        first, last = growths(rows, column)
        return last < 1.5 < first, last

    return cases(total(frames["perturbation"]), judged)


@statement(
    "PI-3a",
    "PI-3",
    "3.2, fig. 3",
    "The distance grows with L with diminishing return: it doubles with L while L is small, then "
    "grows by less than half per doubling, then not at all",
    "factor by which the total distance grows per doubling of L, from the slope between the two "
    "deepest networks; holds if under 1.5, and over 1.5 between the two shallowest",
    "The paper goes to 100 blocks and 200 epochs. Up to 24 blocks after 5 epochs, the mean "
    "perturbation falls by a quarter per doubling at most (PI-4), so that the distance continues "
    "to grow.",
)
def _(frames):
    return levels_off(frames, "distance")


@statement(
    "PI-3b",
    "PI-3",
    "3.2",
    "CIFAR-10 is further than MNIST (860 against 490 at saturation)",
    "total distance on CIFAR-10 over that on MNIST, deepest networks; holds if over 1",
    "In the paper it is 1.76. Here, the distances still grow with L (PI-3a).",
    about=deepest,
)
def _(frames):
    frame = total(frames["perturbation"])
    by_data = table_by(frame, ["seed"], ["data"], "distance")
    by_data = by_data.reindex(columns=["CIFAR-10", "MNIST"])
    ratios = by_data["CIFAR-10"] / by_data["MNIST"]
    return [Case(bool(ratio > 1), float(ratio), f"seed {seed}") for seed, ratio in ratios.items()]


@statement(
    "PI-4",
    "PI-4",
    "3.3, fig. 4",
    "The mean perturbation falls with L",
    "mean perturbation of all sections at the largest L over that at the smallest; holds if the "
    "rank correlation with L is under -0.8",
    "In section 1 alone it does not fall on MNIST.",
)
def _(frames):
    def judged(rows):
        steps = rows["mean_perturbation"]
        correlation = spearman(rows, "blocks", "mean_perturbation")
        return correlation < -0.8, steps.iloc[-1] / steps.iloc[0]

    return cases(total(frames["perturbation"]), judged)


@statement(
    "PI-6",
    "PI-6",
    "3.4, fig. 6",
    "The scaled distance has the same course",
    "factor by which the total scaled distance grows per doubling of L, from the slope between the "
    "deepest networks; holds if under 1.5, and over 1.5 between the two shallowest",
    "It grows slowly from the start, by a factor of 1.3 to 1.7 per doubling, and does not "
    "level off up to 24 blocks.",
)
def _(frames):
    return levels_off(frames, "scaled_distance")


@statement(
    "PI-7",
    "PI-7",
    "3.5, fig. 7",
    "The mean scaled perturbation falls about as 1/L and ends under 0.1",
    "exponent fitted to the mean scaled perturbation of all sections over L; holds if between -1.3 "
    "and -0.7 and the mean ends under epsilon",
    "Epsilon is 0.2: in the paper, 0.1 is met at 34 blocks and more. The mean falls more slowly "
    "than 1/L, in section 1 most of all.",
)
def _(frames):
    epsilon = EPSILON[frames["perturbation"]["blocks"].max()]

    def judged(rows):
        step = rows["mean_scaled_perturbation"]
        exponent = np.polyfit(np.log(rows["blocks"]), np.log(step), 1)[0]
        return -1.3 < exponent < -0.7 and step.iloc[-1] < epsilon, exponent

    return cases(total(frames["perturbation"]), judged)


@statement(
    "PI-R",
    "PI-R",
    "3.5.1",
    "ceil(distance / epsilon), taken at one L, names the depth at which the mean falls under "
    "epsilon",
    "depth by the rule over depth by experiment, in the section where that is furthest from 1; "
    "holds if within a quarter of 1. Where no network falls under epsilon, the largest depth "
    "stands for that by experiment, and the true quotient is smaller; a case has no value if that "
    "is within a quarter",
    "Epsilon is 0.2. In section 1, the mean is over it at all depths, up to 24; on MNIST, the rule "
    "is right in sections 2 and 3.",
)
def _(frames):
    def judged(rows):
        quotients = rows["rule"] / rows["experiment"].fillna(rows["at_least"])
        # Whether a bound within a quarter is the depth is not known.
        is_open = (rows["experiment"].isna() & (quotients >= 0.75)).any()
        is_missing = is_open or quotients.isna().any()
        effect = math.nan if is_missing else quotients[np.log(quotients).abs().idxmax()]
        return not is_open and quotients.between(0.75, 1.25).all(), effect

    return cases(rule_of(frames["perturbation"]), judged)


@statement(
    "PI-M",
    "PI-M",
    "2.4, eq. 12",
    "Lines between images of two classes are longer, under the metric, than between images of one",
    "mean length between images of two classes over that of one class, first stage; holds if over "
    "1",
    "The paper gives the metric and no lengths. In the space of the states (Euclidean), these "
    "lines are longer, too: by a little more on CIFAR-10, by far less on MNIST. Lines have no "
    "step; the line element with the step is that of the paths of images.",
)
def _(frames):
    frame = frames["lines"].query("stage == 1")

    def judged(rows):
        means = rows.groupby("classes")["length"].mean()
        ratio = means["two classes"] / means["one class"]
        return ratio > 1, ratio

    return cases(frame, judged)
