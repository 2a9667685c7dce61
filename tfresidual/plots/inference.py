"""Do the blocks of the network refine its answer, and how does this develop during training?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.plots import frames, style
from tfresidual.plots.blocks import block_scale

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tfresidual.types import Figure, Frame

_PANELS = (
    ("cosine_loss", "cosine loss"),
    ("l2_ratio", "l2 ratio ‖F(h)‖ / ‖h‖"),
    ("accuracy", "intermediate accuracy"),
)


def iterative_inference(frame: Frame, stages: Iterable[int] | None = None) -> Figure:
    """Draws cosine loss, l2 ratio and intermediate accuracy of every block over the epochs.

    The three panels are side by side, with a line per block from blue and thin (lowest) to red and
    thick (highest). The accuracy is measured with the stage ended after the block. Every split and
    every stage has its own row of panels. l2 ratios that span more than a factor of 30 are drawn on
    a logarithmic axis. A block without a value leaves a gap.

    Args:
        frame: Block metrics frame over epochs, as `tfresidual.probes.from_logs` returns it, with
            the columns `stage`, `block`, `epoch`, `cosine_loss`, `l2_ratio` and `readout_error` (or
            `error`), and optionally `split`.
        stages: Stages to draw. Default: only the last stage.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing, none of the values drawn is a finite number, a stage is
            not in the frame, or several rows describe the same block, split and epoch.

    Reference:
        Jastrzebski et al., "Residual Connections Encourage Iterative Inference", 2018, figure 18
        (shared blocks, batch norm unshared) and figure 19 (shared naively); the metrics of
        figures 5, 13 and 14.
    """
    columns = getattr(frame, "columns", ())
    error = "error" if "error" in columns and "readout_error" not in columns else "readout_error"
    table = frames.keyed_values(
        frame, ("stage", "block", "epoch"), ("cosine_loss", "l2_ratio", error)
    )
    table["accuracy"] = 1 - table[error]
    found = sorted(set(table["stage"]))
    stages = [found[-1]] if stages is None else list(frames.listed(stages, "stages", "stages"))
    if not stages or not set(stages) <= set(found):
        raise ValueError(
            f"Argument `stages` must hold stages of `frame`: {found}. Received: {stages!r}"
        )
    table = table[table["stage"].isin(stages)]
    metrics = [metric for metric, _ in _PANELS]
    frames.refuse_nothing(table, metrics)

    splits = frames.order_splits(table["split"])
    rows = [(stage, split) for split in splits for stage in dict.fromkeys(stages)]
    figure = style.new_figure(10.4, 2.5 * len(rows) + 1.0, "Iterative inference")
    grid = figure.subplots(len(rows), 3, sharex=True, sharey="col", squeeze=False)
    colours = style.depth_colours(int(table["block"].max()) + 1)
    widths = style.depth_widths(len(colours))
    few_epochs = table["epoch"].nunique() <= 15
    for axes_row, (stage, split) in zip(grid, rows, strict=True):
        here = table[(table["stage"] == stage) & (table["split"] == split)]
        for axes, metric in zip(axes_row, metrics, strict=True):
            style.clean_axes(axes)
            for block, line in here.dropna(subset=metric).groupby("block"):
                axes.plot(
                    line["epoch"] + 1,
                    line[metric],
                    color=colours[block],
                    linewidth=widths[block],
                    marker="o" if few_epochs else None,
                    markersize=2.8,
                    label=f"block {block}",
                )
            style.panel_title(axes, f"stage {stage}", split)
            if here[metric].isna().all():
                style.no_values(axes)
            elif metric == "cosine_loss":
                axes.axhline(0.0, color=style.INK, linewidth=0.9, zorder=1.5, gid="zero")
    _scales(grid, table)
    if len(colours) > 1:
        block_scale(figure, list(grid.ravel()), colours)
    return figure


def _scales(grid, table):
    """Sets the scale and the labels of every column of panels."""
    for column, (metric, label) in zip(grid.T, _PANELS, strict=True):
        if metric == "accuracy" and table[metric].notna().any():
            style.percent_axis(column[0])
        if metric == "l2_ratio" and style.wide_scale(column[0], table[metric]):
            label = f"{label} (log scale)"
        style.epoch_axis(column[0], table["epoch"] + 1, bins=6)
        style.axis_labels(column[-1], below="epoch")
        for axes in column:
            style.axis_labels(axes, beside=label)
