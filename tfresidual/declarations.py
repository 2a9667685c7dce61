"""What a figure shows of a frame, as plain data: needs only the standard library."""

from __future__ import annotations

import dataclasses
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Line:
    """What is drawn of a column.

    Attributes:
        column: the column of the frame, or `"1 - column"` for the rest to 1. If the frame has the
            standard error `column_se` too, it is drawn as a band over the blocks.
        name: the name in the legend, if the figure draws several columns.
        dash: the line style, if it tells columns apart; the markers are open unless it is `"-"`.
        mark: `"line"`; `"dots"` without a line; `"bar"`; `"sum"`, a line of the sum so far;
            `"map"`, colours over blocks and positions; or `"means"`, a faint dot per row and a line
            through the means of `Drawing.means`.
        band: the column of the other edge of a band, if there is one.
        across: the column of the horizontal axis, if it is not that of the drawing.
    """

    column: str
    name: str = ""
    dash: str = "-"
    mark: Literal["line", "dots", "bar", "sum", "map", "means"] = "line"
    band: str = ""
    across: str = ""


@dataclasses.dataclass(frozen=True)
class Level:
    """A horizontal line.

    Attributes:
        value: its height.
        argument: the name of the argument of the figure that gives the height, or `None` for no
            line; a dict gives one per split.
        column: the column that gives the height instead, one value per split and epoch.
        name: the name in the legend; `{}` is the height.
        dash: the line style.
    """

    value: float = 0.0
    argument: str = ""
    column: str = ""
    name: str = ""
    dash: str = "-"


ZERO = Level(0.0)


@dataclasses.dataclass(frozen=True)
class Panel:
    """What is drawn on one value axis.

    Attributes:
        label: the label of the axis.
        lines: what is drawn.
        scale: `"linear"`; `"log"`; `"wide"`, logarithmic if the values differ by a large factor;
            `"signed"`, the same on both sides of 0; or `"share"`, in percent.
        levels: horizontal lines.
        title: the text above the panel, which also selects the rows of a table with a column
            `panel`.
        over: what is on the horizontal axis, if it is not that of the drawing.
        below: the label of the horizontal axis, if it is not that of the drawing.
        height: the height relative to other panels.
        from_zero: whether the axis begins at 0.
    """

    label: str
    lines: tuple[Line, ...]
    scale: Literal["linear", "log", "wide", "signed", "share"] = "linear"
    levels: tuple[Level, ...] = ()
    title: str = ""
    over: str = ""
    below: str = ""
    height: int = 1
    from_zero: bool = False


@dataclasses.dataclass(frozen=True)
class Drawing:
    """A figure of a frame.

    Attributes:
        title: the title of the figure.
        panels: its value axes.
        over: what is on the horizontal axis: `"block"`, all blocks in a row; `"state"`, those with
            a value, and the states before them; `"epoch"`, counted from 1; `"stage"`, by name; or a
            column of numbers.
        below: the label of the horizontal axis.
        keys: the columns of whole numbers that distinguish the rows of a split.
        colour: the column whose values differ in colour.
        dash: the column whose values differ in line style; `""` for the style of each `Line`.
        marker: the column whose values differ in the markers of means.
        means: the column whose values have a mean each.
        rows: the columns whose values have a row of panels each; `"panel"` for the panels.
        columns: the same for columns of panels.
        wrap: the largest number of panels side by side, 0 for any number.
        share_x: whether all panels, or those of a column, have the same horizontal axis.
        share_y: whether all panels have the same value axis; by default, those that show the same.
        epochs: how several epochs are drawn: `"panels"`, panels over the epochs with a line per
            block; `"colours"`, a line per epoch; or `""` if the frame has none.
        sparse: whether stages without a value are left out.
        gap: what it means that a block has no value.
    """

    title: str
    panels: tuple[Panel, ...]
    over: str = "block"
    below: str = "block"
    keys: tuple[str, ...] = ("stage", "block")
    colour: str = "split"
    dash: str = ""
    marker: str = ""
    means: str = ""
    rows: tuple[str, ...] = ("panel",)
    columns: tuple[str, ...] = ()
    wrap: int = 4
    share_x: bool | Literal["col"] = True
    share_y: bool | None = None
    epochs: Literal["", "panels", "colours"] = ""
    sparse: bool = False
    gap: str = "changes the shape"
