"""Draws one metric of every residual block, at one time or over the epochs."""

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, ListedColormap
from matplotlib.transforms import blended_transform_factory

from tfresidual.plots import frames, style


def draw_block_metric(
    frame,
    column,
    title,
    label,
    zero_line=False,
    threshold=None,
    sparse=False,
    share=False,
    reference=None,
):
    """Draws a metric of every block: over the blocks, or over the epochs if there are several.

    Args:
        frame: A block metrics frame.
        column: The metric's column.
        title: Title of the figure.
        label: Label of the value axis.
        zero_line: Whether zero is marked; the axis then stays linear.
        threshold: Pair of a value to mark by a line and its name; or `None`.
        sparse: Whether stages without any value are left out instead of drawn empty.
        share: Whether the values are shares of 1; the axis is then linear and in percent.
        reference: Pair of a column with one value per split and epoch, to draw as a dotted line,
            and its name; or `None`.

    Returns:
        A `matplotlib.figure.Figure`.
    """
    reference_column, reference_name = reference or (None, None)
    values = frames.block_values(frame, column, reference_column)
    if sparse:
        values = values[values.groupby("stage")["value"].transform("count") > 0]
    logarithmic = not zero_line and not share and style.log_scale_helps(values["value"])
    if logarithmic:
        label = f"{label} (log scale)"
    draw = _over_epochs if values["epoch"].nunique() > 1 else _over_blocks
    figure, panels, handles = draw(values, title, label)
    for axes in panels:
        if zero_line:
            axes.axhline(0.0, color=style.INK, linewidth=0.9, zorder=1.5, gid="zero")
        if logarithmic:
            style.log_scale(axes)
        if share:
            style.percent_axis(axes)
        if threshold is not None:
            value, name = threshold
            line = axes.axhline(
                value, color=style.INK, linewidth=1.0, linestyle=(0, (6, 3)), label=name, gid=name
            )
    if threshold is not None:
        handles = [*handles, line]
    if reference is not None:
        handles = [*handles, style.line_handle(reference_name, linestyle=":")]
    if handles:
        style.legend(figure, handles)
    return figure


def _over_blocks(values, title, label):
    stage_sizes = values.groupby("stage")["block"].max() + 1
    starts = stage_sizes.cumsum() - stage_sizes
    count = int(stage_sizes.sum())
    figure = style.new_figure(float(np.clip(6.0 + 0.07 * count, 6.6, 9.0)), 3.7, title)
    axes = figure.subplots()
    style.clean_axes(axes, grid="y")

    splits = frames.order_splits(values["split"])
    looks = style.split_looks(splits)
    for place, split in enumerate(splits):
        rows = values[values["split"] == split]
        # A NaN after each stage keeps lines from crossing into the next stage.
        places, heights = [], []
        for stage, start in starts.items():
            in_stage = np.full(stage_sizes[stage] + 1, np.nan)
            of_stage = rows[rows["stage"] == stage]
            in_stage[of_stage["block"]] = of_stage["value"]
            places.extend(start + np.arange(len(in_stage)))
            heights.extend(in_stage)
        colour, marker = looks[split]
        axes.plot(
            places[:-1],
            heights[:-1],
            color=colour,
            marker=marker,
            markersize=5.0 if count <= 24 else 3.2,
            linewidth=1.5,
            linestyle="-" if place == 0 else "--",
            label=split or None,
        )
        _reference_line(axes, rows, colour, marker)

    axes.set_xlim(-0.6, count - 0.4)
    shade_stages(axes, starts, stage_sizes)
    if count <= 24:
        axes.set_xticks(range(count))
    else:
        style.whole_numbers(axes.xaxis, bins=14)
    place = "residual block index" if len(starts) > 1 else f"block of stage {starts.index[0]}"
    axes.set_xlabel(place, fontsize=style.LABEL_SIZE, color=style.INK)
    axes.set_ylabel(label, fontsize=style.LABEL_SIZE, color=style.INK)
    return figure, [axes], [] if splits == [""] else style.handles_of(axes)


def _reference_line(axes, rows, colour, marker=None, over_epochs=False):
    """Draws the reference of one split, if there is one: its level, or its course over epochs.

    The split's marker at the right end of a level distinguishes levels without their colour.
    """
    if "reference" not in rows:
        return
    look = {"color": colour, "linewidth": 1.1, "linestyle": ":", "gid": "reference"}
    references = rows.dropna(subset="reference").groupby("epoch")["reference"].first()
    if over_epochs:
        axes.plot(references.index + 1, references, **look)
    elif len(references):
        axes.axhline(
            references.iloc[0],
            marker=marker,
            markevery=[1],
            markersize=4.5,
            markerfacecolor="white",
            clip_on=False,
            **look,
        )


def shade_stages(axes, starts, stage_sizes):
    """Shades every second stage, draws the boundaries and labels the stages above the axes."""
    if len(starts) < 2:
        return
    above = blended_transform_factory(axes.transData, axes.transAxes)
    for place, (stage, start) in enumerate(starts.items()):
        left, right = start - 0.5, start + stage_sizes[stage] - 0.5
        if place:
            axes.axvline(left, color=style.FAINT_INK, linewidth=0.8, linestyle=":", gid="boundary")
        if place % 2:
            axes.axvspan(left, right, color=style.BAND, linewidth=0, zorder=0)
        axes.text(
            (left + right) / 2,
            1.015,
            f"stage {stage}" if len(starts) <= 6 else str(stage),
            transform=above,
            ha="center",
            va="bottom",
            fontsize=style.SMALL_SIZE,
            color=style.FAINT_INK,
        )


def _over_epochs(values, title, label):
    values = values.dropna(subset="value")
    splits = frames.order_splits(values["split"])
    stages = sorted(values["stage"].unique())
    columns = min(len(stages), style.MOST_COLUMNS)
    rows_per_split = -(-len(stages) // columns)
    rows = rows_per_split * len(splits)
    width, height = (6.6, 3.7) if rows * columns == 1 else (2.6 * columns + 1.2, 2.4 * rows + 0.9)
    figure = style.new_figure(width, height, title)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)

    blocks = int(values["block"].max()) + 1
    colours, widths = style.depth_colours(blocks), style.depth_widths(blocks)
    many_epochs = values["epoch"].nunique() > 15
    panels = []
    for place, split in enumerate(splits):
        row_axes = grid[place * rows_per_split : (place + 1) * rows_per_split].ravel()
        for axes, stage in zip(row_axes, stages, strict=False):
            style.clean_axes(axes)
            here = values[(values["split"] == split) & (values["stage"] == stage)]
            for block, line in here.groupby("block"):
                axes.plot(
                    line["epoch"] + 1,
                    line["value"],
                    color=colours[block],
                    linewidth=widths[block],
                    marker=None if many_epochs else "o",
                    markersize=2.8,
                    label=f"block {block}",
                )
            _reference_line(axes, values[values["split"] == split], style.INK, over_epochs=True)
            style.panel_title(axes, f"stage {stage}", split)
            style.epoch_axis(axes, values["epoch"] + 1, bins=6)
            panels.append(axes)
        for place_in_rows, axes in enumerate(row_axes[len(stages) :], start=len(stages)):
            axes.remove()
            row_axes[place_in_rows - columns].tick_params(labelbottom=True)

    figure.supxlabel("epoch", fontsize=style.LABEL_SIZE, color=style.INK)
    figure.supylabel(label, fontsize=style.LABEL_SIZE, color=style.INK, ma="center")
    if blocks > 1:
        block_scale(figure, panels, colours)
    return figure, panels, []


def block_scale(figure, panels, colours):
    """Draws the colour scale of the blocks beside the panels."""
    blocks = len(colours)
    norm = BoundaryNorm(np.arange(blocks + 1) - 0.5, blocks)
    scale = figure.colorbar(
        ScalarMappable(norm=norm, cmap=ListedColormap(colours)),
        ax=panels,
        aspect=30,
        pad=0.015,
        ticks=range(0, blocks, 1 + (blocks - 1) // 10),
    )
    scale.ax.minorticks_off()
    scale.outline.set_visible(False)
    scale.ax.tick_params(labelsize=style.SMALL_SIZE, length=0, labelcolor=style.INK)
    scale.set_label("block within its stage", fontsize=style.SMALL_SIZE, color=style.INK)
