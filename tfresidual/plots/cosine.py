"""Does a block move the state against the gradient of the loss?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.plots.blocks import draw_block_metric

if TYPE_CHECKING:
    from tfresidual.types import Figure, Frame


def cosine_loss(frame: Frame) -> Figure:
    """Draws the cosine between every block's output and the gradient of the loss.

    Below zero, a block moves the state in a direction that lowers the loss. A frame without epochs,
    or of one epoch, is drawn over the blocks of all stages in a row, with a line per split. A frame
    of several epochs gets a panel per stage (and split) over the epochs, with a line per block from
    blue and thin (lowest) to red and thick (highest). A block without a value leaves a gap.

    Args:
        frame: Block metrics frame with the columns `stage`, `block` and `cosine_loss`, and
            optionally `split` and `epoch`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing or holds no finite number, or if several rows describe
            the same block, split and epoch.

    Reference:
        Jastrzebski et al., "Residual Connections Encourage Iterative Inference", 2018, figure 4.
    """
    return draw_block_metric(
        frame,
        "cosine_loss",
        title="Cosine loss",
        label="cosine of block output F(h)\nand loss gradient ∂L/∂h",
        zero_line=True,
    )


def readout_cosine_loss(frame: Frame) -> Figure:
    """Draws the cosine between a block's output and the gradient of the head's loss on its input.

    The loss is that of the head applied directly to the block's input, which is possible only in
    the last stage. Several epochs give a line per block, as in the paper; see `cosine_loss`.

    Args:
        frame: Block metrics frame with the columns `stage`, `block` and `readout_cosine_loss`, and
            optionally `split` and `epoch`. Stages without any value are left out.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing or holds no finite number, or if several rows describe
            the same block, split and epoch.

    Reference:
        Jastrzebski et al., "Residual Connections Encourage Iterative Inference", 2018, figure 13.
    """
    return draw_block_metric(
        frame,
        "readout_cosine_loss",
        title="Cosine loss, read-out form",
        label="cosine of block output F(h) and\ngradient of the read-out loss",
        zero_line=True,
        sparse=True,
    )
