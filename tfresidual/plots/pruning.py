"""What does it cost to take blocks out of a network?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.definitions.declarations import Drawing, Level, Line, Panel
from tfresidual.plots import engine

if TYPE_CHECKING:
    from tfresidual.definitions.types import Figure, Frame

_DRAWING = Drawing(
    "Blocks taken out",
    (
        Panel(
            "error",
            (Line("error"),),
            scale="share",
            levels=(Level(argument="whole", name="whole network", dash=":"),),
        ),
        Panel("cross-entropy, nats", (Line("cross_entropy"),), scale="wide"),
    ),
    over="blocks_left",
    below="blocks left",
    keys=("blocks_left",),
    texts=("by",),
    colour="by",
    rows=(),
    columns=("panel",),
)


def pruning(frame: Frame) -> Figure:
    """Draws error and cross-entropy over the blocks left, a line for each criterion.

    Args:
        frame: frames of `tfresidual.surgery.plan` for the same network, joined, with the column
            `by`, the criterion of each.

    Raises:
        ValueError: if a column is missing, or the frame has no rows.
    """
    whole = frame["error"].iloc[0] if len(frame) and "error" in frame else None
    return engine.draw(frame, _DRAWING, whole=whole)
