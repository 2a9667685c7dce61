"""Probes: functions `probe(chain, data, ...)` that return a tidy `pandas.DataFrame`."""

from tfresidual.probes.block_metrics import block_metrics
from tfresidual.probes.logs import from_logs
from tfresidual.probes.perturbation import (
    ALL_STAGES,
    computational_distance,
    distances_of,
    perturbation,
)

__all__ = [
    "ALL_STAGES",
    "block_metrics",
    "computational_distance",
    "distances_of",
    "from_logs",
    "perturbation",
]
