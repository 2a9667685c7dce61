"""Figures: each function takes frames of probes and returns a `matplotlib.figure.Figure`.

Nothing here touches `matplotlib.pyplot`, so that drawing leaves no window, no backend and no list
of open figures behind. Save a figure with `figure.savefig("name.png", dpi=160)` or as SVG or PDF.
"""

from tfresidual.lazy import lazily

_FILES = {
    "borderline": "groups",
    "computational_distance": "distance",
    "convergence_curves": "repetitions",
    "convergence_indices": "indices",
    "cosine_loss": "cosine",
    "depth_search": "search",
    "deviation_of_runs": "parameters",
    "drop_blocks": "accuracy",
    "error_against_indices": "runs",
    "error_of_runs": "runs",
    "fixed_point": "contraction",
    "gradient_norm": "magnitude",
    "images": "images",
    "indices_of_runs": "runs",
    "iterative_inference": "inference",
    "l2_ratio": "magnitude",
    "lipschitz_bounds": "contraction",
    "network_curves": "histories",
    "parameter_efficiency": "parameters",
    "perturbation": "magnitude",
    "perturbation_errors": "routes",
    "readout": "accuracy",
    "readout_cosine_loss": "cosine",
    "repetition_steps": "repetitions",
    "scaled_perturbation": "magnitude",
    "shuffle_blocks": "routes",
    "signal_propagation": "propagation",
    "training_curves": "curves",
    "trajectories": "trajectories",
    "weight_deviations": "parameters",
}

__all__ = [
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
    "fixed_point",
    "gradient_norm",
    "images",
    "indices_of_runs",
    "iterative_inference",
    "l2_ratio",
    "lipschitz_bounds",
    "network_curves",
    "parameter_efficiency",
    "perturbation",
    "perturbation_errors",
    "readout",
    "readout_cosine_loss",
    "repetition_steps",
    "scaled_perturbation",
    "shuffle_blocks",
    "signal_propagation",
    "training_curves",
    "trajectories",
    "weight_deviations",
]

__getattr__, __dir__ = lazily(__name__, _FILES)
