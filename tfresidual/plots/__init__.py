"""Figures: each function takes frames of probes and returns a `matplotlib.figure.Figure`.

Nothing here uses `matplotlib.pyplot`, so that drawing opens no window, selects no backend and keeps
no list of open figures. Save a figure with `figure.savefig("name.png", dpi=160)`, or as SVG or PDF.
"""

from tfresidual.plots.blocks import (
    attribution,
    block_importance,
    computational_distance,
    cosine_loss,
    drop_blocks,
    drop_heads,
    early_exit,
    first_order,
    gradient_norm,
    l2_ratio,
    lens,
    line_element,
    linear_probe,
    lipschitz_bounds,
    patching,
    perturbation,
    pruning,
    readout,
    readout_cosine_loss,
    round_blocks,
    scaled_perturbation,
    signal_propagation,
    weight_deviations,
)
from tfresidual.plots.engine import draw
from tfresidual.plots.images import images
from tfresidual.plots.positions import lens_map
from tfresidual.plots.routes import (
    borderline,
    convergence_curves,
    convergence_indices,
    fixed_point,
    repetition_metrics,
    route_errors,
    shuffle_blocks,
)
from tfresidual.plots.search import depth_search
from tfresidual.plots.similarity import similarity
from tfresidual.plots.training import iterative_inference, network_curves, training_curves

__all__ = [
    "attribution",
    "block_importance",
    "borderline",
    "computational_distance",
    "convergence_curves",
    "convergence_indices",
    "cosine_loss",
    "depth_search",
    "draw",
    "drop_blocks",
    "drop_heads",
    "early_exit",
    "first_order",
    "fixed_point",
    "gradient_norm",
    "images",
    "iterative_inference",
    "l2_ratio",
    "lens",
    "lens_map",
    "line_element",
    "linear_probe",
    "lipschitz_bounds",
    "network_curves",
    "patching",
    "perturbation",
    "pruning",
    "readout",
    "readout_cosine_loss",
    "repetition_metrics",
    "round_blocks",
    "route_errors",
    "scaled_perturbation",
    "shuffle_blocks",
    "signal_propagation",
    "similarity",
    "training_curves",
    "weight_deviations",
]
