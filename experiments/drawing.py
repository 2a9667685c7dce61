"""Figures of several networks and seeds, and what scripts do with these and with their frames.

Small panels show means and the range over the seeds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from tfresidual.definitions.declarations import ZERO, Drawing, Level, Line, Panel
from tfresidual.machine.files import replacing
from tfresidual.plots import style
from tfresidual.plots.engine import draw_table


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
    scale = "log" if log else "share" if percent else "linear"
    levels = (ZERO,) * zero
    if reference is not None:
        levels += (Level(reference, dash="--"),)
    drawing = Drawing(
        title,
        (Panel(beside, (Line(y),), scale, levels, from_zero=from_zero),),
        over="block" if stages else "x",
        below=below,
        colour=line or "",
        dash=dash or "",
        rows=(),
        columns=("facet",) if panel else (),
        wrap=columns,
        share_x=share_x,
        share_y=share_y,
    )
    is_text = not pd.api.types.is_numeric_dtype(frame[x])
    places = pd.Categorical(frame[x], frame[x].unique()) if is_text else frame[x]
    frame = frame.replace([np.inf, -np.inf], np.nan).assign(x=places)
    # Here, the names of networks.
    frame = frame.drop(columns="name", errors="ignore")
    if panel:
        frame = frame.rename(columns={panel: "facet"})
    looks = None
    if coloured:
        names = list(dict.fromkeys(frame[line]))
        colours = style.depth_colours(len(names))
        looks = {name: style.Look(colour, "o") for name, colour in zip(names, colours, strict=True)}
    figure = draw_table(frame, drawing, looks=looks)
    names = list(dict.fromkeys(frame["facet"])) if panel else [""]
    for axes, name in zip(figure.axes, names, strict=True):
        here = frame[frame["facet"] == name] if panel else frame
        if log_x:
            axes.set_xscale("log")
            axes.set_xticks(places := sorted(set(here[x])), map(str, places))
            axes.set_xticks([], minor=True)
        if slope is not None:
            _draw_slope(axes, here, x, y, slope)
        if own_lines:
            drawn = [one for one in axes.get_lines() if one.get_gid() is None]
            names_of_lines = [one.get_label().removesuffix(f", {y}") for one in drawn]
            axes.legend(drawn, names_of_lines, frameon=False, fontsize=style.SMALL_SIZE)
    if own_lines:
        for legend in figure.legends:
            legend.remove()
    return figure


def titled(figure, title):
    """Returns a figure with another title."""
    style.set_title(figure, title)
    return figure


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
        gid="slope",
    )


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


def parser_of(description, sizes, out):
    """Returns the parser of an experiment of some sizes, whose frames the repository keeps."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", choices=sizes, default="smoke")
    parser.add_argument("--data-dir", help="folder of tensorflow-datasets")
    parser.add_argument("--out", type=Path, default=Path(out))
    parser.add_argument("--kept", action="store_true")
    return parser


def kept_frames(folder):
    """Returns the frames that the repository keeps in a folder, by name."""
    return {path.stem: pd.read_csv(path) for path in sorted(folder.glob("*.csv"))}


def write_frames(frames, folder):
    """Writes frames, a dict by name, into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, frame in frames.items():
        with replacing(folder / f"{name}.csv") as path:
            frame.to_csv(path, index=False, float_format="%.5g")


def show(tables, figures, folder):
    """Prints tables, and writes figures, a dict by name, into a folder."""
    for found in tables:
        print(f"\n{found.to_string()}")
    for name, figure in figures.items():
        figure.savefig(folder / f"{name}.png", dpi=160)
        print(folder / f"{name}.png")
