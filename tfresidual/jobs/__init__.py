"""The jobs of the command line, as functions; each module is loaded when it is first used.

Training runs on every backend of Keras, with images from a file; everything else on TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfresidual.jobs import building as building
    from tfresidual.jobs import comparison as comparison
    from tfresidual.jobs import data as data
    from tfresidual.jobs import depth_study as depth_study
    from tfresidual.jobs import probing as probing
    from tfresidual.jobs import run_folder as run_folder
    from tfresidual.jobs import settings as settings
    from tfresidual.jobs import study as study
    from tfresidual.jobs import training as training

__all__ = [
    "building",
    "comparison",
    "data",
    "depth_study",
    "probing",
    "run_folder",
    "settings",
    "study",
    "training",
]


def __getattr__(name):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")
