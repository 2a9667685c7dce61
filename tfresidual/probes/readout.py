"""What the network predicts when a stage is left early."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual import sources
from tfresidual.definitions.declarations import (
    LINES,
    ROUTES,
    TRAINING,
    Column,
    Figure,
    Probe,
    over_blocks,
)
from tfresidual.probes.evaluate_routes import frames_of_rows
from tfresidual.routing import routes
from tfresidual.routing.evaluator import MEMORY_LIMIT

if TYPE_CHECKING:
    from tfresidual.definitions.types import ChainSource, Data, Frame
    from tfresidual.routing import Chain


DECLARATION = Probe(
    "readout",
    place=4,
    frames={"readout": ("stage", "block", "error")},
    takes=("memory_limit",),
    needs=("classes",),
    columns={
        "error": Column(
            "share of the images that are classified wrongly: of several labels, those whose n "
            "highest outputs are not their n labels",
            at_least=0,
            at_most=1,
            paper="IC fig. 2a",
        ),
        "agreement": Column(
            "share of the images with the prediction of the whole network", at_least=0, at_most=1
        ),
    },
    published={"error": "exits", "cross_entropy": "exits", "entropy": "exits"},
    prefix="readout_",
    figures=(
        Figure(
            name="readout",
            group=ROUTES,
            shown_by="route_errors",
            column="error",
            title="Reading out early",
            question=(
                "The accuracy of the network when a stage is left after each of its blocks "
                "and the next stage, or the classifier, follows immediately."
            ),
            reading=(
                "A stage whose line rises in small steps comes closer to its result with "
                "every block; one whose line stays low until the last block builds something "
                "that can be read out only then."
            ),
            source="Jastrzebski et al. 2018, figure 5, at the end of training",
            drawing=over_blocks(
                "Early read-out",
                "accuracy with the stage\nended after the block",
                "1 - error",
                scale="share",
            ),
        ),
        Figure(
            name="readout_by_epoch",
            group=TRAINING,
            column="error",
            title="Reading out over training",
            question=(
                "The accuracy on validation images when a stage is left after each of its "
                "blocks, epoch by epoch."
            ),
            reading=(
                f"{LINES} If the lines are one above the other in this order, each further "
                "block comes closer to the answer."
            ),
            source="Jastrzebski et al. 2018, figure 5, and the same for the earlier stages",
            frames=("block_metrics_by_epoch",),
            draw="readout",
            renamed={"readout_error": "error"},
        ),
    ),
    measured_by="convergence_indices",
)


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
    chain = sources.chain(chain)
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
