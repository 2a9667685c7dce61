"""Figures: each function takes frames of probes and returns a `matplotlib.figure.Figure`.

Nothing here uses `matplotlib.pyplot`, so that drawing opens no window, selects no backend and keeps
no list of open figures. Save a figure with `figure.savefig("name.png", dpi=160)`, or as SVG or PDF.
"""

from tfresidual.plots.accuracy import drop_blocks, readout
from tfresidual.plots.attribution import attribution
from tfresidual.plots.contraction import fixed_point, lipschitz_bounds
from tfresidual.plots.cosine import cosine_loss, readout_cosine_loss
from tfresidual.plots.curves import training_curves
from tfresidual.plots.distance import computational_distance
from tfresidual.plots.first_order import first_order
from tfresidual.plots.groups import borderline
from tfresidual.plots.histories import network_curves
from tfresidual.plots.images import images
from tfresidual.plots.indices import convergence_indices
from tfresidual.plots.inference import iterative_inference
from tfresidual.plots.lens import lens
from tfresidual.plots.line_element import line_element
from tfresidual.plots.magnitude import gradient_norm, l2_ratio, perturbation, scaled_perturbation
from tfresidual.plots.parameters import deviation_of_runs, parameter_efficiency, weight_deviations
from tfresidual.plots.patching import patching
from tfresidual.plots.propagation import signal_propagation
from tfresidual.plots.repetitions import convergence_curves, repetition_metrics
from tfresidual.plots.routes import route_errors, shuffle_blocks
from tfresidual.plots.runs import error_against_indices, error_of_runs, indices_of_runs
from tfresidual.plots.search import depth_search
from tfresidual.plots.trajectories import trajectories

__all__ = [
    "attribution",
    "borderline",
    "computational_distance",
    "convergence_curves",
    "convergence_indices",
    "cosine_loss",
    "depth_search",
    "deviation_of_runs",
    "drop_blocks",
    "error_against_indices",
    "error_of_runs",
    "first_order",
    "fixed_point",
    "gradient_norm",
    "images",
    "indices_of_runs",
    "iterative_inference",
    "l2_ratio",
    "lens",
    "line_element",
    "lipschitz_bounds",
    "network_curves",
    "parameter_efficiency",
    "patching",
    "perturbation",
    "readout",
    "readout_cosine_loss",
    "repetition_metrics",
    "route_errors",
    "scaled_perturbation",
    "shuffle_blocks",
    "signal_propagation",
    "training_curves",
    "trajectories",
    "weight_deviations",
]
