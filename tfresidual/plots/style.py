"""The common style of all figures: colours, font sizes, plain axes.

The style is set on each figure, never in `matplotlib.rcParams`.
"""

import io
import re

import numpy as np
from matplotlib.collections import Collection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

# Names of runs, splits and metrics are no mathematics, whatever signs they have.
PLAIN = {"parse_math": False}
# What matplotlib calls artists without a name.
_UNNAMED = re.compile(r"|_child\d+|_nolegend_")

TITLE_SIZE = 11
LABEL_SIZE = 9.5
SMALL_SIZE = 8.5
# Rows of a legend above the panels.
MOST_LEGEND_ROWS = 4

# Largest number of stages whose panels are in one row.
MOST_COLUMNS = 4

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

# Known splits have the same colour and marker in all figures; other splits take spare ones.
SPLIT_LOOK = {
    "": (BLUE, "o"),
    "train": (BLUE, "o"),
    "validation": (GREEN, "^"),
    "test": (VERMILION, "s"),
}
_SPARE_LOOKS = ((PURPLE, "D"), (ORANGE, "v"), (SKY, "P"), (FAINT_INK, "X"))
_SPLIT_HATCHES = ("", "////", "....", "xxxx")
_SPLIT_LINES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))

# No look of a stage is that of a known split. Six colours and seven markers: 42 different looks.
_STAGE_COLOURS = (GREEN, ORANGE, PURPLE, SKY, INK, FAINT_INK)
_STAGE_MARKERS = ("o", "s", "^", "D", "v", "P", "X")

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


def panel_title(axes, name, split="", pad=4):
    """Writes the title of a panel `pad` points above it, with the split if there is one."""
    name = f"{name}, {split}" if split else name
    axes.set_title(name, fontsize=SMALL_SIZE, color=FAINT_INK, pad=pad, **PLAIN)


def axis_labels(axes, below=None, beside=None):
    """Labels the horizontal and the vertical axis."""
    if below is not None:
        axes.set_xlabel(below, fontsize=LABEL_SIZE, color=INK, **PLAIN)
    if beside is not None:
        axes.set_ylabel(beside, fontsize=LABEL_SIZE, color=INK, **PLAIN)


def no_values(axes):
    """Writes into an empty panel that there are no values to draw."""
    axes.text(
        0.5,
        0.5,
        "no values",
        transform=axes.transAxes,
        ha="center",
        va="center",
        fontsize=SMALL_SIZE,
        color=FAINT_INK,
    )
    axes.tick_params(labelleft=False)


def whole_numbers(axis, bins=10):
    """Restricts the ticks of an axis to whole numbers."""
    axis.set_major_locator(MaxNLocator(nbins=bins, integer=True, min_n_ticks=1))


def split_looks(splits):
    """Returns a dictionary from split to (colour, marker)."""
    spare = iter(_SPARE_LOOKS * (1 + len(splits) // len(_SPARE_LOOKS)))
    return {split: SPLIT_LOOK.get(split) or next(spare) for split in splits}


def split_lines(splits):
    """Returns a dictionary from split to line style: the first solid, the others dashed."""
    return {split: _SPLIT_LINES[place % len(_SPLIT_LINES)] for place, split in enumerate(splits)}


def split_hatches(splits):
    """Returns a dictionary from split to the hatching of its bars: the first has none."""
    hatches = _SPLIT_HATCHES
    return {split: hatches[place % len(hatches)] for place, split in enumerate(splits)}


def stage_looks(stages):
    """Returns a dictionary from stage to (colour, marker)."""
    return {
        stage: (
            _STAGE_COLOURS[place % len(_STAGE_COLOURS)],
            _STAGE_MARKERS[place % len(_STAGE_MARKERS)],
        )
        for place, stage in enumerate(stages)
    }


def depth_colours(count):
    """Returns `count` colours, from blue for the lowest block to red for the highest."""
    return [DEPTH(place) for place in (np.linspace(0.0, 1.0, count) if count > 1 else [0.0])]


def depth_widths(count):
    """Returns `count` line widths, from thin for the lowest block to thick for the highest.

    They show the order of the blocks to readers who cannot see the colours.
    """
    return np.linspace(0.8, 2.0, count)


def log_scale_helps(values, span=30.0):
    """Returns whether values are positive and differ by more than a factor `span`.

    On a linear axis, the small ones would not be visible.
    """
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values)]
    return bool(values.min() > 0 and values.max() / values.min() > span)


def log_scale(axes):
    """Makes the value axis logarithmic, with ticks at 1, 2 and 5 if there is room for them."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high / low < 1e3:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())


def wide_scale(axes, values):
    """Makes the value axis logarithmic if `log_scale_helps`, with a linear part down to any zero.

    Args:
        axes: The axes.
        values: All values on the axis, 0 or more, or NaN.

    Returns:
        Whether the axis is logarithmic now.
    """
    values = np.asarray(values, dtype=float)
    positive = values[np.isfinite(values) & (values > 0)]
    if len(positive) == 0 or not log_scale_helps(positive):
        return False
    if np.nanmin(values) > 0:
        log_scale(axes)
        return True
    # Zero must be on the axis; its linear part ends at a power of ten below the smallest value.
    threshold = max(10 ** np.floor(np.log10(positive.min())), positive.max() * 1e-9)
    axes.set_yscale("symlog", linthresh=threshold, linscale=0.5)
    axes.set_ylim(bottom=-0.15 * threshold)
    return True


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


def stage_handles(looks):
    """Returns one entry for the legend per stage of `stage_looks`."""
    return [
        line_handle(f"stage {stage}", color=colour, marker=marker, markersize=4.5)
        for stage, (colour, marker) in looks.items()
    ]


def legend(figure, handles):
    """Puts a legend above the panels, at the right, where it covers no data.

    If the entries do not fit into one row, they are in several rows, filled column by column. More
    than `MOST_LEGEND_ROWS` would leave no height to the panels: they stand beside them, one below
    the other.
    """
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


def handles_of(axes):
    """Returns what is drawn on axes under a name, for the legend, whatever the name begins with."""
    drawn = [
        artist for artist in axes.get_children() if isinstance(artist, (Line2D, Patch, Collection))
    ]
    return [one for one in (*drawn, *axes.containers) if not _UNNAMED.fullmatch(one.get_label())]
