"""What tests read back from a figure."""

import io

import numpy as np


def metric_lines(axes):
    """The lines that carry data, without zero lines, boundaries and thresholds."""
    return [line for line in axes.get_lines() if line.get_gid() is None]


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
    return [line for line in axes.get_lines() if line.get_gid() == gid]


def points(line):
    """The points of a line that are drawn, as a dictionary from place to height."""
    places, heights = (np.asarray(data, dtype=float) for data in line.get_data())
    return {x: y for x, y in zip(places, heights, strict=True) if np.isfinite(y)}
