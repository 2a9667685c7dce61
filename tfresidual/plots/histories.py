"""How do several networks differ during training?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tfresidual.plots import block_axis, frames, run_groups, style

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tfresidual.types import Figure, Frame

# Label of the value axis, and its scale: in percent ("share"), logarithmic ("log"), or logarithmic
# only if the values are spread widely ("wide").
_METRICS = {
    "error": ("error", "share"),
    "gradient_ratio": (
        "gradient norm ratio r\n‖∂L/∂h₁‖ / ‖∂L/∂h₁₊₂ₙ‖",
        "wide",
    ),
    "state_l1": ("L1 norm of the last state", "log"),
}
# Number of markers on a line: enough to identify it without its colour, without hiding it.
_MARKS = 8
_TRAINING, _VALIDATION = "-", (0, (4, 2))


def network_curves(
    histories: Frame,
    metrics: Iterable[str] = ("error", "gradient_ratio"),
    propagation: Frame | None = None,
) -> Figure:
    """Draws metrics of several networks over the epochs, and the initial norms of their states.

    Each network has a line, the mean over its seeds, with a faint band from the lowest to the
    highest value. If a metric has a twin for the training images (`train_error` beside `error`),
    the twin is solid and the metric itself dashed. Epochs are counted from 1. A value that is
    missing, or infinite because training diverged, leaves a gap.

    Args:
        histories: History frame with the columns `network`, `epoch` (from 0) and the metrics, and
            optionally `seed` and `train_` twins.
        metrics: Columns to draw, one panel each: `"error"`, `"gradient_ratio"`, `"state_l1"`, or
            others.
        propagation: Signal propagation frame of the untrained networks, drawn in one more panel,
            with the columns `network`, `stage`, `block` and `state_norm`, and optionally `split`
            and `seed`; or `None`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing or holds no finite number, or if several rows describe
            the same network, seed and epoch, or block.

    Reference:
        Jastrzebski et al., "Residual Connections Encourage Iterative Inference", 2018, figure 8
        (with `propagation`) and figure 9 (with the metrics `"error"` and `"state_l1"`).
    """
    metrics = frames.listed(metrics, "metrics", "columns")
    if not metrics or len(set(metrics)) < len(metrics):
        raise ValueError(f"Argument `metrics` must hold columns, each once. Received: {metrics!r}")
    table = _history_table(histories, metrics)
    networks = list(dict.fromkeys(histories["network"].map(str)))
    norms = None
    if propagation is not None:
        norms = _norm_table(propagation)
        networks = list(dict.fromkeys([*networks, *norms["network"]]))
    looks = run_groups.looks_of(networks)

    panels = len(metrics) + (norms is not None)
    figure = style.new_figure(max(6.2, 3.6 * panels), 4.0, "Networks compared")
    grid = figure.subplots(1, panels, squeeze=False).ravel()
    dashed = False
    for axes, metric in zip(grid, metrics, strict=False):
        dashed |= _draw_metric(axes, table, metric, looks)
    if norms is not None:
        dashed |= _draw_norms(grid[-1], norms, looks)

    handles = [
        style.line_handle(network, color=colour, marker=marker, markersize=4.5)
        for network, (colour, marker) in looks.items()
    ]
    if dashed:
        handles += [
            style.line_handle("training", linestyle=_TRAINING),
            style.line_handle("validation", linestyle=_VALIDATION),
        ]
    style.legend(figure, handles)
    return figure


def _history_table(histories, metrics):
    frames.require_columns(histories, ("network", "epoch", *metrics), "histories")
    table = {
        "network": histories["network"].map(str).to_numpy(object),
        "seed": histories.get("seed", pd.Series(0, histories.index)).to_numpy(),
        "epoch": frames.whole_numbers(histories, "epoch", "histories"),
    }
    for metric in metrics:
        table[metric] = frames.numbers(histories, metric, "histories")
        twin = f"train_{metric}"
        if twin in histories.columns:
            table[twin] = frames.numbers(histories, twin, "histories")
    table = pd.DataFrame(table)
    frames.refuse_twice(table, ("network", "seed"), "histories", also=("epoch",))
    return table


def _norm_table(propagation):
    frames.require_columns(propagation, ("network", "stage", "block", "state_norm"), "propagation")
    table = pd.DataFrame(
        {
            "network": propagation["network"].map(str).to_numpy(object),
            "seed": propagation.get("seed", pd.Series(0, propagation.index)).to_numpy(),
            "split": frames.splits_of(propagation),
            "stage": frames.whole_numbers(propagation, "stage", "propagation"),
            "block": frames.whole_numbers(propagation, "block", "propagation"),
            "state_norm": frames.numbers(propagation, "state_norm", "propagation"),
        }
    )
    frames.refuse_twice(table, ("network", "stage", "block"), "propagation", also=("seed", "split"))
    return table


def _draw_metric(axes, table, metric, looks):
    """Draws a metric over the epochs; returns whether a dashed line was needed."""
    style.clean_axes(axes)
    label, scale = _METRICS.get(metric, (metric.replace("_", " "), "wide"))
    twin = f"train_{metric}"
    columns = {twin: _TRAINING, metric: _VALIDATION} if twin in table else {metric: _TRAINING}
    values = table[list(columns)].to_numpy()
    if scale == "log":
        values = np.where(values > 0, values, np.nan)
    for network, look in looks.items():
        here = table[table["network"] == network]
        for column, line in columns.items():
            heights = here[column].where(here[column] > 0) if scale == "log" else here[column]
            _draw_mean(axes, here["epoch"] + 1, heights, look, line, _name(network, column, twin))
    if scale == "share":
        style.percent_axis(axes)
    elif np.isnan(values).all():
        style.no_values(axes)
    elif scale == "log":
        style.log_scale(axes)
        label += " (log scale)"
    elif style.wide_scale(axes, values):
        label += " (log scale)"
    style.epoch_axis(axes, table["epoch"] + 1, bins=6)
    style.axis_labels(axes, "epoch", label)
    return len(columns) > 1


def _name(network, column, twin):
    return f"{network}, training" if column == twin else network


def _draw_mean(axes, places, heights, look, line, name):
    """Draws the mean over the seeds at every place, and a band from the lowest to the highest."""
    colour, marker = look
    seeds = heights.groupby(places).agg(["mean", "min", "max", "count"])
    if (seeds["count"] > 1).any():
        axes.fill_between(
            seeds.index, seeds["min"], seeds["max"], color=colour, alpha=0.14, linewidth=0
        )
    axes.plot(
        seeds.index,
        seeds["mean"],
        color=colour,
        linestyle=line,
        linewidth=1.4,
        marker=marker,
        markevery=max(1, len(seeds) // _MARKS),
        markersize=3.5,
        label=name,
    )


def _draw_norms(axes, norms, looks):
    """Draws the norm of the state after every block; returns whether a dashed line was needed."""
    style.clean_axes(axes, grid="y")
    norms = norms.assign(state_norm=norms["state_norm"].where(norms["state_norm"] > 0))
    splits = frames.order_splits(norms["split"])
    sizes_of = {}
    for network, rows in norms.groupby("network", sort=False):
        sizes = block_axis.stage_sizes(rows)
        sizes_of[network] = tuple(sizes.items())
        for number, split in enumerate(splits):
            here = rows[rows["split"] == split]
            _draw_mean(
                axes,
                block_axis.places_of(here, sizes),
                here["state_norm"],
                looks[network],
                _VALIDATION if number else _TRAINING,
                ", ".join(filter(None, (network, split))),
            )
    # Stages are marked only if they are the same in all networks.
    if len(set(sizes_of.values())) == 1:
        block_axis.mark_stages(axes, sizes)
    if norms["state_norm"].isna().all():
        style.no_values(axes)
    else:
        style.log_scale(axes)
    style.whole_numbers(axes.xaxis, bins=8)
    style.axis_labels(
        axes,
        "residual block index",
        "norm of the state after the block\nat initialization (log scale)",
    )
    return len(splits) > 1
