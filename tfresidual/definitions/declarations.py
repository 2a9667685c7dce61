"""What a probe declares, as data: what it measures and how it is shown; see `PROBES`."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

LINES = (
    "One line per block, from blue and thin (first) to red and thick (last of the stage with the "
    "most blocks)."
)
# The number of repetitions of the last block where the paper unrolls it, and the scale that keeps
# it close to the states it was trained on. Jastrzebski et al. 2018 use 20 steps and do not give
# their scale.
UNROLLED, UNROLLED_SCALE = 20, 0.3


@dataclasses.dataclass(frozen=True)
class Column:
    """A metric, with its row in the table of docs/concepts/metrics.md.

    Attributes:
        meaning: its definition.
        at_least: the smallest value possible, or `None`.
        at_most: the largest value possible, or `None`.
        low: what a low value tells.
        high: what a high value tells.
        paper: the paper with its equation or figure.
        of: what has it, if that is not the frame of the probe's function.
    """

    meaning: str
    at_least: float | None = None
    at_most: float | None = None
    low: str = ""
    high: str = ""
    paper: str = ""
    of: str = ""


@dataclasses.dataclass(frozen=True)
class Line:
    """What is drawn of a column.

    Attributes:
        column: the column of the frame. If the frame has the standard error `column_se` too, it is
            drawn as a band over the blocks, or as bars.
        name: the name in the legend, if the figure draws several columns.
        dash: the line style, if it tells columns apart; the markers are open unless it is `"-"`.
        mark: `"line"`; `"dots"` without a line; `"bar"`; `"sum"`, a line of the sum so far; or
            `"map"`, colours over blocks and another column.
        band: the column of the other edge of a band, if there is one.
        over: the other column of a map.
        span: the smallest number that has the darkest colour of a map, at least.
    """

    column: str
    name: str = ""
    dash: str = "-"
    mark: Literal["line", "dots", "bar", "sum", "map"] = "line"
    band: str = ""
    over: str = "position"
    span: float = 0.0


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
        texts: further such columns, of text.
        colour: the column whose values differ in colour.
        dash: the column whose values differ in line style; `""` for the style of each `Line`.
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
    texts: tuple[str, ...] = ()
    colour: str = "split"
    dash: str = ""
    rows: tuple[str, ...] = ("panel",)
    columns: tuple[str, ...] = ()
    wrap: int = 4
    share_x: bool | Literal["col"] = True
    share_y: bool | None = None
    epochs: Literal["", "panels", "colours"] = ""
    sparse: bool = False
    gap: str = "changes the shape"


def over_blocks(
    title: str,
    label: str,
    column: str,
    scale: Literal["linear", "log", "wide", "signed", "share"] = "linear",
    levels: tuple[Level, ...] = (),
    sparse: bool = False,
) -> Drawing:
    """Returns the drawing of a column over the blocks, or over the epochs if there are several."""
    panel = Panel(label, (Line(column),), scale, levels)
    return Drawing(title, (panel,), dash="split", epochs="panels", sparse=sparse)


# The headings of a report, in its order.
STEPS = "What every block adds"
ROUTES = "Stages left early, blocks dropped, reordered, repeated"
IMAGES = "Which images the blocks help"
BOUNDS = "Weights and bounds"
TRAINING = "Over the training"
GROUPS = (STEPS, ROUTES, IMAGES, BOUNDS, TRAINING)


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure of the report and the text around it.

    Attributes:
        name: str, the name of its file.
        column: str, the column of the first frame that the figure shows; if it holds no number,
            there is no figure.
        title: the heading of its section.
        question: what was measured, in one sentence.
        reading: how to read the figure, whatever it shows.
        source: the paper and its figure, or `None`.
        frames: the names of the frames it is drawn from; if one is missing, there is no figure.
            Empty for the frame with the name of the figure.
        drawing: how it is drawn; `None` if its function says so, or another figure of the function.
        draw: the function of `tfresidual.plots` that draws it, if it is not the one of its name.
            Without a function, the first frame is drawn.
        options: arguments of that function besides the frames.
        has_table: whether the first frame is shown as a table with the figure.
        rows: values of columns of the first frame whose rows are drawn.
        renamed: new names of columns of the first frame.
        finding: the function `of_...` of `report/findings.py` that says what was found, without
            `of_`, or `None`.
        group: the heading under which a report has it, one of `GROUPS`.
        decision: what to do after seeing it, in a sentence, for the gallery; empty if another
            figure says so.
        shown_by: the name of a figure that shows the same and more, where a report has that; or
            `None`.
    """

    name: str
    column: str
    title: str
    question: str
    reading: str
    source: str | None = None
    frames: tuple[str, ...] = ()
    drawing: Drawing | None = None
    draw: str = ""
    options: dict[str, Any] = dataclasses.field(default_factory=dict)
    has_table: bool = False
    rows: dict[str, str] = dataclasses.field(default_factory=dict)
    renamed: dict[str, str] = dataclasses.field(default_factory=dict)
    finding: str | None = None
    group: str = STEPS
    decision: str = ""
    shown_by: str | None = None


@dataclasses.dataclass(frozen=True)
class Study:
    """How a study runs a probe.

    Attributes:
        splits: the names of the splits whose images are probed.
        images: dict of the largest numbers of images by split, of others all that a study probes.
        changes: dict of the fields of `ProbeOptions` that differ from the defaults.
        renamed: dict from the names of the frames of the probe to those in the study.
        needs: what the network must have beyond what the probe needs, see `Probe`.
    """

    splits: tuple[str, ...] = ("train", "test")
    images: dict[str, int] = dataclasses.field(default_factory=dict)
    changes: dict[str, Any] = dataclasses.field(default_factory=dict)
    renamed: dict[str, str] = dataclasses.field(default_factory=dict)
    needs: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Probe:
    """A probe.

    Attributes:
        name: str, the name of its function.
        frames: the columns that each of its frames has in any version of the package, by the name
            of the frame. If there are several frames, or the function is not called in the usual
            way, the module has a function `frames(chain, data, options, progress)`.
        takes: the fields of `ProbeOptions` that the function is given.
        reads: what it reads of the data: `"labels"`, `"images"` alone, or `""` for nothing.
        needs: what a network must have: `"classes"` to predict, a last block of a stage for
            `"repetition"`, blocks that are `"movable"`, `"kernels"`, `"heads"`,
            `"bounds"`.
        columns: the metrics by name.
        published: the columns that callbacks publish, by name, and for which blocks: `"all"`,
            `"keeping"` the shape of the state, those after which a stage can be left, `"exits"`,
            either with `"last "` for the last stage alone, or a function of the module that returns
            the blocks of a chain.
        prefix: what the names in the logs begin with.
        figures: the `Figure`s of the report, in its order.
        studies: `Study`s, all of which a study of one network runs.
        measured_by: str, the probe whose frames include those of this one; when all probes are
            run, only that one is run. `""` if there is no such probe.
        by_default: whether the probe is run when none is named; `False` if it takes much longer
            than the others.
        fits: whether it fits something to the images of the split `"train"`, which it then needs
            beside others.
        module: the file of its function in `tfresidual/probes`, if that does not have its name.
    """

    name: str
    frames: dict[str, tuple[str, ...]]
    takes: tuple[str, ...] = ()
    reads: str = "labels"
    needs: tuple[str, ...] = ()
    columns: dict[str, Column] = dataclasses.field(default_factory=dict)
    published: dict[str, str] = dataclasses.field(default_factory=dict)
    prefix: str = ""
    figures: tuple[Figure, ...] = ()
    studies: tuple[Study, ...] = ()
    measured_by: str = ""
    by_default: bool = True
    fits: bool = False
    module: str = ""
