"""Draws tables as a `tfresidual.definitions.declarations.Drawing` says."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

import numpy as np
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, LinearSegmentedColormap, ListedColormap, Normalize
from matplotlib.patches import Patch

from tfresidual.definitions.probes import PROBES
from tfresidual.plots import frames, style
from tfresidual.plots.places import GAP, Places, keys_of, stage_name

if TYPE_CHECKING:
    from tfresidual.definitions.types import Figure, Frame

# How the figures of probes are drawn, by the name of the function of `tfresidual.plots`, if any.
DRAWINGS = {
    figure.draw or figure.name: figure.drawing
    for probe in PROBES.values()
    for figure in probe.figures
    if figure.drawing is not None
}
# With more places than this, the dots are smaller.
_FEW = 24
# The share of the room between two places that their bars fill.
_BARS = 0.78
# From the source's side of nothing to the data's, dark at both ends.
_EFFECTS = LinearSegmentedColormap.from_list(
    "tfresidual_effects", [style.VERMILION, "#ffffff", style.BLUE]
)
_EPOCHS = ListedColormap(colormaps["viridis"](np.linspace(0.0, 0.86, 256)))
# What the label of an axis says of its scale; 0 has no place on a logarithmic one.
_SCALES = {"log": "log scale", "symlog": "log scale, linear near 0"}


def draw(frame: Frame, name: str, **levels: float | None) -> Figure:
    """Draws the frame of a probe as the probe declares.

    There is a line per split over the blocks of all stages in a row. Blocks are named
    `stage.block`, or as in the column `name`. A block that changes the shape of the state has no
    value and is hatched; an infinite value leaves a gap. A standard error in the frame, such as
    `cosine_loss_se`, is a band, and a bar at a block without neighbours to draw a line to. Positive
    values that differ by more than a factor of 30 are drawn on a logarithmic axis. With a column
    `epoch` of several epochs, the figures of one metric have a panel per stage and split over the
    epochs, with a line per block from blue and thin (lowest) to red and thick (highest).

    Example:

    >>> figure = plots.draw(probes.block_metrics(chain, test), "cosine_loss")

    Args:
        frame: Frame of a probe with the columns `stage` and `block`, those that are drawn, and
            optionally `split`.
        name: Name of the figure as a probe declares it, mostly that of a function of
            `tfresidual.plots`.
        levels: Heights of the lines that the figure takes, such as `epsilon`; or `None` for no
            line.

    Raises:
        KeyError: if a column is missing, or there is no such figure.
    """
    return draw_as(frame, DRAWINGS[name], **levels)


def draw_as(frame, drawing, **levels):
    """Returns the figure of a frame; `levels` are the heights of levels by name, or `None`."""
    title = drawing.title + frames.branch_scale(frame)
    return draw_table(read(frame, drawing), drawing, title, levels)


def read(frame, drawing):
    """Returns the table of a frame: keys, split, epoch and the columns that are drawn."""
    lines = [line for panel in drawing.panels for line in panel.lines]
    levels = [level.column for panel in drawing.panels for level in panel.levels if level.column]
    columns = [column for line in lines for column in (line.column, line.band) if column]
    errors = [f"{column}_se" for column in columns if f"{column}_se" in frame]
    return frames.keyed_values(
        frame.assign(is_empty=frame[columns].isna().all(axis=1)),
        drawing.keys,
        dict.fromkeys([*columns, *levels, *errors]),
        optional_keys=("epoch",) if drawing.epochs else (),
        carried=("is_empty", "name", "part", "blocks"),
        texts=drawing.texts,
    )


def draw_table(
    table, drawing, title="", arguments=None, named=None, handles=(), looks=None, maker=None
):
    """Returns the figure of a table, whose panels are in the order of the rows.

    Args:
        table: A `pandas.DataFrame` with the columns of the drawing. With a column `seed`, lines are
            means over the seeds, with a band from the lowest to the highest.
        drawing: A `Drawing`.
        title: The title, if it is not that of the drawing.
        arguments: A dict of the heights of levels by argument.
        named: A dict of the names in the legend by (colour key, dash key), one entry per line.
        handles: Further entries of the legend.
        looks: A dict of looks by colour key, if they are not the usual ones.
        maker: The class that draws, if it is not `Maker`.
    """
    maker = maker or Maker
    table = table.reset_index(drop=True)
    columns = [line.column for panel in drawing.panels for line in panel.lines]
    if drawing.epochs and len(set(table["epoch"])) > 1:
        if drawing.epochs == "colours":
            drawing = dataclasses.replace(drawing, colour="epoch")
        else:
            over = {"over": "epoch", "below": "epoch", "colour": "block", "dash": ""}
            over |= {"rows": ("split",), "columns": ("stage",)}
            drawing = dataclasses.replace(drawing, **over)
            table = table.dropna(subset=columns)
    if drawing.sparse:
        has_values = table[columns].notna().any(axis=1)
        table = table[has_values.groupby(table["stage"]).transform("any")]
    made = maker(table, drawing, arguments or {}, named or {}, looks)
    made.draw(title or drawing.title, handles)
    return made.figure


def _looks(table, column):
    keys = keys_of(table, column)
    if column == "stage":
        stages = [key for key in keys if key != "mean"]
        return {key: style.looks(["mean"]).get(key) for key in keys} | style.stage_looks(stages)
    if column == "block":
        return style.depth_looks(max(keys) + 1)
    if column == "epoch":
        norm = Normalize(keys[0], keys[-1])
        return {key: style.Look(_EPOCHS(norm(key)), "", 1.1) for key in keys}
    return style.looks(keys)


class Maker:
    """A figure in the making."""

    def __init__(self, table, drawing, arguments, named, looks):
        self.table, self.drawing, self.arguments, self.named = table, drawing, arguments, named
        self.looks = looks or _looks(table, drawing.colour)
        self.has_scale = not looks and drawing.colour in ("block", "epoch")
        self.dashes = style.dashes(keys_of(table, drawing.dash) if drawing.dash else [""])
        overs = [panel.over or drawing.over for panel in drawing.panels]
        axes = {over: Places(table, drawing, over) for over in dict.fromkeys(overs)}
        self.axes = {panel: axes[over] for panel, over in zip(drawing.panels, overs, strict=True)}
        self.marks = {line.mark for panel in drawing.panels for line in panel.lines}
        # Several lines of a single split have colours of their own.
        named_lines = [line for panel in drawing.panels for line in panel.lines if line.name]
        is_single = drawing.colour == "split" and len(self.looks) == 1
        self.of_lines = style.line_looks([line.dash for line in named_lines if is_single])
        self.cells, self.scales, self.image = [], {}, None

    def draw(self, title, handles):
        self._lay_out(title)
        for axes, keys in self.cells:
            self._fill(axes, keys)
        self._scale()
        self._label()
        self._explain(handles)

    def _combinations(self, dimensions):
        """Returns the keys of each row, or column, of panels, as dicts."""
        keys = [
            self.drawing.panels if dimension == "panel" else keys_of(self.table, dimension)
            for dimension in dimensions
        ]
        return [dict(zip(dimensions, chosen, strict=True)) for chosen in itertools.product(*keys)]

    def _lay_out(self, title):
        drawing = self.drawing
        rows, columns = self._combinations(drawing.rows), self._combinations(drawing.columns)
        wide = min(len(columns), drawing.wrap or len(columns))
        per_row = -(-len(columns) // wide)
        tall = per_row * len(rows)
        self.figure = style.new_figure(*self._size(tall, wide), title)
        share_y = drawing.share_y
        if share_y is None:
            unshared = "col" if drawing.rows else False
            share_y = unshared if "panel" in drawing.columns else True
            share_y = "row" if "panel" in drawing.rows else share_y
        self.grid = self.figure.subplots(
            tall,
            wide,
            squeeze=False,
            sharex=drawing.share_x,
            sharey=share_y,
            height_ratios=[row["panel"].height if "panel" in row else 1 for row in rows] * per_row,
        )
        self.lowest = set()
        for (r, row), (c, column) in itertools.product(enumerate(rows), enumerate(columns)):
            axes = self.grid[r * per_row + c // wide, c % wide]
            self.cells.append((axes, {"panel": drawing.panels[0], **row, **column}))
            if r == len(rows) - 1 and c + wide >= len(columns):
                self.lowest.add(axes)
                axes.tick_params(labelbottom=True)
        used = {axes for axes, _ in self.cells}
        for axes in self.grid.flat:
            if axes not in used:
                axes.remove()

    def _size(self, tall, wide):
        """Returns width and height of the figure in inches."""
        axis = self.axes[self.drawing.panels[0]]
        if axis.stages is not None and wide == 1:
            count = len(axis.names)
            width = float(np.clip(6.0 + 0.07 * count, 6.6 if tall == 1 else 7.0, 9.0))
            return width, 3.7 if tall == 1 else 2.2 + 1.55 * tall
        if "panel" in self.drawing.columns:
            return {1: 6.4, 2: 9.0}.get(wide, 3.1 * wide + 1.1), 2.5 * tall + 1.3
        return (6.4 if wide == 1 else 2.6 * wide + 1.2), 2.4 * tall + (1.3 if tall == 1 else 0.9)

    def _rows(self, keys):
        """Returns the rows of the table in a panel."""
        rows = self.table
        for dimension, key in keys.items():
            if dimension == "panel":
                if "panel" in rows:
                    rows = rows[rows["panel"] == key.title]
            elif dimension in rows:
                rows = rows[rows[dimension] == key]
        return rows

    def _fill(self, axes, keys):
        """Draws what belongs into a panel."""
        panel, rows, drawing = keys["panel"], self._rows(keys), self.drawing
        axis = self.axes[panel]
        if not drawing.share_x:
            axis = Places(rows, drawing, panel.over or drawing.over)
        rows = rows.loc[rows.index.intersection(axis.places.index)]
        style.clean_axes(axes, grid="both" if axis.names is None else "y")
        if panel.scale == "log":
            columns = [line.column for line in panel.lines]
            rows = rows.assign(
                **{column: rows[column].where(rows[column] > 0) for column in columns}
            )
        for line in panel.lines:
            if line.mark == "map":
                self._draw_map(axes, axis, rows, line)
                continue
            for number, ((colour, look), dash) in enumerate(
                itertools.product(self.looks.items(), self.dashes)
            ):
                here = rows
                if drawing.colour in rows:
                    here = here[here[drawing.colour] == colour]
                if drawing.dash and drawing.dash in here:
                    here = here[here[drawing.dash] == dash]
                if len(here):
                    self._draw_line(axes, axis, here, line, number, look, dash)
        is_empty = rows[[line.column for line in panel.lines]].isna().all(axis=None)
        if is_empty:
            style.no_values(axes)
            if len(axes.get_shared_y_axes().get_siblings(axes)) == 1:
                axes.tick_params(labelleft=False)
        for level in panel.levels:
            self._draw_level(axes, rows, level, keys, is_empty)
        has_names = axes in self.lowest or not drawing.share_x
        axis.finish(axes, has_names, len(self.cells) == 1)

    def _draw_line(self, axes, axis, rows, line, number, look, dash):
        """Draws one column of the rows of one colour and dash."""
        drawing = self.drawing
        linestyle = self.dashes[dash] if drawing.dash else line.dash
        if line.name or line.dash != "-":
            look = self.of_lines.get(line.dash, look)
        # A line style of its own tells dots apart, and shows those below.
        is_open = linestyle != "-"
        label = ", ".join(filter(None, (*self._names(rows, dash), line.column)))
        course = axis.course(rows, line)
        if course["height"].isna().all():
            return
        if line.mark == "bar":
            self._draw_bars(axes, course, number, look, label)
            return
        if "low" in course:
            edges = course.index, course["low"], course["high"]
            band = {"alpha": 0.15, "linewidth": 0, "gid": label or None}
            axes.fill_between(*edges, color=look.colour, **band)
            # A band over a single place has no width.
            alone = course[_are_alone(course["height"])].dropna()
            if len(alone):
                bar = {"alpha": 0.5, "linewidth": 1.2, "gid": "error bar"}
                axes.vlines(alone.index, alone["low"], alone["high"], color=look.colour, **bar)
        count = course["height"].notna().sum()
        is_over_epochs = drawing.over == "epoch"
        drawn = {
            "color": look.colour,
            "marker": look.marker or ("o" if is_over_epochs and count <= 15 else None),
            "markersize": 2.8,
            "markerfacecolor": "none" if is_open else look.colour,
            "linewidth": look.width if linestyle == "-" else min(look.width, 1.2),
            "linestyle": linestyle,
        }
        if line.mark == "dots":
            drawn |= {"linestyle": "none", "markersize": 4.4}
            drawn |= {} if drawing.dash else {"markeredgewidth": 0, "alpha": 0.6}
        elif look.marker:
            drawn["markersize"] = (4.6 if count <= 12 else 3.5) if count <= _FEW else 2.6
            drawn["markersize"] += 1.4 * is_open
        if "seed" in rows or (is_over_epochs and count > 20):
            drawn["markevery"] = max(1, count // 8)
        places = course.index
        if line.mark == "dots" and axis.names is not None:
            # Beside one another.
            count = len(self.looks) * len(self.dashes)
            places = places + 0.14 * (number - (count - 1) / 2)
        axes.plot(places, course["height"], label=label, **drawn)

    def _names(self, rows, dash):
        """Returns the names of the colour and of the dash of rows."""
        drawing = self.drawing
        colour = rows[drawing.colour].iloc[0] if drawing.colour in rows else ""
        if drawing.colour == "stage":
            colour = stage_name(colour)
        elif self.has_scale:
            colour = f"block {colour}" if drawing.colour == "block" else f"epoch {colour + 1}"
        return (str(colour), str(dash) if drawing.dash != drawing.colour else "")

    def _draw_bars(self, axes, course, number, look, label):
        width = _BARS / len(self.looks)
        places = course.index + (number - (len(self.looks) - 1) / 2) * width
        hatch = list(style.hatches(self.looks).values())[number]
        filled = {"color": look.colour, "hatch": hatch, "edgecolor": "white", "linewidth": 0}
        drawn = axes.bar(places, course["height"], width * 0.94, label=label, **filled)
        if self.drawing.over == "stage":
            axes.bar_label(
                drawn,
                labels=[style.short_number(height) for height in course["height"]],
                padding=2,
                fontsize=style.SMALL_SIZE - (1 if len(self.table) > 8 else 0),
                color=style.INK,
            )
            axes.margins(y=0.12)

    def _draw_map(self, axes, axis, rows, line):
        """Draws a column by colour, over the blocks and the positions, or heads."""
        positions = keys_of(self.table, line.over)
        values = rows.assign(place=axis.places[rows.index])
        values = values.pivot_table(line.column, line.over, "place")
        count = len(axis.names)
        largest = max(line.span, np.nanmax(np.abs(self.table[line.column]))) or 1.0
        self.image = axes.imshow(
            values.reindex(index=positions, columns=range(count)),
            cmap=_EFFECTS,
            norm=Normalize(-largest, largest),
            aspect="auto",
            interpolation="none",
            extent=(-0.5, count - 0.5, positions[-1] + 0.5, positions[0] - 0.5),
        )
        axes.grid(False)
        style.whole_numbers(axes.yaxis)

    def _draw_level(self, axes, rows, level, keys, is_empty):
        look = {"color": style.INK, "linewidth": 1.0, "linestyle": level.dash}
        look["gid"] = level.column or level.argument or f"{level.value:g}"
        if level.column:
            known = rows.dropna(subset=level.column)
            is_by_split = self.drawing.colour == "split"
            for key, of_key in self.looks.items() if is_by_split else (("", None),):
                here = known[known["split"] == key] if is_by_split else known
                if is_by_split:
                    look |= {"color": of_key.colour, "marker": of_key.marker, "markevery": [1]}
                if self.drawing.over == "epoch":
                    course = here.groupby("epoch")[level.column].first()
                    axes.plot(course.index + 1, course, **look)
                elif len(here):
                    ring = {"markersize": 4.5, "markerfacecolor": "white", "clip_on": False}
                    axes.axhline(here[level.column].iloc[0], **look, **ring)
            return
        height = self.arguments.get(level.argument) if level.argument else level.value
        if isinstance(height, dict):
            height = height.get(keys.get("split"))
        if height is not None and not (is_empty and not level.argument):
            axes.axhline(height, zorder=1.5, **look)

    def _scale(self):
        """Scales the value axes, those that panels share once."""
        done = []
        for axes, keys in self.cells:
            panel = keys["panel"]
            if any(axes.get_shared_y_axes().joined(axes, other) for other in done):
                continue
            done.append(axes)
            values = self.table[
                [c for line in panel.lines for c in (line.column, line.band) if c]
            ].to_numpy(float)
            if np.isnan(values).all():
                axes.tick_params(labelleft=False)
            elif panel.scale == "share":
                style.percent_axis(axes)
            elif panel.scale == "log":
                if (values > 0).any():
                    style.log_scale(axes)
            elif panel.scale == "wide":
                style.wide_scale(axes, values)
            elif panel.scale == "signed":
                style.signed_scale(axes, values)
                if not panel.levels and (values < 0).any():
                    axes.axhline(0.0, color=style.INK, linewidth=1.0, zorder=1.5, gid="0")
            self.scales[panel] = axes.get_yscale()
            if panel.from_zero and panel.scale == "share":
                axes.set_ylim(0, axes.get_ylim()[1] if np.nanmax(values) > 0 else 1)
            elif panel.from_zero:
                axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))

    def _label(self):
        """Labels the axes and the panels, or the figure where all of them show the same."""
        drawing, figure = self.drawing, self.figure
        names_across = self.grid.shape[1] == 1 or "panel" in drawing.columns
        names_up = names_across or "panel" in drawing.rows
        before = ""
        for axes, keys in self.cells:
            panel = keys["panel"]
            stages = self.axes[panel].stages
            # Above the names of the stages.
            pad = 15 if stages is not None and len(stages) > 1 else 4
            style.panel_title(axes, self._title(axes, keys), pad=pad)
            label = self._label_of(panel)
            is_new = axes in self.grid[:, 0] or ("panel" in drawing.columns and label != before)
            below = panel.below or drawing.below
            style.axis_labels(
                axes,
                below=below if names_across and axes in self.lowest else None,
                beside=label if names_up and is_new else None,
            )
            before = label
        look = {"fontsize": style.LABEL_SIZE, "color": style.INK}
        if not names_up:
            figure.supylabel(self._label_of(drawing.panels[0]), ma="center", **look)
        if not names_across:
            figure.supxlabel(drawing.below, **look)
        figure.align_ylabels()

    def _label_of(self, panel):
        scale = _SCALES.get(self.scales.get(panel))
        if scale is None:
            return panel.label
        between = "\n" if "panel" in self.drawing.rows and "\n" not in panel.label else " "
        return f"{panel.label}{between}({scale})"

    def _title(self, axes, keys):
        """Returns the text above a panel."""
        drawing = self.drawing
        dimensions = [*drawing.columns, *drawing.rows] or ["panel"]
        if "panel" in drawing.rows:
            dimensions = drawing.columns if axes in self.grid[0] else ()
        names = []
        for dimension in sorted(dimensions, key=lambda dimension: dimension == "split"):
            key = keys[dimension]
            plain = stage_name(key) if dimension == "stage" else str(key)
            names.append(key.title if dimension == "panel" else plain)
        return ", ".join(filter(None, names))

    def _explain(self, further):
        """Adds the legend, and the scale of colours."""
        drawing, table = self.drawing, self.table
        handles = []
        panels = [keys["panel"] for _, keys in self.cells]
        lines = {line.name: line for panel in panels for line in panel.lines if line.name}
        if self.image is not None:
            self._add_scale(self.image, next(iter(lines)), None)
        else:
            for name, one in lines.items():
                look = self._look_in_legend(self.of_lines[one.dash]) if self.of_lines else {}
                handles.append(style.line_handle(name, linestyle=one.dash, **look))
        if self.has_scale and drawing.colour == "block":
            count = max(self.looks) + 1
            if count > 1:
                norm = BoundaryNorm(np.arange(count + 1) - 0.5, count)
                colours = ListedColormap(style.depth_colours(count))
                ticks = range(0, count, 1 + (count - 1) // 10)
                self._add_scale(ScalarMappable(norm, colours), "block within its stage", ticks)
        elif self.has_scale:
            norm = Normalize(min(self.looks) + 1, max(self.looks) + 1)
            self._add_scale(ScalarMappable(norm, _EPOCHS), "epoch", None)
        elif self.named:
            handles += [
                style.line_handle(name, linestyle=self.dashes[dash], **self._look_of(colour))
                for (colour, dash), name in self.named.items()
            ]
        elif list(self.looks) != [""] and self.image is None and not self.of_lines:
            handles += [self._handle(key) for key in self.looks if key != ""]
        if drawing.dash not in ("", drawing.colour) and not self.named:
            found = set(table[drawing.dash]) - {""}
            handles += [self._dash_handle(key) for key in self.dashes if key in found]
        handles += self._level_handles(panels)
        if any(axis.gaps for axis in self.axes.values()):
            handles.append(Patch(**GAP, label=drawing.gap))
        handles += further
        if handles:
            style.legend(self.figure, handles)

    def _look_of(self, key):
        """Returns the look of a colour key in a legend."""
        return self._look_in_legend(self.looks[key])

    def _look_in_legend(self, look):
        found = {"color": look.colour, "marker": look.marker or None, "markersize": 4.8}
        return found | {"linewidth": max(1.2, look.width) if look.width > 2 else 1.2}

    def _handle(self, key):
        """Returns the entry of the legend for a colour key."""
        drawing, look = self.drawing, self._look_of(key)
        name = stage_name(key) if drawing.colour == "stage" else str(key)
        if self.marks == {"bar"}:
            hatch = style.hatches(self.looks)[key]
            return Patch(facecolor=look["color"], hatch=hatch, edgecolor="white", label=name)
        if self.marks == {"dots"}:
            look["linestyle"] = "none"
        elif drawing.dash == drawing.colour:
            look["linestyle"] = self.dashes[key]
        return style.line_handle(name, **look)

    def _dash_handle(self, key):
        look = {"linestyle": self.dashes[key]}
        if self.marks == {"dots"}:
            face = style.FAINT_INK if self.dashes[key] == "-" else "none"
            look = {"linestyle": "none", "marker": "o", "markersize": 4.8, "markerfacecolor": face}
        return style.line_handle(str(key), **look)

    def _level_handles(self, panels):
        found = {}
        for level in (level for panel in panels for level in panel.levels if level.name):
            height = self.arguments.get(level.argument)
            if level.column or height is not None:
                name = level.name if isinstance(height, dict) else level.name.format(height)
                colour = style.FAINT_INK if self.drawing.colour == "split" else style.INK
                found[name] = style.line_handle(name, linestyle=level.dash, color=colour)
        return list(found.values())

    def _add_scale(self, colours, label, ticks):
        """Draws a scale of colours beside the panels."""
        panels = [axes for axes, _ in self.cells]
        scale = self.figure.colorbar(colours, ax=panels, aspect=30, pad=0.015, ticks=ticks)
        if label == "epoch":
            style.whole_numbers(scale.ax.yaxis)
        scale.ax.minorticks_off()
        scale.outline.set_visible(False)
        scale.ax.tick_params(labelsize=style.SMALL_SIZE, length=0, labelcolor=style.INK)
        scale.set_label(label, fontsize=style.SMALL_SIZE, color=style.INK)


def _are_alone(heights):
    """Returns which heights have no neighbour to which a line leads."""
    is_there = heights.notna()
    before, after = (is_there.shift(step, fill_value=False) for step in (1, -1))
    return is_there & ~before & ~after
