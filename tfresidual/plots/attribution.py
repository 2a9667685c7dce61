"""What does every block add to the logit?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.plots import frames, state_axis, style

if TYPE_CHECKING:
    from tfresidual.types import Figure, Frame

# Names of parts that are no blocks, below the axis.
_NAMES = {"first state": "first", "head": "head"}
# The share of the room between two parts that their bars fill.
_WIDTH = 0.76


def attribution(frame: Frame) -> Figure:
    """Draws what every block adds to the logit, and how these parts add up to it.

    The upper panel has a bar for the first state, for every block and for the head; the lower one
    shows the sum of the parts so far, which ends at the logit. Splits differ in colour, hatching
    and marker. Blocks without a part of their own are left out.

    Args:
        frame: frame of `tfresidual.probes.attribution` of means, with the columns `stage`,
            `block`, `part` and `attribution`, and optionally `split`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing, none of the values is a finite number, or several rows
            describe the same part and split.
    """
    frames.require_columns(frame, ("part",))
    table = frames.keyed_values(frame, ("stage", "block"), ["attribution"])
    places = state_axis.places_of(table, ["attribution"])
    figure = style.new_figure(state_axis.figure_width(places), 5.4, "Attribution")
    above, below = figure.subplots(2, 1, sharex=True)
    splits = frames.order_splits(table["split"])
    looks, hatches = style.split_looks(splits), style.split_hatches(splits)
    width = _WIDTH / len(splits)
    for number, split in enumerate(splits):
        values = table[table["split"] == split].set_index(["stage", "block"])["attribution"]
        heights = values.reindex(places.index)
        colour, marker = looks[split]
        above.bar(
            places + (number - (len(splits) - 1) / 2) * width,
            heights,
            width,
            color=colour,
            hatch=hatches[split],
            edgecolor="white",
            linewidth=0.0,
            label=split or None,
        )
        below.plot(
            places,
            heights.cumsum(),
            color=colour,
            marker=marker,
            markersize=4.0,
            linewidth=1.5,
            label=split or None,
        )
    for axes, label in ((above, "part of the logit"), (below, "sum of the parts so far")):
        style.clean_axes(axes, grid="y")
        axes.axhline(0.0, color=style.INK, linewidth=0.9, zorder=1.5, gid="zero")
        style.axis_labels(axes, beside=label)
    rows = frame[frame["part"].isin(_NAMES)]
    names = {
        (int(row.stage), int(row.block)): _NAMES[row.part]
        for row in rows[["stage", "block", "part"]].itertuples()
    }
    state_axis.finish((above, below), places, names)
    style.axis_labels(below, below="part")
    handles = state_axis.split_handles(table)
    if handles:
        style.legend(figure, handles)
    return figure
