"""How deep a network must be."""

from tfresidual.lazy import lazily
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

# keras-tuner is imported when it is first needed.
__getattr__, __dir__ = lazily(__name__, _FILES)
