"""The sections of the report on a pruned network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd

from tfresidual import plots
from tfresidual.definitions.averages import STANDARD_ERRORS
from tfresidual.report.blocks import in_points
from tfresidual.report.section import Section

if TYPE_CHECKING:
    from tfresidual.definitions.types import Frame


def pruning_sections(
    curves: Frame,
    frame: Frame,
    chosen_on: str | None = None,
    judged_on: str | None = None,
    warning: str | None = None,
) -> list[Section]:
    """Returns the sections of a report on a pruned network.

    Args:
        curves: frames of `tfresidual.surgery.plan` with the column `by`, joined.
        frame: frame of `tfresidual.surgery.prune`.
        chosen_on: what the blocks were chosen on, such as "2,000 validation images", or `None`.
        judged_on: what the networks were judged on.
        warning: what limits all that is said here, such as a network that guesses, or `None`.
    """
    images = ", and ".join(
        f"{where} {what}"
        for what, where in (("to choose", chosen_on), ("for the errors", judged_on))
        if where
    )
    return [
        Section(
            "Error over blocks left",
            "How many blocks can go, and does it matter what they are chosen by?",
            figure=plots.pruning(curves),
            reading="Each line takes out one block after the other, the one that its criterion "
            "needs least, and measures again. No network is trained, and no statistics are "
            "measured again here. The dotted line is the whole network.",
            images=images or None,
            caution=warning,
        ),
        Section(
            "The smaller network",
            "What went, in this order, and what did it cost?",
            frame=_shown(frame),
            reading="Costs are the rise of the error over that of the whole network, in points, "
            "with two standard errors over the same images. FLOPs are those of one image, two per "
            "multiplication in convolutions and matrix products; times are measured, the shortest "
            "of several calls. Blocks are numbered as in the whole network.",
            images=images or None,
            finding=outcome_text(frame),
        ),
    ]


def _shown(frame):
    """Returns the frame as a table of few columns."""
    is_gone = frame["blocks"] > 0
    costs = [
        in_points(row.error_rise, STANDARD_ERRORS * row.error_rise_se) if row.step else ""
        for row in frame.itertuples()
    ]
    table = {
        "what": frame["what"],
        "stage": frame["stage"].astype("Int64").where(is_gone),
        "block": frame["block"].astype("Int64").where(is_gone),
        "blocks left": frame["blocks_left"],
        "error": [f"{error:.1%}" for error in frame["error"]],
        "costs": costs,
        "cross-entropy": frame["cross_entropy"],
        "parameters": frame["parameters"],
        "MFLOPs": frame["flops"] / 1e6,
    }
    for name in frame:
        if name.startswith("milliseconds_"):
            table[f"ms, batch {name.removeprefix('milliseconds_')}"] = frame[name]
    return pd.DataFrame(table)


def outcome_text(frame: Frame, warning: str | None = None) -> str:
    """Returns a sentence on what the last row of a frame of `prune` says, after a warning."""
    first, last = frame.iloc[0], frame.iloc[-1]
    rise = in_points(last["error_rise"], STANDARD_ERRORS * last["error_rise_se"])
    gone = int(first["blocks_left"] - last["blocks_left"])
    text = (
        f"Without {gone} of {int(first['blocks_left'])} blocks, the network has "
        f"{last['parameters'] / first['parameters']:.0%} of the parameters and "
        f"{last['flops'] / first['flops']:.0%} of the FLOPs; its error is {last['error']:.1%}, "
        f"{rise} points (two standard errors over the same images)"
    )
    timed = [name for name in frame if name.startswith("milliseconds_")]
    if timed:
        shares = ", ".join(
            f"{last[name] / first[name]:.0%} at batch {name.removeprefix('milliseconds_')}"
            for name in timed
        )
        text += f"; it takes {shares} of the time"
    return f"{warning} {text}." if warning else f"{text}."
