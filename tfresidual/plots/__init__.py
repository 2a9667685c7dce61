"""Figures: each function takes a frame of a probe and returns a `matplotlib.figure.Figure`.

Nothing here touches `matplotlib.pyplot`, so that drawing leaves no window, no backend and no list
of open figures behind. Save a figure with `figure.savefig("name.png", dpi=160)` or as SVG or PDF.
"""

import importlib

_FILES = {
    "computational_distance": "distance",
    "cosine_loss": "cosine",
    "gradient_norm": "magnitude",
    "images": "images",
    "l2_ratio": "magnitude",
    "perturbation": "magnitude",
    "readout_cosine_loss": "cosine",
    "scaled_perturbation": "magnitude",
    "training_curves": "curves",
}

__all__ = [
    "computational_distance",
    "cosine_loss",
    "gradient_norm",
    "images",
    "l2_ratio",
    "perturbation",
    "readout_cosine_loss",
    "scaled_perturbation",
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
