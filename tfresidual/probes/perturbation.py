"""How much every block moves the state, and how far the state travels through each stage."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from tfresidual import sources
from tfresidual.probes.measure import by_split, measure
from tfresidual.routing.block_values import PERTURBATION_METRICS, perturbation_values

if TYPE_CHECKING:
    from tfresidual.definitions.types import ChainSource, Data, Frame
    from tfresidual.routing import Chain

ALL_STAGES = "all"


def perturbation(
    chain: Chain | ChainSource,
    data: Data,
    *,
    per_image: bool = False,
    per_position: bool = False,
    progress: bool = False,
) -> Frame:
    """Measures how much every block moves the state, in one forward pass.

    With h the state before a block and F = block(h) - h, `perturbation` is |F| and
    `scaled_perturbation` is |F| / |h|, both 0 or more. They are those of `block_metrics`, computed
    per image, without padding, and averaged over the images; NaN for a block that changes the shape
    of the state, and for an image that is all padding, which no mean is over. Labels are not used.

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`.
        per_image: whether to return the values of every image instead of their means.
        per_position: whether every position is measured by itself, see `block_metrics`.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `stage` (from 1), `block` (from 0), `perturbation`
        and `scaled_perturbation`. If `data` is a dict, `split` is the first column. With
        `per_image`, `image` comes after `block`, and `position` after it with `per_position`.

    Reference:
        Hauser 2019, "On residual networks learning a perturbation from identity", eq. 2 and 3,
        fig. 2 and 5.
    """
    chain = sources.numbered(chain)
    function = functools.partial(perturbation_values, chain)
    return measure(
        chain,
        "perturbation",
        function,
        data,
        per_image=per_image,
        progress=progress,
        with_labels=False,
        per_position=per_position,
        with_plain=True,
    )


def computational_distance(
    chain: Chain | ChainSource, data: Data, *, per_position: bool = False, progress: bool = False
) -> Frame:
    """Measures how far the state travels through each stage, and the mean perturbation.

    The distance of a stage is the sum of |F| over its blocks, and the scaled distance is the sum of
    |F| / |h| (see `perturbation`). The mean perturbations are these sums divided by the number of
    blocks. Blocks that change the shape of the state have no F and are not counted.

    Example:

    >>> computational_distance(tfresidual.chain(net), test)["stage"].tolist()
    [1, 2, 3, 'all']

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`.
        per_position: whether the perturbations are those of single positions, see `perturbation`.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with one row per stage and one row `"all"` for the whole network, and
        the columns `stage`, `blocks` (the number of blocks measured), `distance`,
        `scaled_distance`, `mean_perturbation` and `mean_scaled_perturbation`, all 0 or more. If
        `data` is a dict, `split` is the first column. The means of a stage without a block to
        measure are NaN, and so is what a block with NaN contributes to.

    Reference:
        Hauser 2019, "On residual networks learning a perturbation from identity", eq. 4 and 11,
        fig. 3, 4, 6 and 7.
    """
    chain = sources.numbered(chain)
    frame = perturbation(chain, data, per_position=per_position, progress=progress)
    return distances_of(frame, chain=chain)


def distances_of(frame: Frame, *, chain: Chain | None = None) -> Frame:
    """Adds up the perturbations of blocks to the frame of `computational_distance`.

    Args:
        frame: a frame of `perturbation` or `block_metrics`, one row per block (and split).
        chain: the chain that was measured, which says what blocks have an F: if the perturbation of
            one of them is NaN, so are the sums. Without it, blocks with NaN are left out.
    """
    if "split" in frame:
        return by_split(frame, functools.partial(distances_of, chain=chain))
    has_step = frame["perturbation"].notna()
    if chain is not None:
        known = {(s.index, b.index) for s in chain.stages for b in s.blocks if b.keeps_shape}
        places = zip(frame["stage"], frame["block"], strict=True)
        has_step |= np.array([place in known for place in places], bool)
    steps = frame[list(PERTURBATION_METRICS)].where(has_step, 0.0).groupby(frame["stage"])
    stages = steps.agg(lambda column: column.sum(skipna=False))
    stages.columns = ["distance", "scaled_distance"]
    stages.insert(0, "blocks", has_step.groupby(frame["stage"]).sum())
    total = stages.sum(skipna=False).to_frame(ALL_STAGES).T
    distances = pd.concat([stages.astype(float), total]).rename_axis("stage").reset_index()
    distances["mean_perturbation"] = distances["distance"] / distances["blocks"]
    distances["mean_scaled_perturbation"] = distances["scaled_distance"] / distances["blocks"]
    return distances.astype({"blocks": int})
