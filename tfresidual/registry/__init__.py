"""The registry of probes: one file of `entries` per probe, in the order of the report.

The driver, the command line, studies and reports read the registry; the probes are listed nowhere
else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.registry.entries import (
    attribution,
    block_metrics,
    borderline,
    convergence_indices,
    drop_blocks,
    effective_parameters,
    first_order,
    fixed_point,
    lens,
    line_element,
    lipschitz,
    patching,
    readout,
    repeat_last_block,
    shuffle_blocks,
    signal_propagation,
)
from tfresidual.registry.entry import Entry, Figure, ProbeOptions, Study

if TYPE_CHECKING:
    from tfresidual.routing import Chain

ENTRIES = {
    module.ENTRY.name: module.ENTRY
    for module in (
        block_metrics,
        first_order,
        signal_propagation,
        readout,
        lens,
        attribution,
        drop_blocks,
        convergence_indices,
        borderline,
        repeat_last_block,
        shuffle_blocks,
        lipschitz,
        fixed_point,
        effective_parameters,
        line_element,
        patching,
    )
}

__all__ = ["ENTRIES", "Entry", "Figure", "ProbeOptions", "Study", "possible"]


def possible(chain: Chain) -> list[str]:
    """Returns the names of the probes that can be run on a network.

    A network cannot be probed by repetition if every stage ends in a block that changes the shape,
    by shuffling if no stage has two blocks that can change places, and for bounds if it was built
    without `lipschitz`. Probes that count errors need outputs that are classes.

    Args:
        chain: a `tfresidual.routing.Chain`.

    Returns:
        A list of keys of `ENTRIES`.
    """
    return [name for name, entry in ENTRIES.items() if entry.is_possible(chain)]
