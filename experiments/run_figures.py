"""Figures of many trained networks: how do coupling and convergence affect them?

Every function draws a frame of runs, one row per trained network. The columns `coupling` (0 to 1)
and `initialization` ("non-recurrent" or "recurrent") form the setting of a run. The optional
columns `lipschitz`, `anchor`, `kernel`, `gamma`, `first_block`, `width`, `dataset` and `seed`
distinguish runs further. Faint dots are runs, and lines connect the means over the seeds. A run
without a value has no dot and does not count in the mean.

Arguments name the columns whose values are distinguished: `hue` by colour, `dash` by line style
(and open markers), `panels` by panel. They may name a column of the frame, or `"variation"`: what
is not standard about a run, composed from `lipschitz`, `anchor`, `kernel`, `gamma` and
`first_block` ("standard", "triangular kernel", "gamma = 0.1, coupled from block 5", ...).

All raise a `NothingError` if there is no number to draw. The figures are those of "Iterative
convergent computation is not a useful inductive bias for ResNets".
"""

from __future__ import annotations

import numbers
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from tfresidual.definitions.declarations import Drawing, Line, Panel
from tfresidual.plots import engine, style
from tfresidual.plots.places import keys_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

    from tfresidual.definitions.types import Figure, Frame

_VARIATION = "variation"
_NOTHING_VARIED = "standard"
_INITIALIZATIONS = {"non-recurrent": "non-rec.", "recurrent": "rec."}
# The settings that a run may vary, with their standard values.
_STANDARD = {
    "lipschitz": None,
    "anchor": "previous",
    "kernel": "uniform",
    "gamma": 1,
    "first_block": 0,
}
_COUNTS = ("raw_parameters", "effective_parameters")
_INDICES = ("convergence", "recurrence", "divergence")
# The axis and the groups of figures over the settings.
_OF_RUNS: dict[str, Any] = {
    "over": "setting",
    "below": "coupling (initialization)",
    "colour": "hue",
    "dash": "dash",
}


# The looks of widths and settings in all figures.
_LOOKS = [
    style.Look(colour, marker) for colour, marker in zip(style.COLOURS, style.MARKERS, strict=True)
]
_KNOWN = {
    **{f"{width} channels": _LOOKS[place] for place, width in enumerate((8, 16, 32, 64))},
    "0 (non-rec.)": _LOOKS[0],
    **{f"{coupling:g} (rec.)": _LOOKS[i] for i, coupling in enumerate((0, 0.5, 0.9, 1), start=1)},
}


class _Means(engine.Maker):
    """Draws every row as a faint dot, and a line through the means."""

    means, marker = "setting", ""

    def __init__(self, table, *args):
        super().__init__(table, *args)
        self.markers = _looks(keys_of(table, self.marker)) if self.marker else {}

    def _draw_line(self, axes, axis, rows, line, number, look, dash):
        column, linestyle = line.column, self.dashes[dash] if self.drawing.dash else line.dash
        label = ", ".join(filter(None, (*self._names(rows, dash), column)))
        places = axis.places[rows.index].where(rows[column].notna()).dropna()
        rows = rows.loc[places.index]
        if rows.empty:
            return
        if axis.names is not None:
            groups = len(self.looks) * len(self.dashes)
            reach = min(0.09 * (groups - 1), 0.5)
            places = places + np.linspace(-reach / 2, reach / 2, groups)[number]
        look_of_runs = {"marker": "o" if self.markers else look.marker, "markersize": 3.4}
        look_of_runs |= {"linestyle": "none", "markeredgewidth": 0, "alpha": 0.4, "gid": "run"}
        axes.plot(places, rows[column], color=look.colour, **look_of_runs)
        means = pd.DataFrame({"place": places, "height": rows[column]})
        means = means.groupby(rows[self.means], observed=True).mean()
        dots = {
            "color": look.colour,
            "markersize": 5.4,
            "markerfacecolor": look.colour if linestyle == "-" else "white",
            "markeredgewidth": 1.1,
        }
        own = {} if self.markers else {"marker": look.marker}
        course = {"linestyle": linestyle, "linewidth": 1.4, "label": label}
        axes.plot(means["place"], means["height"], **course, **own, **dots)
        for key, look_of_mean in self.markers.items():
            if key in means.index:
                dot = {"linestyle": "none", "marker": look_of_mean.marker, "gid": "mean"}
                axes.plot(*means.loc[key], **dot, **dots)

    def _explain(self, further):
        look = {"linestyle": "none", "markersize": 5.0}
        markers = [
            style.line_handle(key, marker=one.marker, **look) for key, one in self.markers.items()
        ]
        super()._explain([*markers, *further])

    def _handle(self, key):
        look = self._look_of(key) | ({"marker": None} if self.markers else {})
        return style.line_handle(str(key), **look)

    def _dash_handle(self, key):
        face = style.FAINT_INK if self.dashes[key] == "-" else "white"
        dot = {"marker": "o", "markersize": 4.8, "markerfacecolor": face}
        return style.line_handle(str(key), linestyle=self.dashes[key], **dot)


class _MeansOfSettings(_Means):
    marker = "setting"


class _MeansOfHues(_Means):
    means = "hue"


def _looks(names):
    known = {name: _KNOWN[name] for name in names if name in _KNOWN}
    return style.looks([name for name in names if name not in known]) | known


def draw_table(table, drawing, maker=_Means, **kwargs):
    looks = _looks(keys_of(table, drawing.colour))
    return engine.draw_table(table, drawing, looks=looks, maker=maker, **kwargs)


class NothingError(ValueError):
    """A table holds no number to draw, as the indices of networks no better than chance."""


def indices_of_runs(
    frame: Frame, hue: str | None = "width", dash: str | None = None, panels: str | None = None
) -> Figure:
    """Draws the convergence, recurrence and divergence index over the coupling.

    Reference:
        Figure 3a; for runs with `lipschitz`, figure 4a (`anchor` "previous") and figure 11
        ("input"); with `panels="variation"`, figure 10.
    """
    table = _run_table(frame, _INDICES, hue, dash, panels)
    drawing = Drawing(
        "Convergence indices of the runs",
        tuple(Panel("index", (Line(index, mark="dots"),)) for index in _INDICES),
        rows=("level",),
        columns=("panel",),
        share_y=True,
        **_OF_RUNS,
    )
    figure = draw_table(table, drawing)
    grid = np.reshape(figure.axes, (-1, len(_INDICES)))
    for axes, level in zip(grid[:, 0], table["level"].cat.categories, strict=True):
        style.axis_labels(axes, beside=textwrap.fill(level, 22) if level else "index")
    for axes in grid.flat:
        axes.set_title("")
    for axes, index in zip(grid[0], _INDICES, strict=True):
        style.panel_title(axes, f"{index} index")
    style.index_axis(grid[0, 0], table[list(_INDICES)].to_numpy())
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

    Reference:
        Figures 3b (`panels="dataset"`) and 13, and 4b and 12 for runs with `lipschitz`; figures 8a,
        b and c with `errors=("train_error", "error")` and `dash="gamma"`, `"kernel"` or
        `"first_block"`.
    """
    titles = {"error": "held-out images", "train_error": "training images"}
    table = _run_table(frame, errors, hue, dash, panels)
    label = "error on training images" if errors == ("train_error",) else "error"
    is_alone = len(errors) == 1
    drawing = Drawing(
        "Errors of the runs",
        tuple(
            Panel(label, (Line(one, mark="dots"),), "share", title="" if is_alone else titles[one])
            for one in errors
        ),
        rows=(),
        columns=("level", "panel"),
        wrap=3 if is_alone else 2,
        share_y=share_y,
        **_OF_RUNS,
    )
    return draw_table(table, drawing)


def deviation_of_runs(frame: Frame, hue: str | None = "width", dash: str | None = None) -> Figure:
    """Draws how far weights deviate from the mean of their stage, over the coupling.

    Reference:
        Figure 7c.
    """
    table = _run_table(frame, ("deviation",), hue, dash)
    label = "mean deviation from the stage's mean\n(standardised)"
    panel = Panel(label, (Line("deviation", mark="dots"),), from_zero=True)
    return draw_table(table, Drawing("Deviation of the weights", (panel,), **_OF_RUNS))


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

    Reference:
        Figure 3c, and figure 2c for the runs of one setting.
    """
    table = _run_table(frame, ("error", *indices), hue, each=True)
    panels = tuple(
        Panel("error", (Line("error", mark="dots"),), "share", over=index, below=f"{index} index")
        for index in indices
    )
    drawing = Drawing(
        "Errors and indices",
        panels,
        "index",
        colour="hue",
        rows=(),
        columns=("panel",),
        share_x="col",
        share_y=True,
    )
    return draw_table(table, drawing, _MeansOfSettings)


def parameter_efficiency(frame: Frame, dash: str | None = None) -> Figure:
    """Draws the effective number of parameters against the raw one, and the error against both.

    Colour and marker show coupling and initialization. A line per setting connects the means of the
    widths, from narrow to wide. A dotted line marks where the effective number equals the raw one.
    The axes of parameters are logarithmic.

    Reference:
        Figures 7a and b; with `dash="variation"` figure 9.
    """
    raw, effective = _COUNTS
    table = _run_table(frame, (raw, effective, "error"), hue="width", dash=dash, each=True)
    drawing = Drawing(
        "Parameter efficiency",
        tuple(
            Panel(
                up.replace("_", " "),
                (Line(up, mark="dots"),),
                "share" if up == "error" else "log",
                over=across,
                below=across.replace("_", " "),
            )
            for across, up in ((raw, effective), (raw, "error"), (effective, "error"))
        ),
        "parameters",
        colour="setting",
        dash="dash",
        rows=(),
        columns=("panel",),
        share_x="col",
    )
    equal = {"linestyle": ":", "color": style.INK}
    handles = [style.line_handle("effective = raw", **equal)]
    figure = draw_table(table, drawing, _MeansOfHues, handles=handles)
    # If all networks have the same raw number, only the effective ones give the line a length.
    counts = table[list(_COUNTS)]
    ends = [counts.min(axis=None) / 1.2, counts.max(axis=None) * 1.2]
    figure.axes[0].plot(ends, ends, linewidth=1.0, zorder=1.5, gid="equality", **equal)
    for axes in figure.axes:
        axes.set_xscale("log")
    figure.axes[2].sharey(figure.axes[1])
    figure.axes[2].tick_params(labelleft=False)
    return figure


def _run_table(frame, columns, hue=None, dash=None, panels=None, each=False):
    """Returns the values of runs, sorted by the names of `setting`, `hue`, `dash` and `level`."""
    named = {"hue": hue, "dash": dash, "level": panels}
    for column, value in _STANDARD.items():
        # What a run leaves empty is standard.
        if value is not None and column in frame.columns and frame[column].isna().any():
            filled = frame[column].astype(object).where(frame[column].notna(), value)
            frame = frame.assign(**{column: filled.infer_objects()})
    table = {"setting": _settings(frame)}
    table |= {key: _levels(frame, name) for key, name in named.items()}
    table |= {name: _finite(frame[name]) for name in columns}
    table = pd.DataFrame(table)
    empty = table[list(columns)].isna().all()
    if empty.any() if each else empty.all():
        raise NothingError(f"no number in {', '.join(columns)}")
    return table.sort_values(["level", "dash", "hue", "setting"], kind="stable", ignore_index=True)


def _finite(values):
    return np.where(np.isfinite(values), values, np.nan)


def _settings(frame):
    """Returns the settings of runs, ordered by coupling, then non-recurrent first."""
    pairs = list(zip(frame["coupling"], frame["initialization"], strict=True))
    names = {
        pair: f"{pair[0]:g} ({_INITIALIZATIONS[pair[1]]})"
        for pair in sorted(set(pairs), key=lambda pair: (pair[0], pair[1] == "recurrent"))
    }
    return _ordered([names[pair] for pair in pairs], names.values())


def _levels(frame, column):
    """Returns the names of a column's values: the standard one first, then numbers in order."""
    if column is None:
        return _ordered([""] * len(frame), [""])
    if column == _VARIATION and _VARIATION not in frame.columns:
        names = _variations(frame)
        order = {name: (name != _NOTHING_VARIED) * (1 + name.count(", ")) for name in names}
        return _ordered(names, sorted(order, key=order.get))
    values = frame[column]
    found = values.unique()
    if pd.api.types.is_numeric_dtype(values):
        found = np.sort(found)
    found = sorted(found, key=lambda value: not _is_standard(column, value))
    return _ordered(
        [_level_name(column, value) for value in values],
        dict.fromkeys(_level_name(column, value) for value in found),
    )


def _ordered(names, categories):
    return pd.Categorical(names, categories=list(categories), ordered=True)


def _level_name(column, value):
    if column == "lipschitz":
        return "unbounded" if pd.isna(value) else f"μ = {value:g}"
    if column == "kernel":
        return f"{value} kernel"
    if column == "anchor":
        return f"adds to the {'stage' if value == 'input' else 'block'}'s input"
    if not isinstance(value, numbers.Real):
        return str(value)
    forms = {
        "width": "{:g} channels",
        "gamma": "gamma = {:g}",
        "first_block": "coupled from block {:g}",
    }
    return forms.get(column, column.replace("_", " ") + " {:g}").format(value)


def _is_standard(column, value):
    return (column == "lipschitz" and pd.isna(value)) or value == _STANDARD.get(column)


def _variations(frame):
    """Returns what is not standard about every run, as text; missing columns are ignored."""
    present = [column for column in _STANDARD if column in frame.columns]
    return [
        ", ".join(
            _level_name(column, value)
            for column, value in row.items()
            if not _is_standard(column, value)
        )
        or _NOTHING_VARIED
        for row in frame[present].to_dict("records")
    ]
