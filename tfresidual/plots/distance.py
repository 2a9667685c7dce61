"""How far does a whole stage carry the state?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tfresidual.plots import frames, style

if TYPE_CHECKING:
    from tfresidual.types import Figure, Frame

_PANELS = (
    ("distance", "absolute", "sum of ‖F(h)‖ over the blocks"),
    ("scaled_distance", "scaled", "sum of ‖F(h)‖ / ‖h‖ over the blocks"),
)


def computational_distance(frame: Frame) -> Figure:
    """Draws the computational distance of every stage and of all stages as bars.

    The left panel shows the absolute distance, the right one the distance scaled by the size of the
    state. The bars of several splits are side by side, and every bar is labelled with its value.

    Args:
        frame: Distance frame with the columns `stage` (numbers, and "all" for the total),
            `distance` and `scaled_distance`, and optionally `split` and `blocks`. The number of
            blocks is written under the stage.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing or holds no finite number, or if several rows describe
            the same stage and split.

    Reference:
        Hauser, "On Residual Networks Learning a Perturbation from Identity", 2019, figures 3
        and 6.
    """
    require = ("stage", *(column for column, _, _ in _PANELS))
    frames.require_columns(frame, require)
    table = pd.DataFrame(
        {
            "stage": frame["stage"].map(frames.stage_name).to_numpy(object),
            "split": frames.splits_of(frame),
            **{column: frames.numbers(frame, column) for column, _, _ in _PANELS},
        }
    )
    frames.refuse_twice(table, ("stage",))

    stages = sorted(table["stage"].unique(), key=lambda stage: (stage == "all", len(stage), stage))
    names = _tick_labels(frame, table["stage"], stages)
    splits = frames.order_splits(table["split"])
    looks, hatches = style.split_looks(splits), style.split_hatches(splits)
    bars = len(stages) * len(splits)
    # Leave room for the labels under every stage and over every bar.
    panel = 0.9 + max(0.7 * len(stages), 0.5 * bars)
    figure = style.new_figure(float(np.clip(2 * panel, 7.2, 14.0)), 3.6, "Computational distance")
    for axes, (column, kind, label) in zip(figure.subplots(1, 2), _PANELS, strict=True):
        style.clean_axes(axes, grid="y")
        width = 0.78 / len(splits)
        for place, split in enumerate(splits):
            heights = table[table["split"] == split].set_index("stage")[column].reindex(stages)
            shift = (place - (len(splits) - 1) / 2) * width
            drawn = axes.bar(
                np.arange(len(stages)) + shift,
                heights,
                width=width * 0.92,
                color=looks[split][0],
                hatch=hatches[split],
                edgecolor="white",
                linewidth=0,
                label=split or None,
            )
            axes.bar_label(
                drawn,
                labels=[style.short_number(height) for height in heights],
                padding=2,
                fontsize=style.SMALL_SIZE - (1 if bars > 8 else 0),
                color=style.INK,
            )
        if stages[-1] == "all" and len(stages) > 1:
            axes.axvline(
                len(stages) - 1.5, color=style.FAINT_INK, linewidth=0.8, linestyle=":", zorder=0
            )
        axes.margins(y=0.12)
        axes.set_xlim(-0.6, len(stages) - 0.4)
        axes.set_xticks(range(len(stages)), names, **style.PLAIN)
        axes.tick_params(axis="x", length=0)
        axes.set_title(kind, fontsize=style.SMALL_SIZE, color=style.FAINT_INK, pad=4)
        axes.set_ylabel(label, fontsize=style.LABEL_SIZE, color=style.INK)
    if splits != [""]:
        style.legend(figure, style.handles_of(axes))
    return figure


def _tick_labels(frame, row_stages, stages):
    labels = {stage: "all" if stage == "all" else f"stage {stage}" for stage in stages}
    if "blocks" in frame.columns:
        for stage, blocks in zip(row_stages, frame["blocks"], strict=True):
            if not pd.isna(blocks):
                labels[stage] = (
                    f"{labels[stage].splitlines()[0]}\n{blocks:g} block{'' if blocks == 1 else 's'}"
                )
    return [labels[stage] for stage in stages]
