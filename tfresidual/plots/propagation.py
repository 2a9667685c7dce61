"""How do the state and the gradient of the loss propagate through the network?"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize

from tfresidual.plots import block_axis, frames, style

if TYPE_CHECKING:
    from tfresidual.types import Figure, Frame

_PANELS = (
    ("state_norm", "norm of the state after\nthe block (log scale)"),
    ("state_gradient_norm", "norm of the loss gradient\nthere (log scale)"),
    ("shortcut_share", "share of the gradient\nthrough shortcuts"),
)


def signal_propagation(frame: Frame) -> Figure:
    """Draws the norms of the state and its gradient, and the gradient share of the shortcuts.

    The three panels are stacked over the blocks of all stages in a row, with the norms on
    logarithmic axes. A frame without epochs, or of one epoch, gives a line per split. A frame of
    several epochs gives a line per epoch, from dark (first) to light (last), dashed for the splits
    after the first. A block without a value, or with a norm of 0, leaves a gap.

    Args:
        frame: Signal propagation frame with the columns `stage`, `block`, `state_norm`,
            `state_gradient_norm` and `shortcut_share`, and optionally `split` and `epoch` (from 0).

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing, none of the values is a finite number, or several rows
            describe the same block, split and epoch.

    Reference:
        He et al., "Identity Mappings in Deep Residual Networks", 2016, sections 2 and 3; for the
        norms, Jastrzebski et al., "Residual Connections Encourage Iterative Inference", 2018,
        figure 8.
    """
    metrics = [metric for metric, _ in _PANELS]
    table = frames.keyed_values(frame, ("stage", "block"), metrics, optional_keys=("epoch",))
    norms = metrics[:2]
    table[norms] = table[norms].where(table[norms] > 0)
    sizes = block_axis.stage_sizes(table)
    figure = style.new_figure(block_axis.figure_width(sizes), 6.8, "Signal propagation")
    grid = figure.subplots(len(_PANELS), 1, sharex=True)
    splits, epochs = frames.order_splits(table["split"]), sorted(set(table["epoch"]))
    looks, lines = style.split_looks(splits), style.split_lines(splits)
    time = ListedColormap(colormaps["viridis"](np.linspace(0.0, 0.86, 256)))
    norm = Normalize(epochs[0] + 1, epochs[-1] + 1)
    alone = len(epochs) == 1
    for axes, (metric, label) in zip(grid, _PANELS, strict=True):
        style.clean_axes(axes, grid="y")
        for split, epoch in itertools.product(splits, epochs):
            rows = table[(table["split"] == split) & (table["epoch"] == epoch)]
            colour, marker = looks[split]
            axes.plot(
                *block_axis.in_a_row(rows, metric, sizes),
                color=colour if alone else time(norm(epoch + 1)),
                marker=marker if alone else None,
                markersize=block_axis.marker_size(sizes),
                linewidth=1.5 if alone else 1.1,
                linestyle=lines[split],
                label=", ".join(filter(None, (split, "" if alone else f"epoch {epoch + 1}"))),
            )
        if table[metric].isna().all():
            style.no_values(axes)
        elif metric in norms:
            style.log_scale(axes)
        elif (table[metric] < 0).any():
            axes.axhline(0.0, color=style.INK, linewidth=0.9, zorder=1.5, gid="zero")
        style.axis_labels(axes, beside=label)
    block_axis.finish(grid, sizes)

    if not alone:
        _epoch_scale(figure, grid, ScalarMappable(norm, time))
    if splits != [""]:
        handles = [
            style.line_handle(split, linestyle=lines[split])
            if not alone
            else style.line_handle(
                split, color=looks[split][0], marker=looks[split][1], linestyle=lines[split]
            )
            for split in splits
        ]
        style.legend(figure, handles)
    return figure


def _epoch_scale(figure, panels, colours):
    """Draws the colour scale of the epochs beside the panels."""
    scale = figure.colorbar(colours, ax=list(panels), aspect=40, pad=0.015)
    style.whole_numbers(scale.ax.yaxis)
    scale.outline.set_visible(False)
    scale.ax.tick_params(labelsize=style.SMALL_SIZE, length=0, labelcolor=style.INK)
    scale.set_label("epoch", fontsize=style.SMALL_SIZE, color=style.INK)
