"""How does an estimate in the plane move from block to block, and after the last block?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

from tfresidual.plots import style

if TYPE_CHECKING:
    from tfresidual.definitions.types import ArrayLike, Figure, Frame

_ROWS = ("early read-out", "one block dropped", "extra applications")
# Margin around the points of a panel, as a share of the width of their square.
_MARGIN = 0.08


def trajectories(
    readout: Frame, dropped: Frame, repeated: Frame, solutions: ArrayLike | None = None
) -> Figure:
    """Draws the estimates of networks for the same inputs, in the plane.

    Each network has a column, in the order of `readout`. The first row shows the estimate after
    every block, from blue (before the first) to red (after the last). The second row shows the last
    estimate with one block dropped, in the colour of that block. The third row shows the estimates
    after extra applications of the last block. A grey line in the second and third row is the
    trajectory of the first row.

    The panels of a row show the same part of the plane: the inputs, the solutions, and the
    estimates of all networks except the one whose estimates spread furthest. The second row may
    leave out the inputs, and the second and third rows leave out estimates that are too far away.
    The number of points outside of a panel is written in it.

    Args:
        readout: Trajectories frame of the unperturbed route with the columns `route`, `input`,
            `x1`, `x2`, `step`, `z1` and `z2`, and `network` if there are several.
        dropped: The same, with one route per dropped block, in the order of the blocks.
        repeated: The same, for the route that repeats the last block.
        solutions: Array `(inputs, 2)`, the right answers, or `None`.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", figure 1.
    """
    tables = {
        "readout": _points(readout),
        "dropped": _points(dropped),
        "repeated": _points(repeated),
    }
    networks = list(dict.fromkeys(tables["readout"]["network"]))
    inputs = tables["readout"].groupby("input")[["x1", "x2"]].first()
    solutions = None if solutions is None else np.asarray(solutions)
    drawn = {
        (row, network): _drawn(row, network, tables)
        for row in range(len(_ROWS))
        for network in networks
    }
    windows = _windows(drawn, networks, inputs, solutions)

    figure = style.new_figure(
        max(2.2 * len(networks) + 0.9, 6.6), 7.6, "Trajectories of the estimate"
    )
    grid = figure.subplots(len(_ROWS), len(networks), sharex="row", sharey="row", squeeze=False)
    colours = style.depth_colours(tables["readout"]["step"].max() + 1)
    for row, (name, window) in enumerate(zip(_ROWS, windows, strict=True)):
        for axes, network in zip(grid[row], networks, strict=True):
            style.clean_axes(axes)
            axes.set_aspect("equal")
            _draw_paths(axes, row, _of(tables["readout"], network))
            _draw_dots(axes, row, drawn[row, network], colours)
            _draw_ends(axes, inputs, solutions)
            axes.set(xlim=window[0], ylim=window[1])
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(nbins=4))
            _count_outside(axes, drawn[row, network], window)
            if row == 0 and network:
                look = {"fontsize": style.LABEL_SIZE, "color": style.INK, "pad": 6}
                axes.set_title(network, **look, **style.PLAIN)
            style.axis_labels(axes, below="ẑ₁" if row == len(_ROWS) - 1 else None)
        style.axis_labels(grid[row, 0], beside=f"{name}\nẑ₂")
    style.legend(figure, _handles(colours, solutions is not None))
    return figure


def _points(frame):
    """Returns the table of a frame, in which routes are numbered."""
    frame = frame.reset_index(drop=True)
    networks = frame["network"].astype(object) if "network" in frame else ""
    table = frame.assign(network=networks, route=pd.factorize(frame["route"])[0])
    table[["z1", "z2"]] = table[["z1", "z2"]].replace([np.inf, -np.inf], np.nan)
    return table.sort_values(["route", "input", "step"], ignore_index=True)


def _of(table, network):
    return table[table["network"] == network]


def _drawn(row, network, tables):
    """Returns the dots of a panel: input, z1, z2 and place (from 0, in the row's colours)."""
    readout = _of(tables["readout"], network)
    if row == 0:
        return readout.assign(place=readout["step"])
    if row == 1:
        dropped = _of(tables["dropped"], network)
        last = dropped["step"] == dropped.groupby(["route", "input"])["step"].transform("max")
        return dropped[last].assign(place=dropped["route"] + 1)
    repeated = _of(tables["repeated"], network)
    return repeated[repeated["step"] >= readout["step"].max()].assign(place=0)


def _windows(drawn, networks, inputs, solutions):
    """Returns the part of the plane of every row, a square `((left, right), (low, high))`."""
    inputs = inputs.to_numpy()
    targets = inputs if solutions is None else solutions
    ends = np.concatenate([targets, inputs])
    windows, most = [], np.inf
    for row in range(len(_ROWS)):
        # The second row shows what happens around the targets.
        fixed = targets if row == 1 else ends
        # Estimates that explode must not hide the others: after the first row, points count only
        # up to the width of the first row away.
        low, high = fixed.min(axis=0) - most, fixed.max(axis=0) + most
        groups = []
        for network in networks:
            points = drawn[row, network][["z1", "z2"]].dropna().to_numpy()
            groups.append(np.concatenate([fixed, points.clip(low, high)]))
        groups.sort(key=lambda points: np.ptp(points, axis=0).max())
        points = np.concatenate(groups[:-1] or groups)
        centre = (points.min(axis=0) + points.max(axis=0)) / 2
        side = max(np.ptp(points, axis=0).max(), 1e-6)
        most = side if row == 0 else most
        reach = side * (0.5 + _MARGIN)
        windows.append(tuple((middle - reach, middle + reach) for middle in centre))
    return windows


def _draw_paths(axes, row, readout):
    """Draws the unperturbed trajectories as lines."""
    look = {"color": "#bdbdbd", "gid": "unperturbed"} if row else {"color": style.FAINT_INK}
    for _, path in readout.groupby("input"):
        axes.plot(path["z1"], path["z2"], linewidth=0.9, zorder=1.5, **look)


def _draw_dots(axes, row, dots, colours):
    """Draws the estimates of the row's own routes."""
    if row == 2:
        look = {"color": style.ORANGE, "linewidth": 0.9, "marker": "o", "markersize": 3.2}
        for _, path in dots.groupby("input"):
            axes.plot(path["z1"], path["z2"], zorder=2.2, **look)
        return
    axes.scatter(
        dots["z1"],
        dots["z2"],
        c=[colours[min(place, len(colours) - 1)] for place in dots["place"]],
        # The dots grow from block to block, which distinguishes them without their colour.
        s=np.linspace(10, 26, len(colours))[dots["place"].clip(upper=len(colours) - 1)],
        linewidths=0,
        zorder=2.2,
    )


def _draw_ends(axes, inputs, solutions):
    """Marks the inputs, and the solutions if they are known."""
    axes.plot(inputs["x1"], inputs["x2"], "x", color=style.INK, markersize=6, zorder=3, gid="input")
    if solutions is not None:
        ring = {"color": "none", "markeredgecolor": style.INK, "markeredgewidth": 1.1}
        axes.plot(*solutions.T, "o", markersize=9, zorder=3, gid="solution", **ring)


def _count_outside(axes, dots, window):
    """Writes into a panel how many of its points are outside."""
    inside = np.ones(len(dots), dtype=bool)
    for column, (low, high) in zip(("z1", "z2"), window, strict=True):
        inside &= dots[column].between(low, high).to_numpy()
    if not inside.all():
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5}
        look = {"fontsize": style.SMALL_SIZE - 1, "color": style.FAINT_INK, "bbox": box}
        look |= {"ha": "right", "va": "bottom", "transform": axes.transAxes}
        axes.text(0.97, 0.03, f"{(~inside).sum()} of {len(dots)} outside", **look)


def _handles(colours, with_solutions):
    dot = {"linestyle": "none", "marker": "o", "markersize": 5}
    handles = [
        style.line_handle("input", color=style.INK, linestyle="none", marker="x", markersize=6),
        style.line_handle(
            "first block", color=colours[min(1, len(colours) - 1)], **dot | {"markersize": 3.6}
        ),
        style.line_handle("last block", color=colours[-1], **dot | {"markersize": 5.4}),
        style.line_handle("extra applications", color=style.ORANGE, marker="o", markersize=4),
    ]
    if with_solutions:
        ring = {"markerfacecolor": "none", "markeredgecolor": style.INK, "markersize": 8}
        handles.insert(1, style.line_handle("solution", linestyle="none", marker="o", **ring))
    return handles
