"""Residual networks for Keras 3 and TensorFlow: build them, train them, probe their blocks.

`import tfresidual` loads only what is needed to open a saved network; the other parts are loaded
when they are first used.
"""

import importlib
from typing import TYPE_CHECKING

from tfresidual.machine import quiet

with quiet.quietly():
    from tfresidual import layers, networks, training
    from tfresidual.routing import routes
    from tfresidual.sources import chain

if TYPE_CHECKING:
    # What `__getattr__` finds.
    from tfresidual import callbacks as callbacks
    from tfresidual import datasets as datasets
    from tfresidual import jobs as jobs
    from tfresidual import plots as plots
    from tfresidual import probes as probes
    from tfresidual import report as report
    from tfresidual import routing as routing
    from tfresidual import sources as sources
    from tfresidual import tuning as tuning
    from tfresidual.sources.exporting import export as export

__version__ = "0.1.0"

# Functions, and the modules that define them. A module with the name of its function would hide it.
_FUNCTIONS = {"export": "sources.exporting"}
_LAZY = (
    "callbacks",
    "datasets",
    "jobs",
    "plots",
    "probes",
    "report",
    "routing",
    "sources",
    "tuning",
)

__all__ = ["chain", "layers", "networks", "routes", "training", *_FUNCTIONS, *_LAZY]


def __getattr__(name):
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(f"tfresidual.{_FUNCTIONS[name]}"), name)
    if name in _LAZY:
        return importlib.import_module(f"tfresidual.{name}")
    raise AttributeError(f"module 'tfresidual' has no attribute {name!r}")


def __dir__():
    return sorted([*globals(), *_FUNCTIONS, *_LAZY])
