"""How many errors does the network make on changed routes through its blocks?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tfresidual.arguments import is_number
from tfresidual.plots import frames, style

if TYPE_CHECKING:
    from typing import Any

    from tfresidual.types import Figure, Frame


def route_errors(
    readout: Frame,
    drop_blocks: Frame,
    repeat_last_block: Frame,
    chance: float | dict[str, float] | None = None,
) -> Figure:
    """Draws the error on three kinds of routes side by side, a line per stage.

    From left to right, a stage ends early, lacks one block, or applies its last block again. A
    dotted line marks the error of the unperturbed network. Each split has its own row. An infinite
    or missing error leaves a gap.

    Args:
        readout: Read-out frame with the columns `stage`, `block` and `error`.
        drop_blocks: Dropped blocks frame with the columns `stage`, `block`, `error` and
            `unperturbed_error`.
        repeat_last_block: Repetitions frame with the columns `stage`, `repetition` and `error`,
            and optionally `scale`; stages may be missing. A scale other than 1 appears in the
            title.
        chance: Error of guessing, from 0 to 1, marked by a dashed line; a dict of such errors by
            split; or `None`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing or holds no finite number, if several rows describe the
            same stage, block or repetition and split, if the frames differ in their splits (column
            `split`), or if `chance` is not a share of 1.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", figure 2a.
    """
    chances: dict[Any, Any] = {None: chance}
    if isinstance(chance, dict):
        chances = chance
    if chance is not None and not all(
        is_number(value) and 0 < value <= 1 for value in chances.values()
    ):
        raise ValueError(
            f"Argument `chance` must be an error above 0, at most 1, or None. Received: {chance!r}"
        )
    tables = _route_tables(readout, drop_blocks, repeat_last_block)
    panels = (
        ("convergence", tables["readout"], "block", 1, "number of evaluated blocks"),
        ("recurrence", tables["drop_blocks"], "block", 0, "dropped block"),
        (
            "divergence",
            tables["repeat_last_block"],
            "repetition",
            0,
            "repetitions of the last block",
        ),
    )
    stages = sorted(set().union(*(table["stage"] for table in tables.values())))
    looks = style.stage_looks(stages)
    splits = frames.order_splits(tables["readout"]["split"])
    title = "Errors on changed routes" + frames.branch_scale(repeat_last_block)
    figure = style.new_figure(9.0, 2.5 * len(splits) + 1.2, title)
    grid = figure.subplots(len(splits), 3, sharey=True, sharex="col", squeeze=False)
    unperturbed = tables["drop_blocks"].groupby("split")["unperturbed_error"].first()
    for row, split in zip(grid, splits, strict=True):
        for axes, (name, table, key, first, label) in zip(row, panels, strict=True):
            style.clean_axes(axes)
            _stage_lines(axes, table[table["split"] == split], key, first, looks)
            level = chances.get(split, chances.get(None))
            _reference_lines(axes, unperturbed[split], level)
            style.panel_title(axes, name, split)
            style.whole_numbers(axes.xaxis, bins=8)
            if split == splits[-1]:
                style.axis_labels(axes, below=label)
        style.axis_labels(row[0], beside="error")
    highest = max(
        [
            *(level or 0 for level in chances.values()),
            *(table["error"].max() for table in tables.values()),
        ]
    )
    grid[0, 0].set_ylim(0, 1.06 * highest if highest > 0 else 1)
    style.percent_axis(grid[0, 0])

    handles = style.stage_handles(looks)
    handles.append(style.line_handle("unperturbed", linestyle=":", color=style.INK))
    if chance is not None:
        handles.append(style.line_handle("chance", linestyle=(0, (6, 3)), color=style.INK))
    style.legend(figure, handles)
    return figure


def _route_tables(readout, drop_blocks, repeat_last_block):
    """Returns the values of the frames of `route_errors`, by the name of the argument."""
    tables = {
        "readout": frames.keyed_values(readout, ("stage", "block"), ("error",), "readout"),
        "drop_blocks": frames.keyed_values(
            drop_blocks, ("stage", "block"), ("error", "unperturbed_error"), "drop_blocks"
        ),
        "repeat_last_block": frames.keyed_values(
            repeat_last_block, ("stage", "repetition"), ("error",), "repeat_last_block"
        ),
    }
    frames.require_same_splits(tables)
    return tables


def _reference_lines(axes, unperturbed, chance):
    """Draws the error of the unperturbed network if it is finite, and that of guessing if known."""
    if np.isfinite(unperturbed):
        axes.axhline(unperturbed, color=style.INK, linewidth=1.0, linestyle=":", gid="unperturbed")
    if chance is not None:
        axes.axhline(chance, color=style.INK, linewidth=1.0, linestyle=(0, (6, 3)), gid="chance")


def _stage_lines(axes, rows, key, first, looks):
    """Draws the error over the column `key` plus `first`, with a line per stage."""
    many = rows[key].nunique() > 24
    for stage, line in rows.groupby("stage"):
        colour, marker = looks[stage]
        axes.plot(
            line[key] + first,
            line["error"],
            color=colour,
            marker=marker,
            markersize=2.8 if many else 4.0,
            linewidth=1.3,
            label=f"stage {stage}",
        )


def shuffle_blocks(frame: Frame) -> Figure:
    """Draws the error of shuffled stages against how much of the blocks' order is preserved.

    Every dot is one shuffled order of one stage; the further right, the less of the trained order
    is preserved. A dotted line per split marks the error of the unperturbed network.

    Args:
        frame: Shuffled blocks frame with the columns `stage`, `kendall_tau` (1 if the order is
            kept, -1 if it is reversed), `error` and `unperturbed_error`, and optionally `split`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing or holds no finite number.

    Reference:
        Veit et al., "Residual Networks Behave Like Ensembles of Relatively Shallow Networks",
        2016, figure 5b.
    """
    shown = ("kendall_tau", "error", "unperturbed_error")
    frames.require_columns(frame, ("stage", *shown))
    row_splits, row_stages = frames.splits_of(frame), frames.whole_numbers(frame, "stage")
    taus, errors, unperturbed = (frames.numbers(frame, column) for column in shown)
    splits, stages = frames.order_splits(row_splits), np.unique(row_stages)
    looks = style.split_looks(splits)
    columns = min(len(stages), style.MOST_COLUMNS)
    rows = -(-len(stages) // columns)
    width = 5.2 if columns == 1 else 2.6 * columns + 1.2
    figure = style.new_figure(width, 2.4 * rows + 1.2, "Shuffled blocks")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axes, stage in zip(grid, stages, strict=False):
        style.clean_axes(axes)
        for split in splits:
            here = (row_stages == stage) & (row_splits == split)
            colour, marker = looks[split]
            axes.plot(
                taus[here],
                errors[here],
                color=colour,
                marker=marker,
                markersize=4.0,
                markeredgewidth=0,
                linestyle="none",
                alpha=0.6,
                label=split or None,
            )
            levels = unperturbed[here & np.isfinite(unperturbed)]
            if len(levels):
                axes.axhline(
                    levels[0], color=colour, linewidth=1.1, linestyle=":", gid="unperturbed"
                )
        style.panel_title(axes, f"stage {stage}")
    for place, axes in enumerate(grid[len(stages) :], start=len(stages)):
        axes.remove()
        grid[place - columns].tick_params(labelbottom=True)
    least = np.nanmin(np.append(taus, 0.98))
    pad = 0.03 * (1 - least)
    grid[0].set_xlim(1 + pad, least - pad)
    highest = np.nanmax(np.append(errors, unperturbed))
    grid[0].set_ylim(0, 1.06 * highest if highest > 0 else 1)
    style.percent_axis(grid[0])
    figure.supxlabel(
        "Kendall's τ of the order and the trained one (1: order kept)",
        fontsize=style.LABEL_SIZE,
        color=style.INK,
    )
    figure.supylabel("error", fontsize=style.LABEL_SIZE, color=style.INK)

    handles = style.handles_of(grid[0])
    style.legend(figure, [*handles, style.line_handle("order kept", linestyle=":")])
    return figure
