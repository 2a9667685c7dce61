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
_MEETS, _DOES_NOT = "meets the rule", "does not"
_STATES = (_MEETS, _DOES_NOT, "failed", "running")

_SHADE = "#e6f0f8"
_FOUND = "#ece5d0"
_DOTTED, _DASHED = (0, (1, 1.5)), (0, (6, 3))
# From this span on, the axis of the means is logarithmic: their course near epsilon matters.
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
    before training.

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
    figure = style.new_figure(10.4, 3.9, "Search for the depth")
    distance, mean, way = figure.subplots(1, 3)
    for axes in (distance, mean, way):
        style.clean_axes(axes)
    _draw_rule_panel(distance, table, "scaled_distance", looks, epsilon)
    _draw_rule_panel(mean, table, "mean_scaled_perturbation", looks, epsilon)
    _draw_way(way, table, looks)
    style.legend(figure, _handles(table, looks, epsilon))
    return figure


def _search_table(frame):
    """Returns the values of a search frame to draw, with a column `state` for their look."""
    frame = frame.reindex(columns=list(dict.fromkeys([*frame, _DEVIATION, _AS_BUILT, "found"])))
    columns = ("blocks", *_VALUES, _DEVIATION, _AS_BUILT)
    carried = ("status", "meets_rule", "found")
    table = frames.keyed_values(frame, ("trial", "stage"), columns, carried=carried)
    verdicts = np.where(table["meets_rule"].eq(True).fillna(False), _MEETS, _DOES_NOT)
    table["state"] = table["status"].mask(table["status"] == "completed", verdicts)
    return table.assign(found=table["found"].eq(True).fillna(False))


def _draw_rule_panel(axes, table, column, looks, epsilon):
    """Draws a column over the measured blocks, and the limit that the rule sets."""
    is_mean = column == "mean_scaled_perturbation"
    label = "scaled distance d of the stage\nsum of ‖F(h)‖ / ‖h‖"
    if is_mean:
        label = "mean scaled perturbation\n‖F(h)‖ / ‖h‖"
    style.axis_labels(axes, below="measured blocks L of the stage", beside=label)
    measured = table[table["state"].isin((_MEETS, _DOES_NOT))]
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
    _draw_states(axes, measured, measured["measured_blocks"], column, looks)

    def bound(blocks):
        return np.full(len(blocks), float(epsilon)) if is_mean else epsilon * blocks

    blocks = measured["measured_blocks"]
    axes.set_xlim(0, 1.06 * blocks.max() + 0.5)
    style.whole_numbers(axes.xaxis, bins=8)
    limits = bound(np.array(axes.get_xlim()[1:]))
    values = np.concatenate([measured[column], limits, measured[_AS_BUILT].dropna()])
    axes.set_ylim(0, 1.06 * values.max())
    if is_mean and style.log_scale_helps(values, _SPAN_OF_MEANS):
        axes.set_ylim(values.min() / 1.35, values.max() * 1.35)
        style.log_scale(axes)
        style.axis_labels(axes, beside=f"{label} (log scale)")
    _draw_rule(axes, bound, "ε" if is_mean else "ε L")


def _draw_course(axes, places, heights, stage, colour):
    look = {"color": colour, "linewidth": 0.9, "alpha": 0.55}
    axes.plot(places, heights, label=f"stage {stage}", **look)


def _draw_rule(axes, bound, name):
    """Draws the limit that the rule sets on axes with their limits, and shades what meets it."""
    left, right = axes.get_xlim()
    blocks = np.linspace(left, right, 400)[1:]
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


def _draw_states(axes, rows, places, column, looks):
    """Draws rows as dots of their stage, or as faint marks if there is no verdict."""
    for state in _STATES:
        for stage, (colour, marker, _) in looks.items():
            here = (rows["state"] == state) & (rows["stage"] == stage)
            if here.any():
                look = _mark(state, colour, marker)
                look |= {"linestyle": "none", "gid": state, "zorder": 2.5}
                axes.plot(places[here], rows.loc[here, column], **look)


def _mark(state, colour, marker):
    """Returns the look of a stage in this state."""
    look = {"markersize": 4.8, "color": style.FAINT_INK}
    if state == "failed":
        return look | {"marker": "x"}
    if state == "running":
        return look | {"marker": "D", "markersize": 3.8, "markerfacecolor": "none"}
    face = colour if state == _MEETS else "white"
    return look | {"marker": marker, "color": colour, "markerfacecolor": face}


def _draw_way(axes, table, looks):
    """Draws the depth of every stage over the trials, and marks the trial that was found."""
    # Stages are often equally deep; a small shift keeps all of them visible.
    shift = min(0.2 * (len(looks) - 1), 0.6)
    shifts = dict(zip(looks, np.linspace(-shift / 2, shift / 2, len(looks)), strict=True))
    places = table["trial"] + table["stage"].map(shifts)
    for stage, (colour, *_) in looks.items():
        here = table["stage"] == stage
        _draw_course(axes, places[here], table.loc[here, "blocks"], stage, colour)
    _draw_states(axes, table, places, "blocks", looks)
    label = "blocks of the stage"
    if style.wide_scale(axes, table["blocks"]):
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
            look = _mark(state, style.FAINT_INK, "o")
            handles.append(style.line_handle(state, linestyle="none", **look))
    if has_verdicts:
        look = {"color": style.INK, "linestyle": _DASHED}
        handles.append(style.line_handle(f"rule, ε = {epsilon:g}", **look))
    if table[_AS_BUILT].notna().any():
        handles.append(style.line_handle("as built", linestyle=_DOTTED))
    return handles
