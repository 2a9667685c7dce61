"""How much worse the network is without one of its blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tfresidual import sources
from tfresidual.definitions.arguments import check_choice
from tfresidual.definitions.averages import rise_over, weighted_mean
from tfresidual.definitions.chance import warn_of_chance
from tfresidual.probes.evaluate_routes import frames_of_rows
from tfresidual.probes.fills import FILLS, ZERO, filled, route_with_fill
from tfresidual.probes.measure import joined_splits
from tfresidual.routing.data import splits_of
from tfresidual.routing.evaluator import MEMORY_LIMIT, check_scored
from tfresidual.routing.routes import drop

if TYPE_CHECKING:
    from typing import Literal

    from tfresidual.definitions.types import ChainSource, Data, Frame
    from tfresidual.routing import Chain


def drop_blocks(
    chain: Chain | ChainSource,
    data: Data,
    *,
    fill: Literal["zero", "mean", "resample"] = "zero",
    keep_norm: bool = False,
    seed: int = 0,
    memory_limit: float = MEMORY_LIMIT,
    progress: bool = False,
) -> Frame:
    """Measures the predictions of the network without each of its blocks, one block at a time.

    The metrics are those of `evaluate_routes`; the distance is that of the stage of the block.
    Blocks that change the shape of the state cannot be dropped: their metrics are NaN.

    Example:

    >>> frame = drop_blocks(tfresidual.chain(net), {"train": train, "test": test})

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`.
        fill: what takes the place of F = block(h) - h: `"zero"`, the `"mean"` over the images, or F
            for another image of the batch (`"resample"`), see docs/concepts/probes.md.
        keep_norm: whether it is the branch that is replaced, so that what follows the addition in a
            block stays.
        seed: int, with `"resample"`, for the permutations.
        memory_limit: MiB that the evaluator may use, about 25 or more; results do not depend on it.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `stage` (from 1), `block` (from 0), `error`,
        `cross_entropy`, `entropy`, `agreement`, `distance`, `unperturbed_error`, the error of
        the whole network, `error_rise` and `cross_entropy_rise`, what is lost without the block,
        each followed by its standard error over the same images (`error_rise_se`). If `data` is a
        dict, `split` is the first column.

    Reference:
        Jastrzebski et al. 2018, fig. 3 and 12; "Iterative convergent computation is not a useful
        inductive bias for ResNets", fig. 2a; Veit et al. 2016; Wang et al. 2022,
        https://arxiv.org/abs/2211.00593; Chan et al. 2022, "Causal scrubbing".
    """
    check_choice("fill", fill, FILLS)
    chain = sources.numbered(chain)
    if fill == ZERO and not keep_norm:
        return frame_of_rows(chain, data, rows_of(chain), memory_limit, progress)
    check_scored(chain)
    frames = {}
    for split, part in splits_of(data).items():
        other, part = filled(chain, part, fill, keep_norm, seed)
        rows = rows_of(other, route_with_fill)
        frames[split] = frame_of_rows(other, {None: part}, rows, memory_limit, progress)
    return joined_splits(frames)


def rows_of(chain, route_of=lambda chain, block: drop(chain, (block.stage, block.index))):
    """Returns pairs of the place columns of a row of the frame and its route."""
    return [
        (
            {"stage": block.stage, "block": block.index},
            route_of(chain, block) if block.keeps_shape else None,
        )
        for block in chain.blocks
    ]


def frame_of_rows(chain, data, rows, memory_limit, progress):
    """Returns a frame of routes, see `frames_of_rows`, compared with the whole network."""
    frames, values = frames_of_rows(chain, data, {"": rows}, memory_limit, progress)
    warn_of_chance(values)
    return compared_with_whole(frames[""], values, 1)


def compared_with_whole(frame, values, first):
    """Returns the frame of routes with the error of the whole network, and what the routes lose.

    Args:
        frame: the frame, with NaN where there is no route.
        values: the `RouteValues` by split, whose first route is the whole network.
        first: the place of the first of the routes of the frame in them.
    """
    columns = {"unperturbed_error": []}
    for split, part in values.items():
        rows = frame if split is None else frame[frame["split"] == split]
        has_route = rows["error"].notna().to_numpy()
        places = np.where(has_route, first + np.cumsum(has_route) - 1, 0)
        whole = float(weighted_mean(part.wrong[0], part.weights))
        columns["unperturbed_error"] += [whole] * len(rows)
        for name, each in (("error", part.wrong), ("cross_entropy", part.cross_entropy)):
            rises = rise_over(each[places].T, each[0], part.weights)
            for column, numbers in zip((f"{name}_rise", f"{name}_rise_se"), rises, strict=True):
                columns.setdefault(column, []).extend(np.where(has_route, numbers, np.nan))
    return frame.assign(**columns)
