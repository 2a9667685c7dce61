"""How accurate is the network when blocks are skipped?

Both functions draw a frame without epochs, or of one epoch, over the blocks of all stages in a row,
with a line per split. A frame of several epochs gets a panel per stage (and split), with a line per
block from blue and thin (lowest) to red and thick (highest). A block without a value leaves a gap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.plots import frames
from tfresidual.plots.blocks import draw_block_metric

if TYPE_CHECKING:
    from tfresidual.types import Figure, Frame


def readout(frame: Frame) -> Figure:
    """Draws the accuracy after every block, with the rest of its stage skipped.

    At the last block of a stage, this is the accuracy of the whole network.

    Args:
        frame: Read-out frame with the columns `stage`, `block` and `error`, and optionally `split`
            and `epoch`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing or holds no finite number, or if several rows describe
            the same block, split and epoch.

    Reference:
        Jastrzebski et al., "Residual Connections Encourage Iterative Inference", 2018, figures 5
        and 17.
    """
    frames.require_columns(frame, ("stage", "block", "error"))
    return draw_block_metric(
        frame.assign(accuracy=1 - frames.numbers(frame, "error")),
        "accuracy",
        title="Early read-out",
        label="accuracy with the stage\nended after the block",
        share=True,
    )


def drop_blocks(frame: Frame) -> Figure:
    """Draws the accuracy of the network without one block, for every block.

    A dotted line per split marks the accuracy with no block dropped; with several epochs it is a
    curve over the epochs.

    Args:
        frame: Dropped blocks frame with the columns `stage`, `block`, `error` and
            `unperturbed_error`, and optionally `split` and `epoch`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing or holds no finite number, or if several rows describe
            the same block, split and epoch.

    Reference:
        Jastrzebski et al., "Residual Connections Encourage Iterative Inference", 2018, figures 3
        and 12.
    """
    frames.require_columns(frame, ("stage", "block", "error", "unperturbed_error"))
    return draw_block_metric(
        frame.assign(
            accuracy=1 - frames.numbers(frame, "error"),
            unperturbed_accuracy=1 - frames.numbers(frame, "unperturbed_error"),
        ),
        "accuracy",
        title="Dropped block",
        label="accuracy without the block",
        share=True,
        reference=("unperturbed_accuracy", "no block dropped"),
    )
