"""How much worse the network is without one of its blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual import sources
from tfresidual.probes.evaluate_routes import frames_of_rows
from tfresidual.probes.measure import weighted_mean
from tfresidual.routing.evaluator import MEMORY_LIMIT
from tfresidual.routing.routes import drop

if TYPE_CHECKING:
    from tfresidual.routing import Chain
    from tfresidual.types import ChainSource, Data, Frame


def drop_blocks(
    chain: Chain | ChainSource,
    data: Data,
    *,
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
        data: a `tf.data.Dataset` of batches `(images, labels)`, a pair of arrays, or a dict of
            these by split name.
        memory_limit: MiB that the evaluator may use, about 25 or more; results do not depend on it.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `stage` (from 1), `block` (from 0), `error`,
        `cross_entropy`, `entropy`, `agreement`, `distance` and `unperturbed_error`, the error of
        the whole network. If `data` is a dict, `split` is the first column.

    Raises:
        ValueError: if an argument cannot be used.

    Reference:
        Jastrzebski et al. 2018, fig. 3 and 12; "Iterative convergent computation is not a useful
        inductive bias for ResNets", fig. 2a; Veit et al. 2016.
    """
    chain = sources.chain(chain)
    tables = {"drop_blocks": rows_of(chain)}
    frames, values = frames_of_rows(chain, data, tables, memory_limit, progress)
    return with_unperturbed_error(frames["drop_blocks"], values)


def rows_of(chain):
    """Returns pairs of the place columns of a row of the frame and its route."""
    return [
        (
            {"stage": block.stage, "block": block.index},
            drop(chain, (block.stage, block.index)) if block.keeps_shape else None,
        )
        for block in chain.blocks
    ]


def with_unperturbed_error(frame, values):
    """Returns the frame with the error of the whole network, the first route of the values."""
    errors = {
        split: float(weighted_mean(part.wrong[0], part.weights)) for split, part in values.items()
    }
    if "split" in frame:
        return frame.assign(unperturbed_error=frame["split"].map(errors))
    return frame.assign(unperturbed_error=errors[None])
