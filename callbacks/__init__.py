"""Callbacks for `model.fit` that run probes and publish their numbers in `logs`."""

from tfresidual.callbacks.block_metrics import BlockMetrics
from tfresidual.callbacks.perturbation import Perturbation
from tfresidual.callbacks.probe_callback import ProbeCallback

__all__ = ["BlockMetrics", "Perturbation", "ProbeCallback"]
