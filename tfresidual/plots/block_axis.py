"""The blocks of all stages in a row, as an axis that several panels share."""

import numpy as np

from tfresidual.plots import frames, style
from tfresidual.plots.blocks import shade_stages

# With more blocks than this, the dots are smaller.
_FEW = 24


def stage_sizes(table):
    """Returns the number of blocks of every stage of a table with the columns stage and block."""
    return table.groupby("stage")["block"].max() + 1


def places_of(table, sizes):
    """Returns the place of every row of a table on the axis."""
    return table["stage"].map(sizes.cumsum() - sizes) + table["block"]


def in_a_row(table, column, sizes):
    """Returns the places of all blocks and their values, with a gap after every stage.

    Args:
        table: A `pandas.DataFrame` with the columns `stage` and `block`, one row per block; blocks
            without a row leave a gap.
        column: Column of the values.
        sizes: Number of blocks by stage.
    """
    values = table.set_index(["stage", "block"])[column]
    places, heights = [], []
    for stage, start in (sizes.cumsum() - sizes).items():
        of_stage = values.reindex([(stage, block) for block in range(sizes[stage])])
        places.extend([*range(start, start + sizes[stage]), np.nan])
        heights.extend([*of_stage, np.nan])
    return np.array(places[:-1], float), np.array(heights[:-1], float)


def figure_width(sizes):
    """Returns the width in inches of a figure with one column of panels."""
    return float(np.clip(6.0 + 0.07 * sizes.sum(), 7.0, 9.0))


def marker_size(sizes):
    """Returns the size of a dot that leaves its neighbours visible."""
    return 5.0 if sizes.sum() <= _FEW else 3.2


def draw_splits(axes, table, column, sizes, line="-", width=1.5):
    """Draws a column of a table over the blocks, with a line per split.

    Args:
        axes: The axes.
        table: A table with the columns stage, block and split.
        column: Column of the values.
        sizes: Number of blocks by stage.
        line: Line style; dots are open unless it is solid.
        width: Width of the lines.
    """
    for split, (colour, marker) in style.split_looks(frames.order_splits(table["split"])).items():
        axes.plot(
            *in_a_row(table[table["split"] == split], column, sizes),
            color=colour,
            marker=marker,
            markersize=marker_size(sizes),
            markerfacecolor=colour if line == "-" else "white",
            linewidth=width,
            linestyle=line,
            label=f"{split}, {column}" if split else column,
        )


def mark_stages(axes, sizes):
    """Shades every second stage, draws the boundaries and labels the stages above the axes."""
    shade_stages(axes, sizes.cumsum() - sizes, sizes)


def finish(panels, sizes):
    """Marks the stages in panels that are stacked vertically, and labels the lowest panel."""
    count = int(sizes.sum())
    for axes in panels:
        mark_stages(axes, sizes)
    lowest = panels[-1]
    lowest.set_xlim(-0.6, count - 0.4)
    if count <= _FEW:
        lowest.set_xticks(range(count))
    else:
        style.whole_numbers(lowest.xaxis, bins=14)
    if len(sizes) == 1:
        name = f"block of stage {sizes.index[0]}"
    elif list(sizes.index) == list(range(1, len(sizes) + 1)):
        name = "residual block index"
    else:
        # The blocks are not counted as in figures of all blocks.
        name = "blocks of the stages shown, one stage after another"
    style.axis_labels(lowest, below=name)
    if len(panels) > 1:
        lowest.figure.align_ylabels(panels)
