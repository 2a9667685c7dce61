"""How much does a block add to the state, and how large is the gradient that reaches it?

Every function here draws a frame without epochs, or of one epoch, over the blocks of all stages in
a row, with a line per split. A frame of several epochs gets a panel per stage (and split), with a
line per block from blue and thin (lowest) to red and thick (highest). A block without a value
leaves a gap. Positive values that span more than a factor of 30 are drawn on a logarithmic axis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.arguments import check_number
from tfresidual.plots.blocks import draw_block_metric

if TYPE_CHECKING:
    from tfresidual.types import Figure, Frame


def l2_ratio(frame: Frame) -> Figure:
    """Draws the size of every block's output relative to its input.

    The smaller the ratio, the more accurate is a first-order approximation of the block's effect.

    Args:
        frame: Block metrics frame with the columns `stage`, `block` and `l2_ratio`, and optionally
            `split` and `epoch`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing or holds no finite number, or if several rows describe
            the same block, split and epoch.

    Reference:
        Jastrzebski et al., "Residual Connections Encourage Iterative Inference", 2018, figure 2;
        over epochs figure 14.
    """
    return draw_block_metric(
        frame,
        "l2_ratio",
        title="l2 ratio",
        label="size of block output over input\n‖F(h)‖ / ‖h‖",
    )


def gradient_norm(frame: Frame) -> Figure:
    """Draws the norm of the gradient of the loss with respect to every block's input.

    Args:
        frame: Block metrics frame with the columns `stage`, `block` and `gradient_norm`, and
            optionally `split` and `epoch`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing or holds no finite number, or if several rows describe
            the same block, split and epoch.

    Reference:
        Jastrzebski et al., "Residual Connections Encourage Iterative Inference", 2018, figure 8.
    """
    return draw_block_metric(
        frame,
        "gradient_norm",
        title="Gradient norm",
        label="size of loss gradient at the\nblock input ‖∂L/∂h‖",
    )


def perturbation(frame: Frame) -> Figure:
    """Draws how far every block moves the state.

    Args:
        frame: Block metrics frame with the columns `stage`, `block` and `perturbation`, and
            optionally `split` and `epoch`.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing or holds no finite number, or if several rows describe
            the same block, split and epoch.

    Reference:
        Hauser, "On Residual Networks Learning a Perturbation from Identity", 2019, figure 2.
    """
    return draw_block_metric(
        frame,
        "perturbation",
        title="Perturbation",
        label="distance the block moves\nthe state ‖F(h)‖",
    )


def scaled_perturbation(frame: Frame, epsilon: float | None = None) -> Figure:
    """Draws how far every block moves the state, relative to the size of the state.

    Args:
        frame: Block metrics frame with the columns `stage`, `block` and `scaled_perturbation`, and
            optionally `split` and `epoch`.
        epsilon: Largest mean scaled perturbation that meets the stopping rule, drawn as a line; a
            positive number, or `None` for no line.

    Returns:
        A `matplotlib.figure.Figure`.

    Raises:
        ValueError: if a column is missing or holds no finite number, if several rows describe the
            same block, split and epoch, or if `epsilon` is not positive.

    Reference:
        Hauser, "On Residual Networks Learning a Perturbation from Identity", 2019, figure 5.
    """
    check_number("epsilon", epsilon, over=0, or_none=True)
    return draw_block_metric(
        frame,
        "scaled_perturbation",
        title="Scaled perturbation",
        label="distance moved over size of state\n‖F(h)‖ / ‖h‖",
        threshold=None if epsilon is None else (epsilon, f"ε = {epsilon:g}"),
    )
