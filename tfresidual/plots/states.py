"""Figures of the states before and after the blocks.

Each function draws a frame of means with the columns `stage`, `block` (-1 for the state before the
first block of a stage), those that it names, and optionally `split`. States without a value are
left out. All raise a `ValueError` if a column is missing, none of the values is a finite number, or
several rows describe the same state and split.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.plots import frames
from tfresidual.plots.drawings import DRAWINGS
from tfresidual.plots.engine import draw

if TYPE_CHECKING:
    from tfresidual.types import Figure, Frame


def lens(frame: Frame) -> Figure:
    """Draws what the head predicts from the state after every block.

    The panels show the mean cross-entropy (with the entropy of the prediction, dashed), the mean
    divergence of the network's prediction from it, and the mean rank of the label. An axis is
    logarithmic if its values differ much.

    Args:
        frame: Frame of `tfresidual.probes.lens` with the columns `cross_entropy`, `entropy`, `kl`
            and `rank`; see `tfresidual.plots.states`.
    """
    return draw(frame, DRAWINGS["lens"])


def attribution(frame: Frame) -> Figure:
    """Draws what every block adds to the logit, and how these parts add up to it.

    The upper panel has a bar for the first state, for every block and for the head; the lower one
    shows the sum of the parts so far, which ends at the logit.

    Args:
        frame: Frame of `tfresidual.probes.attribution` with the columns `part` and `attribution`;
            see `tfresidual.plots.states`.
    """
    frames.require_columns(frame, ("part",))
    return draw(frame, DRAWINGS["attribution"])


def patching(frame: Frame) -> Figure:
    """Draws what the state of one run does in another, block by block.

    A line shows the effect of the state after every block: 0 if it changes nothing, 1 if it brings
    the logit of the other run with it. If the frame has the column `position`, a panel per split
    shows the effect of every position at every block by colour instead, white for 0; a position
    without a value is left white, too.

    Args:
        frame: Frame of `tfresidual.probes.patching` with the column `effect`, and optionally
            `position`; see `tfresidual.plots.states`.
    """
    has_positions = "position" in getattr(frame, "columns", ())
    return draw(frame, DRAWINGS["patching of positions" if has_positions else "patching"])
