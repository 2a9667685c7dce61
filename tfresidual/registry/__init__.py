"""The registry of probes: one file of `entries` per probe, in the order of the report.

The driver, the command line, studies and reports read it; nothing else lists the probes.
"""

from tfresidual.registry.entries import (
    block_metrics,
    borderline,
    convergence_indices,
    drop_blocks,
    effective_parameters,
    fixed_point,
    lipschitz,
    readout,
    repeat_last_block,
    shuffle_blocks,
    signal_propagation,
)
from tfresidual.registry.entry import Entry, Figure, ProbeOptions, Study

ENTRIES = {
    module.ENTRY.name: module.ENTRY
    for module in (
        block_metrics,
        signal_propagation,
        readout,
        drop_blocks,
        convergence_indices,
        borderline,
        repeat_last_block,
        shuffle_blocks,
        lipschitz,
        fixed_point,
        effective_parameters,
    )
}

__all__ = ["ENTRIES", "Entry", "Figure", "ProbeOptions", "Study", "possible", "watching"]


def possible(chain):
    """Returns the names of the probes that a network has blocks for.

    A network whose stages end in a block that changes the shape has nothing to repeat, one
    without two other blocks in any stage nothing to shuffle, and one built without `lipschitz`
    no bounds. Routes are measured by what is right and wrong: not where outputs are no classes.

    Args:
        chain: a `tfresidual.routing.Chain`.

    Returns:
        A list of keys of `ENTRIES`.
    """
    return [name for name, entry in ENTRIES.items() if entry.is_possible(chain)]


def watching(data, epsilon):
    """Returns the callbacks that publish what probes measure while a study trains.

    Args:
        data: a few validation images.
        epsilon: mean scaled perturbation of the stopping rule.
    """
    watched = [entry.watch for entry in ENTRIES.values() if entry.watch is not None]
    return [callback for watch in watched for callback in watch(data, epsilon)]
