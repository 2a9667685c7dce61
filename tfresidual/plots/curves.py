"""How did the training go?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from matplotlib.lines import Line2D

from tfresidual.plots import frames, style

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tfresidual.types import Figure, Frame

# A decrease of the rate by a third or more counts as a drop; a smooth schedule has none.
_DROP = 2 / 3
_NOT_METRICS = frozenset({"epoch", "loss", "learning_rate", "lr"})


def training_curves(history: Frame, metrics: Iterable[str] | None = None) -> Figure:
    """Draws the loss and the accuracy-like metrics over the epochs.

    Training and validation share a panel. Drops of the learning rate by a third or more are
    marked with the new rate. The best epoch is marked too: the one with the best value of the first
    metric, or with the lowest loss if there are no metrics, on the validation data if there are
    any. Epochs are counted from 1.

    Args:
        history: History frame as `keras.callbacks.CSVLogger` writes it, with the columns `epoch`
            (from 0) and `loss`, and optionally `val_loss`, metrics with their `val_` twins and
            `learning_rate`. Keys with a slash (metrics per block) are not drawn.
        metrics: Names of the metrics to draw, without `val_`. Default: those with a `val_` twin;
            without validation, those with "accuracy" or "match" in their name.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing or holds no finite number.
    """
    metrics = (
        _default_metrics(history)
        if metrics is None
        else frames.listed(metrics, "metrics", "names of metrics")
    )
    frames.require_columns(history, ("epoch", "loss", *metrics), name="history")
    epochs = frames.numbers(history, "epoch", "history") + 1
    panels = ("loss", *metrics)
    curves = {
        name: frames.numbers(history, name, "history")
        for metric in panels
        for name in (metric, f"val_{metric}")
        if name in history.columns
    }
    best_of = panels[1] if metrics else "loss"
    best = _best_row(best_of, curves)
    drops = _rate_drops(history, epochs)

    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    figure = style.new_figure(9.0, 3.0 * rows + 0.7, "Training")
    grid = figure.subplots(rows, columns, squeeze=False).ravel()
    for axes, metric in zip(grid, panels, strict=False):
        style.clean_axes(axes)
        drawn = _draw_metric(axes, metric, epochs, curves, best)
        _mark_drops(axes, drops, epochs)
        if style.log_scale_helps(np.concatenate([curves[name] for name in drawn])):
            style.log_scale(axes)
        style.epoch_axis(axes, epochs)
        style.axis_labels(axes, below="epoch", beside=metric.replace("_", " "))
    for axes in grid[len(panels) :]:
        axes.remove()

    style.legend(figure, _legend_handles(figure, epochs, best, best_of, curves, drops))
    return figure


def _draw_metric(axes, metric, epochs, curves, best):
    """Draws a metric for training and validation, and marks the best epoch.

    Args:
        axes: The axes.
        metric: Name of the metric, without `val_`.
        epochs: Array of the epochs.
        curves: Dictionary of arrays, by name of the metric, also with `val_`.
        best: Index of the best epoch.

    Returns:
        The list of the names that were drawn.
    """
    drawn = [name for name in (metric, f"val_{metric}") if name in curves]
    for name in drawn:
        validation = name != metric
        gaps = np.isnan(curves[name]).any()
        axes.plot(
            epochs,
            curves[name],
            color=style.VERMILION if validation else style.BLUE,
            linestyle="--" if validation else "-",
            linewidth=1.5,
            marker="os"[validation] if len(epochs) <= 20 or gaps else None,
            markersize=3.5,
            label="validation" if validation else "training",
        )
    axes.axvline(epochs[best], color=style.INK, linewidth=0.9, linestyle=":", gid="best")
    axes.plot(
        epochs[best],
        curves[drawn[-1]][best],
        "o",
        color="none",
        markeredgecolor=style.INK,
        markersize=9,
        markeredgewidth=1.3,
        gid="best",
    )
    return drawn


def _default_metrics(history):
    frames.require_columns(history, ("epoch", "loss"), name="history")
    names = [
        name
        for name in map(str, history.columns)
        if name not in _NOT_METRICS and "/" not in name and not name.startswith("val_")
    ]
    with_twin = [name for name in names if f"val_{name}" in history.columns]
    return tuple(with_twin or [name for name in names if "accuracy" in name or "match" in name])


def _best_row(metric, curves):
    values = curves.get(f"val_{metric}", curves[metric])
    less_is_better = "loss" in metric or "error" in metric
    return int(np.nanargmin(values) if less_is_better else np.nanargmax(values))


def _rate_drops(history, epochs):
    """Returns pairs (place on the epoch axis, new rate).

    The place is halfway between the last epoch of the old rate and the first of the new one.
    """
    column = next((name for name in ("learning_rate", "lr") if name in history.columns), None)
    if column is None:
        return []
    rates = frames.numbers(history, column, "history")
    rows = np.flatnonzero(rates[1:] <= _DROP * rates[:-1]) + 1
    return [((epochs[row - 1] + epochs[row]) / 2, rates[row]) for row in rows]


def _mark_drops(axes, drops, epochs):
    """Draws a line per drop and writes the new rate above the axes where there is room."""
    room = 0.09 * max(np.ptp(epochs), 1)
    last = -np.inf
    for place, rate in drops:
        axes.axvline(place, color=style.FAINT_INK, linewidth=0.8, linestyle="--", gid="drop")
        if place - last >= room:
            axes.annotate(
                f"{rate:.2g}",
                (place, 1.0),
                xycoords=axes.get_xaxis_transform(),
                xytext=(0, 2),
                textcoords="offset points",
                ha="center",
                va="bottom",
                fontsize=style.SMALL_SIZE - 1,
                color=style.FAINT_INK,
            )
            last = place


def _legend_handles(figure, epochs, best, best_of, curves, drops):
    handles = style.handles_of(figure.axes[0])
    name = best_of.replace("_", " ")
    split = "validation" if f"val_{best_of}" in curves else "training"
    value = curves.get(f"val_{best_of}", curves[best_of])[best]
    handles.append(
        Line2D(
            [],
            [],
            color=style.INK,
            linewidth=0.9,
            linestyle=":",
            marker="o",
            markersize=7,
            markerfacecolor="none",
            label=f"best {split} {name}: {style.short_number(value)} (epoch {epochs[best]:g})",
        )
    )
    if drops:
        handles.append(
            Line2D(
                [],
                [],
                color=style.FAINT_INK,
                linewidth=0.8,
                linestyle="--",
                label="new learning rate",
            )
        )
    return handles
