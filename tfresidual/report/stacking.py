"""Lays figures out again for narrow screens: panels one below the other, letters as large."""

from __future__ import annotations

import copy
import itertools
import math
import textwrap
from typing import TYPE_CHECKING

from matplotlib.cm import ScalarMappable
from matplotlib.transforms import Bbox

if TYPE_CHECKING:
    from tfresidual.definitions.types import Figure

# Inches: what a telephone of 390 pixels has between its margins.
WIDTH = 3.65
# Inches around the figure and its legend, and below a panel.
_GAP, _BETWEEN = 0.1, 0.15
_ROOM = WIDTH - 2 * _GAP
# The height of a scale of colours in inches.
_SCALE = 0.1
# A panel is at most this much of its width high.
_TALLEST = 0.9
# Inches between two names on the horizontal axis.
_APART = 0.04
# What matplotlib calls the axes of a scale of colours.
_COLORBAR = "<colorbar>"


def stacked(figure: Figure) -> Figure | None:
    """Returns a narrow copy of a figure, whose panels stand one below the other.

    Letters keep their size, and panels about their height. Panels so small that several fit into
    the width stay side by side. What panels share, such as the label of an axis, is repeated where
    it is no longer next to them. Title, legends and scales of colours come first.

    Args:
        figure: a `matplotlib.figure.Figure` that was drawn or saved before.

    Returns:
        A figure that is `WIDTH` inches wide, without a layout engine; `None` if the figure is not
        wider itself, or holds something else than panels of one grid.
    """
    if figure.get_figwidth() <= WIDTH or not _is_one_grid(figure):
        return None
    figure = copy.deepcopy(figure)
    figure.set_layout_engine("none")
    panels = _in_reading_order(figure)
    first = [axes for axes, *_ in panels]
    heights = [axes.get_position().height * figure.get_figheight() for axes in first]
    count = first[0].get_subplotspec().get_gridspec().ncols
    columns = max(1, int(WIDTH * count / figure.get_figwidth()))
    _label(first, *_common_labels(figure))
    rows = [([[scale]], _SCALE) for scale in _scales(figure)]
    for start in range(0, len(panels), columns):
        end = start + columns
        rows.append((panels[start:end], max(heights[start:end])))
    _lay_out(figure, [*_titles(figure), *_legends(figure)], rows)
    return figure


def _panels(figure):
    return [axes for axes in figure.axes if axes.get_label() != _COLORBAR]


def _is_one_grid(figure):
    """Returns whether a figure holds panels of one grid, scales of colours, and nothing else."""
    places = [axes.get_subplotspec() for axes in _panels(figure)]
    if not places or None in places:
        return False
    titles = (figure.get_suptitle(), figure.get_supxlabel(), figure.get_supylabel())
    return (
        len({id(place.get_gridspec()) for place in places}) == 1
        and all(len(place.rowspan) == len(place.colspan) == 1 for place in places)
        and all(text.get_text() in titles for text in figure.texts)
        and not any((figure.subfigs, figure.lines, figure.patches, figure.images, figure.artists))
    )


def _cell(axes):
    """Returns the row and the column of axes in their grid."""
    place = axes.get_subplotspec()
    return place.rowspan.start, place.colspan.start


def _in_reading_order(figure):
    """Returns the panels as they are read, each as a list of the axes in its place."""
    found = {}
    for axes in _panels(figure):
        found.setdefault(_cell(axes), []).append(axes)
    # Titles at the top alone are those of columns, which are then read one after the other.
    titled = {row for (row, _), (axes, *_) in found.items() if axes.get_title()}
    order = sorted(found, key=lambda cell: cell[::-1] if titled == {0} else cell)
    return [found[cell] for cell in order]


def _common_labels(figure):
    """Removes the labels that all panels have in common, and returns their texts, or `None`."""
    found = []
    for name in (figure.get_supxlabel(), figure.get_supylabel()):
        text = next((text for text in figure.texts if name and text.get_text() == name), None)
        if text is not None:
            # A copied text would remove itself from the list it was copied from.
            figure.texts.remove(text)
        found.append(text)
    return found


def _label(panels, below, beside):
    """Writes at each panel what it shared with panels, or with the whole figure."""
    cells = {_cell(axes): axes for axes in panels}
    for row, column in sorted(cells):
        axes, left = cells[row, column], cells.get((row, column - 1))
        if not axes.get_ylabel():
            _copy_text(axes.set_ylabel, beside or (left and left.yaxis.label))
        _show_numbers(axes, "y")
    hidden = {axes for axes in panels if not _has_numbers(axes, "x")}
    for axes, following in itertools.zip_longest(panels, panels[1:]):
        row, column = _cell(axes)
        # Panels of a column with one axis remain together.
        if axes in hidden and following is not None and _cell(following) == (row + 1, column):
            continue
        _show_numbers(axes, "x")
        if not axes.get_xlabel():
            under = (cells[cell].xaxis.label for cell in sorted(cells) if cell[1] == column)
            labels = [label for label in (*under, below) if label and label.get_text()]
            _copy_text(axes.set_xlabel, labels[-1] if labels else None)


def _copy_text(setter, text):
    if text is not None and text.get_text():
        look = {"fontsize": text.get_fontsize(), "color": text.get_color()}
        setter(text.get_text(), parse_math=text.get_parse_math(), **look)


def _has_numbers(axes, direction):
    shown = getattr(axes, f"{direction}axis").get_tick_params()
    # matplotlib 3.9 says "left" of both axes.
    return shown.get("labelbottom", shown.get("labelleft"))


def _show_numbers(axes, direction):
    """Shows the numbers of an axis if any panel shows them that shares the axis."""
    sharing = getattr(axes, f"get_shared_{direction}_axes")().get_siblings(axes)
    if any(_has_numbers(other, direction) for other in sharing):
        side = {"x": "labelbottom", "y": "labelleft"}[direction]
        axes.tick_params(axis=direction, **{side: True})
        getattr(axes, f"{direction}axis").get_offset_text().set_visible(True)


def _scales(figure):
    """Draws the scales of colours again, from left to right, and returns their axes."""
    drawn = []
    for old in [axes for axes in figure.axes if axes.get_label() == _COLORBAR]:
        mesh = next(one for one in old.collections if one.get_array() is not None)
        axis = old.yaxis if _inches(old.patch).height > _inches(old.patch).width else old.xaxis
        low, high = sorted(axis.get_view_interval())
        ticks = [tick for tick in axis.get_ticklocs() if low <= tick <= high]
        text = axis.get_ticklabels()[0]
        axes = figure.add_axes((0, 0, 1, 1), label=_COLORBAR)
        colours = ScalarMappable(mesh.norm, mesh.cmap)
        scale = figure.colorbar(colours, cax=axes, orientation="horizontal", ticks=ticks)
        scale.outline.set_visible(False)
        axes.minorticks_off()
        axes.tick_params(labelsize=text.get_fontsize(), length=0, labelcolor=text.get_color())
        _copy_text(axes.set_xlabel, axis.label)
        figure.delaxes(old)
        drawn.append(axes)
    return drawn


def _titles(figure):
    """Returns the height of each text of the figure, and what places its upper edge."""
    texts = [text for text in figure.texts if text.get_text()]
    for text in texts:
        text.set(ha="left", va="top")
        _wrap(text, _ROOM)
    return [
        (_inches(text).height, lambda top, text=text: text.set_position((_GAP / WIDTH, top)))
        for text in texts
    ]


def _legends(figure):
    """Returns the same for legends, which get as many columns as there is room for."""
    placed = []
    for old in [*figure.legends]:
        figure.legends.remove(old)
        if not old.legend_handles:
            continue
        for columns in range(len(old.legend_handles), 0, -1):
            legend = _legend(figure, old, columns)
            if columns == 1 or _inches(legend).width <= _ROOM:
                break
            legend.remove()
        for text in legend.get_texts():
            _wrap(text, _ROOM - (_inches(legend).width - _inches(text).width))

        def place(top, legend=legend):
            legend.set_bbox_to_anchor((_GAP / WIDTH, top), transform=figure.transFigure)

        placed.append((_inches(legend).height, place))
    return placed


def _legend(figure, old, columns):
    texts = old.get_texts()
    legend = figure.legend(
        handles=old.legend_handles,
        # matplotlib leaves out what begins with an underscore.
        labels=[f" {text.get_text()}" for text in texts],
        loc="upper left",
        ncols=columns,
        title=old.get_title().get_text() or None,
        frameon=old.get_frame_on(),
        fontsize=texts[0].get_fontsize(),
        labelcolor=texts[0].get_color(),
        handlelength=old.handlelength,
        columnspacing=old.columnspacing,
        borderpad=0,
        borderaxespad=0,
    )
    for new, text in zip(legend.get_texts(), texts, strict=True):
        new.set(text=text.get_text(), parse_math=text.get_parse_math())
    return legend


def _lay_out(figure, heads, rows):
    """Places everything from top to bottom, and gives the figure the height for that.

    Args:
        figure: the figure.
        heads: pairs of a height in inches and a function of the upper edge, as a share.
        rows: pairs of cells, which are lists of the axes in one place, and a height in inches.
    """
    margins = [[(0.0, 0.0, 0.0, 0.0)] * len(cells) for cells, _ in rows]
    for is_last in (False, True):
        _place(figure, heads, rows, margins)
        # What is written around a panel takes room, and must fit into the room that is left.
        if is_last:
            _fit([axes for cells, _ in rows for cell in cells for axes in cell])
        margins = [[_margins(cell) for cell in cells] for cells, _ in rows]
    _place(figure, heads, rows, margins)


def _fit(panels):
    """Breaks and leaves out what is written at panels where it would not fit."""
    for axes in panels:
        box = _inches(axes.patch)
        _thin_out(axes.xaxis)
        _wrap(axes.xaxis.label, box.width)
        _wrap(axes.title, box.width)
        if axes.get_label() != _COLORBAR:
            _wrap(axes.yaxis.label, box.height)
        boxes = [_inches(text) for text in axes.texts if text.get_visible()]
        if any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2)):
            for text in axes.texts:
                text.set_rotation(90)


def _place(figure, heads, rows, margins):
    columns = max(len(cells) for cells, _ in rows)
    left, right = (max(one[side] for row in margins for one in row) for side in (0, 1))
    low, high = ([max(one[side] for one in row) for row in margins] for side in (2, 3))
    width = _ROOM / columns - left - right
    heights = [min(height, max(_TALLEST * width, _SCALE)) for _, height in rows]
    total = _GAP + sum(height + _GAP for height, _ in heads)
    total += sum(map(sum, zip(heights, low, high, strict=True))) + _BETWEEN * len(rows)
    figure.set_size_inches(WIDTH, total)
    down = _GAP
    for height, place in heads:
        place(1 - down / total)
        down += height + _GAP
    for (cells, _), height, below, above in zip(rows, heights, low, high, strict=True):
        down += above + height
        for number, cell in enumerate(cells):
            start = _GAP + number * _ROOM / columns + left
            for axes in cell:
                axes.set_position((start / WIDTH, 1 - down / total, width / WIDTH, height / total))
        down += below + _BETWEEN


def _inches(artist):
    """Returns the box of something drawn, in inches."""
    box = artist.get_window_extent()
    return Bbox(box.get_points() / artist.get_figure().dpi)


def _margins(cell):
    """Returns the inches that axes need left, right, below and above of their panel."""
    boxes = [axes.get_tightbbox() for axes in cell]
    outer = Bbox(Bbox.union(boxes).get_points() / cell[0].get_figure().dpi)
    box = _inches(cell[0].patch)
    edges = (box.x0 - outer.x0, outer.x1 - box.x1, box.y0 - outer.y0, outer.y1 - box.y1)
    return [max(edge, 0.0) for edge in edges]


def _wrap(text, room):
    """Breaks a text that is longer than `room` in inches into lines of about one length."""
    size = _inches(text)
    length = size.height if text.get_rotation() else size.width
    if length > room > 0:
        plain = " ".join(text.get_text().split())
        longest = max(len(line) for line in text.get_text().splitlines())
        most = max(int(longest * room / length), 8)
        count = len(textwrap.wrap(plain, most))
        lines = (textwrap.wrap(plain, width) for width in range(8, most + 1))
        text.set_text("\n".join(next(found for found in lines if len(found) == count)))


def _thin_out(axis):
    """Leaves out names of a horizontal axis that would overlap."""
    low, high = sorted(axis.get_view_interval())
    # Without numbers, an axis has ticks and no labels.
    pairs = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=False)
    shown = [(tick, text) for tick, text in pairs if low <= tick <= high and text.get_text()]
    # The axis may run from right to left.
    shown.sort(key=lambda pair: _inches(pair[1]).x1)
    for step in range(1, len(shown) + 1):
        texts = [text for _, text in shown[::step]]
        if all(_are_apart(*pair) for pair in itertools.pairwise(texts)):
            break
    if len(shown) > 1 and step > 1:
        kept = shown[::step]
        axis.set_ticks([tick for tick, _ in kept], [text.get_text() for _, text in kept])


def _are_apart(text, following):
    """Returns whether names on a horizontal axis, which may be written diagonally, do not touch."""
    box, next_box = _inches(text), _inches(following)
    if text.get_rotation():
        between = (next_box.x1 - box.x1) * math.sin(math.radians(text.get_rotation()))
        return between >= text.get_fontsize() / 72 + _APART
    return next_box.x0 - box.x1 >= _APART
