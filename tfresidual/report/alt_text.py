"""Alternative text for figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tfresidual.probes.convergence_indices import MEAN
from tfresidual.probes.perturbation import ALL_STAGES
from tfresidual.report.findings import of_test
from tfresidual.report.tables import number_text

if TYPE_CHECKING:
    from tfresidual.definitions.types import Figure, Frame

# Columns that say what a row of a frame is about, from the whole to the part.
PLACES = ("trial", "basis", "along", "group", "stage", "block", "repetition", "swaps", "role")


def alt_text(section):
    """Returns what the figure of a section shows: its title, its axes and its main numbers."""
    drawn = axes_text(section.figure)
    sentences = (f"Figure: {section.title}.", drawn and f"Drawn: {drawn}.", section.numbers)
    return " ".join(filter(None, sentences))


def axes_text(figure: Figure) -> str:
    """Returns what the axes of a figure are, such as `"error over block; error over epoch"`.

    Args:
        figure: a `matplotlib.figure.Figure`.
    """
    names = []
    for axes in figure.axes:
        across, up = axes.get_xlabel(), axes.get_ylabel()
        if across and up:
            names.append(f"{up} over {across}")
        elif up:
            names.append(up)
    names.append(" over ".join(filter(None, (figure.get_supylabel(), figure.get_supxlabel()))))
    return "; ".join(dict.fromkeys(" ".join(name.split()) for name in names if name))


def numbers_text(frame: Frame, column: str) -> str | None:
    """Returns a sentence on the numbers in a column: of how many blocks, the range, and where.

    >>> frame = pd.DataFrame({"stage": [1, 1], "block": [0, 1], "l2_ratio": [0.5, 0.25]})
    >>> numbers_text(frame, "l2_ratio")
    'l2 ratio of 2 blocks in stage 1: from 0.2500 (stage 1, block 1) to 0.5000 (stage 1, block 0).'

    Args:
        frame: a frame of a probe, or a log. Of several splits, those of the test images are
            described; of several epochs with blocks, the last.
        column: the column that a figure shows.

    Returns:
        A sentence, or `None` if the column holds no finite number.
    """
    rows, images = of_test(frame)
    rows = rows[np.isfinite(rows[column].astype(float))]
    if "stage" in rows:
        rows = rows[~rows["stage"].isin((ALL_STAGES, MEAN))]
    if rows.empty:
        return None
    name = column.replace("_", " ")
    if "split" in rows:
        name = f"{images}, {name}"
    if "epoch" in rows:
        last = rows["epoch"].max()
        if "stage" not in rows:
            first, end = (number_text(float(rows[column].iloc[place])) for place in (0, -1))
            epochs = f"epoch {rows['epoch'].iloc[0] + 1}", f"epoch {last + 1}"
            return f"{name} from {first} in {epochs[0]} to {end} in {epochs[1]}."
        rows = rows[rows["epoch"] == last]
        name += f" in epoch {last + 1}"
    records = rows.to_dict("records")
    low, high = records[rows[column].argmin()], records[rows[column].argmax()]
    return f"{name}{_of_blocks(rows)}: from {_at(low, column)} to {_at(high, column)}."


def _of_blocks(rows):
    """Returns the blocks and stages of some rows in words."""
    if "stage" not in rows:
        return ""
    stages = [f"{stage}" for stage in dict.fromkeys(rows["stage"])]
    in_stages = f"stage{'s' * (len(stages) > 1)} {', '.join(stages)}"
    # Along repetitions, the index goes on past the last block.
    if "block" not in rows or "along" in rows:
        return f" of {in_stages}"
    count = len(rows[["stage", "block"]].drop_duplicates())
    return f" of {count} block{'s' * (count > 1)} in {in_stages}"


def _at(row, column):
    """Returns a number and its place in words."""
    where = places_text(row)
    return number_text(float(row[column])) + (f" ({where})" if where else "")


def places_text(row):
    """Returns what a row of a frame, a dict, is about, such as "stage 1, block 0"."""
    return ", ".join(f"{name} {row[name]}" for name in PLACES if name in row)
