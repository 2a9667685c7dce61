"""Does a stage approach a fixed point, and do bounds on its blocks imply that it should?"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from tfresidual.arguments import check_number
from tfresidual.plots import block_axis, frames, style

if TYPE_CHECKING:
    from tfresidual.types import Figure, Frame

_CURVES = (
    ("change", "change of the state per repetition"),
    ("distance", "distance to the last state"),
)


def fixed_point(frame: Frame, mu: float | None = None) -> Figure:
    """Draws how the changes of a stage's state shrink as its last block is applied again and again.

    The left panel shows the change of the state per application, the middle one the distance to the
    last of the states, both on logarithmic axes. The right panel shows the contraction, which is
    the change divided by the previous change: its mean over images as a line, and a band from there
    to the largest. There is a line per stage, solid for the first split and dashed for the others.
    With `mu`, dotted lines decrease by this factor per application, starting from the first change
    of every stage; the changes of a contraction with this factor stay below them. A value that is
    missing, or 0 on a logarithmic axis, leaves a gap.

    Args:
        frame: Fixed point frame with the columns `stage`, `repetition` (0 for the application of
            the block that was trained), `change`, `contraction`, `largest_contraction` and
            `distance`, and optionally `split`.
        mu: Bound on the Lipschitz constant of a block, a positive number, or `None`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing, none of the values is a finite number, several rows
            describe the same stage, repetition and split, or if `mu` is not positive.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", section
        4.2 and E.2.
    """
    check_number("mu", mu, over=0, or_none=True)
    columns = ("change", "distance", "contraction", "largest_contraction")
    table = frames.keyed_values(frame, ("stage", "repetition"), columns)
    looks = style.stage_looks(sorted(set(table["stage"])))
    splits = frames.order_splits(table["split"])
    lines = style.split_lines(splits)
    figure = style.new_figure(10.4, 3.9, "The last block applied again")
    grid = figure.subplots(1, 3, sharex=True)
    for axes in grid:
        style.clean_axes(axes)
        style.whole_numbers(axes.xaxis, bins=8)
        style.axis_labels(axes, below="extra applications of the last block")
    small = table["repetition"].nunique() > 16
    for split, (stage, (colour, marker)) in itertools.product(splits, looks.items()):
        rows = table[(table["split"] == split) & (table["stage"] == stage)]
        look = {
            "color": colour,
            "linestyle": lines[split],
            "marker": marker,
            "markersize": 2.5 if small else 4.0,
            "linewidth": 1.3,
            "label": ", ".join(filter(None, (f"stage {stage}", split))),
        }
        _draw_changes(grid, rows, look, stage)
        if mu is not None:
            _draw_slope(grid[0], rows, mu, colour)
    for axes, (metric, label) in zip(grid, _CURVES, strict=False):
        if (table[metric] > 0).any():
            style.log_scale(axes)
            label += " (log scale)"
        else:
            style.no_values(axes)
        style.axis_labels(axes, beside=label)
    style.axis_labels(grid[2], beside="contraction: change over\nthe previous change")
    handles = style.stage_handles(looks)
    if splits != [""]:
        handles += [style.line_handle(split, linestyle=lines[split]) for split in splits]
    if mu is not None:
        grid[2].axhline(mu, color=style.INK, linewidth=1.0, linestyle=":", gid="mu")
        handles.append(
            style.line_handle(f"μ = {mu:g} per repetition", linestyle=":", color=style.INK)
        )
    if table[["contraction", "largest_contraction"]].isna().all(axis=None):
        style.no_values(grid[2])
    grid[2].set_ylim(bottom=min(0, grid[2].get_ylim()[0]))
    style.legend(figure, handles)
    return figure


def _draw_changes(grid, rows, look, stage):
    """Draws the changes of a stage's state, what is left of the way, and the contraction."""
    for axes, (metric, _) in zip(grid, _CURVES, strict=False):
        axes.plot(rows["repetition"], rows[metric].where(rows[metric] > 0), **look)
    grid[2].plot(rows["repetition"], rows["contraction"], **look)
    grid[2].fill_between(
        rows["repetition"],
        rows["contraction"],
        rows["largest_contraction"],
        color=look["color"],
        alpha=0.15,
        linewidth=0,
        gid=f"stage {stage}",
    )


def _draw_slope(axes, rows, mu, colour):
    """Draws how the first change decreases if every application multiplies it by `mu`."""
    known = rows[rows["change"] > 0]
    if known.empty:
        return
    first = known.iloc[0]
    repetitions = np.arange(int(first["repetition"]), int(rows["repetition"].max()) + 1)
    axes.plot(
        repetitions,
        first["change"] * float(mu) ** (repetitions - first["repetition"]),
        color=colour,
        linewidth=1.1,
        linestyle=":",
        zorder=1.8,
        gid="slope",
    )


def lipschitz_bounds(frame: Frame, mu: float | None = None) -> Figure:
    """Draws estimates of every branch's Lipschitz bound, and the divisor of the branch.

    The upper panel shows a band over the blocks of all stages in a row. Its lower edge, with dots,
    is the estimate of the power iteration, which does not exceed the bound. Its upper edge is the
    certified value, which is not below the bound. The lower panel shows the divisor, 1 where the
    branch is left unchanged. A block without a value leaves a gap. Bounds and divisors that span
    more than a factor of 30 are drawn on a logarithmic axis.

    Args:
        frame: Lipschitz frame with the columns `stage`, `block`, `estimate`, `certified` and
            `divisor`.
        mu: The bound that the divisor aims at, drawn as a line; a positive number, or `None`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing, none of the values is a finite number, several rows
            describe the same block, or if `mu` is not positive.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", sections
        4.2 and E.1.
    """
    check_number("mu", mu, over=0, or_none=True)
    table = frames.keyed_values(frame, ("stage", "block"), ("estimate", "certified", "divisor"))
    sizes = block_axis.stage_sizes(table)
    figure = style.new_figure(block_axis.figure_width(sizes), 5.4, "Lipschitz bounds")
    bounds, divisors = grid = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    places, estimates = block_axis.in_a_row(table, "estimate", sizes)
    _, certified = block_axis.in_a_row(table, "certified", sizes)
    look = {
        "color": style.BLUE,
        "marker": "o",
        "markersize": block_axis.marker_size(sizes),
        "linewidth": 1.4,
    }
    bounds.fill_between(places, estimates, certified, color=style.SKY, alpha=0.35, linewidth=0)
    bounds.plot(places, certified, color=style.SKY, linewidth=1.2, label="certified")
    bounds.plot(places, estimates, label="estimate", **look)
    divisors.plot(*block_axis.in_a_row(table, "divisor", sizes), label="divisor", **look)
    if mu is not None:
        bounds.axhline(mu, color=style.INK, linewidth=1.0, linestyle=(0, (6, 3)), gid="mu")
    divisors.axhline(1.0, color=style.FAINT_INK, linewidth=0.9, zorder=1.5, gid="one")
    labels = ("bound of the branch's\nLipschitz constant", "divisor of the branch")
    columns = (["estimate", "certified"], ["divisor"])
    for axes, label, names in zip(grid, labels, columns, strict=True):
        style.clean_axes(axes, grid="y")
        if table[names].isna().all(axis=None):
            style.no_values(axes)
        elif style.wide_scale(axes, table[names]):
            label += " (log scale)"
        style.axis_labels(axes, beside=label)
    block_axis.finish(grid, sizes)

    handles = [
        style.line_handle("estimate", color=style.BLUE, marker="o", markersize=4.8),
        style.line_handle("certified", color=style.SKY),
    ]
    if mu is not None:
        handles.append(style.line_handle(f"μ = {mu:g}", color=style.INK, linestyle=(0, (6, 3))))
    style.legend(figure, handles)
    return figure
