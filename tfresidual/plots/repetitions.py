"""What happens when the last block of a stage is applied again and again?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tfresidual.plots import frames, style

if TYPE_CHECKING:
    from tfresidual.types import Figure, Frame

_CURVES = (
    ("cross_entropy", "cross-entropy"),
    ("distance", "distance to final state"),
)
_BLOCK_METRICS = (
    ("cosine_loss", "cosine of step F(h)\nand loss gradient ∂L/∂h"),
    ("l2_ratio", "size of step over state\n‖F(h)‖ / ‖h‖"),
)


def convergence_curves(readout: Frame, repeat_last_block: Frame) -> Figure:
    """Draws how a stage approaches its final state, and where repetitions of its last block lead.

    The horizontal axis counts the applied blocks: first the read-outs of the stage's blocks, then
    the repetitions of the last block. There is a line per stage, solid for the first split and
    dashed for the others. A thin vertical line marks the trained number of blocks. The left panel
    shows the cross-entropy, the right one the Euclidean distance to the stage's final state, which
    is 0 at that line. Values that span more than a factor of 30 are drawn on a logarithmic axis,
    with a linear part down to 0 if there are zeros. An infinite or missing value leaves a gap.

    Args:
        readout: Read-out frame with the columns `stage`, `block`, `cross_entropy` and `distance`,
            and optionally `split`.
        repeat_last_block: Repetitions frame with the columns `stage`, `repetition` (0 for none),
            `cross_entropy` and `distance`, and optionally `split` and `scale`; stages may be
            missing. A scale other than 1 appears in the title.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing, none of the values is a finite number, several rows
            describe the same stage, block or repetition and split, the frames differ in their
            splits, or a repeated stage is not in `readout`.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", figures 6b
        and 6c.
    """
    names = ("readout", "repeat_last_block")
    blocks, repeated, lengths = _applied_blocks(readout, repeat_last_block, _CURVES, names)
    looks = style.stage_looks(lengths.index)
    splits = frames.order_splits(blocks["split"])
    lines = style.split_lines(splits)
    title = "Stages, and their last blocks" + frames.branch_scale(repeat_last_block)
    figure = style.new_figure(9.0, 3.9, title)
    for axes, (metric, label) in zip(figure.subplots(1, 2, sharex=True), _CURVES, strict=True):
        style.clean_axes(axes)
        drawn: list[float] = []
        for split in splits:
            for stage, (colour, marker) in looks.items():
                rows = [
                    table[(table["split"] == split) & (table["stage"] == stage)]
                    for table in (blocks, repeated)
                ]
                places, heights = (
                    np.concatenate([part[column] for part in rows])
                    for column in ("applied", metric)
                )
                axes.plot(
                    places,
                    heights,
                    color=colour,
                    marker=marker,
                    markersize=4.0 if len(places) <= 12 else 2.5,
                    linewidth=1.3,
                    linestyle=lines[split],
                    label=", ".join(filter(None, (f"stage {stage}", split))),
                )
                drawn.extend(heights)
        _mark_lengths(axes, lengths, looks)
        if np.isnan(drawn).all():
            style.no_values(axes)
        elif style.wide_scale(axes, drawn):
            label = f"{label} (log scale)"
        style.whole_numbers(axes.xaxis)
        style.axis_labels(axes, "number of blocks applied", label)

    handles = style.stage_handles(looks)
    if splits != [""]:
        handles += [style.line_handle(split, linestyle=lines[split]) for split in splits]
    handles.append(_length_handle())
    style.legend(figure, handles)
    return figure


def _length_handle():
    """Returns the entry of the legend for the marks of `_mark_lengths`."""
    return style.line_handle(
        "trained number of blocks", linestyle="none", marker="|", markersize=11
    )


def _applied_blocks(blocks, repeated, columns, names):
    """Returns the values of a frame of blocks and one of repetitions, and the stages' lengths.

    The tables have a column `applied`, the number of blocks applied; repetition 0 is left out.

    Args:
        blocks: The frame of blocks.
        repeated: The frame of repetitions.
        columns: Pairs of a column and its label.
        names: The names of both arguments, in this order.

    Raises:
        ValueError: as `convergence_curves` does.
    """
    metrics = tuple(metric for metric, _ in columns)
    blocks = frames.keyed_values(blocks, ("stage", "block"), metrics, names[0])
    repeated = frames.keyed_values(repeated, ("stage", "repetition"), metrics, names[1])
    frames.require_same_splits(dict(zip(names, (blocks, repeated), strict=True)))
    lengths = blocks.groupby("stage")["block"].max() + 1
    surplus = sorted(set(repeated["stage"]) - set(lengths.index))
    if surplus:
        raise ValueError(
            f"Argument `{names[1]}` must hold only stages of `{names[0]}`, which shows how many "
            f"blocks they have. Received: stages {surplus!r} besides {lengths.index.tolist()!r}"
        )
    blocks["applied"] = blocks["block"] + 1
    repeated = repeated[repeated["repetition"] > 0]
    repeated = repeated.assign(applied=repeated["stage"].map(lengths) + repeated["repetition"])
    return blocks, repeated, lengths


def _mark_lengths(axes, lengths, looks):
    """Marks where repetitions begin, in the colours of the stages unless all begin together."""
    for length, stages in lengths.groupby(lengths).groups.items():
        look = {"linewidth": 0.9, "zorder": 1.5, "gid": "length"}
        if len(stages) == len(lengths):
            axes.axvline(length, color=style.FAINT_INK, **look)
            continue
        # Stages of the same length share a line, with alternating dashes.
        for place, stage in enumerate(stages):
            dashes = (-6 * place, (6, 6 * (len(stages) - 1))) if len(stages) > 1 else "-"
            axes.axvline(length, color=looks[stage][0], linestyle=dashes, **look)


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
            `l2_ratio`, and optionally `split` and `scale`; a scale other than 1 appears in the
            title.
        block_metrics: Block metrics frame of the same images with the columns `stage`, `block`,
            `cosine_loss` and `l2_ratio`, and optionally `split`; or `None`. Stages without
            repetitions are left out.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing, none of the values is a finite number, several rows
            describe the same stage, block or repetition and split, the frames differ in their
            splits, or a repeated stage is not in `block_metrics`.

    Reference:
        Jastrzebski et al., "Residual Connections Encourage Iterative Inference", 2018, figure 20.
    """
    metrics = tuple(metric for metric, _ in _BLOCK_METRICS)
    table = frames.keyed_values(frame, ("stage", "repetition"), metrics)
    stages = sorted(table["stage"].unique())
    place, below = "repetition", "repetition of the last block (0: as trained)"
    lengths = None
    if block_metrics is not None:
        place, below = "applied", "number of blocks applied"
        names = ("block_metrics", "frame")
        blocks, repeated, lengths = _applied_blocks(block_metrics, frame, _BLOCK_METRICS, names)
        table = pd.concat([blocks, repeated], ignore_index=True)
    splits = frames.order_splits(table["split"])
    looks, lines = style.split_looks(splits), style.split_lines(splits)
    width = 5.6 if len(stages) == 1 else 2.6 * len(stages) + 1.2
    figure = style.new_figure(width, 5.2, "Repeated last block" + frames.branch_scale(frame))
    grid = figure.subplots(2, len(stages), sharex=True, sharey="row", squeeze=False)
    for row, (metric, label) in zip(grid, _BLOCK_METRICS, strict=True):
        for axes, stage in zip(row, stages, strict=True):
            style.clean_axes(axes)
            for split in splits:
                here = table[(table["stage"] == stage) & (table["split"] == split)]
                colour, marker = looks[split]
                axes.plot(
                    here[place],
                    here[metric],
                    color=colour,
                    marker=marker,
                    markersize=3.5 if len(here) <= 24 else 2.0,
                    linewidth=1.4,
                    linestyle=lines[split],
                    label=split or None,
                )
            if table.loc[table["stage"] == stage, metric].isna().all():
                style.no_values(axes)
            elif metric == "cosine_loss":
                axes.axhline(0.0, color=style.INK, linewidth=0.9, zorder=1.5, gid="zero")
            if lengths is not None:
                _mark_lengths(axes, lengths[[stage]], {})
            style.whole_numbers(axes.xaxis, bins=6)
        if metric == "l2_ratio" and style.wide_scale(row[0], table[metric]):
            label = f"{label} (log scale)"
        row[0].tick_params(labelleft=bool(table[metric].notna().any()))
        style.axis_labels(row[0], beside=label)
    for axes, stage in zip(grid[0], stages, strict=True):
        style.panel_title(axes, f"stage {stage}")
    figure.supxlabel(below, fontsize=style.LABEL_SIZE, color=style.INK)
    handles = style.handles_of(grid[0, 0]) if splits != [""] else []
    handles += [] if lengths is None else [_length_handle()]
    if handles:
        style.legend(figure, handles)
    return figure
