"""What do the last blocks do to images near the decision boundary?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tfresidual.arguments import check_choice
from tfresidual.plots import frames, style

if TYPE_CHECKING:
    from typing import Literal

    from tfresidual.types import Figure, Frame

_METRICS = (("accuracy", "accuracy"), ("cross_entropy", "cross-entropy"), ("entropy", "entropy"))
_PLACES = {
    "blocks": "block of the last stage",
    "repetitions": "last block of the last stage,\nthen its repetitions",
}
_GROUP_LOOKS = {
    "borderline": (style.ORANGE, "D"),
    "correct": (style.GREEN, "s"),
    "all": (style.INK, "o"),
}


def borderline(frame: Frame, along: Literal["blocks", "repetitions"] = "blocks") -> Figure:
    """Draws accuracy, loss and entropy of borderline, correct and all images after each block.

    There is a line per group and split, solid for the first split and dashed for the others. The
    legend shows the number of images of each group; a group without images has no line. Losses and
    entropies that span more than a factor of 30 are drawn on a logarithmic axis.

    Groups of the next block have other images at each block. Each block is then a line of its own,
    from the mean of its groups before the block to the mean of the same images after it, and the
    legend shows the smallest and the largest number of images of each group.

    Args:
        frame: Borderline frame with the columns `along`, `block`, `group`, `images`, `accuracy`,
            `cross_entropy` and `entropy`, and optionally `split` and `scale`; a scale other than 1
            appears in the title. With the columns `accuracy_before`, `cross_entropy_before` and
            `entropy_before`, its groups are those of the next block.
        along: Which rows are drawn: "blocks" for the last blocks of the last stage, or
            "repetitions" for its last block and the repetitions of it, which continue the count.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing, `along` is unknown or not in the frame, none of the
            values is a finite number, a group is unknown, or several rows describe the same block,
            group and split.

    Reference:
        Jastrzebski et al., "Residual Connections Encourage Iterative Inference", 2018, figure 6
        (blocks) and figure 7 (repetitions).
    """
    table = _group_table(frame, along)
    splits = frames.order_splits(table["split"])
    lines = style.split_lines(splits)
    title = "Borderline before each block" if "accuracy_before" in table else "Borderline images"
    title += frames.branch_scale(frame[frame["along"] == along])
    figure = style.new_figure(9.6, 3.9, title)
    handles = []
    for axes, (metric, label) in zip(figure.subplots(1, 3, sharex=True), _METRICS, strict=True):
        style.clean_axes(axes)
        for group, (colour, marker) in _GROUP_LOOKS.items():
            for split in splits:
                here = table[(table["group"] == group) & (table["split"] == split)]
                if here.empty:
                    continue
                name = ", ".join(filter(None, (group, split)))
                (line,) = axes.plot(
                    *_course(here, metric),
                    color=colour,
                    marker=marker,
                    markersize=3.5 if table["block"].nunique() <= 12 else 2.0,
                    linewidth=1.4,
                    linestyle=lines[split],
                    label=f"{name} ({_count(here['images'])} images)",
                )
                if metric == "accuracy":
                    handles.append(line)
        values = table[[metric, f"{metric}_before"] if f"{metric}_before" in table else [metric]]
        if values.isna().all(axis=None):
            style.no_values(axes)
        elif metric == "accuracy":
            style.percent_axis(axes)
        elif style.wide_scale(axes, values):
            label = f"{label} (log scale)"
        style.whole_numbers(axes.xaxis, bins=7)
        style.axis_labels(axes, _PLACES[along], label)
    style.legend(figure, handles)
    return figure


def _course(rows, metric):
    """Returns the places and heights of the line of a group."""
    if f"{metric}_before" not in rows:
        return rows["block"], rows[metric]
    # A gap after each block ends its line.
    places = np.stack([rows["block"] - 1, rows["block"], np.full(len(rows), np.nan)], axis=1)
    heights = np.stack([rows[f"{metric}_before"], rows[metric], places[:, 2]], axis=1)
    return places.ravel(), heights.ravel()


def _count(images):
    """Returns the number of images of a group, or its range, as text."""
    least, most = images.min(), images.max()
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"


def _group_table(frame, along):
    """Returns the columns block, group, split, images and the metrics of the rows to draw.

    Raises:
        ValueError: as `borderline` does.
    """
    metrics = tuple(metric for metric, _ in _METRICS)
    if any(f"{metric}_before" in getattr(frame, "columns", ()) for metric in metrics):
        metrics += tuple(f"{metric}_before" for metric in metrics)
    frames.require_columns(frame, ("along", "block", "group", "images", *metrics))
    check_choice("along", along, _PLACES)
    present = frame["along"].unique().tolist()
    if along not in present:
        raise ValueError(
            f"Argument `frame` must have rows with along={along!r}. Received: rows with along in "
            f"{present!r}"
        )
    frame = frame[frame["along"] == along]
    unknown = sorted(set(frame["group"]) - set(_GROUP_LOOKS))
    if unknown:
        raise ValueError(
            "Argument `frame` must hold 'borderline', 'correct' or 'all' in the column `group`. "
            f"Received: {unknown!r}"
        )
    table = pd.DataFrame(
        {
            "block": frames.whole_numbers(frame, "block"),
            "group": frame["group"].to_numpy(object),
            "split": frames.splits_of(frame),
            "images": frames.whole_numbers(frame, "images"),
            **{metric: frames.numbers_or_gaps(frame, metric) for metric in metrics},
        }
    )
    # A group without images has no mean, whatever its rows contain.
    table.loc[table["images"] == 0, list(metrics)] = np.nan
    frames.refuse_nothing(table, metrics)
    frames.refuse_twice(table, ("block", "group"))
    return table.sort_values("block", ignore_index=True)
