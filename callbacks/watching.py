"""The callbacks that a study trains with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfresidual.callbacks.block_probes import BlockMetrics, Readout
from tfresidual.callbacks.stage_probes import Perturbation

if TYPE_CHECKING:
    from tfresidual.callbacks.probe_callback import ProbeCallback
    from tfresidual.types import Images


def watching(data: Images, epsilon: float) -> list[ProbeCallback]:
    """Returns the callbacks whose numbers are logged during the training of a study."""
    return [BlockMetrics(data), Perturbation(data, epsilon=epsilon), Readout(data)]
