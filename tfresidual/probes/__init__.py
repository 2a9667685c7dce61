"""Probes: functions `probe(chain, data, ...)` that return a tidy `pandas.DataFrame`.

`save_states` writes the states themselves to a folder.
"""

import tfresidual.machine.on_tensorflow  # noqa: F401
from tfresidual.probes.attribution import attribution
from tfresidual.probes.block_importance import block_importance
from tfresidual.probes.block_metrics import block_metrics
from tfresidual.probes.borderline import borderline
from tfresidual.probes.convergence_indices import (
    convergence_frames,
    convergence_indices,
    indices_of,
)
from tfresidual.probes.drop_blocks import drop_blocks
from tfresidual.probes.drop_heads import drop_heads
from tfresidual.probes.early_exit import early_exit
from tfresidual.probes.effective_parameters import effective_parameters, weight_deviations
from tfresidual.probes.evaluate_routes import evaluate_routes
from tfresidual.probes.first_order import first_order
from tfresidual.probes.fixed_point import fixed_point
from tfresidual.probes.geometry import (
    line_between,
    line_element,
    metric_eigenvalues,
    metric_product,
    path_lengths,
    path_lengths_of,
)
from tfresidual.probes.lens import lens
from tfresidual.probes.linear_probe import linear_probe
from tfresidual.probes.lipschitz import lipschitz
from tfresidual.probes.logs import block_logs, from_logs, log_key
from tfresidual.probes.measure import measure
from tfresidual.probes.patching import patching
from tfresidual.probes.perturbation import (
    ALL_STAGES,
    computational_distance,
    distances_of,
    perturbation,
)
from tfresidual.probes.readout import readout
from tfresidual.probes.repeat_last_block import repeat_last_block
from tfresidual.probes.round_blocks import round_blocks
from tfresidual.probes.shuffle_blocks import shuffle_blocks
from tfresidual.probes.signal_propagation import signal_propagation
from tfresidual.probes.similarity import similarity
from tfresidual.probes.states import States, load_states, save_states
from tfresidual.probes.trajectories import (
    inverse_problem_chain,
    trajectories,
    trajectory_summary,
)

__all__ = [
    "ALL_STAGES",
    "States",
    "attribution",
    "block_importance",
    "block_logs",
    "block_metrics",
    "borderline",
    "computational_distance",
    "convergence_frames",
    "convergence_indices",
    "distances_of",
    "drop_blocks",
    "drop_heads",
    "early_exit",
    "effective_parameters",
    "evaluate_routes",
    "first_order",
    "fixed_point",
    "from_logs",
    "indices_of",
    "inverse_problem_chain",
    "lens",
    "line_between",
    "line_element",
    "linear_probe",
    "lipschitz",
    "load_states",
    "log_key",
    "measure",
    "metric_eigenvalues",
    "metric_product",
    "patching",
    "path_lengths",
    "path_lengths_of",
    "perturbation",
    "readout",
    "repeat_last_block",
    "round_blocks",
    "save_states",
    "shuffle_blocks",
    "signal_propagation",
    "similarity",
    "trajectories",
    "trajectory_summary",
    "weight_deviations",
]
