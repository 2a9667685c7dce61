"""Callbacks for `model.fit` that measure blocks and publish the numbers in `logs`."""

from tfresidual.callbacks import block_probes
from tfresidual.callbacks.block_probes import *  # noqa: F403
from tfresidual.callbacks.export_for_probing import ExportForProbing
from tfresidual.callbacks.figures import Figures
from tfresidual.callbacks.probe_callback import ProbeCallback, use_blocks
from tfresidual.callbacks.stage_probes import Borderline, ConvergenceIndices, Perturbation
from tfresidual.callbacks.step_metrics import StepMetrics

__all__ = [
    "Borderline",
    "ConvergenceIndices",
    "ExportForProbing",
    "Figures",
    "Perturbation",
    "ProbeCallback",
    "StepMetrics",
    "use_blocks",
]
__all__ += block_probes.__all__
