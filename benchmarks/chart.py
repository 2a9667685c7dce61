"""The chart of the training step and inference beside their peers, of rows of training_step.py."""

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


def draw(rows, path=PATH):
    """Writes the chart of rows of training_step.py: ratios, their range, and speeds as texts."""
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
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    for axes, kind in zip(figure.subplots(1, 2, sharey=True), KINDS, strict=True):
        of_kind = speeds[kind]
        for place, (setting, of_setting) in enumerate(of_kind.items()):
            for index, (name, speed) in enumerate(of_setting.items()):
                at = place + 0.2 * (index - 1.5)
                share, low, high = shares.get((kind, setting, name), (1, 1, 1))
                axes.barh(at, share, 0.18, color=NAMES[name], label=name)
                axes.hlines(at, low, high, color="black", linewidth=1)
                axes.text(high + 0.01, at, f"{speed:,.0f}", va="center", fontsize=8)
        axes.axvline(1, color="black", linewidth=0.8, zorder=0)
        axes.set_title(kind, loc="left", fontsize=11)
        axes.set_xlabel("speed over that of tfresidual; images per second at the bars", fontsize=9)
        axes.set_xlim(left=0)
        axes.spines[["top", "right"]].set_visible(False)
    axes.set_yticks(range(len(of_kind)), [setting.replace(", ", "\n") for setting in of_kind])
    axes.invert_yaxis()
    handles, labels = axes.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    figure.legend(once.values(), once, loc="outside upper right", ncols=4, frameon=False)
    figure.savefig(path, dpi=110)
