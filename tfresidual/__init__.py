"""Residual networks for Keras 3: build them, train them, probe their blocks.

Layers, networks and training run on every backend of Keras; probing runs on TensorFlow. `import
tfresidual` loads what is needed to open a saved network; the other parts are loaded when they are
first used.
"""

import importlib
import sys
from typing import TYPE_CHECKING

from tfresidual.machine import quiet

# The command line answers `--help`, and chooses Keras' backend, before Keras is loaded.
if "tfresidual_cli" not in sys.modules and sys.argv[:1] != ["-m"]:
    with quiet.quietly():
        from tfresidual import layers as layers
        from tfresidual import networks as networks
        from tfresidual import training as training

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
    from tfresidual import surgery as surgery
    from tfresidual import tuning as tuning
    from tfresidual.routing import routes as routes
    from tfresidual.sources import chain as chain
    from tfresidual.sources.exporting import export as export

__version__ = "0.1.0"

# Functions and modules that are not parts themselves, and where they are. A module with the name of
# its function would hide it.
_ELSEWHERE = {"chain": "sources", "export": "sources.exporting", "routes": "routing"}
_PARTS = (
    "callbacks",
    "datasets",
    "jobs",
    "layers",
    "networks",
    "plots",
    "probes",
    "report",
    "routing",
    "sources",
    "surgery",
    "training",
    "tuning",
)

__all__ = [*_ELSEWHERE, *_PARTS]


def __getattr__(name):
    if name not in _ELSEWHERE and name not in _PARTS:
        raise AttributeError(f"module 'tfresidual' has no attribute {name!r}")
    try:
        if name in _PARTS:
            return importlib.import_module(f"tfresidual.{name}")
        return getattr(importlib.import_module(f"tfresidual.{_ELSEWHERE[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "tensorflow":
            raise
        raise ImportError(
            f"`tfresidual.{name}` needs TensorFlow, which is not installed: pip install tensorflow"
        ) from error


def __dir__():
    return sorted([*globals(), *_ELSEWHERE, *_PARTS])
