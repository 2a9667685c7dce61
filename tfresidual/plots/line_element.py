"""How long is the step of a block by the line element?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.plots import block_axis, frames, style

if TYPE_CHECKING:
    from tfresidual.types import Figure, Frame

# Column, name in the legend, line.
_PARTS = (
    ("layer_part", "across the layers, ‖F(h)‖²", "-"),
    ("spatial_part", "at the last state, ‖J F(h)‖²", "--"),
)


def line_element(frame: Frame) -> Figure:
    """Draws the length of the step of every block, and the two parts of its square.

    The upper panel shows the length by the line element, the lower one the part of the displacement
    across the layers and the part that the rest of the network makes of it at the last state. An
    axis is logarithmic if its values differ much. Splits differ in colour and marker. A block that
    changes the shape of the state leaves a gap.

    Args:
        frame: frame of `tfresidual.probes.line_element` with the columns `stage`, `block`,
            `length`, `layer_part` and `spatial_part`, and optionally `split`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing, none of the values is a finite number, or several rows
            describe the same block and split.

    Reference:
        Hauser, "On Residual Networks Learning a Perturbation from Identity", 2019, equation 12.
    """
    parts = [column for column, _, _ in _PARTS]
    table = frames.keyed_values(frame, ("stage", "block"), ["length", *parts])
    sizes = block_axis.stage_sizes(table)
    figure = style.new_figure(block_axis.figure_width(sizes), 5.4, "Line element")
    above, below = figure.subplots(2, 1, sharex=True)
    splits = frames.order_splits(table["split"])
    looks = style.split_looks(splits)
    curves = [(above, "length", "-"), *((below, column, line) for column, _, line in _PARTS)]
    for axes, column, line in curves:
        block_axis.draw_splits(axes, table, column, sizes, line)
    for axes, label, columns in (
        (above, "length of the step", ["length"]),
        (below, "parts of its square", parts),
    ):
        style.clean_axes(axes, grid="y")
        if style.wide_scale(axes, table[columns]):
            label += " (log scale)"
        style.axis_labels(axes, beside=label)
    block_axis.finish((above, below), sizes)
    handles = [style.line_handle(name, linestyle=line) for _, name, line in _PARTS]
    if splits != [""]:
        handles += [
            style.line_handle(split, color=looks[split][0], marker=looks[split][1])
            for split in splits
        ]
    style.legend(figure, handles)
    return figure
