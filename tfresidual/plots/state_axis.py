"""The states before and after the blocks in a row, as an axis that several panels share."""

import numpy as np
import pandas as pd

from tfresidual.plots import frames, style
from tfresidual.plots.blocks import shade_stages

# The block index of the state before the first block of a stage.
FIRST = -1
# With more states than this, the dots are smaller.
_FEW = 24
# With more states than this, only some of them are named.
_MOST_NAMED = 30


def places_of(table, columns):
    """Returns the places of all states that have a value, a series by (stage, block).

    Args:
        table: A `pandas.DataFrame` with the columns `stage` and `block`.
        columns: Columns of values; a state all of whose values are NaN has no place.
    """
    found = table.dropna(subset=list(columns), how="all")
    states = found[["stage", "block"]].drop_duplicates().sort_values(["stage", "block"])
    return pd.Series(range(len(states)), index=pd.MultiIndex.from_frame(states))


def figure_width(places):
    """Returns the width in inches of a figure with one column of panels."""
    return float(np.clip(6.0 + 0.07 * len(places), 7.0, 9.0))


def draw_splits(axes, table, column, places, line="-"):
    """Draws a column of a table over the states, with a line per split and stage.

    Args:
        axes: The axes.
        table: A table with the columns stage, block and split.
        column: Column of the values.
        places: What `places_of` returns.
        line: Line style; dots are open unless it is solid.
    """
    for split, (colour, marker) in style.split_looks(frames.order_splits(table["split"])).items():
        values = table[table["split"] == split].set_index(["stage", "block"])[column]
        values = values.reindex(places.index)
        # A gap after every stage.
        is_last = np.diff(places.index.get_level_values("stage"), append=np.inf) > 0
        across, heights = places.to_numpy(float), values.to_numpy(float)
        gaps = np.flatnonzero(is_last)[:-1] + 1
        axes.plot(
            np.insert(across, gaps, np.nan),
            np.insert(heights, gaps, np.nan),
            color=colour,
            marker=marker,
            markersize=5.0 if len(places) <= _FEW else 3.2,
            markerfacecolor=colour if line == "-" else "white",
            linewidth=1.5 if line == "-" else 1.1,
            linestyle=line,
            label=f"{split}, {column}" if split else column,
        )


def finish(panels, places, names=None):
    """Marks the stages in panels that are stacked vertically, and names the states below.

    Args:
        panels: The axes, from top to bottom.
        places: What `places_of` returns.
        names: Dict of the names of single states by (stage, block).
    """
    stages = places.groupby(level="stage")
    starts, sizes = stages.min(), stages.size()
    for axes in panels:
        shade_stages(axes, starts, sizes)
    lowest, names = panels[-1], names or {}
    lowest.set_xlim(-0.6, len(places) - 0.4)
    step = 1 + (len(places) - 1) // _MOST_NAMED
    shown = [
        (place, names.get(state, "first" if state[1] == FIRST else str(state[1])))
        for state, place in places.items()
        if state[1] % step == 0 or state[1] == FIRST or state in names
    ]
    ticks, labels = zip(*shown, strict=True)
    lowest.set_xticks(ticks, labels, **style.PLAIN)
    of = f" of stage {starts.index[0]}" if len(starts) == 1 else ""
    style.axis_labels(lowest, below=f"after block{of}")
    if len(panels) > 1:
        lowest.figure.align_ylabels(panels)


def split_handles(table):
    """Returns the entries of the legend for the splits of a table, none without splits."""
    splits = frames.order_splits(table["split"])
    if splits == [""]:
        return []
    return [
        style.line_handle(split, color=colour, marker=marker)
        for split, (colour, marker) in style.split_looks(splits).items()
    ]
