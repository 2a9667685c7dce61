"""The common style of all figures: colours, font sizes, plain axes.

The style is set on each figure, never in `matplotlib.rcParams`.
"""

from __future__ import annotations

import contextlib
import contextvars
import io
import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Names of runs, splits and metrics are no mathematics, whatever signs they have.
PLAIN = {"parse_math": False}

TITLE_SIZE = 11
LABEL_SIZE = 9.5
SMALL_SIZE = 8.5
# Rows of a legend above the panels.
MOST_LEGEND_ROWS = 4

INK = "#262626"
FAINT_INK = "#6b6b6b"
GRID = "#e3e3e3"
BAND = "#f5f5f5"

# The palette of Okabe and Ito, suitable for readers with any of the common colour deficiencies.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)

# The marks before a right and before a wrong answer.
RIGHT, WRONG = "\N{CHECK MARK}", "\N{BALLOT X}"


class Look(NamedTuple):
    """How a split, run or stage is drawn in every figure."""

    colour: str
    marker: str
    width: float = 1.5


MARKERS = ("o", "s", "^", "D", "v", "P", "X")
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, VERMILION, SKY, INK)
_STAGE_COLOURS = (GREEN, ORANGE, PURPLE, SKY, INK, FAINT_INK)
# Every pair of a colour and a marker, neighbours differ in both.
_LOOKS = [
    Look(colour, MARKERS[(place + turn) % len(MARKERS)])
    for turn in range(len(MARKERS))
    for place, colour in enumerate(COLOURS)
]
# Names that look the same in all figures.
_KNOWN = {
    "": Look(BLUE, "o"),
    "train": Look(BLUE, "o"),
    "training": Look(BLUE, "o"),
    "validation": Look(GREEN, "^"),
    "test": Look(VERMILION, "s"),
    "borderline": Look(ORANGE, "D"),
    "correct": Look(GREEN, "s"),
    "all": Look(INK, "o"),
    "mean": Look(INK, "o"),
    "all parameters": Look(INK, "", 2.4),
}
_DASHES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)), (0, (8, 3)))
_HATCHES = ("", "////", "....", "xxxx")
# The names on the page for which figures are drawn, in the order of their first appearance.
_page: contextvars.ContextVar[tuple[str, ...]] = contextvars.ContextVar("page", default=())

# From blue (lowest block) over a greyish violet to red (highest), dark enough for thin lines.
DEPTH = LinearSegmentedColormap.from_list(
    "tfresidual_depth", ["#1857b6", "#5f83c4", "#9b8cab", "#d0705f", "#b81420"]
)


class _NotebookFigure(Figure):
    """A figure that notebooks show, although `matplotlib.pyplot` does not know it."""

    def _repr_png_(self):
        written = io.BytesIO()
        self.savefig(written, format="png")
        return written.getvalue()


def new_figure(width, height, title):
    """Returns an empty figure with a left-aligned title; width and height are in inches."""
    figure = _NotebookFigure(
        figsize=(width, height), dpi=100, facecolor="white", layout="constrained"
    )
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    set_title(figure, title)
    return figure


def set_title(figure, title):
    """Sets the title of a figure, left-aligned."""
    look = {"fontsize": TITLE_SIZE, "fontweight": "bold", "color": INK}
    figure.suptitle(title, x=0.012, ha="left", **look, **PLAIN)


def clean_axes(axes, grid="both"):
    """Sets a light grid, two spines and readable ticks on axes."""
    axes.set_facecolor("white")
    axes.set_axisbelow(True)
    axes.grid(True, axis=grid, color=GRID, linewidth=0.7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(FAINT_INK)
        axes.spines[side].set_linewidth(0.8)
    axes.tick_params(
        which="both", labelsize=SMALL_SIZE, color=FAINT_INK, labelcolor=INK, length=3, width=0.8
    )


def panel_title(axes, name, pad=4):
    """Writes the title of a panel `pad` points above it."""
    axes.set_title(name, fontsize=SMALL_SIZE, color=FAINT_INK, pad=pad, **PLAIN)


def axis_labels(axes, below=None, beside=None):
    """Labels the horizontal and the vertical axis."""
    if below is not None:
        axes.set_xlabel(below, fontsize=LABEL_SIZE, color=INK, **PLAIN)
    if beside is not None:
        axes.set_ylabel(beside, fontsize=LABEL_SIZE, color=INK, **PLAIN)


def text_above(axes, place, text):
    """Writes a small text above the axes, centred at a place of the horizontal axis."""
    look = {"ha": "center", "va": "bottom", "fontsize": SMALL_SIZE, "color": FAINT_INK}
    axes.text(place, 1.015, text, transform=axes.get_xaxis_transform(), **look)


def no_values(axes):
    """Writes into an empty panel that there are no values to draw."""
    look = {"ha": "center", "va": "center", "fontsize": SMALL_SIZE, "color": FAINT_INK}
    axes.text(0.5, 0.5, "no values", transform=axes.transAxes, **look)


def whole_numbers(axis, bins=10):
    """Restricts the ticks of an axis to whole numbers."""
    axis.set_major_locator(MaxNLocator(nbins=bins, integer=True, min_n_ticks=1))


@contextlib.contextmanager
def page(names: Iterable[str]) -> Iterator[None]:
    """Gives names, such as those of runs, one look in all figures drawn inside."""
    token = _page.set(tuple(names))
    try:
        yield
    finally:
        _page.reset(token)


def looks(names):
    """Returns a dictionary from the name of a split or run to its `Look`."""
    on_page = [*dict.fromkeys([*_page.get(), *names])]
    known = {name: _KNOWN[name] for name in on_page if name in _KNOWN}
    colours = {look.colour for look in known.values()}
    spare = itertools.cycle([look for look in _LOOKS if look.colour not in colours] or _LOOKS)
    found = {name: known.get(name) or next(spare) for name in on_page}
    return {name: found[name] for name in names}


def stage_looks(stages):
    """Returns a dictionary from stage to `Look`; 42 stages differ."""
    return {
        stage: Look(_STAGE_COLOURS[place % len(_STAGE_COLOURS)], MARKERS[place % len(MARKERS)], 1.3)
        for place, stage in enumerate(stages)
    }


def line_looks(dashes):
    """Returns a dictionary from the line style of a column to its `Look`."""
    return dict(zip(dict.fromkeys(dashes), _LOOKS, strict=False))


def dashes(names):
    """Returns a dictionary from name to line style: the first solid, the others dashed."""
    return {name: _DASHES[place % len(_DASHES)] for place, name in enumerate(names)}


def hatches(names):
    """Returns a dictionary from name to the hatching of its bars: the first has none."""
    return {name: _HATCHES[place % len(_HATCHES)] for place, name in enumerate(names)}


def depth_colours(count):
    """Returns `count` colours, from blue for the lowest block to red for the highest."""
    return [DEPTH(place) for place in (np.linspace(0.0, 1.0, count) if count > 1 else [0.0])]


def depth_looks(count):
    """Returns a dictionary from block to `Look`; widths show the order, too."""
    widths = np.linspace(0.8, 2.0, count)
    return {i: Look(colour, "", widths[i]) for i, colour in enumerate(depth_colours(count))}


def log_scale_helps(values, span=30.0):
    """Returns whether values are positive and differ by more than a factor `span`."""
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values)]
    return bool(values.min() > 0 and values.max() / values.min() > span)


def _set_scale(axes, kind, **settings):
    axes.set_yscale(kind, **settings)
    if axes.get_autoscaley_on():
        # The limits were those of the linear axis.
        axes.autoscale_view(scalex=False)


def log_scale(axes):
    """Makes the value axis logarithmic, with ticks at 1, 2 and 5 if there is room for them."""
    _set_scale(axes, "log")
    low, high = axes.get_ylim()
    if high / low < 1e3:
        log_ticks(axes.yaxis)


def log_ticks(axis):
    """Sets the ticks of a logarithmic axis to 1, 2 and 5 times powers of ten."""
    axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter("{x:g}")
    axis.set_minor_formatter(NullFormatter())


def wide_scale(axes, values):
    """Makes the value axis logarithmic if that helps, down to any zero; returns whether it is."""
    values = np.asarray(values, dtype=float)
    positive = values[np.isfinite(values) & (values > 0)]
    if len(positive) == 0 or np.nanmin(values) < 0 or not log_scale_helps(positive):
        return False
    if np.nanmin(values) > 0:
        log_scale(axes)
        return True
    # Zero must be on the axis; its linear part ends at a power of ten below the smallest value.
    threshold = max(10 ** np.floor(np.log10(positive.min())), positive.max() * 1e-9)
    _set_scale(axes, "symlog", linthresh=threshold, linscale=0.5)
    axes.set_ylim(bottom=-0.15 * threshold)
    return True


def signed_scale(axes, values, span=30.0):
    """Makes the axis logarithmic on both sides of 0 if one value dwarfs most; returns whether."""
    sizes = np.abs(np.asarray(values, dtype=float))
    sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
    if not len(sizes) or sizes.max() <= span * np.median(sizes):
        return False
    _set_scale(axes, "symlog", linthresh=10 ** np.floor(np.log10(np.median(sizes))))
    return True


def index_axis(axes, values):
    """Limits the value axis to indices, which are mostly from 0 to 1."""
    low, high = np.nanmin(np.append(values, 0)), np.nanmax(np.append(values, 1))
    pad = 0.05 * (high - low)
    axes.set_ylim(low - pad, high + pad)


def percent_axis(axes):
    """Writes the shares on the value axis in percent, and limits the axis to shares of 1."""
    low, high = axes.get_ylim()
    pad = 0.02 * (high - low)
    axes.set_ylim(max(low, -pad), min(high, 1 + pad))
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.6g}%")


def epoch_axis(axes, epochs, bins=10):
    """Scales the horizontal axis to the epochs, counted from 1, with ticks at whole numbers."""
    first, last = float(np.min(epochs)), float(np.max(epochs))
    pad = 0.02 * (last - first)
    axes.set_xlim(first - min(max(pad, 0.2), 0.5), last + max(pad, 0.2))
    whole_numbers(axes.xaxis, bins)


def short_number(value):
    """Returns a number as text with three digits, or all digits before the point if more."""
    if not np.isfinite(value):
        return ""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


def line_handle(label, **look):
    """Returns an entry for the legend that represents several drawn lines or dots."""
    return Line2D([], [], label=label, **{"color": FAINT_INK, "linewidth": 1.2, **look})


def legend(figure, handles):
    """Puts a legend above the panels, or beside them if it has more than `MOST_LEGEND_ROWS`."""
    widths = [0.47 + 0.06 * len(handle.get_label()) for handle in handles]
    room = figure.get_figwidth() - 0.4 - 0.09 * len(figure.get_suptitle())
    columns = len(handles) if sum(widths) <= room else max(1, int(room / max(widths)))
    rows = -(-len(handles) // columns)
    is_beside = rows > MOST_LEGEND_ROWS
    labels = [handle.get_label() for handle in handles]
    legend = figure.legend(
        handles=handles,
        # matplotlib leaves out what begins with an underscore.
        labels=[f" {label}" for label in labels],
        loc="outside right center" if is_beside else "outside upper right",
        ncols=1 if is_beside else -(-len(handles) // rows),
        frameon=False,
        fontsize=SMALL_SIZE,
        labelcolor=INK,
        handlelength=1.8,
        columnspacing=1.4,
        borderaxespad=0.2,
    )
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set(text=label, **PLAIN)
