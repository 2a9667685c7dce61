"""What does the state of one run do in another?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, Normalize

from tfresidual.plots import frames, state_axis, style

if TYPE_CHECKING:
    from tfresidual.types import Figure, Frame

# From the source's side of nothing to the data's, dark at both ends.
_EFFECTS = LinearSegmentedColormap.from_list(
    "tfresidual_effects", [style.VERMILION, "#ffffff", style.BLUE]
)


def patching(frame: Frame) -> Figure:
    """Draws what the state of one run does in another, block by block.

    A line shows the effect of the state after every block: 0 if it changes nothing, 1 if it brings
    the logit of the other run with it. If the frame has the column `position`, a panel per split
    shows the effect of every position at every block by colour instead, white for 0; a position
    without a value is left white, too.

    Args:
        frame: frame of `tfresidual.probes.patching` of means, with the columns `stage`, `block` and
            `effect`, and optionally `split` and `position`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing, none of the values is a finite number, or several rows
            describe the same block, position and split.
    """
    has_positions = "position" in getattr(frame, "columns", ())
    keys = ("stage", "block", "position") if has_positions else ("stage", "block")
    table = frames.keyed_values(frame, keys, ["effect"])
    places = state_axis.places_of(table, ["effect"])
    if has_positions:
        return _map_of_positions(table, places)
    figure = style.new_figure(state_axis.figure_width(places), 3.9, "Patching")
    axes = figure.subplots()
    style.clean_axes(axes, grid="y")
    state_axis.draw_splits(axes, table, "effect", places)
    for height, name, line in ((0.0, "zero", "-"), (1.0, "one", (0, (6, 3)))):
        axes.axhline(height, color=style.INK, linewidth=0.9, linestyle=line, zorder=1.5, gid=name)
    style.axis_labels(axes, beside="effect on the logit\n(1: as in the other run)")
    state_axis.finish((axes,), places)
    handles = state_axis.split_handles(table)
    if handles:
        style.legend(figure, handles)
    return figure


def _map_of_positions(table, places):
    splits = frames.order_splits(table["split"])
    positions = np.sort(table["position"].unique())
    height = float(np.clip(1.2 + 0.22 * len(positions), 2.4, 4.5))
    figure = style.new_figure(
        state_axis.figure_width(places), 0.6 + height * len(splits), "Patching"
    )
    panels = figure.subplots(len(splits), 1, sharex=True, squeeze=False)[:, 0]
    largest = max(1.0, np.nanmax(np.abs(table["effect"])))
    for axes, split in zip(panels, splits, strict=True):
        values = table[table["split"] == split].pivot(
            index="position", columns=["stage", "block"], values="effect"
        )
        image = axes.imshow(
            values.reindex(index=positions, columns=places.index),
            cmap=_EFFECTS,
            norm=Normalize(-largest, largest),
            aspect="auto",
            interpolation="none",
            extent=(-0.5, len(places) - 0.5, positions[-1] + 0.5, positions[0] - 0.5),
        )
        style.clean_axes(axes)
        axes.grid(False)
        style.whole_numbers(axes.yaxis)
        style.axis_labels(axes, beside="position")
        if split:
            style.panel_title(axes, split)
    state_axis.finish(panels, places)
    scale = figure.colorbar(image, ax=list(panels), aspect=30, pad=0.015)
    scale.outline.set_visible(False)
    scale.ax.tick_params(labelsize=style.SMALL_SIZE, length=0, labelcolor=style.INK)
    scale.set_label(
        "effect on the logit (1: as in the other run)",
        fontsize=style.SMALL_SIZE,
        color=style.INK,
    )
    return figure
