"""What follows for every block: whether it can go, with the uncertainty of that."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pandas as pd

from tfresidual.definitions.averages import STANDARD_ERRORS
from tfresidual.report import findings
from tfresidual.report.section import Section

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tfresidual.definitions.types import Frame, StrPath

# The rise of the error up to which a block can go.
TOLERATED = 0.01
CAN_GO, NEEDED, UNDECIDED, STAYS = "can go", "needed", "undecided", "changes the shape"
# With no image in n on which two networks differ, the share of those on which they do is below 3/n
# with 95 %.
OF_NONE = 3.0


def block_conclusions(drop_blocks: Frame, images: int, is_better: bool = True) -> Frame:
    """Returns whether each block of a network can be taken out, one at a time.

    Args:
        drop_blocks: frame of `tfresidual.probes.drop_blocks`, of one split.
        images: int, the number of images it was measured on.
        is_better: whether the error of the whole network is below chance.

    Returns:
        A `pandas.DataFrame` with the columns `stage`, `block`, `conclusion` and `costs`, the rise
        of the error in points with two standard errors. A block `"can go"` if the rise is below 1
        point by more than that, and is `"needed"` if it is above 1 point by more than that; it is
        `"undecided"` otherwise, and where the network is no better than chance.
    """
    rows = []
    for row in drop_blocks.itertuples():
        reach = max(STANDARD_ERRORS * row.error_rise_se, OF_NONE / images)
        found = UNDECIDED
        if math.isnan(row.error):
            found = STAYS
        elif is_better and row.error_rise + reach < TOLERATED:
            found = CAN_GO
        elif is_better and row.error_rise - reach > TOLERATED:
            found = NEEDED
        costs = "" if found == STAYS else in_points(row.error_rise, reach)
        rows.append((row.stage, row.block, found, costs))
    return pd.DataFrame(rows, columns=["stage", "block", "conclusion", "costs"])


def in_points(rise: float, reach: float) -> str:
    """Returns a rise of the error and the reach of its uncertainty as text, in points."""
    return f"{100 * rise:+.1f} \N{PLUS-MINUS SIGN} {100 * reach:.1f}"


def conclusions_of(frames: Mapping[str, Frame]) -> Frame | None:
    """Returns `block_conclusions` of the frames of a study, `None` if they do not say."""
    if not {"drop_blocks", "borderline", "convergence_indices"} <= set(frames):
        return None
    rows, _ = findings.of_test(frames["drop_blocks"])
    images, is_better = findings.count_images(frames), findings.errs_less_than_chance(frames)
    return block_conclusions(rows, images, is_better)


def blocks_section(
    frames: Mapping[str, Frame], model: StrPath, images: str | None = None
) -> Section | None:
    """Returns the section with what follows for every block, `None` if frames do not say.

    Args:
        frames: see `tfresidual.plots.declared.study_figures`.
        model: the path of the network.
        images: what it was measured on.
    """
    found = conclusions_of(frames)
    if found is None:
        return None
    going = found[found["conclusion"] == CAN_GO]
    places = [*zip(going["stage"].tolist(), going["block"].tolist(), strict=True)]
    counts = found["conclusion"].value_counts()
    text = (
        f"Of {len(found) - counts.get(STAYS, 0)} blocks that keep the shape of the state, "
        f"{len(going)} can go, one at a time; {counts.get(NEEDED, 0)} are needed."
    )
    if not findings.errs_less_than_chance(frames):
        text = "The network is no better than chance: nothing can be said of its blocks."
    elif places:
        text += (
            f" The network without the first of them: surgery.without_blocks(tfresidual.chain("
            f"{str(model)!r}), [{places[0]}]). As many as cost a point together: "
            f"tfresidual prune --model {model} --most-error 0.01."
        )
    return Section(
        "Blocks that can go",
        "What does the network lose without one of its blocks?",
        frame=found,
        reading="Costs are the rise of the error without this block alone, in points, with two "
        "standard errors over the same images. A block can go if that is certainly below one "
        "point, and is needed if it is certainly above. Two blocks may cost nothing one by one, "
        "and much together.",
        images=images,
        finding=text,
    )
