"""The figures of the probes that several networks have in common, all networks in each of them."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pandas as pd

from tfresidual.plots import style
from tfresidual.plots.declared import FIGURES, draw, frames_of, parts_of
from tfresidual.probes.convergence_indices import MEAN
from tfresidual.probes.perturbation import ALL_STAGES
from tfresidual.report.section import Section

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tfresidual.definitions.types import Frame

MOST_ROWS = 10
# Columns that say what a row of a frame is about, from the whole to the part.
PLACES = (
    *("trial", "basis", "along", "group", "stage", "block", "repetition", "swaps", "role"),
    *("position", "part"),
)
# The columns that an option has an effect on.
_AFFECTED = {
    "times": ("repetition", "along", "divergence_index"),
    "scale": ("repetition", "along"),
    "chance": ("chance",),
    "epsilon": ("depth_asked_for", "scaled_perturbation"),
    "seed": ("swaps",),
    "first_block": ("role",),
}


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a probe measured on one network.

    Attributes:
        frame: the rows that are compared, without a column `split`.
        on: the images in words, such as "2,000 test images of MNIST", `""` if none were read, and
            `None` if it is unknown.
        options: the fields of `ProbeOptions` that it was measured with.
        images: the number of images, `None` if it is unknown.
    """

    frame: Frame
    on: str | None
    options: Mapping[str, Any]
    images: int | None = None


def comparison_sections(
    networks: Mapping[str, Mapping[str, Measured]], epsilon: float
) -> list[Section]:
    """Returns a section of a report for every figure that can be drawn of all networks.

    Args:
        networks: what was measured by the name of the frame, for each network by its name.
        epsilon: the mean scaled perturbation of the stopping rule.
    """
    names = list(networks)
    common = [frame for frame in networks[names[0]] if all(frame in networks[n] for n in names)]
    # Figures distinguish splits, by colour or by panel: here, these are the networks.
    together = {
        frame: pd.concat(
            [networks[name][frame].frame.assign(split=name) for name in names], ignore_index=True
        )
        for frame in common
    }
    sections = []
    with style.page(names):
        for figure in FIGURES:
            parts = parts_of(figure, together)
            if parts is not None:
                measured = [[networks[name][f] for f in frames_of(figure)] for name in names]
                sections.append(_section(figure, parts, measured, epsilon))
    return sections


def differences(frame: Frame, column: str) -> Frame:
    """Returns the places in which networks differ the most.

    Args:
        frame: rows of several networks, whose names are in the column `split`. Of several epochs,
            the last one of each network is compared.
        column: the column that is compared.

    Returns:
        A `pandas.DataFrame` of at most `MOST_ROWS` rows, the largest difference first. Its columns
        are the place (such as `stage` and `block`), the networks, and the difference: the second
        network minus the first, or of more than two the largest minus the smallest value.
    """
    names = list(dict.fromkeys(frame["split"]))
    keys = [name for name in PLACES if name in frame]
    if "epoch" in frame:
        frame = frame[frame["epoch"] == frame.groupby("split")["epoch"].transform("max")]
    if "stage" in frame:
        frame = frame[~frame["stage"].isin((ALL_STAGES, MEAN))]
    if not keys:
        return pd.DataFrame()
    values = frame.pivot_table(column, keys, "split", sort=False)
    values = values.reindex(columns=names).dropna()
    if len(names) == 2:
        name, difference = f"{names[1]} minus {names[0]}", values[names[1]] - values[names[0]]
    else:
        name, difference = "largest minus smallest", values.max(axis=1) - values.min(axis=1)
    order = difference.abs().sort_values(ascending=False, kind="stable").index
    # A network may be called as a place is, or as the difference.
    columns = [f"{one} (network)" if one in (*keys, name) else one for one in names]
    values.columns = pd.Index(columns)
    values.insert(len(columns), name, difference)
    return values.loc[order].head(MOST_ROWS).reset_index()


def _section(figure, parts, measured, epsilon):
    """Returns the section of one figure; `measured` holds its frames, network by network."""
    names = list(dict.fromkeys(parts[0]["split"]))
    table = differences(parts[0], figure.column)
    on = {frames[0].on for frames in measured}
    return Section(
        figure.title,
        figure.question,
        figure=draw(figure, parts, epsilon),
        frame=table if len(table) else None,
        reading=figure.reading,
        source=figure.source,
        images=on.pop() or None if len(on) == 1 else None,
        caution=_caution(names, measured),
    )


def _caution(names, measured):
    """Returns what makes a comparison unfair, in words, or `None`."""
    found = []
    for frames in zip(*measured, strict=True):
        unknown = [name for name, one in zip(names, frames, strict=True) if one.on is None]
        if unknown:
            were = "was" if len(unknown) == 1 else "were"
            found.append(f"What {' and '.join(unknown)} {were} measured on is not recorded.")
        elif len({one.on for one in frames}) > 1:
            found.append(f"Not the same images: {_each(names, [one.on for one in frames])}.")
        for option, columns in _AFFECTED.items():
            values = [str(one.options.get(option)) for one in frames]
            if len(set(values)) > 1 and any(column in frames[0].frame for column in columns):
                found.append(f"Not the same {option}: {_each(names, values)}.")
    # The frames of a figure mostly have the same images.
    return " ".join(dict.fromkeys(found)) or None


def _each(names, values):
    return "; ".join(f"{value} ({name})" for name, value in zip(names, values, strict=True))
