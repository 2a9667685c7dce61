"""What tests read back from a figure."""

import io

import numpy as np


def metric_lines(axes):
    """The lines that carry data, without levels, boundaries and other marks."""
    return [line for line in axes.get_lines() if line.get_gid() is None]


def by_label(axes):
    """The points of the lines that carry data by label."""
    return {line.get_label(): points(line) for line in metric_lines(axes)}


def panels(figure):
    return [axes for axes in figure.axes if axes.get_label() != "<colorbar>"]


def legend_texts(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def draws(figure, kind="png"):
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=60)
    return buffer.getvalue()


def lines_with(axes, gid):
    """The lines that mark something, by what they mark."""
    return named_items(axes.get_lines(), gid)


def named_items(items, gid):
    return [item for item in items if item.get_gid() == gid]


def levels(axes, gid):
    """The heights of horizontal lines."""
    return [line.get_ydata()[0] for line in lines_with(axes, gid)]


def points(line):
    """The points of a line that are drawn, as a dictionary from place to height."""
    places, heights = (np.asarray(data, dtype=float) for data in line.get_data())
    return {x: y for x, y in zip(places, heights, strict=True) if np.isfinite(y)}


def band(axes, gid=None):
    """The edges of the band with a label, as a set of rounded (place, height)."""
    (found,) = [one for one in axes.collections if gid is None or one.get_gid() == gid]
    return {(round(x, 6), round(y, 6)) for path in found.get_paths() for x, y in path.vertices}


def named(axes):
    """The names below an axis by place."""
    ticks, labels = axes.get_xticks(), axes.get_xticklabels()
    return {float(x): label.get_text() for x, label in zip(ticks, labels, strict=True)}
