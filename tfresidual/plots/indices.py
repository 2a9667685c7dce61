"""How much does a network behave like an iterative method?"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tfresidual.plots import frames, style

if TYPE_CHECKING:
    from tfresidual.types import Figure, Frame

_INDICES = ("convergence_index", "recurrence_index", "divergence_index")
_BASES = ("labels", "agreement")
_MEAN = "mean"
# Half the width of the column of dots of one split and basis; the columns are 1 apart.
_SPREAD = 0.32


def convergence_indices(frame: Frame) -> Figure:
    """Draws the convergence, recurrence and divergence index of every stage, and their mean.

    Each split and basis has a column of dots: a larger one for the mean, then the stages in order.
    Dots are filled if errors are counted against the labels, and open if they are counted against
    the predictions of the unperturbed network.

    Args:
        frame: Indices frame with the columns `stage` (numbers, and "mean"), `basis` ("labels" or
            "agreement"), `convergence_index`, `recurrence_index` and `divergence_index`, and
            optionally `split`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing, none of the indices is a finite number, a basis is
            unknown, or several rows describe the same stage, basis and split.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", figures 2b
        and 6a.
    """
    table = _index_table(frame)
    names = sorted(set(table["stage"]), key=lambda stage: (stage != _MEAN, len(stage), stage))
    looks = style.stage_looks([name for name in names if name != _MEAN])
    splits = frames.order_splits(table["split"])
    bases = [basis for basis in _BASES if basis in set(table["basis"])]
    shifts = np.linspace(-_SPREAD, _SPREAD, len(names)) if len(names) > 1 else [0.0]
    columns = list(itertools.product(splits, bases))
    width = float(np.clip(7.4 + 0.5 * len(columns), 8.4, 12.0))
    figure = style.new_figure(width, 3.7, "Convergence indices")
    for axes, index in zip(figure.subplots(1, 3), _INDICES, strict=True):
        style.clean_axes(axes, grid="y")
        for place, (split, basis) in enumerate(columns):
            here = table[(table["split"] == split) & (table["basis"] == basis)]
            heights = here.set_index("stage")[index]
            for shift, stage in zip(shifts, names, strict=True):
                look = _dot_look(stage, basis, looks)
                axes.plot(place + shift, heights.get(stage, np.nan), gid=stage, **look)
        _label_columns(axes, splits, bases)
        low, high = np.nanmin([0, table[index].min()]), np.nanmax([1, table[index].max()])
        pad = 0.05 * (high - low)
        axes.set_ylim(low - pad, high + pad)
        style.panel_title(axes, index.replace("_", " "))
        if table[index].isna().all():
            style.no_values(axes)
    told = len(bases) > 1 or splits == [""]
    style.axis_labels(figure.axes[0], beside="index" if told else f"index (basis: {bases[0]})")

    handles = [
        style.line_handle(
            stage if stage == _MEAN else f"stage {stage}", **_dot_look(stage, bases[0], looks)
        )
        for stage in names
    ]
    if len(bases) > 1:
        handles += [
            style.line_handle(
                f"basis: {basis}", **{**_dot_look(_MEAN, basis, looks), "markersize": 4.8}
            )
            for basis in bases
        ]
    style.legend(figure, handles)
    return figure


def _label_columns(axes, splits, bases):
    """Labels the columns of dots with the splits, or with the bases if there are no splits."""
    count = len(splits) * len(bases)
    axes.set_xlim(-0.6, count - 0.4)
    if splits == [""]:
        axes.set_xticks(range(count), bases, **style.PLAIN)
    else:
        middles = (np.arange(len(splits)) + 0.5) * len(bases) - 0.5
        axes.set_xticks(middles, splits, **style.PLAIN)
        for border in middles[:-1] + len(bases) / 2:
            axes.axvline(border, color=style.FAINT_INK, linewidth=0.8, linestyle=":", gid="border")
    axes.tick_params(axis="x", length=0)


def _index_table(frame):
    """Returns the columns stage (as text), basis, split and the three indices, after checks."""
    frames.require_columns(frame, ("stage", "basis", *_INDICES))
    table = pd.DataFrame(
        {
            "stage": frame["stage"].map(frames.stage_name).to_numpy(object),
            "basis": frame["basis"].to_numpy(object),
            "split": frames.splits_of(frame),
            **{index: frames.numbers_or_gaps(frame, index) for index in _INDICES},
        }
    )
    unknown = [basis for basis in table["basis"].unique() if basis not in _BASES]
    if unknown:
        raise ValueError(
            "Argument `frame` must hold 'labels' or 'agreement' in the column `basis`. Received: "
            f"{unknown!r}"
        )
    frames.refuse_nothing(table, _INDICES)
    frames.refuse_twice(table, ("stage", "basis"))
    return table


def _dot_look(stage, basis, looks):
    colour, marker = (style.INK, "o") if stage == _MEAN else looks[stage]
    return {
        "color": colour,
        "marker": marker,
        "markersize": 8.0 if stage == _MEAN else 4.8,
        "markerfacecolor": colour if basis == "labels" else "white",
        "markeredgewidth": 1.2,
        "linestyle": "none",
    }
