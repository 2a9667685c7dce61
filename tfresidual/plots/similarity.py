"""How similar the states after all pairs of blocks are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tfresidual.plots import style
from tfresidual.plots.frames import order_splits, splits_of

if TYPE_CHECKING:
    from tfresidual.definitions.types import Figure, Frame

# What the colours show, with the largest value; dark is similar.
KINDS = {
    "cka": ("debiased CKA", 1.0),
    "procrustes": ("Procrustes distance", 2.0),
    "angular": ("angle", np.pi / 2),
}
# With more blocks than this, not each of them is named.
MOST_NAMES = 20


def similarity(frame: Frame) -> Figure:
    """Draws a map of all pairs of blocks, and beside it that of two untrained networks.

    A row is a block of the first network, from below, and a column one of the other, or of the same
    network. Dark is similar, white is 0 or less of CKA, and the largest distance. Lines part the
    stages.

    Args:
        frame: the frame of `tfresidual.probes.similarity`.
    """
    kind = next(name for name in KINDS if name in frame)
    label, most = KINDS[kind]
    columns = [kind, *(["untrained"] if "untrained" in frame else [])]
    of_rows = splits_of(frame)
    splits = {split: frame[of_rows == split] for split in order_splits(of_rows)}
    figure = style.new_figure(
        1.6 + 3.0 * len(columns), 0.9 + 2.9 * len(splits), "Similarity of the states"
    )
    grid = figure.subplots(len(splits), len(columns), squeeze=False, sharex=True, sharey=True)
    for row, (split, part) in zip(grid, splits.items(), strict=True):
        for axes, column in zip(row, columns, strict=True):
            shown = _draw_map(axes, part, column, most, is_distance=kind != "cka")
            name = "untrained networks" if column == "untrained" else ""
            style.panel_title(axes, ", ".join(filter(None, (split, name))))
    for axes in grid[-1]:
        style.axis_labels(axes, below="after block")
    for axes in grid[:, 0]:
        style.axis_labels(axes, beside="after block")
    bar = figure.colorbar(shown, ax=grid, pad=0.01, aspect=30)
    bar.set_label(label, fontsize=style.SMALL_SIZE, color=style.INK)
    bar.ax.tick_params(labelsize=style.SMALL_SIZE, length=0)
    bar.outline.set_visible(False)
    return figure


def _draw_map(axes, frame, column, most, is_distance):
    sides = [["stage", "block"], ["other_stage", "other_block"]]
    table = frame.set_index([*sides[0], *sides[1]])[column].unstack(sides[1])
    shown = axes.imshow(
        np.ma.masked_invalid(table.to_numpy(float)),
        cmap="Blues_r" if is_distance else "Blues",
        vmin=0,
        vmax=most,
        aspect="auto",
        origin="lower",
        interpolation="nearest",
    )
    for places, axis, line in (
        (table.columns, axes.xaxis, axes.axvline),
        (table.index, axes.yaxis, axes.axhline),
    ):
        chosen = range(0, len(places), -(-len(places) // MOST_NAMES))
        axis.set_ticks(chosen, ["{}.{}".format(*places[one]) for one in chosen])
        stages = places.get_level_values(0)
        for place in np.flatnonzero(stages[1:] != stages[:-1]):
            line(place + 0.5, color="white", linewidth=1.2)
    axes.tick_params(labelsize=style.SMALL_SIZE, length=0, labelcolor=style.INK)
    axes.tick_params(axis="x", rotation=90 if len(table.columns) > 6 else 0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    return shown
