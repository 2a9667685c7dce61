"""What the network predicts when a stage is left early."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual import sources
from tfresidual.probes.evaluate_routes import frames_of_rows
from tfresidual.routing import routes
from tfresidual.routing.evaluator import MEMORY_LIMIT

if TYPE_CHECKING:
    from tfresidual.definitions.types import ChainSource, Data, Frame
    from tfresidual.routing import Chain


def readout(
    chain: Chain | ChainSource,
    data: Data,
    *,
    memory_limit: float = MEMORY_LIMIT,
    progress: bool = False,
) -> Frame:
    """Measures the predictions of the network when a stage is left after each of its blocks.

    The later stages follow as trained; in the last stage, the head follows directly. The metrics
    are those of `evaluate_routes`; the distance is that of the stage that is left. The row of the
    last block of a stage is that of the unperturbed network. If a later block of the stage changes
    the shape of the state, the stage cannot be left here, and the metrics are NaN.

    Example:

    >>> readout(tfresidual.chain(net), test).groupby("stage")["error"].last().nunique()
    1

    Args:
        chain: a chain, or anything that `tfresidual.chain` accepts.
        data: images and labels, see `tfresidual.definitions.types.Data`.
        memory_limit: MiB that the evaluator may use, about 25 or more; results do not depend on it.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `stage` (from 1), `block` (from 0), `error`,
        `cross_entropy`, `entropy`, `agreement` and `distance`. If `data` is a dict, `split` is the
        first column.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", fig. 2a
        and 6b, c; Jastrzebski et al. 2018, section 4.2 and fig. 5 for the last stage.
    """
    chain = sources.numbered(chain)
    tables = {"readout": rows_of(chain)}
    return frames_of_rows(chain, data, tables, memory_limit, progress)[0]["readout"]


def rows_of(chain):
    """Returns pairs of the place columns of a row of the frame and its route."""
    rows = []
    for stage in chain.stages:
        for block in stage.blocks:
            can_leave = block.index in stage.exits
            route = routes.readout(chain, stage.index, block.index) if can_leave else None
            rows.append(({"stage": stage.index, "block": block.index}, route))
    return rows
