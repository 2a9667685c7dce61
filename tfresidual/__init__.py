"""Residual networks for Keras 3 and TensorFlow: build them, train them, probe their blocks.

`import tfresidual` loads only what is needed to open a saved network; the other parts are loaded
when they are first used.
"""

import importlib

from tfresidual import quiet

with quiet.quietly():
    from tfresidual import layers, networks, training
    from tfresidual.routing import routes
    from tfresidual.sources import chain

__version__ = "0.1.0"

# Functions, and the modules that define them. A module with the name of its function would hide it.
_FUNCTIONS = {"export": "exporting"}
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
