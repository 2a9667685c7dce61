"""What the network predicts when its blocks change places."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np

from tfresidual import sources
from tfresidual.definitions.arguments import ArgumentError, check_ints
from tfresidual.probes.drop_blocks import frame_of_rows
from tfresidual.routing.evaluator import MEMORY_LIMIT
from tfresidual.routing.routes import movable_runs, shuffle

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tfresidual.definitions.types import ChainSource, Data, Frame
    from tfresidual.routing import Chain


def shuffle_blocks(
    chain: Chain | ChainSource,
    data: Data,
    *,
    swaps: Iterable[int] = (1, 2, 4, 8),
    draws: int = 3,
    seed: int = 0,
    memory_limit: float = MEMORY_LIMIT,
    progress: bool = False,
) -> Frame:
    """Measures the predictions of the network when blocks of a stage change places at random.

    One stage is shuffled at a time. Blocks that change the shape of the state keep their places;
    a stage with fewer than two other blocks has no rows. The metrics are those of
    `evaluate_routes`; the distance is that of the stage.

    Example:

    >>> frame = shuffle_blocks(tfresidual.chain(net), test, swaps=(1, 2), draws=10)

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`.
        swaps: ints, each a number of random pairs of blocks that change places one after another.
        draws: int, the number of random orders drawn for each of these.
        seed: int, 0 or more; the same seed gives the same orders.
        memory_limit: MiB that the evaluator may use, about 25 or more; results do not depend on it.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `stage` (from 1), `swaps`, `draw` (from 0),
        `kendall_tau` (rank correlation of the order with the trained one, in [-1, 1]; 1 if no
        block has moved), `error`, `cross_entropy`, `entropy`, `agreement`, `distance`,
        `unperturbed_error`, and `error_rise` and `cross_entropy_rise` with their standard errors
        `..._se`, as in `drop_blocks`. If `data` is a dict, `split` is the first column.

    Raises:
        ValueError: if an argument cannot be used, or no stage has two blocks that can move.

    Reference:
        Veit et al. 2016, https://arxiv.org/abs/1605.06431, on reordering.
    """
    chain = sources.numbered(chain)
    swaps = check_ints("swaps", swaps, at_least=1)
    rng = np.random.default_rng(seed)
    rows = []
    for stage in chain.stages:
        if not movable_runs(stage):
            continue
        for count, draw in itertools.product(swaps, range(draws)):
            route = shuffle(chain, stage.index, int(rng.integers(2**32)), count)
            order = [application.block for application in route.stages[stage.index - 1]]
            place = {"stage": stage.index, "swaps": count, "draw": draw}
            rows.append((place | {"kendall_tau": kendall_tau(order)}, route))
    if not rows:
        raise ArgumentError(
            ("chain", "swaps"),
            "leave something to move: a stage with two blocks that keep the shape of the state",
            received=f"{chain.name}, swaps={swaps!r}",
        )
    return frame_of_rows(chain, data, rows, memory_limit, progress)


def kendall_tau(order):
    """Returns the share of pairs in their trained order minus that of the others, in [-1, 1]."""
    first, second = np.triu_indices(len(order), k=1)
    order = np.asarray(order)
    return float(np.sign(order[second] - order[first]).mean())
