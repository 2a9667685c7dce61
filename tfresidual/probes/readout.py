"""What the network answers when stages are left early."""

from tfresidual import sources
from tfresidual.probes.evaluate_routes import frames_of_rows
from tfresidual.routing.evaluator import MEMORY_LIMIT
from tfresidual.routing.routes import read_out


def readout(chain, data, *, memory_limit=MEMORY_LIMIT, progress=False):
    """Measures what the network answers when a stage is left behind each of its blocks.

    The later stages follow as they were trained; in the last stage, the head follows at once. The
    metrics are those of `evaluate_routes`; the distance is that of the stage that is left. The
    row of a stage's last block is that of the unperturbed network. Where a later block of the
    stage changes the shape of the state, the stage cannot be left: the metrics are NaN.

    Example:

    >>> readout(tfresidual.chain(net), test).groupby("stage")["error"].last().nunique()
    1

    Args:
        chain: a chain, or what `tfresidual.chain` makes one of.
        data: a `tf.data.Dataset` of batches `(images, labels)`, a pair of arrays, or a dict of
            these by the name of the split.
        memory_limit: MiB that the evaluator may take, some 25 or more; the result is the same.
        progress: whether to show a progress bar.

    Returns:
        A `pandas.DataFrame` with the columns `stage` (from 1), `block` (from 0), `error`,
        `cross_entropy`, `entropy`, `agreement` and `distance`; `split` first, where `data` is a
        dict.

    Raises:
        ValueError: if an argument cannot be used.

    Reference:
        "Iterative convergent computation is not a useful inductive bias for ResNets", fig. 2a
        and 6b, c; Jastrzebski et al. 2018, section 4.2 and fig. 5 for the last stage.
    """
    chain = sources.chain(chain)
    tables = {"readout": rows_of(chain)}
    return frames_of_rows(chain, data, tables, memory_limit, progress)[0]["readout"]


def rows_of(chain):
    """The places of the probe's frame, and their routes."""
    rows = []
    for stage in chain.stages:
        for block in stage.blocks:
            can_leave = block.step in stage.exits
            route = read_out(chain, stage.index, block.step) if can_leave else None
            rows.append(({"stage": stage.index, "block": block.step}, route))
    return rows
