"""What the columns of frames hold.

A column that is not named here holds numbers, NaN where there is nothing to measure.
"""

from __future__ import annotations

from tfresidual.definitions.declarations import PROBES
from tfresidual.machine.tables import NUMBER, TEXT, Kind, between, whole
from tfresidual.probes.convergence_indices import MEAN
from tfresidual.probes.perturbation import ALL_STAGES

_KINDS = {
    name: between(column.at_least, column.at_most)
    for probe in PROBES.values()
    for name, column in probe.columns.items()
    if column.at_least is not None and column.at_most is not None
} | {
    **dict.fromkeys(
        ("split", "basis", "along", "group", "part", "role", "reading", "chance_from"), TEXT
    ),
    "stage": whole(1, ALL_STAGES, MEAN),
    "block": whole(-1),
    "epoch": whole(-1),
    **dict.fromkeys(("repetition", "swaps", "draw", "position", "images", "blocks"), whole(0)),
    **dict.fromkeys(("unperturbed_error", "readout_error"), between(0, 1)),
}
# The columns that tell the rows of a frame apart.
KEYS = (
    *("split", "epoch", "basis", "along", "group", "stage", "block", "position", "part", "role"),
    *("repetition", "scale", "swaps", "draw"),
)
# The columns that a frame has in any version of the package.
REQUIRED = {
    name: columns for probe in PROBES.values() for name, columns in probe.frames.items()
} | {
    "block_metrics_by_epoch": ("epoch", "stage", "block"),
    "repetition_metrics_scaled": PROBES["repeat_last_block"].frames["repetition_metrics"],
}


def kind_of(column: str) -> Kind:
    """Returns what a column of a frame holds."""
    return _KINDS.get(column, NUMBER)
