"""What all figures share: colours, type sizes, axes without ornament.

The settings are made on each figure, never in `matplotlib.rcParams`.
"""

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

TITLE_SIZE = 11
LABEL_SIZE = 9.5
SMALL_SIZE = 8.5

# Panels of stages beside each other, before they wrap.
MOST_COLUMNS = 4

INK = "#262626"
FAINT_INK = "#6b6b6b"
GRID = "#e3e3e3"
BAND = "#f5f5f5"

# Okabe and Ito's palette, which readers with any of the usual colour deficiencies can tell apart.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
)

# What stands before a right and before a wrong answer.
RIGHT, WRONG = "\N{CHECK MARK}", "\N{BALLOT X}"

# Fixed splits keep their colour and marker from figure to figure; the rest take what is left.
SPLIT_LOOK = {
    "": (BLUE, "o"),
    "train": (BLUE, "o"),
    "validation": (GREEN, "^"),
    "test": (VERMILION, "s"),
}
_SPARE_LOOKS = ((PURPLE, "D"), (ORANGE, "v"), (SKY, "P"), (FAINT_INK, "X"))
_SPLIT_HATCHES = ("", "////", "....", "xxxx")
_SPLIT_LINES = ("-", (0, (4, 2)), (0, (1, 1.5)), (0, (5, 1.5, 1, 1.5)))

# None of them means a split. Six colours and seven markers: 42 stages look different.
_STAGE_COLOURS = (GREEN, ORANGE, PURPLE, SKY, INK, FAINT_INK)
_STAGE_MARKERS = ("o", "s", "^", "D", "v", "P", "X")

# Blue (lowest block) to red (highest) by way of a grey violet, dark enough for thin lines.
DEPTH = LinearSegmentedColormap.from_list(
    "tfresidual_depth", ["#1857b6", "#5f83c4", "#9b8cab", "#d0705f", "#b81420"]
)


def new_figure(width, height, title):
    """Return an empty figure with a title at its left; sizes in inches."""
    figure = Figure(figsize=(width, height), dpi=100, facecolor="white", layout="constrained")
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    figure.suptitle(title, x=0.012, ha="left", fontsize=TITLE_SIZE, fontweight="bold", color=INK)
    return figure


def clean_axes(axes, grid="both"):
    """Give axes a light grid, two spines and readable ticks."""
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


def panel_title(axes, name, split=""):
    """Write what a panel shows above it, with the split if there is one."""
    name = f"{name}, {split}" if split else name
    axes.set_title(name, fontsize=SMALL_SIZE, color=FAINT_INK, pad=4)


def axis_labels(axes, below=None, beside=None):
    """Label the horizontal and the vertical axis."""
    if below is not None:
        axes.set_xlabel(below, fontsize=LABEL_SIZE, color=INK)
    if beside is not None:
        axes.set_ylabel(beside, fontsize=LABEL_SIZE, color=INK)


def no_values(axes):
    """Say in an empty panel that there is nothing to draw."""
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
    """Put the ticks of an axis on whole numbers only."""
    axis.set_major_locator(MaxNLocator(nbins=bins, integer=True, min_n_ticks=1))


def split_looks(splits):
    """Return a dictionary from split to (colour, marker)."""
    spare = iter(_SPARE_LOOKS * (1 + len(splits) // len(_SPARE_LOOKS)))
    return {split: SPLIT_LOOK.get(split) or next(spare) for split in splits}


def split_lines(splits):
    """Return a dictionary from split to line style: the first solid, the others broken."""
    return {split: _SPLIT_LINES[place % len(_SPLIT_LINES)] for place, split in enumerate(splits)}


def split_hatches(splits):
    """Return a dictionary from split to the hatching of its bars: the first has none."""
    hatches = _SPLIT_HATCHES
    return {split: hatches[place % len(hatches)] for place, split in enumerate(splits)}


def stage_looks(stages):
    """Return a dictionary from stage to (colour, marker)."""
    return {
        stage: (
            _STAGE_COLOURS[place % len(_STAGE_COLOURS)],
            _STAGE_MARKERS[place % len(_STAGE_MARKERS)],
        )
        for place, stage in enumerate(stages)
    }


def depth_colours(count):
    """Return `count` colours from blue, the lowest block, to red, the highest."""
    return [DEPTH(place) for place in (np.linspace(0.0, 1.0, count) if count > 1 else [0.0])]


def depth_widths(count):
    """Return `count` widths of lines, from the lowest block's to the highest's.

    They tell the order of the blocks where colours do not.
    """
    return np.linspace(0.8, 2.0, count)


def log_scale_helps(values, span=30.0):
    """Tell whether positive values spread so far that a linear axis would hide the small ones."""
    values = np.asarray(values, dtype=float)
    values = values[np.isfinite(values)]
    return bool(values.min() > 0 and values.max() / values.min() > span)


def log_scale(axes):
    """Make the value axis logarithmic, with ticks at 1, 2 and 5 where there is room for them."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    if high / low < 1e3:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(NullFormatter())


def wide_scale(axes, values):
    """Make the value axis logarithmic where `log_scale_helps`, with a linear part down to zero.

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
    # Zero needs a place; the linear part ends at a power of ten under the smallest value.
    threshold = max(10 ** np.floor(np.log10(positive.min())), positive.max() * 1e-9)
    axes.set_yscale("symlog", linthresh=threshold, linscale=0.5)
    axes.set_ylim(bottom=-0.15 * threshold)
    return True


def percent_axis(axes):
    """Write the shares on the value axis in percent, and end it where shares end."""
    low, high = axes.get_ylim()
    pad = 0.02 * (high - low)
    axes.set_ylim(max(low, -pad), min(high, 1 + pad))
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.6g}%")


def epoch_axis(axes, epochs, bins=10):
    """Let the horizontal axis run over the epochs, counted from 1, with whole numbers."""
    first, last = float(np.min(epochs)), float(np.max(epochs))
    pad = 0.02 * (last - first)
    axes.set_xlim(first - min(max(pad, 0.2), 0.5), last + max(pad, 0.2))
    whole_numbers(axes.xaxis, bins)


def short_number(value):
    """Write a number with three digits, or all digits before the point where there are more."""
    if not np.isfinite(value):
        return ""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


def line_handle(label, **look):
    """Return an entry for the legend that stands for several drawn lines or dots."""
    return Line2D([], [], label=label, **{"color": FAINT_INK, "linewidth": 1.2, **look})


def stage_handles(looks):
    """Return an entry for the legend for every stage of `stage_looks`."""
    return [
        line_handle(f"stage {stage}", color=colour, marker=marker, markersize=4.5)
        for stage, (colour, marker) in looks.items()
    ]


def legend(figure, handles):
    """Put a legend above the panels, at the right, where no data can lie under it.

    Where one row is too narrow for it, it takes several, filled column by column.
    """
    widths = [0.47 + 0.06 * len(handle.get_label()) for handle in handles]
    room = figure.get_figwidth() - 0.4 - 0.09 * len(figure.get_suptitle())
    columns = len(handles) if sum(widths) <= room else max(1, int(room / max(widths)))
    rows = -(-len(handles) // columns)
    figure.legend(
        handles=handles,
        loc="outside upper right",
        ncols=-(-len(handles) // rows),
        frameon=False,
        fontsize=SMALL_SIZE,
        labelcolor=INK,
        handlelength=1.8,
        columnspacing=1.4,
        borderaxespad=0.2,
    )
