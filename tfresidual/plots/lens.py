"""What does the head predict after every block?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.plots import frames, state_axis, style

if TYPE_CHECKING:
    from tfresidual.types import Figure, Frame

_COLUMNS = ("cross_entropy", "entropy", "kl", "rank")


def lens(frame: Frame) -> Figure:
    """Draws what the head predicts from the state after every block.

    The panels show the mean cross-entropy (with the entropy of the prediction, dashed), the mean
    divergence of the network's prediction from it, and the mean rank of the label. An axis
    is logarithmic if its values differ much. Splits differ in colour and marker. States that the
    head cannot take are left out.

    Args:
        frame: frame of `tfresidual.probes.lens` of means, with the columns `stage`, `block`,
            `cross_entropy`, `entropy`, `kl` and `rank`, and optionally `split`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing, none of the values is a finite number, or several rows
            describe the same state and split.
    """
    table = frames.keyed_values(frame, ("stage", "block"), _COLUMNS)
    places = state_axis.places_of(table, _COLUMNS)
    figure = style.new_figure(state_axis.figure_width(places), 6.6, "Lens")
    panels = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 2))
    for axes, label, columns in zip(
        panels,
        ("nats", "KL to final, nats", "rank of the label"),
        (_COLUMNS[:2], _COLUMNS[2:3], _COLUMNS[3:]),
        strict=True,
    ):
        style.clean_axes(axes, grid="y")
        for column, line in zip(columns, ("-", "--"), strict=False):
            state_axis.draw_splits(axes, table, column, places, line)
        if style.wide_scale(axes, table[list(columns)]):
            label += "\n(log scale)"
        style.axis_labels(axes, beside=label)
        if table[list(columns)].isna().all(axis=None):
            style.no_values(axes)
    state_axis.finish(panels, places)
    handles = [
        style.line_handle(name, linestyle=line)
        for name, line in (("cross-entropy", "-"), ("entropy", "--"))
    ]
    style.legend(figure, [*handles, *state_axis.split_handles(table)])
    return figure
