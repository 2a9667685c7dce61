"""Does the gradient predict what a block does to the loss?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tfresidual.plots import block_axis, frames, style

if TYPE_CHECKING:
    from tfresidual.types import Figure, Frame

# Column, name in the legend, line.
_CHANGES = (
    ("loss_change", "with and without the block", "-"),
    ("first_order", "predicted at its input", "--"),
    ("first_order_after", "predicted at its output", ":"),
)
_CORRELATIONS = (("rank_correlation", "--"), ("rank_correlation_after", ":"))
# The largest change is drawn on a linear axis if it is at most this many times the median.
_SPAN = 30


def first_order(frame: Frame) -> Figure:
    """Draws what blocks do to the loss, what the gradient predicts, and how well it ranks images.

    The upper panel shows the mean change of the loss by every block and the two first-order terms,
    the lower panel their rank correlations with the change over the images. If one block changes
    the loss by far more than most, the axis of the upper panel is logarithmic on both sides of a
    linear part around 0. Splits differ in colour and marker. A block without a value leaves a gap.

    Args:
        frame: frame of `tfresidual.probes.first_order` with the columns `stage`, `block`,
            `loss_change`, `first_order`, `first_order_after`, `rank_correlation` and
            `rank_correlation_after`, and optionally `split`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing, none of the values is a finite number, or several rows
            describe the same block and split.

    Reference:
        Jastrzebski et al., "Residual Connections Encourage Iterative Inference", 2018, equations 2
        to 4.
    """
    changes, correlations = ([row[0] for row in rows] for rows in (_CHANGES, _CORRELATIONS))
    table = frames.keyed_values(frame, ("stage", "block"), [*changes, *correlations])
    sizes = block_axis.stage_sizes(table)
    figure = style.new_figure(block_axis.figure_width(sizes), 5.4, "First-order share")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    splits = frames.order_splits(table["split"])
    looks = style.split_looks(splits)
    curves = [(above, column, line) for column, _, line in _CHANGES]
    curves += [(below, column, line) for column, line in _CORRELATIONS]
    for axes, column, line in curves:
        block_axis.draw_splits(axes, table, column, sizes, line, 1.5 if line == "-" else 1.1)
    is_wide = _wide_scale(above, np.abs(table[changes].to_numpy(float)))
    for axes, label, columns in (
        (above, f"mean change of the loss{' (log scale)' if is_wide else ''}", changes),
        (below, "rank correlation\nover the images", correlations),
    ):
        style.clean_axes(axes, grid="y")
        axes.axhline(0.0, color=style.INK, linewidth=0.9, zorder=1.5, gid="zero")
        style.axis_labels(axes, beside=label)
        if table[columns].isna().all(axis=None):
            style.no_values(axes)
    block_axis.finish((above, below), sizes)
    handles = [style.line_handle(name, linestyle=line) for _, name, line in _CHANGES]
    if splits != [""]:
        handles += [
            style.line_handle(split, color=looks[split][0], marker=looks[split][1])
            for split in splits
        ]
    style.legend(figure, handles)
    return figure


def _wide_scale(axes, sizes):
    """Makes the value axis logarithmic on both sides of 0 if sizes differ much; returns whether."""
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    if not len(sizes) or sizes.max() <= _SPAN * np.median(sizes):
        return False
    axes.set_yscale("symlog", linthresh=10 ** np.floor(np.log10(np.median(sizes))))
    return True
