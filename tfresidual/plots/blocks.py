"""Figures of the blocks, and of the states before and after them.

Each function draws a frame of a probe with the columns `stage` and `block`, those that it names,
and optionally `split`: a line per split over the blocks of all stages in a row. Blocks are named
`stage.block`, or as in the column `name`. A block that changes the shape of the state has no value
and is hatched; an infinite value leaves a gap. Figures of states (`lens`, `attribution` and
`patching`) begin with block -1, the state before the first block of a stage, and leave out states
without a value. A standard error in the frame, such as `cosine_loss_se`, is a band, and a bar at a
block without neighbours to draw a line to. Positive values that differ by more than a factor of 30
are drawn on a logarithmic axis. With a column `epoch` of several epochs, the figures of one metric
have a panel per stage and split over the epochs, with a line per block from blue and thin (lowest)
to red and thick (highest).

All raise a `ValueError` if a column is missing or holds no finite number, or if several rows
describe the same block, split and epoch. II is Jastrzebski et al., "Residual Connections Encourage
Iterative Inference", 2018; PI is Hauser, "On Residual Networks Learning a Perturbation from
Identity", 2019; IC is "Iterative convergent computation is not a useful inductive bias for
ResNets".
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pandas as pd

from tfresidual.definitions.arguments import check_number
from tfresidual.definitions.declarations import Line, Panel
from tfresidual.plots import frames
from tfresidual.plots.engine import DRAWINGS, draw, draw_table, read

if TYPE_CHECKING:
    from tfresidual.definitions.types import Figure, Frame


def cosine_loss(frame: Frame) -> Figure:
    """Draws the cosine between every block's output and the gradient of the loss.

    Below zero, what a block adds points to where the loss falls, in the mean over the images.

    Args:
        frame: Frame with the column `cosine_loss`, and optionally its standard error,
            `cosine_loss_se`.

    Reference:
        II figure 4.
    """
    return draw(frame, DRAWINGS["cosine_loss"])


def readout_cosine_loss(frame: Frame) -> Figure:
    """Draws the cosine between a block's output and the gradient of the head's loss on its input.

    The loss is that of the head applied directly to the block's input, which is possible only in
    the last stage; stages without any value are left out.

    Args:
        frame: Frame with the column `readout_cosine_loss`.

    Reference:
        II figure 13.
    """
    return draw(frame, DRAWINGS["readout_cosine_loss"])


def l2_ratio(frame: Frame) -> Figure:
    """Draws the size of every block's output relative to its input.

    The smaller the ratio, the more accurate is a first-order approximation of the block's effect.

    Args:
        frame: Frame with the column `l2_ratio`.

    Reference:
        II figure 2; over epochs figure 14.
    """
    return draw(frame, DRAWINGS["l2_ratio"])


def gradient_norm(frame: Frame) -> Figure:
    """Draws the norm of the gradient of the loss with respect to every block's input.

    Args:
        frame: Frame with the column `gradient_norm`.

    Reference:
        II figure 8.
    """
    return draw(frame, DRAWINGS["gradient_norm"])


def perturbation(frame: Frame) -> Figure:
    """Draws how far every block moves the state.

    Args:
        frame: Frame with the column `perturbation`.

    Reference:
        PI figure 2.
    """
    return draw(frame, DRAWINGS["perturbation"])


def scaled_perturbation(frame: Frame, epsilon: float | None = None) -> Figure:
    """Draws how far every block moves the state, relative to the size of the state.

    Args:
        frame: Frame with the column `scaled_perturbation`.
        epsilon: Largest mean scaled perturbation that meets the stopping rule, drawn as a line; a
            positive number, or `None` for no line.

    Reference:
        PI figure 5.
    """
    check_number("epsilon", epsilon, over=0, or_none=True)
    return draw(frame, DRAWINGS["scaled_perturbation"], epsilon=epsilon)


def readout(frame: Frame) -> Figure:
    """Draws the accuracy after every block, with the rest of its stage skipped.

    At the last block of a stage, this is the accuracy of the whole network.

    Args:
        frame: Read-out frame with the column `error`.

    Reference:
        II figures 5 and 17.
    """
    return draw(frame, DRAWINGS["readout"])


def drop_blocks(frame: Frame) -> Figure:
    """Draws the accuracy of the network without one block, for every block.

    A dotted line per split marks the accuracy with no block dropped.

    Args:
        frame: Dropped blocks frame with the columns `error` and `unperturbed_error`.

    Reference:
        II figures 3 and 12.
    """
    return draw(frame, DRAWINGS["drop_blocks"])


def block_importance(frame: Frame) -> Figure:
    """Draws how much the network needs each of its blocks, a panel per criterion.

    Args:
        frame: Frame of `tfresidual.probes.block_importance` with the columns of all criteria, and
            optionally the standard errors of the first three.

    Reference:
        Men et al. 2024, https://arxiv.org/abs/2403.03853; Gromov et al. 2024,
        https://arxiv.org/abs/2403.17887.
    """
    return draw(frame, DRAWINGS["block_importance"])


def first_order(frame: Frame) -> Figure:
    """Draws what blocks do to the loss, what the gradient predicts, and how well it ranks images.

    The upper panel shows the mean change of the loss by every block and the two first-order terms,
    the lower panel their rank correlations with the change over the images. If one block changes
    the loss by far more than most, the axis of the upper panel is logarithmic on both sides of a
    linear part around 0.

    Args:
        frame: Frame of `tfresidual.probes.first_order` with the columns `loss_change`,
            `first_order`, `first_order_after`, `rank_correlation` and `rank_correlation_after`.

    Reference:
        II equations 2 to 4.
    """
    return draw(frame, DRAWINGS["first_order"])


def line_element(frame: Frame) -> Figure:
    """Draws the length of the step of every block, and the two parts of its square.

    The lower panel shows the part of the displacement across the layers, and the part that the rest
    of the network makes of it at the last state.

    Args:
        frame: Frame of `tfresidual.probes.line_element` with the columns `length`, `layer_part` and
            `spatial_part`.

    Reference:
        PI equation 12.
    """
    return draw(frame, DRAWINGS["line_element"])


def signal_propagation(frame: Frame) -> Figure:
    """Draws the norms of the state and its gradient, and the gradient share of the shortcuts.

    The norms are on logarithmic axes, where a norm of 0 leaves a gap. Several epochs give a line
    per epoch, from dark (first) to light (last), dashed for the splits after the first.

    Args:
        frame: Signal propagation frame with the columns `state_norm`, `state_gradient_norm` and
            `shortcut_share`.

    Reference:
        He et al., "Identity Mappings in Deep Residual Networks", 2016, sections 2 and 3; for the
        norms, II figure 8.
    """
    return draw(frame, DRAWINGS["signal_propagation"])


def lipschitz_bounds(frame: Frame, mu: float | None = None) -> Figure:
    """Draws estimates of every branch's Lipschitz bound, and the divisor of the branch.

    The lower edge of the band in the upper panel is the estimate of the power iteration, which does
    not exceed the bound, the upper edge the certified value, which is not below the bound. The
    divisor in the lower panel is 1 where the branch is left unchanged.

    Args:
        frame: Lipschitz frame with the columns `estimate`, `certified` and `divisor`.
        mu: The bound that the divisor aims at, drawn as a line; a positive number, or `None`.

    Reference:
        IC sections 4.2 and E.1.
    """
    check_number("mu", mu, over=0, or_none=True)
    return draw(frame, DRAWINGS["lipschitz_bounds"], mu=mu)


def lens(frame: Frame) -> Figure:
    """Draws what the head predicts from the state after every block.

    The panels show the mean cross-entropy (with the entropy of the prediction, dashed), the mean
    divergence of the network's prediction from it, and the mean rank of the label.

    Args:
        frame: Frame of `tfresidual.probes.lens` with the columns `cross_entropy`, `entropy`, `kl`
            and `rank`.
    """
    return draw(frame, DRAWINGS["lens"])


def attribution(frame: Frame) -> Figure:
    """Draws what every block adds to the logit, and how these parts add up to it.

    The upper panel has a bar for the first state, for every block and for the head; the lower one
    shows the sum of the parts so far, which ends at the logit.

    Args:
        frame: Frame of `tfresidual.probes.attribution` with the columns `part` and `attribution`.
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
            `position`.
    """
    drawing = DRAWINGS["patching"]
    if "position" in getattr(frame, "columns", ()):
        effect = Line("effect", "effect on the logit (1: as in the other run)", mark="map")
        keys = ("stage", "block", "position")
        panels = (Panel("position", (effect,)),)
        drawing = dataclasses.replace(drawing, panels=panels, keys=keys, rows=("split",))
    return draw(frame, drawing)


def weight_deviations(frame: Frame) -> Figure:
    """Draws how far the weights of every block are from the mean of its stage, a line per role.

    The deviation is the mean absolute deviation, in standard deviations of the stage's weights of
    that role. Layers differ in colour and marker, their variables in line style. The thick line is
    the mean over all parameters of the block.

    Args:
        frame: Weight deviations frame with the columns `role` (such as "convolution1/kernel"),
            `parameters` and `deviation`.

    Reference:
        IC section C.1, summarized in figure 7c.
    """
    frames.require_columns(frame, ("stage", "block", "role", "parameters", "deviation"))
    drawing = DRAWINGS["weight_deviations"]
    roles = list(dict.fromkeys(frame["role"]))
    numbered = frame.assign(role=frame["role"].map(roles.index))
    table = read(numbered, drawing)
    table["parameters"] = frames.keyed_values(numbered, drawing.keys, ("parameters",))["parameters"]
    parts = [roles[number].rpartition("/") for number in table["role"]]
    # Kernels come first and have solid lines, because they hold most parameters.
    names = [role.rpartition("/")[2] for role in roles]
    variables = sorted(dict.fromkeys(names), key=lambda name: name != "kernel")
    table["layer"] = [layer for layer, _, _ in parts]
    table["variable"] = pd.Categorical([name for *_, name in parts], variables)
    known = table.dropna(subset=["parameters", "deviation"])
    weighted = known.assign(deviation=known["parameters"] * known["deviation"])
    means = weighted.groupby(["stage", "block"], as_index=False)[["deviation", "parameters"]].sum()
    means["deviation"] /= means["parameters"]
    means = means.assign(layer="all parameters", variable=variables[0])
    means["variable"] = pd.Categorical(means["variable"], variables)
    return draw_table(pd.concat([means, table]), drawing)


def computational_distance(frame: Frame) -> Figure:
    """Draws the computational distance of every stage and of all stages as bars.

    The left panel shows the absolute distance, the right one the distance scaled by the size of the
    state. Every bar is labelled with its value.

    Args:
        frame: Distance frame with the columns `stage` (numbers, and "all" for the total),
            `distance` and `scaled_distance`, and optionally `split` and `blocks`, the number of
            blocks, which is written under the stage.

    Reference:
        PI figures 3 and 6.
    """
    return draw(frame, DRAWINGS["computational_distance"])
