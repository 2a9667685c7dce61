"""Figures of the blocks, and of the states before and after them.

Each function draws a frame of a probe as `tfresidual.plots.draw` says, mostly the column of its
name. Figures of states (`lens`, `attribution` and `patching`) begin with block -1, the state before
the first block of a stage, and leave out states without a value. II is Jastrzebski et al.,
"Residual Connections Encourage Iterative Inference", 2018; PI is Hauser, "On Residual Networks
Learning a Perturbation from Identity", 2019; IC is "Iterative convergent computation is not a
useful inductive bias for ResNets".
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tfresidual.definitions.declarations import Drawing, Level, Line, Panel
from tfresidual.plots.engine import DRAWINGS, draw, draw_as, draw_table
from tfresidual.plots.frames import finite

if TYPE_CHECKING:
    from tfresidual.definitions.types import Figure, Frame


def cosine_loss(frame: Frame) -> Figure:
    """Draws the cosine between every block's output and the gradient of the loss (II figure 4).

    Below zero, what a block adds points to where the loss falls, in the mean over the images.
    """
    return draw(frame, "cosine_loss")


def readout_cosine_loss(frame: Frame) -> Figure:
    """Draws the cosine of a block's output and the gradient of the head's loss (II figure 13).

    The loss is that of the head applied directly to the block's input, which is possible only in
    the last stage; stages without any value are left out.
    """
    return draw(frame, "readout_cosine_loss")


def l2_ratio(frame: Frame) -> Figure:
    """Draws the size of every block's output relative to its input (II figures 2 and 14).

    The smaller the ratio, the more accurate is a first-order approximation of the block's effect.
    """
    return draw(frame, "l2_ratio")


def gradient_norm(frame: Frame) -> Figure:
    """Draws the norm of the gradient of the loss at every block's input (II figure 8)."""
    return draw(frame, "gradient_norm")


def perturbation(frame: Frame) -> Figure:
    """Draws how far every block moves the state (PI figure 2)."""
    return draw(frame, "perturbation")


def scaled_perturbation(frame: Frame, *, epsilon: float | None = None) -> Figure:
    """Draws how far every block moves the state, relative to the state's size (PI figure 5).

    Args:
        frame: Frame with the column `scaled_perturbation`.
        epsilon: Largest mean scaled perturbation that meets the stopping rule, drawn as a line; or
            `None` for no line.
    """
    return draw(frame, "scaled_perturbation", epsilon=epsilon)


def readout(frame: Frame) -> Figure:
    """Draws the error after every block, with the rest of its stage skipped (II figure 5).

    At the last block of a stage, this is the error of the whole network.
    """
    return draw(frame, "readout")


def drop_blocks(frame: Frame) -> Figure:
    """Draws the error of the network without one block, for every block (II figures 3 and 12).

    A dotted line per split marks the error with no block dropped.
    """
    return draw(frame, "drop_blocks")


def drop_heads(frame: Frame) -> Figure:
    """Draws how much the cross-entropy rises without one head, by colour, over blocks and heads.

    White is no rise, blue a rise and red a fall.
    """
    return draw(frame, "drop_heads")


def round_blocks(frame: Frame) -> Figure:
    """Draws what rounding one block does to the predictions, a colour per number of bits.

    The dashed lines are the control, random noise as large as what rounding adds, if it is in the
    frame.
    """
    missing = [name for name in ("noise_kl", "noise_error_rise") if name not in frame]
    return draw(frame.assign(**dict.fromkeys(missing, np.nan)), "round_blocks")


def block_importance(frame: Frame) -> Figure:
    """Draws how much the network needs each of its blocks, a panel per criterion.

    Reference:
        Men et al. 2024, https://arxiv.org/abs/2403.03853; Gromov et al. 2024,
        https://arxiv.org/abs/2403.17887.
    """
    return draw(frame, "block_importance")


def first_order(frame: Frame) -> Figure:
    """Draws what blocks do to the loss, and what the gradient predicts (II equations 2 to 4).

    The upper panel shows the mean change of the loss by every block and the two first-order terms,
    the lower panel their rank correlations with the change over the images. If one block changes
    the loss by far more than most, the axis of the upper panel is logarithmic on both sides of a
    linear part around 0.
    """
    return draw(frame, "first_order")


def line_element(frame: Frame) -> Figure:
    """Draws the length of the step of every block, and two parts of its square (PI equation 12).

    The lower panel shows the part of the displacement across the layers, and the part that the rest
    of the network makes of it at the last state.
    """
    return draw(frame, "line_element")


def signal_propagation(frame: Frame) -> Figure:
    """Draws the norms of the state and its gradient, and the gradient share of the shortcuts.

    The norms are on logarithmic axes, where a norm of 0 leaves a gap. Several epochs give a line
    per epoch, from dark (first) to light (last), dashed for the splits after the first.

    Reference:
        He et al., "Identity Mappings in Deep Residual Networks", 2016, sections 2 and 3; for the
        norms, II figure 8.
    """
    return draw(frame, "signal_propagation")


def lipschitz_bounds(frame: Frame, *, mu: float | None = None) -> Figure:
    """Draws estimates of every branch's Lipschitz bound, and its divisor (IC sections 4.2, E.1).

    The lower edge of the band in the upper panel is the estimate of the power iteration, which does
    not exceed the bound, the upper edge the certified value, which is not below the bound. The
    divisor in the lower panel is 1 where the branch is left unchanged.

    Args:
        frame: Lipschitz frame with the columns `estimate`, `certified` and `divisor`.
        mu: The bound that the divisor aims at, drawn as a line; or `None`.
    """
    return draw(frame, "lipschitz_bounds", mu=mu)


def lens(frame: Frame) -> Figure:
    """Draws what the head predicts from the state after every block.

    The panels show the mean cross-entropy (with the entropy of the prediction, dashed), the mean
    divergence of the network's prediction from it, and the mean rank of the label.
    """
    return draw(frame, "lens")


def attribution(frame: Frame) -> Figure:
    """Draws what every block adds to the logit, and how these parts add up to it.

    The upper panel has a bar for the first state, for every block and for the head; the lower one
    shows the sum of the parts so far, which ends at the logit.
    """
    return draw(frame, "attribution")


def patching(frame: Frame) -> Figure:
    """Draws what the state of one run does in another, block by block.

    A line shows the effect of the state after every block: 0 if it changes nothing, 1 if it brings
    the logit of the other run with it. If the frame has the column `position` or `head`, a panel
    per split shows the effect of every position or head at every block by colour instead, white for
    0; what has no value is left white, too. If it has both, the effects of the positions of a head
    are averaged.
    """
    drawing = DRAWINGS["patching"]
    over = next((name for name in ("head", "position") if name in frame), None)
    if over is not None:
        name = "effect on the logit (1: as in the other run)"
        panels = (Panel(over, (Line("effect", name, mark="map", over=over, span=1.0),)),)
        keys = ("stage", "block", over)
        drawing = dataclasses.replace(drawing, panels=panels, keys=keys, rows=("split",))
    return draw_as(frame, drawing)


def linear_probe(frame: Frame) -> Figure:
    """Draws the accuracy of a linear classifier of the state after every block, and controls.

    These are the same for the untrained network, a classifier of permuted labels, and the network's
    own head, as far as the frame has them.
    """
    drawing, (panel,) = DRAWINGS["linear_probe"], DRAWINGS["linear_probe"].panels
    lines = tuple(line for line in panel.lines if line.column in frame)
    panels = (dataclasses.replace(panel, lines=lines),)
    return draw_as(frame, dataclasses.replace(drawing, panels=panels))


def weight_deviations(frame: Frame) -> Figure:
    """Draws how far the weights of every block are from its stage's mean (IC section C.1).

    The deviation is the mean absolute deviation, in standard deviations of the stage's weights of
    that role, a line per role. Layers differ in colour and marker, their variables in line style.
    The thick line is the mean over all parameters of the block.

    Args:
        frame: Weight deviations frame with the columns `role` (such as "convolution1/kernel"),
            `parameters` and `deviation`.
    """
    frame = frame.assign(deviation=finite(frame["deviation"]))
    known = frame.dropna(subset="deviation")
    sums = known.assign(deviation=known["parameters"] * known["deviation"])
    sums = sums.groupby(["stage", "block"], as_index=False)[["deviation", "parameters"]].sum()
    parts = frame["role"].str.rpartition("/")
    # Kernels come first and have solid lines, because they hold most parameters.
    variables = sorted(dict.fromkeys(parts[2]), key=lambda name: name != "kernel")
    means = sums.assign(
        deviation=sums["deviation"] / sums["parameters"],
        layer="all parameters",
        variable=variables[0],
    )
    table = pd.concat([means, frame.assign(layer=parts[0], variable=parts[2])], ignore_index=True)
    table["variable"] = pd.Categorical(table["variable"], variables)
    return draw_table(table, DRAWINGS["weight_deviations"])


def computational_distance(frame: Frame) -> Figure:
    """Draws the computational distance of every stage and of all as bars (PI figures 3 and 6).

    The left panel shows the absolute distance, the right one the distance scaled by the size of the
    state. Every bar is labelled with its value.

    Args:
        frame: Distance frame with the columns `stage` (numbers, and "all" for the total),
            `distance` and `scaled_distance`, and optionally `split` and `blocks`, the number of
            blocks, which is written under the stage.
    """
    return draw(frame, "computational_distance")


_PRUNING = Drawing(
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
        frame: Frames of `tfresidual.surgery.plan` for the same network, joined, with the column
            `by`, the criterion of each.
    """
    return draw_as(frame, _PRUNING, whole=frame["error"].iloc[0])


_EARLY_EXIT = Drawing(
    "Leaving early",
    tuple(
        Panel(
            "error",
            (Line("error", "sure ones leave"), Line("random_error", "as many, any", "--")),
            scale="share",
            levels=(Level(argument="whole", name="whole network", dash=":"),),
            title=title,
            over=over,
            below=below,
        )
        for title, over, below in (
            ("arithmetic", "flops_share", "mean FLOPs, share of the network's"),
            ("time", "milliseconds", "mean milliseconds of an image"),
        )
    ),
    keys=(),
    rows=(),
    columns=("panel",),
    share_x=False,
    share_y=True,
)


def early_exit(frame: Frame) -> Figure:
    """Draws the error of a network that images leave early over FLOPs and measured time.

    The dashed line is the control: as many images leave at every block, whichever they are.

    Args:
        frame: Frame of `tfresidual.probes.early_exit`.
    """
    columns = ["error", "random_error", "flops_share", "milliseconds"]
    early = frame.loc[np.isfinite(frame["threshold"]), columns].apply(finite).assign(split="")
    table = pd.concat([early.assign(panel=panel.title) for panel in _EARLY_EXIT.panels])
    return draw_table(table, _EARLY_EXIT, arguments={"whole": frame["error"].iloc[-1]})
