"""Figures over the epochs of a training, which are counted from 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tfresidual.definitions.declarations import ZERO, Drawing, Line, Panel
from tfresidual.plots import frames, style
from tfresidual.plots.engine import draw_table, read

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tfresidual.definitions.types import Figure, Frame

_OF_BLOCKS = Drawing(
    "Iterative inference",
    (
        Panel("cosine loss", (Line("cosine_loss"),), levels=(ZERO,)),
        Panel("l2 ratio ‖F(h)‖ / ‖h‖", (Line("l2_ratio"),), "wide"),
        Panel("error when left after the block", (Line("readout_error"),), "share"),
    ),
    "epoch",
    "epoch",
    keys=("stage", "block", "epoch"),
    colour="block",
    rows=("split", "stage"),
    columns=("panel",),
)


def iterative_inference(frame: Frame, *, stages: Iterable[int] | None = None) -> Figure:
    """Draws cosine loss, l2 ratio and read-out error of every block over the epochs.

    The three panels are side by side, with a line per block from blue and thin (lowest) to red and
    thick (highest). The error is that of the stage left after the block. Every split and
    every stage has its own row of panels. l2 ratios that span more than a factor of 30 are drawn on
    a logarithmic axis.

    Args:
        frame: Block metrics frame over epochs, as `tfresidual.probes.from_logs` returns it, with
            the columns `stage`, `block`, `epoch`, `cosine_loss`, `l2_ratio` and `readout_error` (or
            `error`), and optionally `split`.
        stages: Stages to draw. Default: only the last stage.

    Reference:
        Jastrzebski et al., "Residual Connections Encourage Iterative Inference", 2018, figure 18
        (shared blocks, batch norm unshared) and figure 19 (shared naively); the metrics of
        figures 5, 13 and 14.
    """
    if "readout_error" not in frame:
        frame = frame.rename(columns={"error": "readout_error"})
    table = read(frame, _OF_BLOCKS)
    shown = [table["stage"].max()] if stages is None else list(stages)
    table = table[table["stage"].isin(shown)]
    return draw_table(table, _OF_BLOCKS)


def training_curves(history: Frame, *, metrics: Iterable[str] | None = None) -> Figure:
    """Draws the loss and the metrics over the epochs.

    Training and validation share a panel. The best epoch is marked: the one with the best value of
    the first metric, or with the lowest loss if there are no metrics, on the validation data if
    there are any.

    Args:
        history: History frame as `keras.callbacks.CSVLogger` writes it, with the columns `epoch`
            (from 0) and `loss`, and optionally `val_loss` and metrics with their `val_` twins. Keys
            with a slash (metrics per block) are not drawn.
        metrics: Names of the metrics to draw, without `val_`. Default: those with a `val_` twin.
    """
    if metrics is None:
        names = [name for name in history if "/" not in name and f"val_{name}" in history]
        metrics = [name for name in names if name != "loss"]
    shown = ("loss", *metrics)
    epochs = history["epoch"].to_numpy()
    columns = {
        "training": {name: name for name in shown},
        "validation": {name: f"val_{name}" for name in shown if f"val_{name}" in history.columns},
    }
    parts = _by_split(history, {"epoch": epochs}, columns)
    drawing = Drawing(
        "Training",
        tuple(Panel(name.replace("_", " "), (Line(name),), "wide") for name in shown),
        "epoch",
        "epoch",
        dash="split",
        rows=(),
        columns=("panel",),
        wrap=2,
    )
    best_of = shown[1] if len(shown) > 1 else "loss"
    held_out = [part for part in parts if best_of in part][-1]
    split, values = held_out["split"].iloc[0], held_out[best_of].to_numpy()
    is_cost = "loss" in best_of or "error" in best_of
    best = int(np.nanargmin(values) if is_cost else np.nanargmax(values))
    ring = {"marker": "o", "markeredgecolor": style.INK, "markerfacecolor": "none"}
    dotted = {"color": style.INK, "linewidth": 0.9, "linestyle": ":"}
    label = (
        f"best {split} {best_of.replace('_', ' ')}: {style.short_number(values[best])} "
        f"(epoch {epochs[best] + 1:g})"
    )
    handles = [style.line_handle(label, **ring, **dotted, markersize=7)]
    figure = draw_table(pd.concat(parts, ignore_index=True), drawing, handles=handles)
    for axes, name in zip(figure.axes, shown, strict=True):
        (*_, last) = (part[name].iloc[best] for part in parts if name in part)
        axes.axvline(epochs[best] + 1, **dotted, gid="best")
        axes.plot(epochs[best] + 1, last, **ring, markersize=9, markeredgewidth=1.3, gid="best")
    return figure


def _by_split(frame, keys, columns):
    """Returns a table per split with the same names of the metrics, of the columns by metric."""
    return [
        pd.DataFrame(
            keys
            | {"split": split}
            | {metric: frames.finite(frame[column]) for metric, column in named.items()}
        )
        for split, named in columns.items()
        if named
    ]


def network_curves(histories: Frame, *, metrics: Iterable[str] = ("error",)) -> Figure:
    """Draws metrics of several networks over the epochs.

    Each network has a line, the mean over its seeds, with a faint band from the lowest to the
    highest value. If a metric has a twin for the training images (`train_error` beside `error`),
    the twin is solid and the metric itself dashed. An epoch without a finite value is left out.

    Args:
        histories: History frame with the columns `network`, `epoch` (from 0) and the metrics, and
            optionally `seed` and `train_` twins.
        metrics: Columns to draw, one panel each.

    Reference:
        Jastrzebski et al., "Residual Connections Encourage Iterative Inference", 2018, figure 9.
    """
    metrics = list(metrics)
    keys = {
        "network": histories["network"].map(str).to_numpy(object),
        "seed": histories.get("seed", pd.Series(0, histories.index)).to_numpy(),
        "epoch": histories["epoch"].to_numpy(),
    }
    panels = [
        Panel(metric.replace("_", " "), (Line(metric),), "share" if metric == "error" else "wide")
        for metric in metrics
    ]
    twins = {metric for metric in metrics if f"train_{metric}" in histories.columns}
    columns = {
        "training": {name: f"train_{name}" if name in twins else name for name in metrics},
        "validation": {name: name for name in metrics if name in twins},
    }
    table = pd.concat(_by_split(histories, keys, columns), ignore_index=True)
    if set(table["split"]) == {"training"}:
        table["split"] = ""
    drawing = Drawing(
        "Networks compared",
        tuple(panels),
        "epoch",
        "epoch",
        colour="network",
        dash="split",
        rows=(),
        columns=("panel",),
        share_x="col",
    )
    return draw_table(table, drawing)
