"""Sorts the frame of trained networks into the groups whose means are drawn.

Runs are distinguished by their setting, which is coupling and initialization ("0 (non-rec.)",
"0 (rec.)", "0.5 (rec.)", ...), and by up to three columns that arguments of the figure name: `hue`
by colour, `dash` by line style and marker, `panels` by panel. The runs of a group agree in all of
these.
"""

import itertools
import numbers

import numpy as np
import pandas as pd

from tfresidual.plots import frames, style

VARIATION = "variation"
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
# Columns besides the setting in which networks may differ; runs that differ there have no mean.
_SETTINGS = (*_STANDARD, "width", "dataset")

# Runs have no split, so they can use the whole palette.
_COLOURS = (
    style.BLUE,
    style.ORANGE,
    style.GREEN,
    style.PURPLE,
    style.VERMILION,
    style.SKY,
    style.INK,
)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# Places of levels whose look is the same in all figures.
_FIXED = {
    **{f"{width} channels": place for place, width in enumerate((8, 16, 32, 64))},
    "0 (non-rec.)": 0,
    **{f"{coupling:g} (rec.)": place for place, coupling in enumerate((0, 0.5, 0.9, 1), start=1)},
}
_DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (8, 3)))


def run_table(frame, columns, hue=None, dash=None, panels=None):
    """Returns the groups and the values of a frame of runs, sorted by group.

    Args:
        frame: Frame of runs.
        columns: Columns of values; infinities become NaN.
        hue: Column of the frame, `"variation"` (see `_variations`), or `None` for a single level.
        dash: The same.
        panels: The same.

    Returns:
        A `pandas.DataFrame` with the columns `setting`, `hue`, `dash` and `panel` (ordered
        categories, the names that the figure shows) and `columns`.

    Raises:
        ValueError: if a column is missing, none of the values is a finite number, a coupling or an
            initialization is unknown, a group mixes networks that differ in their settings, or
            several rows describe the same group and seed.
    """
    named = {"hue": hue, "dash": dash, "panel": panels}
    for key, name in (("hue", hue), ("dash", dash), ("panels", panels)):
        if name is not None and not isinstance(name, str):
            raise ValueError(
                f"Argument `{key}` must be the name of a column, or None. Received: {name!r}"
            )
    own = [name for name in named.values() if name not in (None, VARIATION)]
    frames.require_columns(frame, ("coupling", "initialization", *columns, *own))
    frame = _filled(frame)
    table = {"setting": _settings(frame)}
    table |= {key: _levels(frame, name) for key, name in named.items()}
    table |= {column: frames.numbers_or_gaps(frame, column) for column in columns}
    table = pd.DataFrame(table)
    frames.refuse_nothing(table, columns)
    _refuse_mixtures(frame, table, set(named.values()))
    return table.sort_values(["panel", "dash", "hue", "setting"], kind="stable", ignore_index=True)


def _filled(frame):
    """Returns the frame with empty settings of the runs replaced by their standard value."""
    for column, value in _STANDARD.items():
        if value is not None and column in frame.columns and frame[column].isna().any():
            filled = frame[column].astype(object).where(frame[column].notna(), value)
            frame = frame.assign(**{column: filled.infer_objects()})
    return frame


def _settings(frame):
    """Returns the setting of every run; settings are ordered by coupling, then non-recurrent first.

    Raises:
        ValueError: if a coupling or an initialization is unknown.
    """
    couplings = frames.numbers(frame, "coupling")
    if not ((couplings >= 0) & (couplings <= 1)).all():
        raise ValueError(
            "Argument `frame` must hold numbers from 0 to 1 in the column `coupling`. Received: "
            f"{frame['coupling'].unique().tolist()!r}"
        )
    initializations = frame["initialization"].to_numpy(object)
    unknown = [name for name in dict.fromkeys(initializations) if name not in _INITIALIZATIONS]
    if unknown:
        raise ValueError(
            "Argument `frame` must hold 'non-recurrent' or 'recurrent' in the column "
            f"`initialization`. Received: {unknown!r}"
        )
    pairs = list(zip(couplings, initializations, strict=True))
    names = {
        pair: f"{pair[0]:g} ({_INITIALIZATIONS[pair[1]]})"
        for pair in sorted(set(pairs), key=lambda pair: (pair[0], pair[1] == "recurrent"))
    }
    return _ordered([names[pair] for pair in pairs], names.values())


def _levels(frame, column):
    """Returns the name of a column's value for every run, as an ordered categorical.

    The standard value comes first, then numbers in ascending order, or text in the order of the
    frame. Variations of fewer settings come first.
    """
    if column is None:
        return _ordered([""] * len(frame), [""])
    if column == VARIATION and VARIATION not in frame.columns:
        names = _variations(frame)
        return _ordered(names, sorted(dict.fromkeys(names), key=_count_of_variations))
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

    def name(row):
        parts = [
            _level_name(column, value)
            for column, value in row.items()
            if not _is_standard(column, value)
        ]
        return ", ".join(parts) or _NOTHING_VARIED

    present = [column for column in _STANDARD if column in frame.columns]
    return [name(row) for row in frame[present].to_dict("records")]


def _count_of_variations(name):
    return 0 if name == _NOTHING_VARIED else 1 + name.count(", ")


def _refuse_mixtures(frame, table, named):
    """Raises a `ValueError` if a group holds different networks, or several runs of one seed."""
    if VARIATION in named and VARIATION not in frame.columns:
        named = {*named, *_STANDARD}
    keys = table[["setting", "hue", "dash", "panel"]]
    groups = keys.groupby(list(keys.columns), observed=True).indices
    for group, rows in groups.items():
        here = frame.iloc[rows]
        place = ", ".join(filter(None, group))
        for column in _SETTINGS:
            if column in frame.columns and column not in named:
                values = here[column].unique().tolist()
                if len(values) > 1:
                    raise ValueError(
                        f"Argument `frame` must not mix networks with different `{column}` in a "
                        "mean over runs; select some of them, or let an argument of the figure "
                        f"distinguish them. Received: {column}={values!r} for {place}"
                    )
        if "seed" in frame.columns and here["seed"].duplicated().any():
            seed = here.loc[here["seed"].duplicated(), "seed"].iloc[0]
            raise ValueError(
                "Argument `frame` must have one row per network and seed; select rows, or let an "
                f"argument of the figure distinguish them. Received: several rows for {place}, "
                f"seed={seed}"
            )


def looks_of(levels):
    """Returns a dictionary from level to (colour, marker)."""
    fixed = {level: _FIXED[level] for level in levels if level in _FIXED}
    spare = (place for place in itertools.count() if place not in fixed.values())
    places = {level: fixed[level] if level in fixed else next(spare) for level in levels}
    return {
        level: (
            _COLOURS[place % len(_COLOURS)],
            _MARKERS[(place + place // len(_COLOURS)) % len(_MARKERS)],
        )
        for level, place in places.items()
    }


def dashes_of(levels):
    """Returns a dictionary from level to line style; the first is solid."""
    return {level: _DASHES[place % len(_DASHES)] for place, level in enumerate(levels)}


def draw_group(axes, places, heights, means, colour, marker, dash, label=None):
    """Draws the runs of a group as faint dots and a line through their means.

    Args:
        axes: The axes.
        places: Places of the runs.
        heights: Their values.
        means: Pair of the places and the values of the means, in the order of the line.
        colour: Colour of the group.
        marker: Marker of the group, or one per mean; with several, the dots are round.
        dash: Line style; markers are open unless it is solid.
        label: Name of the line.
    """
    axes.plot(
        places,
        heights,
        linestyle="none",
        marker=marker if isinstance(marker, str) else "o",
        markersize=3.4,
        markeredgewidth=0,
        color=colour,
        alpha=0.4,
        gid="run",
    )
    look = {
        "color": colour,
        "markersize": 5.4,
        "markerfacecolor": colour if dash == "-" else "white",
        "markeredgewidth": 1.1,
    }
    if isinstance(marker, str):
        axes.plot(*means, linestyle=dash, linewidth=1.4, marker=marker, label=label, **look)
        return
    axes.plot(*means, linestyle=dash, linewidth=1.2, color=colour, label=label)
    for place, height, shape in zip(*means, marker, strict=True):
        axes.plot(place, height, linestyle="none", marker=shape, gid="mean", **look)


def draw_over_settings(axes, rows, column):
    """Draws a column of a `run_table` over the settings, with a line per group."""
    settings, hues, dashes = (rows[key].cat.categories for key in ("setting", "hue", "dash"))
    looks, lines = looks_of(hues), dashes_of(dashes)
    groups = [(hue, dash) for hue in hues for dash in dashes]
    width = min(0.09 * (len(groups) - 1), 0.5)
    shifts = np.linspace(-width / 2, width / 2, len(groups))
    for shift, (hue, dash) in zip(shifts, groups, strict=True):
        here = rows[(rows["hue"] == hue) & (rows["dash"] == dash)].dropna(subset=column)
        if here.empty:
            continue
        means = here.groupby("setting", observed=True)[column].mean()
        colour, marker = looks[hue]
        draw_group(
            axes,
            here["setting"].cat.codes + shift,
            here[column],
            (settings.get_indexer(means.index) + shift, means),
            colour,
            marker,
            lines[dash],
            label=", ".join(filter(None, (hue, dash))) or None,
        )
    axes.set_xlim(-0.5, len(settings) - 0.5)
    names = [setting.replace(" (", "\n(") for setting in settings]
    axes.set_xticks(range(len(settings)), names, **style.PLAIN)
    axes.tick_params(axis="x", length=0, labelsize=style.SMALL_SIZE - 1)


def add_legend(figure, table):
    """Adds a legend of hues and dashes, if there are any."""
    handles = group_handles(table)
    if handles:
        style.legend(figure, handles)


def group_handles(table, markers=True):
    """Returns one entry for the legend per named hue and per named dash."""
    hues, dashes = table["hue"].cat.categories, table["dash"].cat.categories
    handles = [
        style.line_handle(hue, color=colour, marker=marker if markers else None, markersize=4.8)
        for hue, (colour, marker) in looks_of(hues).items()
        if hue
    ]
    return handles + [
        style.line_handle(
            dash,
            linestyle=line,
            marker="o" if markers else None,
            markersize=4.8,
            markerfacecolor=style.FAINT_INK if line == "-" else "white",
        )
        for dash, line in dashes_of(dashes).items()
        if dash
    ]
