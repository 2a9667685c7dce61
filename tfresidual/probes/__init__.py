"""Probes: functions `probe(chain, data, ...)` that return a tidy `pandas.DataFrame`."""

from tfresidual.probes.block_metrics import block_metrics
from tfresidual.probes.borderline import borderline
from tfresidual.probes.convergence_indices import (
    convergence_frames,
    convergence_indices,
    indices_of,
)
from tfresidual.probes.drop_blocks import drop_blocks
from tfresidual.probes.evaluate_routes import evaluate_routes
from tfresidual.probes.logs import from_logs
from tfresidual.probes.perturbation import (
    ALL_STAGES,
    computational_distance,
    distances_of,
    perturbation,
)
from tfresidual.probes.readout import readout
from tfresidual.probes.repeat_last_block import repeat_last_block
from tfresidual.probes.shuffle_blocks import shuffle_blocks

__all__ = [
    "ALL_STAGES",
    "block_metrics",
    "borderline",
    "computational_distance",
    "convergence_frames",
    "convergence_indices",
    "distances_of",
    "drop_blocks",
    "evaluate_routes",
    "from_logs",
    "indices_of",
    "perturbation",
    "readout",
    "repeat_last_block",
    "shuffle_blocks",
]
