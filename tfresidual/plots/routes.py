"""Figures of networks on changed routes through their blocks.

All frames may have a column `split`. A value that is missing, infinite, or 0 on a logarithmic axis
leaves a gap. Values that differ by more than a factor of 30 are drawn on a logarithmic axis, with a
linear part down to 0 if there are zeros. A `scale` of the repeated branch other than 1 appears in
the title. II is Jastrzebski et al., "Residual Connections Encourage Iterative Inference", 2018; IC
is "Iterative convergent computation is not a useful inductive bias for ResNets".
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tfresidual.definitions.arguments import check_choice
from tfresidual.plots import frames, style
from tfresidual.plots.engine import DRAWINGS, draw_as, draw_table, read

if TYPE_CHECKING:
    from typing import Literal

    from tfresidual.definitions.types import Figure, Frame

# By panel: the label below it, the key of its frame, and the place of the key 0.
_ROUTES = {
    "left early": ("blocks before the stage is left", "block", 1),
    "dropped": ("dropped block", "block", 0),
    "repeated": ("repetitions of the last block", "repetition", 0),
}
_PLACES = {
    "blocks": "block of the last stage",
    "repetitions": "last block of the last stage,\nthen its repetitions",
}
_GROUPS = ("borderline", "correct", "all")
_METRICS = ("accuracy", "cross_entropy", "entropy")
_BASES = ("labels", "agreement")


def route_errors(
    readout: Frame,
    drop_blocks: Frame,
    repeat_last_block: Frame,
    *,
    chance: float | dict[str, float] | None = None,
) -> Figure:
    """Draws the error on three kinds of routes side by side, a line per stage.

    From left to right, a stage is left early, lacks one block, or repeats its last block. A
    dotted line marks the error of the unperturbed network. Each split has its own row.

    Args:
        readout: Read-out frame with the columns `stage`, `block` and `error`.
        drop_blocks: Dropped blocks frame with the columns `stage`, `block`, `error` and
            `unperturbed_error`.
        repeat_last_block: Repetitions frame with the columns `stage`, `repetition` and `error`;
            stages may be missing.
        chance: Error of guessing, over 0 and up to 1, marked by a dashed line; a dict of such
            errors by split; or `None`.

    Reference:
        IC figure 2a.
    """
    drawing, parts, panels = DRAWINGS["route_errors"], [], []
    of = (readout, drop_blocks, repeat_last_block)
    for frame, (title, (below, key, first)) in zip(of, _ROUTES.items(), strict=True):
        table = frames.keyed_values(frame, ("stage", key), ("error",))
        parts.append(table.assign(panel=title, place=table[key] + first))
        panels.append(dataclasses.replace(drawing.panels[0], title=title, below=below))
    table = pd.concat(parts, ignore_index=True)
    unperturbed = drop_blocks.groupby(frames.splits_of(drop_blocks))["unperturbed_error"].first()
    table["unperturbed_error"] = table["split"].map(unperturbed)
    title = drawing.title + frames.branch_scale(repeat_last_block)
    drawing = dataclasses.replace(drawing, panels=tuple(panels))
    return draw_table(table, drawing, title, {"chance": chance})


def shuffle_blocks(frame: Frame) -> Figure:
    """Draws the error of shuffled stages against how much of the blocks' order is preserved.

    Every dot is one shuffled order of one stage; the further right, the less of the trained order
    is preserved. A dotted line per split marks the error of the unperturbed network.

    Args:
        frame: Shuffled blocks frame with the columns `stage`, `kendall_tau` (1 if the order is
            kept, -1 if it is reversed), `error` and `unperturbed_error`.

    Reference:
        Veit et al., "Residual Networks Behave Like Ensembles of Relatively Shallow Networks",
        2016, figure 5b.
    """
    columns = ("kendall_tau", "error", "unperturbed_error")
    table = frames.keyed_values(frame, ("stage",), columns)
    figure = draw_table(table, DRAWINGS["shuffle_blocks"])
    least = np.nanmin(np.append(table["kendall_tau"], 0.98))
    pad = 0.03 * (1 - least)
    figure.axes[0].set_xlim(1 + pad, least - pad)
    return figure


def convergence_curves(readout: Frame, repeat_last_block: Frame) -> Figure:
    """Draws how a stage approaches its final state, and where repetitions of its last block lead.

    The horizontal axis counts the applied blocks: first the read-outs of the stage's blocks, then
    the repetitions of the last block. There is a line per stage, solid for the first split and
    dashed for the others. A thin vertical line marks the trained number of blocks. The left panel
    shows the cross-entropy, the right one the Euclidean distance to the stage's final state, which
    is 0 at that line.

    Args:
        readout: Read-out frame with the columns `stage`, `block`, `cross_entropy` and `distance`.
        repeat_last_block: Repetitions frame with the columns `stage`, `repetition` (0 for none),
            `cross_entropy` and `distance`; stages may be missing.

    Reference:
        IC figures 6b and 6c.
    """
    drawing = DRAWINGS["convergence_curves"]
    table, lengths = _applied_blocks(readout, repeat_last_block, drawing)
    title = drawing.title + frames.branch_scale(repeat_last_block)
    figure = draw_table(table, drawing, title, handles=[_length_handle()])
    for axes in figure.axes:
        _mark_lengths(axes, lengths)
    return figure


def repetition_metrics(frame: Frame, block_metrics: Frame | None = None) -> Figure:
    """Draws the direction and the size of every repetition of a stage's last block.

    Each stage has a column of two panels with a line per split. The upper panel shows the cosine
    between what the block adds and the gradient of the loss, below zero if the loss decreases. The
    lower panel shows the size of what the block adds relative to the state. Repetition 0 is the
    application that was trained.

    With `block_metrics`, the trained blocks of the stage come before the repetitions, as in the
    paper: the horizontal axis then counts the applied blocks, and a thin vertical line marks the
    trained number of blocks.

    Args:
        frame: Repetitions frame with the columns `stage`, `repetition`, `cosine_loss` and
            `l2_ratio`.
        block_metrics: Block metrics frame of the same images with the columns `stage`, `block`,
            `cosine_loss` and `l2_ratio`; or `None`. Stages without repetitions are left out.

    Reference:
        II figure 20.
    """
    drawing = DRAWINGS["repetition_metrics"]
    if block_metrics is None:
        return draw_as(frame, drawing)
    stages = set(frame["stage"])
    table, lengths = _applied_blocks(block_metrics, frame, drawing)
    table = table[table["stage"].isin(stages)]
    drawing = dataclasses.replace(drawing, over="applied", below="number of blocks applied")
    title = drawing.title + frames.branch_scale(frame)
    figure = draw_table(table, drawing, title, handles=[_length_handle()])
    for axes, stage in zip(figure.axes, itertools.cycle(sorted(stages)), strict=False):
        _mark_lengths(axes, lengths[[stage]])
    return figure


def _length_handle():
    """Returns the entry of the legend for the marks of `_mark_lengths`."""
    look = {"linestyle": "none", "marker": "|", "markersize": 11}
    return style.line_handle("trained number of blocks", **look)


def _applied_blocks(blocks, repeated, drawing):
    """Returns blocks and repetitions over the column `applied`, and the stages' lengths."""
    metrics = [line.column for panel in drawing.panels for line in panel.lines]
    blocks = frames.keyed_values(blocks, ("stage", "block"), metrics)
    repeated = frames.keyed_values(repeated, ("stage", "repetition"), metrics)
    lengths = blocks.groupby("stage")["block"].max() + 1
    blocks["applied"] = blocks["block"] + 1
    repeated = repeated[repeated["repetition"] > 0]
    repeated = repeated.assign(applied=repeated["stage"].map(lengths) + repeated["repetition"])
    return pd.concat([blocks, repeated], ignore_index=True), lengths


def _mark_lengths(axes, lengths):
    """Marks where repetitions begin."""
    for length in sorted(set(lengths)):
        axes.axvline(length, color=style.FAINT_INK, linewidth=0.9, zorder=1.5, gid="length")


def fixed_point(frame: Frame, *, mu: float | None = None) -> Figure:
    """Draws how the changes of a stage's state shrink as its last block is applied again and again.

    The left panel shows the change of the state per application, the middle one the distance to the
    last of the states, both on logarithmic axes. The right panel shows the contraction, which is
    the change divided by the previous change: its mean over images as a line, and a band from there
    to the largest. There is a line per stage, solid for the first split and dashed for the others.
    With `mu`, dotted lines decrease by this factor per application, starting from the first change
    of every stage; the changes of a contraction with this factor stay below them.

    Args:
        frame: Fixed point frame with the columns `stage`, `repetition` (0 for the application of
            the block that was trained), `change`, `contraction`, `largest_contraction` and
            `distance`.
        mu: Bound on the Lipschitz constant of a block, a positive number, or `None`.

    Reference:
        IC sections 4.2 and E.2.
    """
    drawing = DRAWINGS["fixed_point"]
    figure = draw_as(frame, drawing, mu=mu)
    if mu is None:
        return figure
    table = read(frame, drawing)
    looks = style.stage_looks(sorted(set(table["stage"])))
    for (_, stage), rows in table.groupby(["split", "stage"]):
        known = rows[rows["change"] > 0]
        if known.empty:
            continue
        first = known.iloc[0]
        places = np.arange(int(first["repetition"]), int(rows["repetition"].max()) + 1)
        heights = first["change"] * mu ** (places - first["repetition"])
        look = {"color": looks[stage].colour, "linewidth": 1.1, "linestyle": ":", "zorder": 1.8}
        figure.axes[0].plot(places, heights, gid="slope", **look)
    return figure


def convergence_indices(frame: Frame) -> Figure:
    """Draws the convergence, recurrence and divergence index of every stage, and their mean.

    Splits differ in colour. Dots are filled if errors are counted against the labels, and open if
    they are counted against the predictions of the unperturbed network.

    Args:
        frame: Indices frame with the columns `stage` (numbers, and "mean"), `basis` ("labels" or
            "agreement"), `convergence_index`, `recurrence_index` and `divergence_index`.

    Reference:
        IC figures 2b and 6a.
    """
    drawing = DRAWINGS["convergence_indices"]
    table = read(frame, drawing)
    table["basis"] = pd.Categorical(table["basis"], _BASES)
    return draw_table(table, drawing)


def borderline(frame: Frame, *, along: Literal["blocks", "repetitions"] = "blocks") -> Figure:
    """Draws accuracy, loss and entropy of borderline, correct and all images after each block.

    There is a line per group and split, solid for the first split and dashed for the others. The
    legend shows the number of images of each group; a group without images has no line.

    Groups of the next block have other images at each block. Each block is then a line of its own,
    from the mean of its groups before the block to the mean of the same images after it, and the
    legend shows the smallest and the largest number of images of each group.

    Args:
        frame: Borderline frame with the columns `along`, `block`, `group`, `images`, `accuracy`,
            `cross_entropy` and `entropy`. With the columns `accuracy_before`,
            `cross_entropy_before` and `entropy_before`, its groups are those of the next block.
        along: Which rows are drawn: "blocks" for the last blocks of the last stage, or
            "repetitions" for its last block and the repetitions of it, which continue the count.

    Raises:
        ValueError: if `along` is something else.

    Reference:
        II figure 6 (blocks) and figure 7 (repetitions).
    """
    check_choice("along", along, _PLACES)
    frame = frame[frame["along"] == along]
    metrics = [name for name in frame if name.removesuffix("_before") in _METRICS]
    table = frames.keyed_values(frame, ("block",), metrics, carried=("images",), texts=("group",))
    table["group"] = pd.Categorical(table["group"], _GROUPS)
    # A group without images has no mean, whatever its rows contain.
    table.loc[table["images"] == 0, metrics] = np.nan
    drawing = dataclasses.replace(DRAWINGS["borderline"], below=_PLACES[along])
    named = {}
    for group, split in itertools.product(_GROUPS, frames.order_splits(table["split"])):
        images = table.loc[(table["group"] == group) & (table["split"] == split), "images"]
        if len(images):
            least, most = images.min(), images.max()
            count = f"{most:,}" if least == most else f"{least:,} to {most:,}"
            named[group, split] = f"{', '.join(filter(None, (group, split)))} ({count} images)"
    table["place"] = table["block"]
    title = drawing.title
    if "accuracy_before" in table:
        title = "Borderline before each block"
        before = table.assign(place=table["block"] - 1)
        before[list(_METRICS)] = table[[f"{metric}_before" for metric in _METRICS]]
        # A gap after each block ends its line.
        gap = table.assign(**dict.fromkeys(("place", *_METRICS), np.nan))
        table = pd.concat([before, table, gap]).sort_index(kind="stable")
    return draw_table(table, drawing, title + frames.branch_scale(frame), named=named)
