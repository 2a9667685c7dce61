"""What did a search for the depth of a residual network try and measure?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tfresidual.definitions.settings import EPSILON
from tfresidual.plots import frames, style

if TYPE_CHECKING:
    from tfresidual.definitions.types import Figure, Frame

_VALUES = ("measured_blocks", "scaled_distance", "mean_scaled_perturbation")
_DEVIATION = "scaled_distance_deviation"
# The mean of the same network before training.
_AS_BUILT = "mean_scaled_perturbation_as_built"
# The states in which a stage of a trial is drawn, in the order of the legend.
_MEETS, _DOES_NOT, _NOT_MEASURED = "meets the rule", "does not", "not measured"
_VERDICTS = {1.0: _MEETS, 0.0: _DOES_NOT}
_STATES = (_MEETS, _DOES_NOT, _NOT_MEASURED, "failed", "running")
_TRUTHS = {"True": 1.0, "False": 0.0}

_SHADE = "#e6f0f8"
_FOUND = "#ece5d0"
_DOTTED, _DASHED = (0, (1, 1.5)), (0, (6, 3))
# With more rows than this, the dots are smaller; with more trials, the figure is wider.
_FEW_DOTS = 40
_FEW_TRIALS = 12
# The axis of the means is logarithmic from a smaller span on: their course near epsilon matters.
_SPAN = 30.0
_SPAN_OF_MEANS = 8.0


def depth_search(frame: Frame, *, epsilon: float = EPSILON) -> Figure:
    """Draws the trace of a search for the depth under the perturbation stopping rule.

    A stage of `L` blocks with the scaled distance `d` meets the rule if `d / L` is at most
    `epsilon`. The left panel shows the scaled distance over the measured blocks, the middle one the
    mean scaled perturbation; dots in the shaded area meet the rule. The right panel shows the depth
    of every stage over the trials, and a band at the trial that is the answer of the search.

    A filled dot is a stage that meets the rule according to the frame, a hollow one a stage that
    does not. Lines connect the dots of a stage: in the left and middle panels in the order of
    depth, through the mean of stages with the same number of blocks, and in the right panel in the
    order of the trials. Dotted lines in the middle panel show what the same networks give as built,
    before training. Values that span more than a factor of 30 (in the middle panel 8) are drawn on
    a logarithmic axis.

    Args:
        frame: Search frame, one row per trial and stage, with the columns `trial` (from 0),
            `status` ("completed", "failed" or "running"), `stage`, `blocks`, `measured_blocks`,
            `scaled_distance`, `mean_scaled_perturbation` and `meets_rule`, and optionally
            `scaled_distance_deviation`, drawn as error bars, `mean_scaled_perturbation_as_built`,
            and `found`, true in the rows of the trial that is the answer of the search.
        epsilon: The largest mean scaled perturbation that meets the rule, a number over 0.

    Reference:
        Hauser, "On Residual Networks Learning a Perturbation from Identity", 2019, section 2.3
        and figures 6 and 7.
    """
    table = _search_table(frame)
    looks = style.stage_looks(sorted(set(table["stage"])))
    trials = int(table["trial"].max() - table["trial"].min()) + 1
    more = float(np.clip(0.06 * (trials - _FEW_TRIALS), 0.0, 2.8))
    figure = style.new_figure(10.4 + more, 3.9, "Search for the depth")
    distance, mean, way = figure.subplots(1, 3, width_ratios=(3.0, 3.0, 3.0 + more))
    for axes in (distance, mean, way):
        style.clean_axes(axes)
    _draw_rule_panel(distance, table, "scaled_distance", looks, epsilon)
    _draw_rule_panel(mean, table, "mean_scaled_perturbation", looks, epsilon)
    _draw_way(way, table, looks)
    style.legend(figure, _handles(table, looks, epsilon))
    return figure


def _search_table(frame):
    """Returns the values of a search frame to draw, with a column `state` for their look."""
    optional = [column for column in (_DEVIATION, _AS_BUILT) if column in frame]
    columns = ("blocks", *_VALUES, *optional)
    carried = ("status", "meets_rule", "found")
    table = frames.keyed_values(frame, ("trial", "stage"), columns, carried=carried)
    verdicts = _truths(table, "meets_rule").map(_VERDICTS).fillna(_NOT_MEASURED)
    table["state"] = verdicts.where(table["status"] == "completed", table["status"])
    table["found"] = "found" in table and _truths(table, "found") == 1.0
    for column in {_DEVIATION, _AS_BUILT} - {*optional}:
        table[column] = np.nan
    return table


def _truths(table, column):
    """Returns a column of bools, perhaps read from a CSV, as 1 and 0, NaN where empty."""
    return table[column].astype(object).map(lambda value: _TRUTHS.get(str(value), np.nan))


def _draw_rule_panel(axes, table, column, looks, epsilon):
    """Draws a column over the measured blocks, and the limit that the rule sets."""
    is_mean = column == "mean_scaled_perturbation"
    label = "scaled distance d of the stage\nsum of ‖F(h)‖ / ‖h‖"
    if is_mean:
        label = "mean scaled perturbation\n‖F(h)‖ / ‖h‖"
    style.axis_labels(axes, below="measured blocks L of the stage", beside=label)
    measured = table[table["state"].isin((_MEETS, _DOES_NOT, _NOT_MEASURED))]
    measured = measured[(measured["measured_blocks"] > 0) & measured[column].notna()]
    if measured.empty:
        style.no_values(axes)
        axes.tick_params(labelbottom=False, labelleft=False)
        return
    for stage, (colour, *_) in looks.items():
        here = measured[measured["stage"] == stage]
        if here.empty:
            continue
        means = here.groupby("measured_blocks")[column].mean()
        _draw_course(axes, means.index, means, stage, colour)
        built = here.dropna(subset=_AS_BUILT).groupby("measured_blocks")[_AS_BUILT].mean()
        if is_mean and len(built):
            look = {"linestyle": _DOTTED, "linewidth": 1.1, "marker": ".", "markersize": 3.0}
            axes.plot(built.index, built, color=colour, gid="as built", **look)
        bars = here.dropna(subset=_DEVIATION)
        if not is_mean and len(bars):
            low, high = (bars[column] + sign * bars[_DEVIATION] for sign in (-1, 1))
            look = {"color": colour, "linewidth": 1.0, "alpha": 0.7, "gid": "deviation"}
            axes.vlines(bars["measured_blocks"], low, high, **look)
    _draw_states(axes, measured, measured["measured_blocks"], column, looks, len(table))

    def bound(blocks):
        return np.full(len(blocks), float(epsilon)) if is_mean else epsilon * blocks

    blocks = measured["measured_blocks"]
    _scale_blocks(axes, blocks)
    values = [measured[column], bound(np.array([blocks.min(), axes.get_xlim()[1]]))]
    if is_mean:
        values.append(measured[_AS_BUILT].dropna())
    else:
        deviations = measured[_DEVIATION].fillna(0.0)
        values.append(measured[column] + deviations)
        values.append((measured[column] - deviations).clip(measured[column].min() / 2))
    if _scale_values(axes, np.concatenate(values), _SPAN_OF_MEANS if is_mean else _SPAN):
        style.axis_labels(axes, beside=f"{label} (log scale)")
    _draw_rule(axes, bound, "ε" if is_mean else "ε L")


def _draw_course(axes, places, heights, stage, colour):
    look = {"color": colour, "linewidth": 0.9, "alpha": 0.55}
    axes.plot(places, heights, label=f"stage {stage}", **look)


def _draw_rule(axes, bound, name):
    """Draws the limit that the rule sets on axes with their limits, and shades what meets it."""
    left, right = axes.get_xlim()
    space = np.geomspace if axes.get_xscale() == "log" else np.linspace
    blocks = space(left, right, 400)
    blocks = blocks[blocks > 0]
    heights, bottom = bound(blocks), axes.get_ylim()[0]
    look = {"color": style.INK, "linewidth": 1.0, "linestyle": _DASHED, "zorder": 1.8}
    axes.plot(blocks, heights, gid="rule", **look)
    shade = {"color": _SHADE, "linewidth": 0, "zorder": 0}
    axes.fill_between(blocks, heights, bottom, gid="meets the rule", **shade)
    axes.annotate(
        name,
        (right, bound(np.array([right]))[0]),
        xytext=(3, 0),
        textcoords="offset points",
        ha="left",
        va="center",
        fontsize=style.SMALL_SIZE,
        color=style.INK,
        annotation_clip=False,
    )
    style.panel_title(axes, "shaded: the rule is met")


def _draw_states(axes, rows, places, column, looks, count):
    """Draws rows as dots of their stage, or as faint marks if there is no verdict."""
    size = 4.8 if count <= _FEW_DOTS else 3.6
    for state in _STATES:
        for stage, (colour, marker, _) in looks.items():
            here = (rows["state"] == state) & (rows["stage"] == stage)
            if here.any():
                look = _mark(state, colour, marker, size)
                look |= {"linestyle": "none", "gid": state, "zorder": 2.5}
                axes.plot(places[here], rows.loc[here, column], **look)


def _mark(state, colour, marker, size):
    """Returns the look of a stage in this state."""
    faint = {"markersize": size, "color": style.FAINT_INK}
    if state in ("failed", _NOT_MEASURED):
        return faint | {"marker": "x" if state == "failed" else "."}
    if state == "running":
        return faint | {"marker": "D", "markersize": 0.8 * size, "markerfacecolor": "none"}
    face = colour if state == _MEETS else "white"
    look = {"markerfacecolor": face, "markeredgewidth": 1.1}
    return look | {"marker": marker, "markersize": size, "color": colour}


def _scale_blocks(axes, blocks):
    """Scales the horizontal axis to the numbers of blocks."""
    low, high = float(blocks.min()), float(blocks.max())
    if style.log_scale_helps(blocks):
        axes.set_xscale("log")
        axes.set_xlim(low / 1.25, high * 1.25)
        style.log_ticks(axes.xaxis)
    else:
        pad = max(0.06 * (high - low), 0.5)
        axes.set_xlim(0.0 if low < 0.5 * high else low - pad, high + pad)
        style.whole_numbers(axes.xaxis, bins=8)


def _scale_values(axes, values, span=_SPAN):
    """Scales the vertical axis to the values; returns whether it is logarithmic."""
    low, high = np.min(values), np.max(values)
    if style.log_scale_helps(values, span):
        axes.set_ylim(low / 1.35, high * 1.35)
        style.log_scale(axes)
        return True
    pad = 0.06 * (high - low) or 0.1 * abs(high)
    axes.set_ylim(0.0 if 0 < low < 0.5 * high else low - pad, high + pad)
    return style.wide_scale(axes, values)


def _draw_way(axes, table, looks):
    """Draws the depth of every stage over the trials, and marks the trial that was found."""
    # Stages are often equally deep; a small shift keeps all of them visible.
    shift = min(0.2 * (len(looks) - 1), 0.6)
    shifts = dict(zip(looks, np.linspace(-shift / 2, shift / 2, len(looks)), strict=True))
    places = table["trial"] + table["stage"].map(shifts)
    for stage, (colour, *_) in looks.items():
        here = table["stage"] == stage
        _draw_course(axes, places[here], table.loc[here, "blocks"], stage, colour)
    _draw_states(axes, table, places, "blocks", looks, len(table))
    label = "blocks of the stage"
    if _scale_values(axes, table["blocks"].to_numpy(float)):
        label += " (log scale)"
    else:
        style.whole_numbers(axes.yaxis)
    axes.set_xlim(table["trial"].min() - 0.6, table["trial"].max() + 0.6)
    style.whole_numbers(axes.xaxis)
    style.axis_labels(axes, below="trial", beside=label)
    if table["found"].any():
        trial = table.loc[table["found"], "trial"].iloc[0]
        axes.axvspan(trial - 0.42, trial + 0.42, color=_FOUND, linewidth=0, zorder=0, gid="found")
        style.text_above(axes, trial, "found")


def _handles(table, looks, epsilon):
    """Returns the entries of the legend: the stages, the states, the rule."""
    handles = [
        style.line_handle(f"stage {stage}", color=look.colour, marker=look.marker, markersize=4.5)
        for stage, look in looks.items()
    ]
    states = set(table["state"])
    has_verdicts = bool(states & {_MEETS, _DOES_NOT})
    for state in _STATES:
        if state in states or (has_verdicts and state in (_MEETS, _DOES_NOT)):
            look = _mark(state, style.FAINT_INK, "o", 4.8)
            handles.append(style.line_handle(state, linestyle="none", **look))
    if has_verdicts:
        look = {"color": style.INK, "linestyle": _DASHED}
        handles.append(style.line_handle(f"rule, ε = {epsilon:g}", **look))
    if table[_AS_BUILT].notna().any():
        handles.append(style.line_handle("as built", linestyle=_DOTTED))
    return handles
