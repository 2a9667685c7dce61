"""Search for the depth that a network needs."""

import tfresidual.machine.on_tensorflow  # noqa: F401
from tfresidual.probes.stopping_rule import depth_for
from tfresidual.tuning.as_built import distances_as_built
from tfresidual.tuning.depth_oracle import DepthOracle, blocks
from tfresidual.tuning.depth_search import DepthSearch
from tfresidual.tuning.trace import Outcome, outcomes_of, read_search, trace_of
from tfresidual.tuning.warm_start import interleave
from tfresidual.tuning.workers import SearchError, run_workers

__all__ = [
    "DepthOracle",
    "DepthSearch",
    "Outcome",
    "SearchError",
    "blocks",
    "depth_for",
    "distances_as_built",
    "interleave",
    "outcomes_of",
    "read_search",
    "run_workers",
    "trace_of",
]
