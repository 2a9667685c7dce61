"""How many parameters does a network use, and how much do the blocks of a stage differ?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.plots import block_axis, frames, run_groups, style

if TYPE_CHECKING:
    from tfresidual.types import Figure, Frame

_COUNTS = ("raw_parameters", "effective_parameters")
_NAMES = {
    "raw_parameters": "raw parameters",
    "effective_parameters": "effective parameters",
    "error": "error",
}
_PANELS = (
    ("raw_parameters", "effective_parameters"),
    ("raw_parameters", "error"),
    ("effective_parameters", "error"),
)


def parameter_efficiency(frame: Frame, dash: str | None = None) -> Figure:
    """Draws the effective number of parameters against the raw one, and the error against both.

    Colour and marker show coupling and initialization. Faint dots are runs; a line per setting
    connects the means of the widths, from narrow to wide. A dotted line marks where the effective
    number equals the raw one. The axes of parameters are logarithmic.

    Args:
        frame: Frame of runs with the columns `coupling`, `initialization`, `width`,
            `raw_parameters`, `effective_parameters` and `error`, and the one named below.
        dash: Column whose values get different line styles, `"variation"` (see
            `tfresidual.plots.runs`), or `None`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing or holds no finite number, a number of parameters is not
            positive, a coupling or an initialization is unknown, a mean would mix runs of different
            networks, or several rows describe the same network and seed.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", figures 7a
        and b; with `dash="variation"` figure 9.
    """
    table = run_groups.run_table(frame, tuple(_NAMES), hue="width", dash=dash)
    for column in _NAMES:
        frames.refuse_nothing(table, (column,))
    for column in _COUNTS:
        if (table[column] <= 0).any():
            raise ValueError(
                f"Argument `frame` must hold positive numbers in the column `{column}`. Received: "
                f"{table[column].min():g}"
            )
    settings, dashes = table["setting"].cat.categories, table["dash"].cat.categories
    looks, lines = run_groups.looks_of(settings), run_groups.dashes_of(dashes)
    figure = style.new_figure(10.4, 4.0, "Parameter efficiency")
    grid = figure.subplots(1, 3)
    grid[2].sharey(grid[1])
    for axes, (across, up) in zip(grid, _PANELS, strict=True):
        style.clean_axes(axes)
        for setting, (colour, marker) in looks.items():
            for dash_name, line in lines.items():
                here = table[(table["setting"] == setting) & (table["dash"] == dash_name)]
                here = here.dropna(subset=[across, up])
                if here.empty:
                    continue
                means = here.groupby("hue", observed=True)[[across, up]].mean()
                run_groups.draw_group(
                    axes,
                    here[across],
                    here[up],
                    (means[across], means[up]),
                    colour,
                    marker,
                    line,
                    label=", ".join(filter(None, (setting, dash_name))),
                )
        axes.set_xscale("log")
        style.axis_labels(axes, _NAMES[across], _NAMES[up])
    _mark_equality(grid[0], table)
    style.percent_axis(grid[1])
    grid[2].set_ylabel("")
    grid[2].tick_params(labelleft=False)

    handles = [
        style.line_handle(setting, color=colour, marker=marker, markersize=4.8)
        for setting, (colour, marker) in looks.items()
    ]
    handles += [handle for handle in run_groups.group_handles(table) if handle.get_label() in lines]
    handles.append(style.line_handle("effective = raw", linestyle=":", color=style.INK))
    style.legend(figure, handles)
    return figure


def _mark_equality(axes, table):
    """Draws the line on which the effective number of parameters equals the raw one."""
    axes.set_yscale("log")
    # If all networks have the same raw number, only the effective ones give the line a length.
    counts = table[["raw_parameters", "effective_parameters"]]
    low, high = counts.min(axis=None), counts.max(axis=None)
    axes.plot(
        [low / 1.2, high * 1.2],
        [low / 1.2, high * 1.2],
        color=style.INK,
        linewidth=1.0,
        linestyle=":",
        zorder=1.5,
        gid="equality",
    )


def deviation_of_runs(frame: Frame, hue: str | None = "width", dash: str | None = None) -> Figure:
    """Draws how far weights deviate from the mean of their stage, over the coupling.

    Faint dots are runs; lines connect the means over the seeds.

    Args:
        frame: Frame of runs with the columns `coupling`, `initialization` and `deviation` (mean
            absolute deviation in standard deviations of the stage's weights), and those named
            below.
        hue: Column whose values get different colours, `"variation"` (see
            `tfresidual.plots.runs`), or `None`.
        dash: The same for line styles.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing or holds no finite number, a coupling or an
            initialization is unknown, a mean would mix runs of different networks, or several rows
            describe the same network and seed.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", figure 7c.
    """
    table = run_groups.run_table(frame, ("deviation",), hue, dash)
    figure = style.new_figure(6.2, 3.8, "Deviation of the weights")
    axes = figure.subplots()
    style.clean_axes(axes, grid="y")
    run_groups.draw_over_settings(axes, table, "deviation")
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    style.axis_labels(
        axes, "coupling (initialization)", "mean deviation from the stage's mean\n(standardised)"
    )
    run_groups.add_legend(figure, table)
    return figure


# For the layers of a residual branch in order, then for other layers of a block.
_LAYER_COLOURS = (
    style.BLUE,
    style.ORANGE,
    style.GREEN,
    style.PURPLE,
    style.VERMILION,
    style.SKY,
    style.FAINT_INK,
)
_LAYER_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
_VARIABLE_LINES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))


def weight_deviations(frame: Frame) -> Figure:
    """Draws how far the weights of every block are from the mean of its stage, a line per role.

    The deviation is the mean absolute deviation, in standard deviations of the stage's weights of
    that role. Layers differ in colour and marker, their variables in line style. The thick line is
    the mean over all parameters of the block.

    Args:
        frame: Weight deviations frame with the columns `stage`, `block`, `role` (such as
            "convolution1/kernel"), `parameters` and `deviation`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing or holds no finite number, or if several rows describe
            the same block and role.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", section
        C.1, summarized in figure 7c.
    """
    frames.require_columns(frame, ("stage", "block", "role", "parameters", "deviation"))
    roles = list(dict.fromkeys(frame["role"]))
    place = {role: number for number, role in enumerate(roles)}
    table = frames.keyed_values(
        frame.assign(role=frame["role"].map(place)),
        ("stage", "block", "role"),
        ("parameters", "deviation"),
    )
    for column in ("parameters", "deviation"):
        frames.numbers(frame, column)
    sizes = block_axis.stage_sizes(table)
    width = block_axis.figure_width(sizes) + 0.6
    figure = style.new_figure(width, 4.2, "Weight deviations")
    axes = figure.subplots()
    style.clean_axes(axes, grid="y")
    colours, markers, lines = _role_looks(roles)
    for role, number in place.items():
        layer, _, variable = role.rpartition("/")
        here = table[table["role"] == number]
        axes.plot(
            *block_axis.in_a_row(here, "deviation", sizes),
            color=colours[layer],
            linestyle=lines[variable],
            linewidth=1.2,
            marker=markers[layer],
            markersize=0.7 * block_axis.marker_size(sizes),
            label=role,
        )
    known = table.dropna(subset=["parameters", "deviation"])
    known = known.assign(total=known["parameters"] * known["deviation"])
    means = known.groupby(["stage", "block"], as_index=False)[["total", "parameters"]].sum()
    means["deviation"] = means["total"] / means["parameters"]
    axes.plot(
        *block_axis.in_a_row(means, "deviation", sizes),
        color=style.INK,
        linewidth=2.4,
        alpha=0.85,
        gid="all",
    )
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))
    block_axis.finish([axes], sizes)
    style.axis_labels(axes, beside="mean deviation from the stage's mean\n(standardised)")
    handles = [style.line_handle("all parameters", color=style.INK, linewidth=2.4)]
    handles += [
        style.line_handle(layer, color=colour, marker=markers[layer], markersize=4.5)
        for layer, colour in colours.items()
        if layer
    ]
    handles += [style.line_handle(name, linestyle=line) for name, line in lines.items()]
    style.legend(figure, handles)
    return figure


def _role_looks(roles):
    """Returns the colours and markers of layers, and the line styles of their variables, as dicts.

    Args:
        roles: list of str, such as "convolution1/kernel".
    """
    layers = list(dict.fromkeys(role.rpartition("/")[0] for role in roles))
    # Kernels come first and have solid lines, because they hold most parameters.
    variables = list(dict.fromkeys(role.rpartition("/")[2] for role in roles))
    variables.sort(key=lambda name: name != "kernel")
    colours = {
        layer: _LAYER_COLOURS[number % len(_LAYER_COLOURS)] for number, layer in enumerate(layers)
    }
    markers = {
        layer: _LAYER_MARKERS[number % len(_LAYER_MARKERS)] for number, layer in enumerate(layers)
    }
    lines = {
        variable: _VARIABLE_LINES[number % len(_VARIABLE_LINES)]
        for number, variable in enumerate(variables)
    }
    return colours, markers, lines
