"""Figures of several networks and seeds: small panels with means and the range over the seeds."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tfresidual.plots import style
from tfresidual.plots.blocks import shade_stages

COLOURS = (
    style.BLUE,
    style.VERMILION,
    style.GREEN,
    style.ORANGE,
    style.PURPLE,
    style.SKY,
    style.INK,
)
DASHES = {"train": (0, (4, 2)), "test": "-", "validation": "-"}


def in_a_row(frame):
    """Returns the frame with the column `place`: the blocks of all stages of a network, counted."""
    sizes = frame.groupby(["network", "stage"])["block"].max() + 1
    starts = sizes.groupby("network").cumsum() - sizes
    keys = pd.MultiIndex.from_frame(frame[["network", "stage"]])
    return frame.assign(place=starts.reindex(keys).to_numpy() + frame["block"].to_numpy())


def panels(
    frame,
    x,
    y,
    title,
    *,
    panel=None,
    line=None,
    dash=None,
    below="",
    beside="",
    percent=False,
    log=False,
    log_x=False,
    zero=False,
    from_zero=False,
    reference=None,
    slope=None,
    own_lines=False,
    stages=False,
    coloured=False,
    columns=4,
    share_x=False,
    share_y=True,
):
    """Draws means over the seeds as lines, with a band from the lowest to the highest seed.

    Args:
        frame: rows with the columns named by the other arguments, and `seed`.
        x: column of the horizontal axis.
        y: column of the vertical axis.
        title: title of the figure.
        panel: column with one panel per value, or `None`.
        line: column with one line per value, or `None`.
        dash: column of splits, which are told apart by the dashes of lines, or `None`.
        below: label of the horizontal axis.
        beside: label of the vertical axis.
        percent: whether values are shares.
        log: whether the vertical axis is logarithmic.
        log_x: whether the horizontal axis is, with ticks at the values.
        zero: whether there is a line at zero.
        from_zero: whether the vertical axis begins at zero.
        reference: height of a dashed line, or `None`.
        slope: slope of a dotted line on logarithmic axes, from the highest first value on, or
            `None`.
        own_lines: whether every panel has lines and a legend of its own.
        stages: whether `x` is `place`, so that stages are shaded.
        coloured: whether lines go from blue (first) to red (last) in order of their values.
        columns: largest number of panels side by side.
        share_x: whether all panels have the same horizontal axis.
        share_y: whether all panels have the same vertical axis.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    if log:
        # Zeros have no place on a logarithmic axis.
        frame = frame.assign(**{y: frame[y].where(frame[y] > 0)})
    names = [None] if panel is None else list(dict.fromkeys(frame[panel]))
    lines = [None] if line is None else list(dict.fromkeys(frame[line]))
    splits = [None] if dash is None else list(dict.fromkeys(frame[dash]))
    wide = min(len(names), columns)
    tall = -(-len(names) // wide)
    figure = style.new_figure(max(3.0 * wide, 7.0), 2.5 * tall + 1.0, title)
    grid = figure.subplots(tall, wide, squeeze=False, sharex=share_x, sharey=share_y).ravel()
    palette = style.depth_colours(len(lines)) if coloured else COLOURS
    for axes, name in zip(grid, names, strict=False):
        style.clean_axes(axes)
        here = frame if panel is None else frame[frame[panel] == name]
        sizes = here.groupby("stage")["block"].max() + 1 if stages else []
        has_stages = len(sizes) > 1
        if panel is not None:
            # Above the names of the stages.
            style.panel_title(axes, str(name), pad=15 if has_stages else 4)
        if zero:
            axes.axhline(0, color=style.FAINT_INK, linewidth=0.8)
        if reference is not None:
            axes.axhline(reference, color=style.FAINT_INK, linewidth=0.9, linestyle=(0, (2, 2)))
        drawn = list(dict.fromkeys(here[line])) if own_lines else lines
        for i, of_line in enumerate(drawn):
            for split in splits:
                rows = here if line is None else here[here[line] == of_line]
                rows = rows if dash is None else rows[rows[dash] == split]
                dashes = DASHES.get(split, "-") if splits != [None] else dash_of(i, palette)
                _draw(axes, rows, x, y, palette[i % len(palette)], dashes)
        if has_stages:
            shade_stages(axes, sizes.cumsum() - sizes, sizes)
        if frame[x].dtype.kind == "i" and not log_x:
            style.whole_numbers(axes.xaxis)
        if log:
            style.log_scale(axes)
        if log_x:
            axes.set_xscale("log")
            axes.set_xticks(places := sorted(set(here[x])), map(str, places))
            axes.set_xticks([], minor=True)
        if slope is not None:
            _draw_slope(axes, here, x, y, slope)
        if own_lines:
            axes.legend(handles=_handles(drawn, palette), frameon=False, fontsize=style.SMALL_SIZE)
    for axes in grid[len(names) :]:
        axes.remove()
    for i, axes in enumerate(grid[: len(names)]):
        # Limits of an axis that panels share are set when all of them are drawn.
        if percent:
            style.percent_axis(axes)
        if from_zero:
            axes.set_ylim(bottom=0)
        is_lowest = i + wide >= len(names)
        if is_lowest:
            # Of panels that share the axis, matplotlib labels those of the last row alone.
            axes.tick_params(labelbottom=True)
        style.axis_labels(
            axes, below=below if is_lowest else None, beside=beside if i % wide == 0 else None
        )
    handles = [] if own_lines or lines == [None] else _handles(lines, palette)
    if splits not in ([None], []) and len(splits) > 1:
        handles += [
            style.line_handle(f"{split} images", color=style.INK, linestyle=DASHES.get(split, "-"))
            for split in splits
        ]
    if handles:
        style.legend(figure, handles)
    return figure


def titled(figure, title):
    """Returns a figure with another title."""
    style.set_title(figure, title)
    return figure


def dash_of(i, palette):
    """Returns the dashes of a line; those after the last colour begin again, with dashes."""
    return "-" if i < len(palette) else (0, (2, 1))


def _draw(axes, rows, x, y, colour, dash):
    rows = rows[[x, y]].replace([np.inf, -np.inf], np.nan).dropna()
    if rows.empty:
        return
    groups = rows.groupby(x, sort=True)[y]
    means, low, high = groups.mean(), groups.min(), groups.max()
    axes.plot(
        means.index,
        means,
        color=colour,
        linestyle=dash,
        linewidth=1.4,
        marker="o" if len(means) <= 30 else None,
        markersize=3,
    )
    if (high > low).any():
        axes.fill_between(means.index, low, high, color=colour, alpha=0.15, linewidth=0)


def _draw_slope(axes, frame, x, y, slope):
    """Draws a line that falls or grows with a power of `x`."""
    first, last = frame[x].min(), frame[x].max()
    begin = frame.loc[frame[x] == first, y].max()
    axes.plot(
        [first, last],
        [begin, begin * (last / first) ** slope],
        color=style.FAINT_INK,
        linestyle=(0, (1, 2)),
        linewidth=1.2,
    )


def _handles(lines, palette):
    """Returns the entries of a legend for lines."""
    return [
        style.line_handle(str(name), color=palette[i % len(palette)], linestyle=dash_of(i, palette))
        for i, name in enumerate(lines)
    ]


def table(frame, columns, by="network", percent=("error", "train_error")):
    """Returns a table of means over the seeds, with the range, as text: one row per network."""
    rows = {}
    for name, here in frame.groupby(by, sort=False):
        rows[name] = {column: ranged(here[column], percent=column in percent) for column in columns}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(by)


def ranged(values, percent=False):
    """Returns a mean and its range as text."""
    values = np.asarray(values, float) * (100 if percent else 1)
    form = (lambda value: f"{value:.1f}") if percent else style.short_number
    unit = " %" if percent else ""
    low, high = form(values.min()), form(values.max())
    mean = form(values.mean())
    return f"{mean}{unit}" if low == high else f"{mean}{unit} ({low} to {high})"
