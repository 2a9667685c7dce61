"""How deep a network must be."""

import importlib

from tfresidual.tuning.stopping_rule import depth_for

_FILES = {
    "DepthOracle": "depth_oracle",
    "DepthSearch": "depth_search",
    "Outcome": "trace",
    "SearchError": "workers",
    "blocks": "depth_oracle",
    "interleave": "warm_start",
    "outcomes_of": "trace",
    "read_search": "trace",
    "supervise": "workers",
    "trace_of": "trace",
}

__all__ = ["depth_for", *_FILES]


def __getattr__(name):
    # keras-tuner is imported when it is first needed.
    if name not in _FILES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_FILES[name]}"), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
