"""Callbacks for `model.fit` that measure blocks and publish the numbers in `logs`."""

from tfresidual.callbacks.attribution import Attribution
from tfresidual.callbacks.block_metrics import BlockMetrics
from tfresidual.callbacks.borderline import Borderline
from tfresidual.callbacks.convergence_indices import ConvergenceIndices
from tfresidual.callbacks.drop_blocks import DropBlocks
from tfresidual.callbacks.export_for_probing import ExportForProbing
from tfresidual.callbacks.figures import Figures
from tfresidual.callbacks.lens import Lens
from tfresidual.callbacks.lipschitz import Lipschitz
from tfresidual.callbacks.perturbation import Perturbation
from tfresidual.callbacks.probe_callback import ProbeCallback, use_blocks
from tfresidual.callbacks.readout import Readout
from tfresidual.callbacks.signal_propagation import SignalPropagation
from tfresidual.callbacks.step_metrics import StepMetrics

__all__ = [
    "Attribution",
    "BlockMetrics",
    "Borderline",
    "ConvergenceIndices",
    "DropBlocks",
    "ExportForProbing",
    "Figures",
    "Lens",
    "Lipschitz",
    "Perturbation",
    "ProbeCallback",
    "Readout",
    "SignalPropagation",
    "StepMetrics",
    "use_blocks",
]
