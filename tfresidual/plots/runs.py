"""How do coupling and convergence affect trained networks, over many of them?

Every function here draws a frame of runs, one row per trained network. The columns `coupling` (0 to
1) and `initialization` ("non-recurrent" or "recurrent") form the setting of a run. The optional
columns `lipschitz`, `anchor`, `kernel`, `gamma`, `first_block`, `width`, `dataset` and `seed`
distinguish runs further. Faint dots are runs, and lines connect the means over the seeds. A run
without a value has no dot and does not count in the mean.

Arguments name the columns whose values are distinguished: `hue` by colour, `dash` by line style
(and open markers), `panels` by panel. They may name a column of the frame, or `"variation"`: what
is not standard about a run, composed from `lipschitz`, `anchor`, `kernel`, `gamma` and
`first_block` ("standard", "triangular kernel", "gamma = 0.1, coupled from block 5", ...).
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from tfresidual.plots import frames, run_groups, style

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from tfresidual.types import Figure, Frame

_INDICES = ("convergence", "recurrence", "divergence")
_SPLITS = {"error": "held-out images", "train_error": "training images"}
_COUPLING = "coupling (initialization)"


def indices_of_runs(
    frame: Frame, hue: str | None = "width", dash: str | None = None, panels: str | None = None
) -> Figure:
    """Draws the convergence, recurrence and divergence index over the coupling.

    Args:
        frame: Frame of runs with the columns `coupling`, `initialization`, `convergence`,
            `recurrence` and `divergence` (means over the stages), and those named below.
        hue: Column whose values get different colours, or `None`.
        dash: Column whose values get different line styles, or `None`.
        panels: Column whose values get one row of panels each, or `None`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing, none of the indices is a finite number, a coupling or an
            initialization is unknown, a mean would mix runs of different networks, or several rows
            describe the same network and seed.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", figure 3a;
        for runs with `lipschitz`, figure 4a (`anchor` "previous") and figure 11 ("input"); with
        `panels="variation"`, figure 10.
    """
    table = run_groups.run_table(frame, _INDICES, hue, dash, panels)
    levels = table["panel"].cat.categories
    figure = style.new_figure(10.4, 2.4 * len(levels) + 1.4, "Convergence indices of the runs")
    grid = figure.subplots(len(levels), 3, sharex=True, sharey=True, squeeze=False)
    for row, level in zip(grid, levels, strict=True):
        here = table[table["panel"] == level]
        for axes, index in zip(row, _INDICES, strict=True):
            style.clean_axes(axes, grid="y")
            run_groups.draw_over_settings(axes, here, index)
            if here[index].isna().all():
                style.no_values(axes)
            if level == levels[0]:
                style.panel_title(axes, f"{index} index")
        row[0].tick_params(labelleft=True)
        style.axis_labels(row[0], beside=textwrap.fill(level, 22) if level else "index")
    values = table[list(_INDICES)].to_numpy()
    low, high = np.nanmin([0, np.nanmin(values)]), np.nanmax([1, np.nanmax(values)])
    grid[0, 0].set_ylim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    figure.supxlabel(_COUPLING, fontsize=style.LABEL_SIZE, color=style.INK)
    run_groups.add_legend(figure, table)
    return figure


def error_of_runs(
    frame: Frame,
    hue: str | None = "width",
    dash: str | None = None,
    panels: str | None = None,
    errors: Iterable[Literal["error", "train_error"]] = ("error",),
    share_y: bool = False,
) -> Figure:
    """Draws the error over the coupling.

    Args:
        frame: Frame of runs with the columns `coupling` and `initialization`, the errors, and
            those named below.
        hue: Column whose values get different colours, or `None`.
        dash: Column whose values get different line styles, or `None`.
        panels: Column whose values get one panel each, or `None`.
        errors: Columns of errors, each in its own panels: `"error"`, `"train_error"` or both.
        share_y: Whether all panels have the same value axis, so that heights can be compared.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing, none of the errors is a finite number, `errors` holds
            anything else, a coupling or an initialization is unknown, a mean would mix runs of
            different networks, or several rows describe the same network and seed.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", figures 3b
        (`panels="dataset"`) and 13, and 4b and 12 for runs with `lipschitz`; figures 8a, b and c
        with `errors=("train_error", "error")` and `dash="gamma"`, `"kernel"` or `"first_block"`.
    """
    errors = frames.listed(errors, "errors", "columns")
    if not errors or len(set(errors)) < len(errors) or not set(errors) <= set(_SPLITS):
        raise ValueError(
            "Argument `errors` must hold 'error', 'train_error' or both, each once. Received: "
            f"{errors!r}"
        )
    table = run_groups.run_table(frame, errors, hue, dash, panels)
    titles = [
        (level, error, ", ".join(filter(None, (level, _SPLITS[error] * (len(errors) > 1)))))
        for level in table["panel"].cat.categories
        for error in errors
    ]
    columns = min(len(titles), 3 if len(errors) == 1 else 2)
    figure, grid = _panels(len(titles), columns, "Errors of the runs", share_y)
    for axes, (level, error, title) in zip(grid, titles, strict=True):
        here = table[table["panel"] == level]
        style.clean_axes(axes, grid="y")
        run_groups.draw_over_settings(axes, here, error)
        if here[error].isna().all():
            style.no_values(axes)
        if title:
            style.panel_title(axes, title)
    # Limits of an axis that panels share are set when all of them are drawn.
    for axes, (level, error, _) in zip(grid, titles, strict=True):
        if table.loc[table["panel"] == level, error].notna().any():
            style.percent_axis(axes)
    figure.supxlabel(_COUPLING, fontsize=style.LABEL_SIZE, color=style.INK)
    figure.supylabel(_error_name(errors), fontsize=style.LABEL_SIZE, color=style.INK, ma="center")
    run_groups.add_legend(figure, table)
    return figure


def _error_name(errors):
    return "error on training images" if errors == ("train_error",) else "error"


def _panels(count, columns, title, share_y):
    """Returns a figure and its panels, row by row."""
    rows = -(-count // columns)
    figure = style.new_figure(max(6.2, 3.5 * columns), 2.6 * rows + 1.2, title)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=share_y).ravel()
    for axes in grid[count:]:
        axes.remove()
    return figure, grid[:count]


def error_against_indices(
    frame: Frame,
    hue: str | None = "width",
    indices: Iterable[Literal["convergence", "recurrence", "divergence"]] = (
        "convergence",
        "divergence",
    ),
) -> Figure:
    """Draws the error against the indices of convergence, one panel per index.

    A line per hue connects the means of its settings, from coupling 0 to 1; the marker of a mean
    shows the setting.

    Args:
        frame: Frame of runs with the columns `coupling`, `initialization`, `error`, the indices
            (means over the stages) and the one named below.
        hue: Column whose values get different colours, or `None`; with `"width"`, networks of one
            colour have the same number of parameters.
        indices: The indices to draw, from `"convergence"`, `"recurrence"` and `"divergence"`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing or holds no finite number, `indices` holds anything else,
            a coupling or an initialization is unknown, a mean would mix runs of different networks,
            or several rows describe the same network and seed.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", figure 3c,
        and figure 2c for the runs of one setting.
    """
    indices = frames.listed(indices, "indices", "indices")
    if not indices or len(set(indices)) < len(indices) or not set(indices) <= set(_INDICES):
        raise ValueError(
            "Argument `indices` must hold 'convergence', 'recurrence' or 'divergence', each at "
            f"most once. Received: {indices!r}"
        )
    table = run_groups.run_table(frame, ("error", *indices), hue)
    for column in ("error", *indices):
        frames.refuse_nothing(table, (column,))
    settings, hues = table["setting"].cat.categories, table["hue"].cat.categories
    markers = {setting: marker for setting, (_, marker) in run_groups.looks_of(settings).items()}
    width = 5.6 if len(indices) == 1 else 3.0 * len(indices) + 3.0
    figure = style.new_figure(width, 4.0, "Errors and indices")
    grid = figure.subplots(1, len(indices), sharey=True, squeeze=False).ravel()
    for axes, index in zip(grid, indices, strict=True):
        style.clean_axes(axes)
        for name, (colour, _) in run_groups.looks_of(hues).items():
            here = table[table["hue"] == name].dropna(subset=["error", index])
            means = here.groupby("setting", observed=True)[["error", index]].mean()
            run_groups.draw_group(
                axes,
                here[index],
                here["error"],
                (means[index], means["error"]),
                colour,
                [markers[setting] for setting in means.index],
                "-",
                label=name or None,
            )
        style.axis_labels(axes, below=f"{index} index")
    style.percent_axis(grid[0])
    style.axis_labels(grid[0], beside="error")
    handles = run_groups.group_handles(table, markers=False)
    handles += [
        style.line_handle(setting, linestyle="none", marker=marker, markersize=5.0)
        for setting, marker in markers.items()
    ]
    style.legend(figure, handles)
    return figure
