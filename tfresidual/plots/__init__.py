"""Figures: each function takes frames of probes and returns a `matplotlib.figure.Figure`.

Nothing here touches `matplotlib.pyplot`, so that drawing leaves no window, no backend and no list
of open figures behind. Save a figure with `figure.savefig("name.png", dpi=160)` or as SVG or PDF.
"""

import importlib

_FILES = {
    "borderline": "groups",
    "computational_distance": "distance",
    "convergence_curves": "repetitions",
    "convergence_indices": "indices",
    "cosine_loss": "cosine",
    "drop_blocks": "accuracy",
    "gradient_norm": "magnitude",
    "images": "images",
    "l2_ratio": "magnitude",
    "perturbation": "magnitude",
    "perturbation_errors": "routes",
    "readout": "accuracy",
    "readout_cosine_loss": "cosine",
    "repetition_steps": "repetitions",
    "scaled_perturbation": "magnitude",
    "shuffle_blocks": "routes",
    "training_curves": "curves",
}

__all__ = [
    "borderline",
    "computational_distance",
    "convergence_curves",
    "convergence_indices",
    "cosine_loss",
    "drop_blocks",
    "gradient_norm",
    "images",
    "l2_ratio",
    "perturbation",
    "perturbation_errors",
    "readout",
    "readout_cosine_loss",
    "repetition_steps",
    "scaled_perturbation",
    "shuffle_blocks",
    "training_curves",
]


def __getattr__(name):
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    function = getattr(importlib.import_module(f"{__name__}.{_FILES[name]}"), name)
    globals()[name] = function
    return function


def __dir__():
    return sorted({*globals(), *__all__})
