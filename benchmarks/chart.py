"""The chart of training step, inference and probes beside their peers, of rows of benchmarks."""

import pathlib

from matplotlib.figure import Figure

PATH = pathlib.Path(__file__).parents[1] / "docs" / "images" / "benchmarks.png"
NAMES = {
    "tfresidual": "#0072b2",
    "stock Keras": "#e69f00",
    "PyTorch": "#999999",
    "torch.compile": "#555555",
}
KINDS = ("training step", "inference")
# What is measured with tfresidual, and not in the two frameworks alone.
OURS = "tfresidual"
# How the settings of by_hand.py end that leave the defaults as they are.
DEFAULTS = ("512 images", "sequences")


def draw(rows, by_hand, path=PATH):
    """Writes the chart: ratios, their range, and speeds or seconds as texts.

    Args:
        rows: rows of training_step.py.
        by_hand: rows of by_hand.py.
        path: where it is written.
    """
    speeds, shares = {}, {}
    for row in rows:
        kind, _, name = row.what.partition(", ")
        name, _, is_ratio = name.partition(" / ")
        if is_ratio and row.ratio is not None:
            shares[kind, row.setting, name] = [
                1 / ratio for ratio in (row.ratio, row.highest, row.lowest)
            ]
        elif row.speed is not None:
            speeds.setdefault(kind, {}).setdefault(row.setting, {})[name] = row.speed
    shown = [row for row in by_hand if row.what.endswith(OURS) and row.setting.endswith(DEFAULTS)]
    figure = Figure(figsize=(10, 4.2 + 0.25 * len(shown)), layout="constrained")
    above, below = figure.subfigures(2, height_ratios=(4.2, 0.6 + 0.25 * len(shown)))
    _draw_by_hand(below.subplots(), shown)
    for axes, kind in zip(above.subplots(1, 2, sharey=True), KINDS, strict=True):
        of_kind = speeds[kind]
        for place, (setting, of_setting) in enumerate(of_kind.items()):
            for index, (name, speed) in enumerate(of_setting.items()):
                at = place + 0.2 * (index - 1.5)
                share, low, high = shares.get((kind, setting, name), (1, 1, 1))
                axes.barh(at, share, 0.18, color=NAMES[name], label=name)
                axes.hlines(at, low, high, color="black", linewidth=1)
                axes.text(high + 0.01, at, f"{speed:,.0f}", va="center", fontsize=8)
        _finish(axes, kind, "images per second at the bars")
    axes.set_yticks(range(len(of_kind)), [setting.replace(", ", "\n") for setting in of_kind])
    axes.invert_yaxis()
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(once.values(), once, loc="outside upper right", ncols=4, frameon=False)
    figure.savefig(path, dpi=110)


def _draw_by_hand(axes, rows):
    for place, row in enumerate(rows):
        share, low, high = (1 / ratio for ratio in (row.ratio, row.highest, row.lowest))
        axes.barh(place, share, 0.7, color=NAMES["PyTorch"])
        axes.hlines(place, low, high, color="black", linewidth=1)
        text = f"{row.seconds:.3g} / {row.compared:.3g} s"
        axes.text(max(high, 1) + 0.01, place, text, va="center", fontsize=8)
    labels = [f"{row.what.partition(', by hand')[0]}: {row.setting}" for row in rows]
    axes.set_yticks(range(len(rows)), labels, fontsize=9)
    axes.invert_yaxis()
    _finish(axes, "probes by hand, in PyTorch", "seconds of both at the bars")


def _finish(axes, title, at_bars):
    axes.axvline(1, color="black", linewidth=0.8, zorder=0)
    axes.set_title(title, loc="left", fontsize=11)
    axes.set_xlabel(f"speed over that of tfresidual; {at_bars}", fontsize=9)
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
